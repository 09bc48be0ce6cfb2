"""The plan of all long runs: one after the other on one core, each resumable, with the time left.

    python experiments/run.py                     lists the plan: names, estimated minutes, what is done
    python experiments/run.py NAME …              runs these; the same command goes on after a kill
    python experiments/run.py A                   a letter of the plan stands for all its runs

Start a second one with other names for the second core. Every run writes its results and its verdicts, whose tests are stated in its script; after
each, `experiments/pages.py` brings them onto the pages of docs/papers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Planned:
    """One command of the plan; `makes` is the file that shows that it has ended."""

    part: str
    name: str
    minutes: float  # on one core, from measured speeds
    command: tuple[str, ...]
    makes: str

    @property
    def is_done(self) -> bool:
        return Path(self.makes).is_file() and _mark(self.name).is_file()


def _mark(name: str) -> Path:
    """Left behind by a run that ended: files of results are written after every step."""
    return Path("perbit-runs") / f"{name}.done"


def _script(path: str, *arguments: str) -> tuple[str, ...]:
    return sys.executable, str(HERE / path), *arguments


def _deep(name: str, part: str, minutes: float) -> Planned:
    return Planned(part, name, minutes, _script("deep.py", name), f"results/compare/{name}/verdict.txt")


def _convex(name: str, minutes: float) -> Planned:
    command = _script(
        "mcm/excess_loss.py", "--sets", name, "--epochs", "450", "--seeds", "0", "1", "2", "3", "4", "--data"
    )
    return Planned("G", f"convex-{name}", minutes, (*command, DATA), f"results/mcm/excess_loss_{name}.json")


def _claims(script: str, minutes: float, makes: str, *more: str) -> Planned:
    command = _script(f"mcm/{script}.py", *more, "--data", DATA)
    return Planned("G", f"convex-{script.replace('_', '-')}", minutes, command, f"results/mcm/{makes}.json")


DATA = os.environ.get("PERBIT_DATA", str(Path.home() / ".cache" / "perbit"))
PLAN = [
    Planned("A", "co3-statistics", 150, _script("co3/statistics.py"), "results/co3_statistics.json"),
    Planned("B", "co3-training", 120, _script("co3/training.py"), "results/co3_training.json"),
    Planned("C", "m22-fig3-664", 100, _script("m22/fig3.py", "--budget", "664"), "results/m22_fig3_664.json"),
    Planned("C", "m22-fig3-996", 85, _script("m22/fig3.py", "--budget", "996"), "results/m22_fig3_996.json"),
    _deep("deepreduce-table2", "D", 75),
    _deep("deepreduce-resnet20", "E", 480),
    _deep("deepreduce-ncf", "F", 20),
    Planned(
        "F",
        "deepreduce-fig7",
        5,
        _script("deepreduce/fig7.py", "--gradients", str(Path(DATA) / "gradients")),
        "results/deepreduce/fig7.json",
    ),
    _convex("phishing", 3),
    _convex("a9a", 10),
    _convex("w8a", 65),
    _claims("failing_variants", 3, "failing_variants_phishing", "--sets", "phishing"),
    _claims("rand_mcm", 5, "rand_mcm_participation"),
    _claims("heterogeneous", 6, "heterogeneous_phishing"),
    Planned("G", "theorem-9", 3, _script("mcm/theorem9.py"), "results/mcm/theorem9.json"),
    Planned("G", "largest-step", 5, _script("mcm/largest_step.py"), "results/mcm/largest_step.json"),
    _deep("mcm-mnist", "H", 85),
    _deep("mcm-mnist-writers", "H", 85),
    _deep("mcm-cifar-authors", "H", 75),
    _deep("mcm-fashion", "H", 65),
    _deep("hundred-apart", "I", 25),
    _deep("hundred-hapt", "I", 80),
    _deep("hundred-lenet", "I", 120),
    _deep("hundred-shakespeare", "I", 120),
    _deep("hundred-cnn", "I", 600),
]


def chosen(names: list[str]) -> list[Planned]:
    """The runs of these names and letters, in the order of the plan."""
    known = {run.name for run in PLAN} | {run.part for run in PLAN}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no run {', '.join(unknown)}; known are {', '.join(run.name for run in PLAN)}")
    return [run for run in PLAN if run.name in names or run.part in names]


def listed() -> str:
    lines = [
        f"{run.part}  {run.name:<22}{run.minutes:>5.0f} min  {'done' if run.is_done else 'not run yet'}" for run in PLAN
    ]
    return "\n".join(lines)


def execute(runs: list[Planned]) -> None:
    """One after the other; a run that fails stops the rest."""
    _mark("x").parent.mkdir(exist_ok=True)
    left = [run for run in runs if not run.is_done]
    for number, run in enumerate(left, 1):
        minutes = sum(later.minutes for later in left[number - 1 :])
        print(f"{run.name}: {number} of {len(left)}, about {minutes:.0f} minutes left in all", flush=True)
        began = time.monotonic()
        subprocess.run(run.command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _mark(run.name).touch()
        subprocess.run(_script("pages.py"), check=True)
        print(f"{run.name}: took {(time.monotonic() - began) / 60:.0f} minutes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names or letters of the plan; none: list it")
    names = parser.parse_args().names
    if names:
        execute(chosen(names))
    else:
        print(listed())


if __name__ == "__main__":
    main()
