"""Real processes in one gloo group on loopback, kept for many tests: starting them costs more than what they do."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PRELOADED = ["perbit.engines.ddp", "perbit.engines.fsdp", "perbit.sim.data", "sklearn.datasets", "torch._dynamo"]
SECONDS = 300  # no scenario takes nearly as long, even on cores that many share: whoever waits longer waits for ever


class Ranks:
    """`world` processes; `run` calls a function on all of them and gives their results in the order of ranks.

    `timeout`: how long their collectives wait for each other; None for torch's own.
    """

    def __init__(self, world: int, timeout: timedelta | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")  # torch is imported once, not once for each rank
        context.set_forkserver_preload(PRELOADED)
        rendezvous = f"file://{Path(self.folder.name) / 'rendezvous'}"
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, world, rendezvous, timeout, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = [self._answer(rank) for rank in range(len(self.pipes))]
        if failures := [f"rank {rank}: {text}" for rank, (ok, text) in enumerate(answers) if not ok]:
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        if not self.pipes[rank].poll(SECONDS):
            return False, "no answer"
        answer: tuple[bool, Any] = self.pipes[rank].recv()
        return answer

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
        self.folder.cleanup()


def _serve(rank: int, world: int, rendezvous: str, timeout: timedelta | None, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timeout)
    while (task := pipe.recv()) is not None:
        function, arguments = task
        try:
            pipe.send((True, function(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
