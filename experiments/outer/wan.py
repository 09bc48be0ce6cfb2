"""Four workers behind slow links: a language model's loss against wall-clock time, and how long training stands still.

    sudo python experiments/outer/wan.py                 time to a loss over 10 Mbit/s        results/outer_wan.json, .png
    sudo python experiments/outer/wan.py --overlap       streaming against one exchange over 25 Mbit/s

Every worker is a process in a network namespace of its own with a link of its own (experiments/wan/links.py). Model, data, batches and local
optimizer are those of grid.py, with a wider model. The clock stops while the loss is measured. A method ends when it has reached the goal, or
after its last step. The goals were stated before the first run:

- ours reaches a loss of 2.2 in at most 1/20 of the time of DDP in float32, and in at most 1/3 of that of DiLoCo in float32;
- streaming (four fragments, a delay) stands still for at most a quarter of the share of time that the same exchanges take without it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import perbit
from perbit.files import write_json
from perbit.report.style import COLOURS, MARKERS, picture

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "wan")]
from grid import LOCAL, OUTER_RATE, WORKERS, Run, Text  # noqa: E402
from links import Links, require  # noqa: E402

WIDTH, DEPTH = 192, 3  # 1.4 million values
EVERY, GOAL, LOOK = 15, 2.2, 15  # local steps of a round; the loss to reach; steps between two looks at it
MOST_STEPS = 1500
FASTER_THAN = {"ddp": 20, "diloco": 3}
METHODS = ("ours", "sparseloco", "diloco", "powersgd", "ddp")
OVERLAP_STEPS, OVERLAP_EVERY, SHARE = 240, 60, 0.25
OVERLAP = {  # the same bytes: four bits a value
    "at once": {"spec": "qsgd(7) | rans", "rate": OUTER_RATE, "momentum": 0.9},
    "streaming": {"spec": "qsgd(7) | rans", "rate": OUTER_RATE, "momentum": 0.9, "fragments": 4, "delay": 14, "keep": 0.5},
}  # fmt: skip
PORT = "29579"


def trained(method: str, text: Text) -> dict[str, Any]:
    """Seconds and loss at every look, until the goal is reached."""
    run = Run(method, EVERY if method in LOCAL else 1, 0, {}, text, width=WIDTH, depth=DEPTH, steps=MOST_STEPS)
    curve, seconds, reached = [], 0.0, None
    for number in range(MOST_STEPS):
        begin = time.perf_counter()
        run.step(number)
        seconds += time.perf_counter() - begin
        if (number + 1) % LOOK == 0:
            loss = run.loss()  # of the shared model: looks come at the ends of rounds
            curve.append((round(seconds, 3), loss))
            if loss <= GOAL:
                reached = seconds
                break
    steps = LOOK * len(curve)
    sent = run.sent_bytes(steps)
    return {
        "method": method,
        "values": run.n,
        "steps": steps,
        "seconds_to_goal": reached,
        "bytes": sent,
        "curve": curve,
    }


def overlapped(name: str, text: Text) -> dict[str, Any]:
    """How much of the time of training an exchange made it wait."""
    run = Run("diloco", OVERLAP_EVERY, 0, OVERLAP[name], text, width=WIDTH, depth=DEPTH)
    begin = time.perf_counter()
    for number in range(OVERLAP_STEPS):
        run.step(number)
    seconds, metrics = time.perf_counter() - begin, run.outer.metrics()
    return {
        "name": name,
        "seconds": seconds,
        "stalled_seconds": metrics["stalled_seconds"],
        "share": metrics["stalled_seconds"] / seconds,
        "bytes": metrics["total_bytes"],
        "loss": run.loss(),
    }


def worker(what: str, name: str, output: Path) -> None:
    torch.set_num_threads(1)
    perbit.set_threads(1)
    dist.init_process_group("gloo")
    row = (overlapped if what == "overlap" else trained)(name, Text())
    dist.barrier()
    if dist.get_rank() == 0:
        output.write_text(json.dumps(row))
    dist.destroy_process_group()


def behind_links(what: str, name: str, mbit: float) -> dict[str, Any]:
    """What the first of four workers measured."""
    with Links(clients=WORKERS, mbit=mbit) as links, tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "row.json"
        command = [sys.executable, __file__, "--worker", what, name, str(output)]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(WORKERS),
            "MASTER_ADDR": links.address(0),
            "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(WORKERS):
                ranks.append(subprocess.Popen(links.command(rank, command), env=environment | {"RANK": str(rank)}))
            if any(rank.wait() for rank in ranks):
                raise SystemExit("a worker failed")
            counted = links.sent_bytes(0)
        finally:
            for process in ranks:
                process.kill()
        row: dict[str, Any] = json.loads(output.read_text())
        return {**row, "bytes_on_link": counted}


def time_to_goal(mbit: float, methods: list[str], output: Path) -> None:
    """Runs of before are kept, so that the slow ones need not be run again."""
    found = json.loads(output.read_text()) if output.is_file() else {}
    rows = found.get("time_to_goal", {}).get("rows", {})
    for method in methods:
        rows[method] = row = {**behind_links("train", method, mbit), "load": os.getloadavg()[0]}
        reached = row["seconds_to_goal"]
        said = f"a loss of {GOAL} after {reached:.1f} s" if reached else f"not there after {row['curve'][-1][0]:.0f} s"
        print(f"{method:<12}{said}, {row['steps']} steps, {row['bytes_on_link'] / 1e6:.2f} MB", flush=True)
        content = {
            "mbit": mbit,
            "goal": GOAL,
            "every": EVERY,
            "workers": WORKERS,
            "rows": rows,
            "verdicts": verdicts(rows),
        }
        write_json(output, {**found, "time_to_goal": content})
    print("\n".join(verdicts(rows)))
    draw(output.with_suffix(".png"), rows, mbit)


def verdicts(rows: dict[str, dict[str, Any]]) -> list[str]:
    if not rows.get("ours", {}).get("seconds_to_goal"):
        return ["ours did not reach the goal"]
    ours = rows["ours"]["seconds_to_goal"]
    said = []
    for rival, times in FASTER_THAN.items():
        if rival in rows:
            theirs, least = rows[rival]["seconds_to_goal"], ""
            if theirs is None:
                theirs, least = rows[rival]["curve"][-1][0], "more than "
            held = "holds" if theirs / ours >= times else "does not hold" if not least else "not decided"
            said.append(f"ours is {least}{theirs / ours:.1f} times faster than {rival} (to hold: {times}): {held}")
    return said


def draw(path: Path, rows: dict[str, dict[str, Any]], mbit: float) -> None:
    with picture(path) as figure:
        axis = figure.axes[0]
        for row, colour, marker in zip(rows.values(), COLOURS, MARKERS, strict=False):
            axis.plot(*zip(*row["curve"], strict=True), color=colour, marker=marker, markersize=3, label=row["method"])
        axis.axhline(GOAL, color="#888888", linestyle=":")
        axis.set(xscale="log", xlabel="seconds of training (log scale)", ylabel="held-out loss")
        axis.set_title(f"{WORKERS} workers, {mbit:g} Mbit/s each")
        axis.legend()


def overlap(mbit: float, output: Path) -> None:
    found = json.loads(output.read_text()) if output.is_file() else {}
    rows = {name: behind_links("overlap", name, mbit) for name in OVERLAP}
    for name, row in rows.items():
        print(f"{name:<10}{row['seconds']:7.1f} s, {row['share']:.1%} of it waiting, loss {row['loss']:.3f}")
    ratio = rows["streaming"]["share"] / rows["at once"]["share"]
    verdict = f"streaming waits for {ratio:.2f} of the share without it (to hold: {SHARE}): {'holds' if ratio <= SHARE else 'does not hold'}"
    print(verdict)
    write_json(
        output, {**found, "overlap": {"mbit": mbit, "rows": rows, "verdict": verdict, "load": os.getloadavg()[0]}}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, help="10; with --overlap 25")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("results/outer_wan.json"))
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker[0], given.worker[1], Path(given.worker[2]))
        return
    require()
    if given.overlap:
        overlap(given.mbit or 25, given.output)
    else:
        time_to_goal(given.mbit or 10, given.methods, given.output)


if __name__ == "__main__":
    main()
