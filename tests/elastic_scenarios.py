"""Workers that come and go in tests/test_elastic.py: functions that a fresh process can import, and the hand that kills them."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchft.coordination import LighthouseServer

from perbit.outer import elastic

SECONDS = 600  # nothing takes nearly as long on a machine that is free


class Mischief:
    """What befalls a worker's messages, by files that the test lays down: it strikes once."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def strikes(self, what: str) -> bool:
        path = self.folder / f"{self.name}.{what}"
        if found := path.exists():
            path.unlink()
        return found

    def befall(self) -> None:
        """Every message of another worker arrives at this one with a wrong byte, or this one dies between its two collectives."""
        gather = elastic.QuorumGroup.gather

        def gathered(group: elastic.QuorumGroup, message: Any, channel: int) -> list[Any]:
            if channel == 1 and self.strikes("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            arrived = gather(group, message, channel)
            if channel == 0 and group.world > 1 and self.strikes("damage"):
                other = (group.rank + 1) % group.world
                damaged = bytearray(arrived[other])
                damaged[len(damaged) // 2] ^= 4
                arrived[other] = bytes(damaged)
            return arrived

        elastic.QuorumGroup.gather = gathered  # type: ignore[method-assign]


def work(folder: Path, name: str, lighthouse: str) -> None:
    """Train until the file `stop` is there; a line for every round."""
    torch.set_num_threads(1)
    Mischief(folder, name).befall()
    torch.manual_seed(os.getpid())
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outer = elastic.ElasticSteps(
        model,
        "topk(0.1) | qsgd(15) | rans",
        lighthouse=lighthouse,
        every=4,
        host="127.0.0.1",
        timeout=5,
        patience=SECONDS,
    )
    with (folder / f"{name}.log").open("w") as log:
        write(log, outer)
        while not (folder / "stop").exists():
            time.sleep(0.02)
            optimizer.zero_grad()
            model(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
            if outer.step():
                write(log, outer)
    outer.close()


def write(log: Any, outer: elastic.ElasticSteps) -> None:
    numbers = {key: outer.metrics()[key] for key in ("step", "workers", "left_out", "taken_over", "memory_norm")}
    equal = all(bool((outer.model.local[name] == x).all()) for name, x in outer.model.shared.items())
    log.write(json.dumps({**numbers, "pid": os.getpid(), "digest": outer.model.digest(), "holds_shared": equal}) + "\n")
    log.flush()


class Watched:
    """Workers that write a line for every round into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def befall(self, name: str, what: str) -> None:
        (self.folder / f"{name}.{what}").touch()

    def rounds(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.log"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, what: str, condition: Any) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}; {self.last()}"
            time.sleep(0.1)

    def until_together(self, *names: str) -> None:
        """Until all of these have ended two rounds from now on in which they were all, and no others."""
        since = {name: len(self.rounds(name)) for name in names}
        self.until(
            f"{names} together",
            lambda: all(
                sum(row["workers"] == len(names) for row in self.rounds(name)[n:]) >= 2 for name, n in since.items()
            ),
        )

    def last(self) -> dict[str, list[dict[str, Any]]]:
        """The last rounds of everybody."""
        return {path.stem: self.rounds(path.stem)[-2:] for path in sorted(self.folder.glob("*.log"))}


class Workers(Watched):
    """A lighthouse, and workers that the test starts, kills, stops and watches."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lighthouse = lighthouse()
        self.address = f"http://127.0.0.1:{self.lighthouse.address().rsplit(':', 1)[1]}"
        self.context: ForkServerContext = mp.get_context("forkserver")
        self.context.set_forkserver_preload(["perbit.outer.elastic", "elastic_scenarios"])
        self.processes: dict[str, ForkServerProcess] = {}

    def start(self, *names: str) -> None:
        for name in names:
            process = self.context.Process(target=work, args=(self.folder, name, self.address), daemon=True)
            process.start()
            self.processes[name] = process

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self.processes[name].pid
        assert pid is not None
        os.kill(pid, number)

    def close(self) -> None:
        (self.folder / "stop").touch()
        for process in self.processes.values():
            process.kill()
            process.join(20)
        self.lighthouse.shutdown()


def lighthouse(bind: str = "[::]:0") -> LighthouseServer:
    """One that soon notices who is gone."""
    return LighthouseServer(bind=bind, min_replicas=1, join_timeout_ms=2000, heartbeat_timeout_ms=3000)
