"""The deep runs of the papers: `perbit compare NAME` for each, its outcome into results/compare/NAME, and what it says of the claims.

    python experiments/deep.py co3 m22 deepreduce mcm-deep mcm-cifar cnn feedback [--runs FOLDER]

Runs can be killed; the same command goes on. Whatever is in FOLDER/NAME already (by `perbit compare NAME -o FOLDER/NAME`) is used.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from perbit_papers.results import RESULTS, verdict

KEPT = ("results.json", "table.txt", "accuracy-bytes.png", "accuracy-rounds.png", "accuracy-time-25-mbit-s.png", "gennorm.png")  # fmt: skip


@dataclass(frozen=True)
class Reached:
    """A method over all seeds. `late`: the mean accuracy over the last third of the evaluations, steadier than the last one."""

    accuracy: float
    late: float
    bytes_up: float
    bytes_down: float
    loss: float


Outcomes = dict[str, Reached]


def read(path: Path) -> Outcomes:
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in json.loads(path.read_text())["runs"]:
        runs[run["method"]["name"]].append(run)
    return {name: _reached(of) for name, of in runs.items()}


def _reached(runs: list[dict[str, Any]]) -> Reached:
    curves = [[point["accuracy"] for point in run["history"]] for run in runs]
    return Reached(
        statistics.fmean(curve[-1] for curve in curves),
        statistics.fmean(statistics.fmean(curve[-max(1, len(curve) // 3) :]) for curve in curves),
        statistics.fmean(run["bytes_up"] for run in runs),
        statistics.fmean(run["bytes_down"] for run in runs),
        statistics.fmean(run["history"][-1]["loss"] or float("inf") for run in runs),
    )


def listed(found: Outcomes, names: list[str]) -> str:
    return ", ".join(f"{name} {found[name].accuracy:.1%}" for name in names)


def co3(found: Outcomes) -> list[str]:
    by_decay = {float(name.split("γ = ")[1]): name for name in found if name.startswith("fp4, γ")}
    best = max(by_decay, key=lambda decay: found[by_decay[decay]].late)
    said = listed(found, list(by_decay.values()))
    plain, coded, rival = found["float32"], found[by_decay[best]], found["fp8 + top 50 %"]
    return [
        verdict(best > 0, "error feedback helps fp4 (Figs. 13-15)", said),
        verdict(
            0 < best < 1, "a memory that decays, γ in (0, 1), is best", f"over the last third of the run γ = {best:g}"
        ),
        verdict(
            coded.late >= rival.late and coded.bytes_up < rival.bytes_up,
            "CO₃ beats fp8 + topK in accuracy per bit (Fig. 16)",
            f"{coded.accuracy:.1%} with {coded.bytes_up / 1e6:.0f} MB up against {rival.accuracy:.1%} with {rival.bytes_up / 1e6:.0f} MB",
        ),
        verdict(
            coded.late >= plain.late - 0.01,
            "CO₃ keeps the accuracy of float32",
            f"{coded.accuracy:.1%} against {plain.accuracy:.1%}, {plain.bytes_up / coded.bytes_up:.1f} x fewer bytes up",
        ),
    ]


def m22(found: Outcomes) -> list[str]:
    coded = [name for name in found if name != "float32"]
    adaptive, fixed = (next(name for name in coded if part in name) for part in ("adaptive", "β ="))
    best = max(coded, key=lambda name: found[name].late)
    return [
        verdict(best in (adaptive, fixed), "2-mw L₂ is the most accurate at an equal budget (Fig. 3)", listed(found, coded)),
        verdict(
            found[adaptive].late >= found[fixed].late,
            "refitting the shape in every round is at least as good as keeping it",
            listed(found, [adaptive, fixed]),
        ),
    ]  # fmt: skip


def deepreduce(found: Outcomes) -> list[str]:
    top = found["top 10 %, 32-bit positions"]
    coded = [name for name in found if name not in ("float32", "top 10 %, 32-bit positions", "top 1 % + mw-L₂")]
    volumes = ", ".join(f"{name} {found[name].bytes_up / found['float32'].bytes_up:.3f}" for name in found)
    return [
        verdict(
            all(found[name].bytes_up < top.bytes_up for name in coded), "every DeepReduce code is smaller than top-r", f"volume up: {volumes}"
        ),
        verdict(
            all(found[name].loss <= top.loss * 1.01 for name in coded),
            "and keeps top-r's test loss (the accuracy is that of the commonest word until much later)",
            ", ".join(f"{name} {found[name].loss:.2f}" for name in found),
        ),
    ]  # fmt: skip


def mcm(found: Outcomes) -> list[str]:
    names = ["SGD", "DIANA", "MCM", "Artemis", "Dore"]
    ranked = all(
        by(found["DIANA"]) >= by(found["MCM"]) > max(by(found["Artemis"]), by(found["Dore"]))
        for by in (lambda r: r.accuracy, lambda r: r.late)
    )
    late = ", ".join(f"{name} {found[name].late:.1%}" for name in names)
    return [
        verdict(
            ranked,
            "DIANA ≥ MCM > Artemis, Dore",
            f"at the end {listed(found, names)}; mean over the last third of the run {late}",
        )
    ]


def cnn(found: Outcomes) -> list[str]:
    plain = found["float32"]
    small_enough = [(n, r) for n, r in found.items() if plain.bytes_up >= 100 * r.bytes_up]
    if not small_enough:
        return [verdict(False, "100 x fewer uplink bytes", "no method sends so little")]
    name, coded = max(small_enough, key=lambda pair: pair[1].late)
    times = plain.bytes_up / coded.bytes_up
    return [
        verdict(
            coded.accuracy >= plain.accuracy - 0.01 and times >= 100,
            "float32's accuracy within a point at 100 x fewer uplink bytes",
            f"{name} {coded.accuracy:.1%} against {plain.accuracy:.1%}, {times:.0f} x fewer",
        )
    ]


def feedback(found: Outcomes) -> list[str]:
    names = ("float32", "error feedback", "predicted feedback", "predicted both ways")
    plain, coded, predicted, both = (found[name] for name in names)
    times_down, times_up = plain.bytes_down / both.bytes_down, plain.bytes_up / both.bytes_up
    return [
        verdict(
            predicted.accuracy > coded.accuracy
            and predicted.loss < coded.loss
            and predicted.bytes_up < 1.02 * coded.bytes_up,
            "a prediction inside error feedback helps at the same bytes",
            f"{listed(found, list(found))}; {plain.bytes_up / predicted.bytes_up:.0f} x fewer bytes up than float32",
        ),
        verdict(
            both.accuracy >= predicted.accuracy - 0.01 and times_down >= 20,
            "a downlink of 20 x fewer bytes costs at most a point",
            f"{both.accuracy:.1%} against {predicted.accuracy:.1%}; {times_down:.0f} x fewer bytes down, {times_up:.0f} x up",
        ),
    ]


CLAIMS: dict[str, Callable[[Outcomes], list[str]]] = {
    "co3": co3, "m22": m22, "deepreduce": deepreduce, "mcm-deep": mcm, "mcm-cifar": mcm, "cnn": cnn, "feedback": feedback,
}  # fmt: skip


def publish(name: str, ran: Path) -> None:
    """Copy what is worth keeping, with the configuration that made it, and say what it means."""
    to = RESULTS / "compare" / name
    to.mkdir(parents=True, exist_ok=True)
    for file in KEPT:
        shutil.copy(ran / file, to / file)
    config = resources.files("perbit_papers.comparisons").joinpath(f"{name}.toml").read_text("utf-8")
    (to / "config.toml").write_text(config, "utf-8")
    sentences = CLAIMS[name](read(ran / "results.json"))
    (to / "verdict.txt").write_text("\n".join(sentences) + "\n", "utf-8")
    print("\n".join(sentences))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(CLAIMS))
    parser.add_argument("--runs", type=Path, default=Path("perbit-runs"))
    options = parser.parse_args()
    for name in options.names:
        command = [sys.executable, "-m", "perbit.cli", "compare", name, "-o", str(options.runs / name), "--resume"]
        subprocess.run(command, check=True)
        publish(name, options.runs / name)


if __name__ == "__main__":
    main()
