"""Four workers, each behind a slow link: how soon a small GPT has learned something, and what streaming hides.

    python experiments/outer/wan.py                  the runs that are not in the JSON yet, then the verdicts and the picture
    python experiments/outer/wan.py --seeds 0 --methods ours ddp
    python experiments/outer/wan.py --overlap        the share of time that training stands still, at 25 Mbit/s
    python experiments/outer/wan.py --verdicts       the verdicts on what is there

Every worker is a process in a network namespace of its own, whose link carries --mbit megabits a second each way (experiments/wan/links.py).
Model, data and training are those of grid.py, with 1.35 million values. The clock stops while the loss of the shared model is measured.

*The goal*, stated before the first run of these seeds: the loss that float32 DDP of the same seed has after half of its steps. A method is there
when its loss, measured every 15 steps, is no larger for the first time.

*Float32* takes seconds a step, so its runs are not made over the link. Its path has the same bits over any network: it is run on loopback
(`path`), and every step counts as long as a step over the link takes, the mean of some after a warm-up (`pace`). Float32 DiLoCo is timed in
two ways: as the preset sends frames, and with gloo's ring all-reduce in their place, which sends half as much between four workers. Claims
are judged against the faster one.

Four workers share the cores of one machine: with a machine each, local steps would be faster, and the link would weigh more. `load` is the machine's
load average at the end of a run: four, if nothing else ran.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grid
import torch
import torch.distributed as dist

from perbit.report.style import COLOURS, MARKERS, picture
from perbit.sim.verdicts import Claim

sys.path.insert(0, str(Path(__file__).parent.parent / "wan"))
import links
import pair

WIDTH, DEPTH, STEPS, EVERY, SEEDS = 192, 3, 300, 15, (0, 1, 2)
GOAL_STEP = STEPS // 2
WARM_UP, PACED = 2, 3  # steps of DDP, rounds of DiLoCo
RUN, PACE, PATH = "run", "pace", "path"
OVER_LINKS, FLOAT32 = ("ours", "sparseloco", "powersgd"), ("diloco", "ddp")
OUTPUT, OVERLAP_OUTPUT = Path("results/outer_wan.json"), Path("results/outer_overlap.json")
RING = "diloco, ring"
CLAIMS = {
    "ddp": (20, Claim("times sooner than float32 DDP, at least 20")),
    RING: (3, Claim("times sooner than float32 DiLoCo, at least 3")),
}

# The same codec at once, and in fragments that travel while training goes on.
OVERLAP_MBIT, OVERLAP_EVERY, OVERLAP_ROUNDS = 25.0, 30, 5
CODEC = {"spec": "qsgd(7) | rans"}
OVERLAPPED = {"at once": CODEC, "streaming": {**CODEC, "fragments": 4, "delay": 5, "keep": 0.5}}
OVERLAP_BAR = 0.25

Curve = Sequence[tuple[int, float, float]]  # local steps, seconds, loss
Runs = dict[str, dict[str, Any]]


# --- what a worker does -----------------------------------------------------------------------------------------------


def rank_main(what: str, method: str, every: int, seed: int, settings: dict[str, Any], output: Path) -> None:
    pair.join()
    run = grid.Run(method, every, seed, settings, grid.Text(), width=WIDTH, depth=DEPTH, steps=STEPS)
    row = {RUN: trained, PATH: trained, PACE: paced, "overlap": overlapped}[what](run, every)
    if dist.get_rank() == 0:
        output.write_text(json.dumps({"method": method, "every": every, "seed": seed, "values": run.n, **row}))
    dist.barrier()
    dist.destroy_process_group()


def lap(run: grid.Run, first: int, count: int) -> float:
    """Seconds that all workers together take for some steps."""
    dist.barrier()
    begin = time.perf_counter()
    for number in range(first, first + count):
        run.step(number)
    dist.barrier()
    return time.perf_counter() - begin


def trained(run: grid.Run, every: int) -> dict[str, Any]:
    curve, seconds = [], 0.0
    for first in range(0, STEPS, every):
        seconds += lap(run, first, every)
        if dist.get_rank() == 0:
            curve.append((first + every, seconds, run.loss()))
    stalled = run.outer.metrics()["stalled_seconds"] if run.outer else None
    return {"curve": curve, "bytes": run.sent_bytes(STEPS), "stalled_seconds": stalled}


def paced(run: grid.Run, every: int) -> dict[str, float]:
    """Seconds of a step, what is exchanged included; for DiLoCo also with a ring all-reduce in place of its frames."""
    unit = every if run.outer else 1
    lap(run, 0, WARM_UP * unit)
    before = run.outer.stalled_seconds if run.outer else 0.0
    seconds, count = lap(run, WARM_UP * unit, PACED * unit), PACED * unit
    if not run.outer:
        return {"step_seconds": seconds / count}
    local = seconds - (run.outer.stalled_seconds - before)
    values, rings = torch.zeros(run.n), 0.0
    for number in range(1 + PACED):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(values)
        rings += (time.perf_counter() - begin) * (number > 0)
    return {"step_seconds": seconds / count, "ring_step_seconds": (local + rings) / count}


def overlapped(run: grid.Run, every: int) -> dict[str, float]:
    """Means over the workers: for how long training stood still, and for how long exchanges waited for the network."""
    assert run.outer
    lap(run, 0, every)

    def spent() -> torch.Tensor:
        return torch.tensor([run.outer.stalled_seconds, run.outer.memory.traffic.seconds["wait"]])

    before = spent()
    seconds = lap(run, every, OVERLAP_ROUNDS * every)
    mean = (spent() - before) / grid.WORKERS
    run.outer.synchronize()  # a fragment may be under way
    dist.all_reduce(mean)
    return {"seconds": seconds, "stalled_seconds": float(mean[0]), "wait_seconds": float(mean[1])}


# --- what is run ------------------------------------------------------------------------------------------------------


def key(what: str, method: str, mbit: float, seed: int) -> str:
    """What a measurement depends on: a path on no link, a pace on no seed."""
    return {
        RUN: f"{method}, {mbit:g} Mbit/s, seed {seed}",
        PATH: f"{method}, path, seed {seed}",
        PACE: f"{method}, pace, {mbit:g} Mbit/s",
    }[what]


def planned(methods: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    for method in methods:
        if method in FLOAT32:
            yield PACE, method, seeds[0]
    for seed in seeds:
        for method in methods:
            yield PATH if method in FLOAT32 else RUN, method, seed


def launched(what: str, method: str, every: int, seed: int, settings: dict[str, Any], mbit: float) -> dict[str, Any]:
    behind = nullcontext() if what == PATH else links.Links(clients=grid.WORKERS, mbit=mbit, name="outer")
    with behind as made, tempfile.TemporaryDirectory() as folder:
        output, begin = Path(folder) / "row.json", time.perf_counter()
        task = json.dumps([what, method, every, seed, settings])
        pair.launch(__file__, ["--rank-task", task, "--rank-output", str(output)], made, grid.WORKERS)
        row: dict[str, Any] = json.loads(output.read_text())
    return {**row, "minutes": (time.perf_counter() - begin) / 60, "load": os.getloadavg()[0]}


def execute(output: Path, methods: Sequence[str], seeds: Sequence[int], mbit: float) -> None:
    for what, method, seed in planned(methods, seeds):
        name = key(what, method, mbit, seed)
        if name not in grid.read(output)["runs"]:
            row = launched(what, method, EVERY, seed, {}, mbit)
            grid.add(output, name, row)
            print(f"{name}: {row['minutes']:.1f} minutes", flush=True)


def execute_overlap(output: Path, seeds: Sequence[int], mbit: float) -> None:
    for seed in seeds:
        for way, settings in OVERLAPPED.items():
            name = f"{way}, {mbit:g} Mbit/s, seed {seed}"
            if name not in grid.read(output)["runs"]:
                row = launched("overlap", "diloco", OVERLAP_EVERY, seed, settings, mbit)
                grid.add(output, name, {**row, "settings": settings})
                print(f"{name}: {row['minutes']:.1f} minutes", flush=True)


# --- what follows -----------------------------------------------------------------------------------------------------


def replayed(path: Curve, step_seconds: float) -> Curve:
    """A path as it is over a link whose steps take so long."""
    return [(step, step * step_seconds, loss) for step, _, loss in path]


def curves(runs: Runs, mbit: float, seed: int) -> dict[str, Curve]:
    """Of all methods of a seed that are there."""
    found: dict[str, Curve] = {}
    for method in OVER_LINKS:
        if (name := key(RUN, method, mbit, seed)) in runs:
            found[method] = runs[name]["curve"]
    for method in FLOAT32:
        path, pace = runs.get(key(PATH, method, mbit, seed)), runs.get(key(PACE, method, mbit, seed))
        if path and pace:
            found[method] = replayed(path["curve"], pace["step_seconds"])
            if "ring_step_seconds" in pace:
                found[RING] = replayed(path["curve"], pace["ring_step_seconds"])
    return found


def goal_of(ddp: Curve) -> float:
    """The loss to be reached."""
    return next(loss for step, _, loss in ddp if step >= GOAL_STEP)


def seconds_to(curve: Curve, goal: float) -> float | None:
    """When a method is there; None if it never is."""
    return next((seconds for _, seconds, loss in curve if loss <= goal), None)


def verdicts(runs: Runs, mbit: float, seeds: Sequence[int]) -> Iterator[str]:
    times_sooner: dict[str, list[float]] = {against: [] for against in CLAIMS}
    for seed in seeds:
        of_seed = curves(runs, mbit, seed)
        if "ddp" not in of_seed:
            continue
        goal = goal_of(of_seed["ddp"])
        yield f"{mbit:g} Mbit/s, seed {seed}: seconds to a loss of {goal:.3f}, that of float32 DDP after {GOAL_STEP} steps"
        reached = {method: seconds_to(curve, goal) for method, curve in of_seed.items()}
        for method, curve in of_seed.items():
            at = "never" if reached[method] is None else f"{reached[method]:.0f} s"
            is_timed = ", path on loopback x pace over the link" * (method in (*FLOAT32, RING))
            yield f"  {method:<14}{at:>8}; loss {curve[-1][2]:.3f} after {curve[-1][0]} steps and {curve[-1][1]:.0f} s{is_timed}"
        for against, times in times_sooner.items():
            if (ours := reached.get("ours")) and (theirs := reached.get(against)):
                times.append(theirs / ours)
    for against, (bar, claim) in CLAIMS.items():
        if times := times_sooner[against]:
            yield f"{', '.join(f'{each:.1f}' for each in times)}; {claim.judged(times, [bar] * len(times))}"


def share(row: dict[str, Any], way: str) -> float:
    """Of the time. At once, only what was spent in collectives counts; streaming counts all for which training stood still."""
    waited: float = row["wait_seconds" if way == "at once" else "stalled_seconds"]
    return waited / row["seconds"]


def overlap_verdicts(runs: Runs, mbit: float, seeds: Sequence[int]) -> Iterator[str]:
    shares: dict[str, list[float]] = {way: [] for way in OVERLAPPED}
    for seed in seeds:
        rows = {way: runs.get(f"{way}, {mbit:g} Mbit/s, seed {seed}") for way in OVERLAPPED}
        for way, row in rows.items():
            if row and all(rows.values()):
                shares[way].append(share(row, way))
                yield f"{mbit:g} Mbit/s, seed {seed}, {way}: {row['seconds']:.1f} s, {shares[way][-1]:.1%} of them waiting"
    at_once, streaming = shares.values()
    if at_once:
        claim = Claim(f"of the share that waits at once, streaming waits for at most {OVERLAP_BAR}")
        yield str(claim.judged([OVERLAP_BAR] * len(at_once), [s / a for s, a in zip(streaming, at_once, strict=True)]))


def draw(path: Path, runs: Runs, mbit: float, seeds: Sequence[int]) -> None:
    """One line a method and seed."""
    methods = (*OVER_LINKS, RING, *FLOAT32)
    with picture(path, width=7.0, height=4.5) as figure:
        axis = figure.axes[0]
        for seed in seeds:
            found = curves(runs, mbit, seed)
            for method, colour, marker in zip(methods, COLOURS, MARKERS, strict=False):
                if method in found:
                    _, seconds, losses = zip(*found[method], strict=True)
                    axis.plot(seconds, losses, color=colour, marker=marker, markersize=3, label=method if seed == seeds[0] else None)  # fmt: skip
            if "ddp" in found:
                axis.axhline(goal_of(found["ddp"]), color="#444444", linestyle=":")
        axis.set(xscale="log", xlabel="seconds of training (log scale)", ylabel="held-out loss", title=f"four workers, {mbit:g} Mbit/s")  # fmt: skip
        axis.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--mbit", type=float, help="10, with --overlap 25")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--methods", nargs="+", default=[*OVER_LINKS, *FLOAT32], choices=[*OVER_LINKS, *FLOAT32])
    parser.add_argument("--verdicts", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--rank-task", help=argparse.SUPPRESS)
    parser.add_argument("--rank-output", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_task:
        rank_main(*json.loads(given.rank_task), given.rank_output)
        return
    output = given.output or (OVERLAP_OUTPUT if given.overlap else OUTPUT)
    mbit = given.mbit or (OVERLAP_MBIT if given.overlap else 10.0)
    if not given.verdicts:
        links.require()
        if given.overlap:
            execute_overlap(output, given.seeds, mbit)
        else:
            execute(output, given.methods, given.seeds, mbit)
    runs = grid.read(output)["runs"]
    print("\n".join((overlap_verdicts if given.overlap else verdicts)(runs, mbit, given.seeds)))
    if not given.overlap:
        draw(output.with_suffix(".png"), runs, mbit, given.seeds)


if __name__ == "__main__":
    main()
