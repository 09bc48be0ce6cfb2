"""What a server holds of ten thousand clients: `python benchmarks/session_memory.py` writes results/session_memory.json.

Every client takes part; a fifth of the messages is never answered. Measured are the bytes that the session counts (`memory_used`) and the
growth of the whole process, at its largest, beside the limit. Clients are real, but their states go to files between messages.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from perbit.channels.packing import restore, save
from perbit.files import write_json
from perbit.session import ClientSession, ResyncNeeded, ServerSession, protocol_of
from perbit.session.clientfiles import _TYPES
from perbit.session.held import Holding

PAGE = os.sysconf("SC_PAGE_SIZE")
RESULT = Path(__file__).parents[1] / "results" / "session_memory.json"


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def played(preset: str, memory: str | None, on_disk: bool, args: argparse.Namespace) -> dict[str, Any]:
    rng, started = np.random.default_rng(0), time.perf_counter()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        homes, folder = Path(name) / "clients", Path(name) / "server" if on_disk else None
        homes.mkdir()
        server = ServerSession(
            protocol_of(preset, up="topk(0.05)"), 0, memory=memory, folder=folder, max_clients=args.clients
        )
        model = rng.normal(size=(args.values // 100, 100)).astype(np.float32)
        server.publish({"w": model})
        before, most_held, most_resident, fulls, sent, met = resident(), 0, 0, 0, 0, set()
        for round_ in range(args.rounds):
            here = (round_ * args.present + np.arange(args.present)) % args.clients
            if round_ * args.present >= args.clients:  # after everybody came once, whoever comes
                here = rng.choice(args.clients, args.present, replace=False)
            for who in map(int, here):
                client, path = ClientSession(), homes / f"{who}.npz"
                if path.exists():
                    client.state = restore(path, (Holding, *_TYPES))
                frame = server.send(who)
                try:
                    got = client.receive(frame)
                except ResyncNeeded:
                    frame = server.resync(who)
                    got = client.receive(frame)
                fulls, sent = fulls + server.is_full(frame), sent + 1
                answer = client.reply({"w": got["w"] + 0.01 * rng.normal(size=got["w"].shape).astype(np.float32)})
                met.add(who)
                if rng.random() >= args.dropouts:
                    server.receive(who, answer)
                    save(path, client.state)
                most_held, most_resident = max(most_held, server.memory_used), max(most_resident, resident())
            model = model + 0.01 * rng.normal(size=model.shape).astype(np.float32)
            server.publish({"w": model})
        row = {
            "protocol": preset,
            "memory": memory,
            "on_disk": on_disk,
            "clients": args.clients,
            "clients_that_took_part": len(met),
            "clients_known_at_the_end": len(server._clients),
            "rounds": args.rounds,
            "clients_a_round": args.present,
            "dropouts": args.dropouts,
            "model_bytes": model.nbytes,
            "limit_bytes": server.memory,
            "counted_bytes_at_most": most_held,
            "process_growth_at_most": most_resident - before,
            "full_models": fulls,
            "messages": sent,
            "seconds": round(time.perf_counter() - started, 1),
        }
        server.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--present", type=int, default=60, help="clients in a round")
    parser.add_argument("--dropouts", type=float, default=0.2, help="share of messages that are never answered")
    parser.add_argument("--values", type=int, default=10_000, help="of the model")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    settings = [("mcm", "64 MB", False), ("federated", "64 MB", False), ("mcm", "64 MB", True)]
    rows = []
    for setting in settings:
        rows.append(played(*setting, args))
        print(rows[-1], flush=True)
        write_json(args.output, {"command": "python benchmarks/session_memory.py", "rows": rows})


if __name__ == "__main__":
    main()
