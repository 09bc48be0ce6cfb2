"""Workers that are killed, return, come late, are cut off, and read damaged frames, again and again: what is left of the training.

    python experiments/outer/failures.py [--cycles 2] [--output results/outer_failures.json]     what is not in the JSON yet, then the verdicts

Up to four workers train grid.py's GPT, smaller, with `ElasticSteps` and the settings of the preset `rd`. Each is a process in a network namespace
of its own; torchft's lighthouse is in another. In every cycle, one after the other and to other workers each time:

- one is killed between rounds, the others go on, it comes back;
- one is killed within a round, after the frames and before the votes, the others go on, it comes back;
- one cannot read the frame of another, which counts for nobody in this round;
- one has its cable pulled out until the others have ended a round without it; the cable is plugged in again.

The fourth worker comes late, within the first cycle. Then all train on together for some rounds. The same number of rounds is then run undisturbed.

What must hold, stated before the first run: at every step all workers that ended it hold the same bits, and at the end all four do. Those who
are not struck never take over a model. The loss at the end is at most 2 % above that of the undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import perbit
import perbit.outer
from perbit.files import write_json
from perbit.outer.elastic import ElasticSteps

sys.path.extend(str(Path(__file__).parents[2] / part) for part in ("tests", "experiments/wan", "examples/outer"))
from gpt import GPT, Text, loss_of
from links import Links, require

from elastic_scenarios import Mischief, Watched, lighthouse, write

NAMES = ("a", "b", "c", "d")
WIDTH, DEPTH, LENGTH, BATCH, EVERY, RATE, WARM_UP = 64, 2, 64, 4, 10, 2e-3, 40
PAUSE = 0.03  # seconds after each local step: a round is longer than a moment, as elsewhere
TOGETHER = 10  # rounds at the end
MBIT, PORT = 100, 29510
PRESET = perbit.outer.PRESETS["rd"]
LOSS_BAR = 1.02


# --- what a worker does -----------------------------------------------------------------------------------------------


def work(folder: Path, name: str, address: str, host: str, least: int) -> None:
    """With no fewer workers than `least`, train until the round that the file `stop` says; then the loss and the digest of what is shared."""
    torch.set_num_threads(1)
    perbit.set_threads(1)
    Mischief(folder, name).befall()
    torch.manual_seed(0)
    text, number = Text(), NAMES.index(name)
    model = GPT(text.symbols, LENGTH, width=WIDTH, depth=DEPTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    outer = ElasticSteps(
        model,
        PRESET.spec,
        lighthouse=address,
        every=EVERY,
        outer=PRESET.outer,
        error_feedback=PRESET.error_feedback,
        apart=PRESET.apart,
        host=host,
        min_workers=least,
        timeout=5,
        patience=300,
    )
    with (folder / f"{name}.log").open("a") as log:
        write(log, outer)
        while outer.kept.step < last_round(folder):
            local = outer.kept.step * EVERY + outer.n_local
            random = torch.Generator().manual_seed(10_000_000 * number + local)
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, (local + 1) / WARM_UP)
            x, y = text.batch(BATCH, LENGTH, number, len(NAMES), random)
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
            time.sleep(PAUSE)
            if outer.step():
                write(log, outer)
    with outer.model.lent(), torch.no_grad():
        x, y = text.test(128, LENGTH)
        ended = {"loss": float(loss_of(model(x), y)), "digest": outer.model.digest(), "step": outer.kept.step}
    write_json(folder / f"{name}.json", ended)
    outer.close()
    os._exit(0)  # threads of the last quorum do not matter any more


def last_round(folder: Path) -> float:
    path = folder / "stop"
    return int(path.read_text()) if path.exists() else float("inf")


# --- what befalls them ------------------------------------------------------------------------------------------------


class Sites(Watched):
    """Each worker in a namespace of its own, and a lighthouse that all of them reach."""

    def __init__(self, folder: Path, links: Links) -> None:
        super().__init__(folder)
        self.links, self.processes = links, dict[str, subprocess.Popen[bytes]]()
        self.address = f"http://{links.server_address}:{PORT}"
        self.lighthouse = self._started(links.server_command([sys.executable, __file__, "--lighthouse"]), "lighthouse")

    def start(self, *names: str, least: int = 1) -> None:
        for name in names:
            client = NAMES.index(name)
            task = [str(self.folder), name, self.address, self.links.address(client), str(least)]
            command = self.links.command(client, [sys.executable, __file__, "--work", *task])
            self.processes[name] = self._started(command, name)

    def _started(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.err").open("ab") as err:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
            return subprocess.Popen(command, env=environment, stdout=err, stderr=err)

    def killed(self, name: str) -> None:
        """`ip netns exec` has become the worker itself."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def plug(self, name: str, way: str) -> None:
        self.links.set(NAMES.index(name), way)

    def stop_at(self, step: int) -> dict[str, dict[str, Any]]:
        """What all of them hold after this round."""
        write_json(self.folder / "stop", step)
        self.until("the end", lambda: all((self.folder / f"{name}.json").exists() for name in self.processes))
        return {name: json.loads((self.folder / f"{name}.json").read_text()) for name in self.processes}

    def close(self) -> None:
        for process in (*self.processes.values(), self.lighthouse):
            process.kill()
            process.wait()


@contextmanager
def sites() -> Iterator[Sites]:
    with Links(clients=len(NAMES), mbit=MBIT, name="fail") as links, tempfile.TemporaryDirectory() as folder:
        made = Sites(Path(folder), links)
        try:
            yield made
        finally:
            made.close()


def disturbed(at: Sites, cycles: int) -> Iterator[dict[str, Any]]:
    """Every trouble, whom it struck, and the round in which all were together again."""
    troubles = (killed_between_rounds, killed_within_a_round, frame_damaged, cut_off)
    there = ["a", "b", "c"]
    at.start(*there)
    at.until_together(*there)
    for number in range(cycles * len(troubles)):
        if number == 2:
            at.start("d")
            there.append("d")
            at.until_together(*there)
            yield {"what": "came late", "who": "d", "struck": ["d"], "took_over": [], "together": step(at)}
        trouble = troubles[number % len(troubles)]
        who = there[(number + number // len(troubles)) % len(there)]  # in the next cycle the next one
        before = {name: len(at.rounds(name)) for name in there}
        struck = trouble(at, who, [name for name in there if name != who])
        at.until_together(*there)
        since = {name: at.rounds(name)[before[name] - 1 :] for name in there}
        yield {
            "what": trouble.__name__.replace("_", " "),
            "who": who,
            "struck": struck,
            "took_over": [name for name, rows in since.items() if took_over(rows)],
            "together": step(at),
        }


def killed_between_rounds(at: Sites, who: str, others: Sequence[str]) -> list[str]:
    """Most likely."""
    at.killed(who)
    at.until_together(*others)
    at.start(who)
    return [who]


def killed_within_a_round(at: Sites, who: str, others: Sequence[str]) -> list[str]:
    at.befall(who, "die")
    at.processes[who].wait()
    at.until_together(*others)
    at.start(who)
    return [who]


def frame_damaged(at: Sites, who: str, others: Sequence[str]) -> list[str]:
    everybody = (who, *others)
    before = {name: at.rounds(name)[-1]["left_out"] for name in everybody}
    at.befall(who, "damage")
    at.until("a frame is left out", lambda: any(at.rounds(n)[-1]["left_out"] > before[n] for n in everybody))
    return []


def cut_off(at: Sites, who: str, others: Sequence[str]) -> list[str]:
    at.plug(who, "down")
    at.until_together(*others)
    at.plug(who, "up")
    return [who]


def step(at: Sites) -> int:
    return max(int(at.rounds(name)[-1]["step"]) for name in at.processes)


# --- what is left -----------------------------------------------------------------------------------------------------


def differing(rounds: dict[str, list[dict[str, Any]]]) -> list[int]:
    """Steps after which not all held the same bits."""
    digests: dict[int, set[int]] = {}
    for rows in rounds.values():
        for row in rows:
            digests.setdefault(row["step"], set()).add(row["digest"])
    return [number for number, found in digests.items() if len(found) > 1]


def took_over(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a worker replaced the model it had by the others'; to have none, as after a start, is something else."""
    return any(row["pid"] == later["pid"] and row["taken_over"] < later["taken_over"] for row, later in pairwise(rows))


def unexpected(events: Sequence[dict[str, Any]]) -> list[str]:
    """Who took over a model without having been struck."""
    return sorted({name for event in events for name in set(event["took_over"]) - set(event["struck"])})


def verdicts(result: dict[str, Any]) -> Iterator[str]:
    run, loss, plain = result["disturbed"], of(result["disturbed"], "loss"), of(result["undisturbed"], "loss")
    holds = len({each["digest"] for each in run["ended"].values()}) == 1 and not run["differing"]
    yield f"{said(holds)}: after every one of {run['rounds']} rounds all hold the same bits"
    yield f"{said(not unexpected(run['events']))}: only those who were struck took over a model"
    yield f"{said(loss <= LOSS_BAR * plain)}: loss {loss:.3f}, undisturbed {plain:.3f} ({loss / plain - 1:+.2%})"


def of(run: dict[str, Any], what: str) -> Any:
    """What a run ended with; all workers say the same."""
    return next(iter(run["ended"].values()))[what]


def said(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def run_disturbed(cycles: int) -> dict[str, Any]:
    begin = time.perf_counter()
    with sites() as at:
        events = []
        for event in disturbed(at, cycles):
            events.append(event)
            print(f"round {event['together']}: all together after: {event['what']}, {event['who']}", flush=True)
        ended = at.stop_at(step(at) + TOGETHER)
        wrong = differing({name: at.rounds(name) for name in NAMES})
    run = {"events": events, "ended": ended, "differing": wrong, "minutes": (time.perf_counter() - begin) / 60}
    return {"rounds": of(run, "step"), "local_steps": of(run, "step") * EVERY, **run}


def run_undisturbed(rounds: int) -> dict[str, Any]:
    begin = time.perf_counter()
    with sites() as at:
        at.start(*NAMES, least=len(NAMES))
        ended = at.stop_at(rounds)
    return {"rounds": rounds, "ended": ended, "minutes": (time.perf_counter() - begin) / 60}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("results/outer_failures.json"))
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--lighthouse", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.lighthouse:
        _keep = lighthouse(f"[::]:{PORT}")
        signal.pause()
    elif given.work:
        folder, name, address, host, least = given.work
        work(Path(folder), name, address, host, int(least))
    else:
        require()
        result = json.loads(given.output.read_text()) if given.output.exists() else {}
        if "disturbed" not in result:
            result["disturbed"] = run_disturbed(given.cycles)
            write_json(given.output, result)
        if "undisturbed" not in result:
            result["undisturbed"] = run_undisturbed(result["disturbed"]["rounds"])
            write_json(given.output, result)
        print("\n".join(verdicts(result)))


if __name__ == "__main__":
    main()
