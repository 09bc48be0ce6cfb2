"""The deep runs of the papers: `perbit compare NAME` for each, its outcome into results/compare/NAME, and what it says of the claims.

    python experiments/deep.py co3 m22 deepreduce mcm-deep mcm-cifar cnn feedback [--runs FOLDER]
    python experiments/deep.py mcm-mnist deepreduce-resnet20 …     those of the TOML files in experiments, with the authors' settings
    python experiments/deep.py --judge co3 …       judges the outcomes that are in results/compare already

Runs can be killed; the same command goes on. Whatever is in FOLDER/NAME already (by `perbit compare NAME -o FOLDER/NAME`) is used.

The tests are stated here, before any run: two methods, paired over seeds, a one-sided t-test at level .05, and the least effect worth
naming (`perbit.sim.verdicts`). What is compared is the mean accuracy over the last third of the evaluations, steadier than the last one.
With one seed every claim is INCONCLUSIVE.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from importlib import resources
from pathlib import Path

from perbit.sim.verdicts import Claim
from perbit_papers.results import RESULTS
from perbit_papers.series import Contest, Run

KEPT = ("results.json", "table.txt", "accuracy-bytes.png", "accuracy-rounds.png", "accuracy-time-25-mbit-s.png", "gennorm.png")  # fmt: skip
POINT, HALF = 0.01, 0.005
HERE = Path(__file__).parent


def read(path: Path) -> list[Run]:
    """All runs of a comparison, by the name of the method."""
    return [{**run, "method": run["method"]["name"]} for run in json.loads(path.read_text("utf-8"))["runs"]]


def minus_loss(run: Run) -> float:
    loss = run["history"][-1]["loss"]
    return -1e9 if loss is None else -float(loss)


def judged(contest: Contest, runs: list[Run]) -> str:
    """The verdict, and what both sent."""
    ours, theirs = (
        statistics.fmean(run["bytes_up"] for run in runs if run["method"] == name) / 1e6
        for name in (contest.ours, contest.theirs)
    )
    return f"{contest.judged(runs)} ({contest.ours}, {ours:.3g} MB up, against {contest.theirs}, {theirs:.3g} MB)"


def _co3(decay: str) -> str:
    return f"fp4, γ = {decay}"


CO3 = [
    Contest(Claim("CO₃, Figs. 13-15: error feedback helps fp4", HALF), _co3("0.7"), _co3("0")),
    Contest(
        Claim("CO₃, Figs. 13-15: a memory that decays is better than one that does not", HALF), _co3("0.7"), _co3("1")
    ),
    Contest(
        Claim("CO₃, Fig. 16: fp4 loses at most a point to fp8 + topK, with fewer bits", -POINT),
        _co3("0.7"),
        "fp8 + top 50 %",
    ),
    Contest(Claim("CO₃: fp4 loses at most a point to float32", -POINT), _co3("0.7"), "float32"),
]
_ADAPTIVE, _FIXED = "top K + 2-mw L₂, adaptive", "top K + 2-mw L₂, β = 0.9"
M22 = [
    *(
        Contest(Claim(f"M22, Fig. 3: 2-mw L₂ beats {rival} at an equal budget", HALF), _ADAPTIVE, rival)
        for rival in ("top K + uniform, 2 bits", "top K + fp8", "top K + fp16")
    ),
    Contest(Claim("M22, Fig. 3: refitting the shape is better than keeping it", HALF), _ADAPTIVE, _FIXED),
]
DEEPREDUCE = [
    Contest(
        Claim(f"DeepReduce, Table 2: {name} keeps top-r's test loss to 1 %", -0.08),
        name,
        "top 10 %, 32-bit positions",
        minus_loss,
    )
    for name in ("Bloom P0", "Fit-Poly", "Bloom P0 + QSGD")
]
MCM = [
    Contest(Claim("MCM, deep runs: MCM beats Artemis", POINT), "MCM", "Artemis"),
    Contest(Claim("MCM, deep runs: MCM beats Dore", POINT), "MCM", "Dore"),
    Contest(Claim("MCM, deep runs: MCM loses at most two points to DIANA", -2 * POINT), "MCM", "DIANA"),
]
CNN = [
    Contest(
        Claim("100 x fewer uplink bytes cost at most a point of accuracy", -POINT), "low rank, predicted", "float32"
    )
]
FEEDBACK = [
    Contest(
        Claim("a prediction inside error feedback helps at the same bytes", HALF),
        "predicted feedback",
        "error feedback",
    ),
    Contest(
        Claim("a downlink of 20 x fewer bytes costs at most a point", -POINT),
        "predicted both ways",
        "predicted feedback",
    ),
]
CLAIMS = {
    "co3": CO3,
    "m22": M22,
    "deepreduce": DEEPREDUCE,
    "mcm-deep": MCM,
    "mcm-cifar": MCM,
    "cnn": CNN,
    "feedback": FEEDBACK,
}


_TOP_R = "top 1 %"
RESNET = [
    *(
        Contest(
            Claim(f"DeepReduce, Figs. 4-5: {name} loses at most a point to no compression", -POINT), name, "float32"
        )
        for name in (_TOP_R, "Bloom P0", "Bloom P1", "Bloom P2", "Fit-Poly", "Fit-DExp")
    ),
    Contest(
        Claim("DeepReduce, Fig. 4: the naive filter loses a point or more against top-r", POINT), _TOP_R, "Bloom naive"
    ),
]
TABLE_2 = [
    Contest(Claim(f"DeepReduce, Table 2: {name} loses at most a point to top-r", -POINT), name, "top 10 %")
    for name in ("Bloom P0", "Fit-Poly", "Bloom P0 + QSGD")
]
NCF = [
    Contest(Claim(f"DeepReduce, NCF: {name} loses at most a point of hit rate", -POINT), name, "float32")
    for name in ("Bloom P0 + QSGD, FPR .6", "SKCompress, 128 quantiles")
]
FILES = {  # those with the authors' settings, by TOML file
    "mcm-mnist": "mcm/mnist.toml", "mcm-fashion": "mcm/fashion.toml", "mcm-cifar-authors": "mcm/cifar.toml",
    "deepreduce-resnet20": "deepreduce/resnet20.toml", "deepreduce-table2": "deepreduce/table2.toml", "deepreduce-ncf": "deepreduce/ncf.toml",
}  # fmt: skip
CLAIMS |= {"mcm-mnist": MCM, "mcm-fashion": MCM, "mcm-cifar-authors": MCM}
CLAIMS |= {"deepreduce-resnet20": RESNET, "deepreduce-table2": TABLE_2, "deepreduce-ncf": NCF}


def judge(name: str) -> None:
    """Say what the outcomes in results/compare mean for the claims."""
    to = RESULTS / "compare" / name
    runs = read(to / "results.json")
    sentences = [judged(contest, runs) for contest in CLAIMS[name]]
    (to / "verdict.txt").write_text("\n".join(sentences) + "\n", "utf-8")
    print("\n".join(sentences))


def publish(name: str, ran: Path) -> None:
    """Copy what is worth keeping, with the configuration that made it."""
    to = RESULTS / "compare" / name
    to.mkdir(parents=True, exist_ok=True)
    for file in (file for file in KEPT if (ran / file).is_file()):
        shutil.copy(ran / file, to / file)
    built_in = resources.files("perbit_papers.comparisons").joinpath(f"{name}.toml")
    config = (HERE / FILES[name]) if name in FILES else built_in
    (to / "config.toml").write_text(config.read_text("utf-8"), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(CLAIMS))
    parser.add_argument("--runs", type=Path, default=Path("perbit-runs"))
    parser.add_argument("--judge", action="store_true", help="train nothing")
    parser.add_argument("--processes", default="1", help="runs at a time")
    options = parser.parse_args()
    for name in options.names:
        ran = options.runs / name
        if not options.judge:
            comparison = str(HERE / FILES[name]) if name in FILES else name
            command = [sys.executable, "-m", "perbit.cli", "compare", comparison, "-o", str(ran), "--resume"]
            subprocess.run([*command, "--processes", options.processes], check=True)
            publish(name, ran)
        judge(name)


if __name__ == "__main__":
    main()
