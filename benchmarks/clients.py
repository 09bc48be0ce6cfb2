"""What a server of many clients needs: memory, time a message, bytes. Real frames; the clients live in a process of their own.

    python benchmarks/clients.py             the three settings below; about twenty minutes on one core
    python benchmarks/clients.py --quick     a tenth of the clients, a fifth of the rounds

    many     100 000 clients, 50 000 parameters, 0.2 % a round, 200 rounds: federated, double_squeeze, fedavg_topk_ef
    memory    10 000 clients, the same otherwise, 2 % a round: mcm, predicted_feedback, their memories on disk
    large      1 000 clients, 1 000 000 parameters, 10 % a round, 20 rounds: the table of the engines' review

`models` is by how many models of float32 the server's process grew after the first round, less 500 bytes a client.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing as mp
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from perbit.files import write_atomically
from perbit.protocols import presets
from perbit.protocols.downlinks import Followed, Versions
from perbit.session import ClientSession, ServerSession
from perbit.session.once import Once

BYTES_A_CLIENT = 500


@dataclass(frozen=True)
class Setting:
    name: str
    protocol: str
    clients: int
    parameters: int
    share: float
    rounds: int
    on_disk: bool = False

    @property
    def a_round(self) -> int:
        return max(1, round(self.clients * self.share))

    def present(self) -> list[list[int]]:
        """Who takes part in each round."""
        rng = np.random.default_rng(0)
        return [[int(i) for i in rng.choice(self.clients, self.a_round, replace=False)] for _ in range(self.rounds)]

    def model(self) -> dict[str, Any]:
        rng, side = np.random.default_rng(1), 500
        return {"w": rng.normal(scale=0.05, size=(self.parameters // side, side)).astype(np.float32)}


MANY = [
    Setting("many", name, 100_000, 50_000, 0.002, 200) for name in ("federated", "double_squeeze", "fedavg_topk_ef")
]
MEMORY = [Setting("memory", name, 10_000, 50_000, 0.02, 200, True) for name in ("mcm", "predicted_feedback")]
LARGE = [
    Setting("large", name, 1000, 1_000_000, 0.1, 20, name in ("mcm", "rand_mcm", "predicted_feedback"))
    for name in ("federated", "mcm", "rand_mcm", "predicted_feedback", "double_squeeze")
]


def clients(setting: Setting, pipe: Any) -> None:
    """The other process: each client receives, pretends to train, and answers; who never comes back is let go."""
    left = Counter(i for present in setting.present() for i in present)
    held: dict[int, Any] = {}
    shared, rng = Once(), np.random.default_rng(2)
    noise = {name: rng.normal(scale=0.01, size=x.shape).astype(np.float32) for name, x in setting.model().items()}
    while (message := pipe.recv()) is not None:
        i, frame, is_new_round = message
        if is_new_round:
            shared.clear()
        client = ClientSession(shared=shared)
        client.state = held.pop(i, None)
        received = client.receive(frame)
        pull = {name: 0.1 * x + np.roll(noise[name], i) for name, x in received.items()}
        pipe.send_bytes(client.reply(update=pull))
        left[i] -= 1
        if left[i]:
            held[i] = client.state


def run(setting: Setting) -> dict[str, Any]:
    """Play all rounds and measure the server."""
    here, there = mp.Pipe()
    process = mp.get_context("fork").Process(target=clients, args=(setting, there), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder:
        protocol = presets.protocol_of(setting.protocol)
        protocol = replace(protocol, folder=folder) if setting.on_disk else protocol
        server = ServerSession(protocol, seed=0, population=setting.clients, absent="ignored")  # it steps by itself
        server.publish(setting.model())
        row = _play(setting, server, here)
    here.send(None)
    process.join(60)
    return row


def _play(setting: Setting, server: ServerSession, pipe: Any) -> dict[str, Any]:
    busy = down = up = n_messages = peak = 0.0
    seen: set[int] = set()
    full = start = 0
    for number, present in enumerate(setting.present()):
        for turn, i in enumerate(present):
            began = time.process_time()
            frame = server.send(i)
            busy += time.process_time() - began
            pipe.send((i, frame, turn == 0))
            answer = pipe.recv_bytes()
            began = time.process_time()
            server.receive(i, answer)
            busy += time.process_time() - began
            down, up, n_messages = down + len(frame), up + len(answer), n_messages + 1
            full += len(frame) > 4 * setting.parameters
            if 2 * turn == setting.a_round and number:
                peak = max(peak, _resident())
        began = time.process_time()
        server.step(1.0)
        busy += time.process_time() - began
        seen |= set(present)
        if number == 0:
            start = _resident()
        peak = max(peak, _resident())
    model_bytes = 4 * setting.parameters
    grown = peak - start
    return {
        **{
            "setting": setting.name,
            "protocol": setting.protocol,
            "clients": setting.clients,
            "heard": len(seen),
            "table_keeps": _table(server),
        },
        **{"parameters": setting.parameters, "rounds": setting.rounds, "messages": int(n_messages)},
        "models": round((grown - BYTES_A_CLIENT * len(seen)) / model_bytes, 1),
        "grown_mb": round(grown / 1e6, 1),
        "ms_a_message": round(1000 * busy / n_messages, 2),
        "down_kb_a_message": round(down / n_messages / 1e3, 1),
        "up_kb_a_message": round(up / n_messages / 1e3, 1),
        "full_models_sent": full,
    }


def _table(server: ServerSession) -> int:
    """How many references the downlink keeps at the most; 0 for those without a table."""
    downlink = server.protocol.downlink
    return downlink.keep if isinstance(downlink, Versions | Followed) else 0


def _resident() -> int:
    """The server's memory in use, with what is free given back first."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="run only settings whose name or protocol contains this")
    parser.add_argument("--quick", action="store_true", help="a tenth of the clients, a fifth of the rounds")
    parser.add_argument("-o", "--output", type=Path, default=Path("results/clients.json"))
    options = parser.parse_args()
    settings = [s for s in (*MANY, *MEMORY, *LARGE) if options.only in (None, s.name, s.protocol)]
    if options.quick:
        settings = [replace(s, clients=s.clients // 10, rounds=s.rounds // 5) for s in settings]
    for setting in settings:
        row = run(setting)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
        if not options.quick:
            _write(options.output, row)


def _write(path: Path, row: dict[str, Any]) -> None:
    """Replace this row of the file, or add it, in the order of the settings."""
    rows = json.loads(path.read_text()) if path.exists() else []
    found = {(old["setting"], old["protocol"]): old for old in (*rows, row)}
    order = [(setting.name, setting.protocol) for setting in (*MANY, *MEMORY, *LARGE)]
    text = json.dumps([found[key] for key in order if key in found], indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


if __name__ == "__main__":
    main()
