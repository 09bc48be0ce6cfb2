"""A federation that lives through everything: `make soak`, or `python tests/soak.py --minutes 30 --output results/soak.json`.

A server, clients and hostile clients are processes of their own that talk over local sockets. Messages are dropped, damaged, repeated,
delayed and sent twice; server and clients are killed (SIGKILL) at random moments and started again from their files. In the end the network
is calm: every client exchanges once more, both sides must hold the same, and the model must be nearer to what the clients' data say than
the first one was (`distance_to_optimum` below 1). Nothing may be lost: the server finds its session at every start, the model has been through all
rounds that were counted, and no full model goes to a client that was in step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
CALM_SECONDS = 120.0


class Federation:
    """The processes, by name; whoever is killed starts again."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        from soaking import client, server

        self.context: Any = multiprocessing.get_context("forkserver")
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
        )  # for the fork server
        self.context.set_forkserver_preload(["soaking.server", "soaking.client"])
        self.clients = [f"c{i}" for i in range(options.clients)]
        quorum = max(1, options.clients // 2)
        self.jobs: dict[str, tuple[Any, tuple[Any, ...]]] = {"server": (server.run, (options.protocol, folder, quorum))}
        self.jobs |= {who: (client.run, (who, folder)) for who in self.clients}
        self.jobs |= {f"h{i}": (client.run_hostile, (f"h{i}", folder)) for i in range(options.hostile)}
        self.processes: dict[str, Any] = {}
        for name in self.jobs:
            self.start(name)

    def start(self, name: str) -> None:
        target, arguments = self.jobs[name]
        self.processes[name] = self.context.Process(target=target, args=arguments, daemon=True)
        self.processes[name].start()

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].join()
        self.start(name)

    def died(self) -> list[str]:
        """Who ended without having been told to."""
        return [name for name, process in self.processes.items() if process.exitcode not in (None, 0)]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()


def storm(federation: Federation, options: argparse.Namespace, rng: random.Random) -> tuple[dict[str, int], list[str]]:
    """Kill at random until time is over, or somebody dies of something else."""
    kills, end = {"server": 0, "clients": 0}, time.monotonic() + 60 * options.minutes
    begin = next_word = time.monotonic()
    while time.monotonic() < end:
        time.sleep(min(rng.expovariate(1 / options.pause), max(0.0, end - time.monotonic())))
        if died := federation.died():
            return kills, died
        who = "server" if rng.random() < 0.3 else rng.choice(federation.clients)
        federation.kill(who)
        kills["server" if who == "server" else "clients"] += 1
        if time.monotonic() > next_word:
            print(f"{time.monotonic() - begin:.0f} s, {sum(kills.values())} kills", file=sys.stderr, flush=True)
            next_word = time.monotonic() + 15
    return kills, []


def calmed(federation: Federation, folder: Path) -> bool:
    """Every client exchanges undisturbed and finds that both sides hold the same."""
    (folder / "calm").touch()
    for who in federation.clients:
        federation.processes[who].join(CALM_SECONDS)
    return all(federation.processes[who].exitcode == 0 for who in federation.clients)


def distance_to_optimum(model: dict[str, Any], options: argparse.Namespace) -> float:
    """Between the server's model and the mean of what the clients want, relative to that mean."""
    import numpy as np

    from soaking.client import target
    from soaking.server import SHAPES

    targets = [target(f"c{i}") for i in range(options.clients)]
    best = {name: np.mean([wanted[name] for wanted in targets], axis=0) for name in SHAPES}
    away = sum(float(np.sum((model[name] - best[name]) ** 2)) for name in SHAPES)
    return (away / sum(float(np.sum(best[name] ** 2)) for name in SHAPES)) ** 0.5


def lost(result: dict[str, Any]) -> list[str]:
    """What must not be lost, and was."""
    server, clients = result["server"], result["network_and_clients"]
    found = {
        f"{clients.get('unusable_states')} states of clients": clients.get("unusable_states", 0) > 0,
        f"the session, {server.get('began_anew', 0) - 1} times": server.get("began_anew", 0) != 1,
        f"rounds: {server.get('rounds', 0)} were counted": result["rounds_of_the_model"] < server.get("rounds", 0),
        f"{server.get('needless', 0)} clients that were in step": server.get("needless", 0) > 0,
    }
    return [what for what, is_so in found.items() if is_so]


def run(options: argparse.Namespace) -> int:
    from perbit.files import write_json
    from soaking.counters import total
    from soaking.server import reopened

    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start, federation = time.monotonic(), Federation(options, folder)
        try:
            kills, died = storm(federation, options, random.Random(seed))
            agreed = not died and calmed(federation, folder)
        finally:
            federation.end()
        model = reopened(options.protocol, folder).tensors
        result: dict[str, Any] = {
            "minutes": round((time.monotonic() - start) / 60, 1),
            "protocol": options.protocol,
            "clients": options.clients,
            "hostile": options.hostile,
            "kills": kills,
            "server": total(folder, "server.counters"),
            "network_and_clients": total(folder, "c*.counters"),
            "hostile_messages": total(folder, "h*.counters").get("hostile", 0),
            "rounds_of_the_model": int(model["rounds"]),
            "distance_to_optimum": round(distance_to_optimum(model, options), 4),
            "died": died,
            "unexpected": (folder / "unexpected.log").read_text().splitlines()
            if (folder / "unexpected.log").exists()
            else [],
        }
    result["lost"] = lost(result)
    result["passed"] = agreed and not result["unexpected"] and not result["lost"] and result["distance_to_optimum"] < 1
    for key, value in result.items():
        print(f"{key}: {value}")
    if options.output:
        write_json(options.output, result)
    return 0 if result["passed"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="A federation of processes that are killed all the time.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--hostile", type=int, default=1)
    parser.add_argument("--protocol", default="federated", help="a preset of perbit.presets")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two kills, on average")
    parser.add_argument("--seed", type=int, help="of who is killed when")
    parser.add_argument("--output", type=Path, help="write the counts to this JSON file")
    sys.path.insert(0, str(TESTS))
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
