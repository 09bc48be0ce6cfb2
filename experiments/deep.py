"""The deep runs of the papers: `perbit compare NAME` for each, its outcome into results/compare/NAME, and what it says of the claims.

    python experiments/deep.py co3 m22 deepreduce mcm-deep mcm-cifar cnn feedback [--runs FOLDER]
    python experiments/deep.py mcm-mnist deepreduce-resnet20 …     those of the TOML files in experiments, with the authors' settings
    python experiments/deep.py --judge co3 …       judges the outcomes that are in results/compare already

Seed by seed, and what is finished goes to results/compare/NAME after each. Runs can be killed; the same command goes on, on another machine
too: finished runs are taken from results/compare/NAME (`--fresh`: none of them), and from FOLDER/NAME if it is there.

The tests are stated here, before any run: two methods, paired over seeds, a one-sided t-test at level .05, and the least effect worth
naming (`perbit.sim.verdicts`). What is compared is the mean accuracy over the last third of the evaluations, steadier than the last one;
in the runs of experiments/hundred, whose rate falls to nothing, the last one.
With one seed every claim is INCONCLUSIVE.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from perbit.files import write_json
from perbit.sim.compare.jobs import slugs
from perbit.sim.verdicts import Claim
from perbit_papers.results import RESULTS
from perbit_papers.series import Contest, Run

KEPT = ("results.json", "table.txt", "accuracy-bytes.png", "accuracy-rounds.png", "accuracy-time-25-mbit-s.png", "gennorm.png")  # fmt: skip
POINT, HALF = 0.01, 0.005
TIMES = "timings.jsonl"
HERE = Path(__file__).parent


def read(path: Path) -> list[Run]:
    """All runs of a comparison, by the name of the method."""
    return [{**run, "method": run["method"]["name"]} for run in json.loads(path.read_text("utf-8"))["runs"]]


def minus_loss(run: Run) -> float:
    loss = run["history"][-1]["loss"]
    return -1e9 if loss is None else -float(loss)


def final_accuracy(run: Run) -> float:
    """After the last round, where a schedule has let the rate fall to nothing."""
    return float(run["history"][-1]["accuracy"])


def judged(contest: Contest, runs: list[Run], planned: int) -> str | None:
    """The verdict, and what both sent."""
    said = contest.judged(runs, planned)
    if said is None:
        return None
    ours, theirs = (
        statistics.fmean(run["bytes_up"] for run in runs if run["method"] == name) / 1e6
        for name in (contest.ours, contest.theirs)
    )
    return f"{said} ({contest.ours}, {ours:.3g} MB up, against {contest.theirs}, {theirs:.3g} MB)"


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
_PEERS = ("top-k", "QSGD", "PowerSGD", "EDEN", "SparseLoCo")
HUNDRED = [
    Contest(Claim("a hundredth of the bytes up costs at most half a point", -HALF), "perbit", "float32", final_accuracy),
    Contest(Claim("a fiftieth of the bytes in both directions costs at most half a point", -HALF), "perbit, both ways", "float32", final_accuracy),
    *(
        Contest(Claim(f"with a third of its bytes, at most half a point behind {peer}", -HALF), "perbit, a third", peer, final_accuracy)
        for peer in _PEERS
    ),
    Contest(Claim("better than top-k by half a point at the same bytes", HALF), "perbit", "top-k", final_accuracy),
]  # fmt: skip
APART = [
    Contest(Claim("what waits in the client's own model costs at most half a point", -HALF), "apart", "float32", final_accuracy),
    *(
        Contest(Claim(f"apart is better than {other}", 0.0), "apart", other, final_accuracy)
        for other in ("error feedback", "error feedback, half of it forgotten")
    ),
]  # fmt: skip
TASKS = ("hapt", "lenet", "shakespeare", "cnn")
FILES = {  # those with the authors' settings, by TOML file
    "mcm-mnist": "mcm/mnist.toml", "mcm-mnist-writers": "mcm/mnist_writers.toml",
    "mcm-fashion": "mcm/fashion.toml", "mcm-cifar-authors": "mcm/cifar.toml",
    "deepreduce-resnet20": "deepreduce/resnet20.toml", "deepreduce-table2": "deepreduce/table2.toml", "deepreduce-ncf": "deepreduce/ncf.toml",
}  # fmt: skip
FILES |= {f"hundred-{task}": f"hundred/{task}.toml" for task in (*TASKS, "apart")}
CLAIMS |= {"mcm-mnist": MCM, "mcm-mnist-writers": MCM, "mcm-fashion": MCM, "mcm-cifar-authors": MCM}
CLAIMS |= {"deepreduce-resnet20": RESNET, "deepreduce-table2": TABLE_2, "deepreduce-ncf": NCF}
CLAIMS |= {**{f"hundred-{task}": HUNDRED for task in TASKS}, "hundred-apart": APART}


def configuration(name: str) -> str:
    """The TOML text of a comparison."""
    built_in = resources.files("perbit_papers.comparisons").joinpath(f"{name}.toml")
    return ((HERE / FILES[name]) if name in FILES else built_in).read_text("utf-8")


def judge(name: str) -> None:
    """Say what the outcomes in results/compare mean for the claims."""
    to = RESULTS / "compare" / name
    runs, planned = read(to / "results.json"), len(tomllib.loads(configuration(name)).get("seeds", [0]))
    sentences = [said for contest in CLAIMS[name] if (said := judged(contest, runs, planned))]
    (to / "verdict.txt").write_text("\n".join(sentences) + "\n", "utf-8")
    print("\n".join(sentences), flush=True)


def publish(name: str, ran: Path) -> None:
    """Copy what is worth keeping, with the configuration that made it and a line of each run's times."""
    to = RESULTS / "compare" / name
    to.mkdir(parents=True, exist_ok=True)
    for file in (file for file in KEPT if (ran / file).is_file()):
        shutil.copy(ran / file, to / file)
    times = {file.parent.name: file.read_text("utf-8").splitlines()[-1] for file in sorted(ran.glob(f"*/{TIMES}"))}
    write_json(to / "timings.json", times)
    (to / "config.toml").write_text(configuration(name), "utf-8")


def restore(name: str, ran: Path) -> None:
    """Lay finished runs of results/compare where `perbit compare --resume` looks for them."""
    kept = RESULTS / "compare" / name
    if not (kept / "timings.json").is_file():
        return  # made before runs could go on from there
    times = json.loads((kept / "timings.json").read_text("utf-8"))
    methods = [method["name"] for method in tomllib.loads(configuration(name))["methods"]]
    folders = dict(zip(methods, slugs(methods), strict=True))
    for run in json.loads((kept / "results.json").read_text("utf-8"))["runs"]:
        folder = ran / f"{folders[run['method']['name']]}-seed{run['seed']}"
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        write_json(folder / "result.json", run)
        (folder / TIMES).write_text(times[folder.name] + "\n", "utf-8")


def compare(name: str, ran: Path, *more: str) -> None:
    """Seed by seed, so that all methods have run with the first one soon."""
    text = configuration(name)
    seeds: list[Any] = tomllib.loads(text).get("seeds", [0])
    ran.parent.mkdir(parents=True, exist_ok=True)
    for n in range(1, len(seeds) + 1):
        part = ran.parent / f"{name}.toml"
        part.write_text(re.sub(r"(?m)^seeds = .*$", f"seeds = {seeds[:n]}", text), "utf-8")
        command = [sys.executable, "-m", "perbit.cli", "compare", str(part), "-o", str(ran), "--resume", *more]
        subprocess.run(command, check=True)
        publish(name, ran)
        judge(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(CLAIMS))
    parser.add_argument("--runs", type=Path, default=Path("perbit-runs"))
    parser.add_argument("--judge", action="store_true", help="train nothing")
    parser.add_argument("--fresh", action="store_true", help="take nothing from results/compare")
    parser.add_argument("--processes", default="1", help="runs at a time")
    options = parser.parse_args()
    for name in options.names:
        if options.judge:
            judge(name)
            continue
        if not options.fresh:
            restore(name, options.runs / name)
        compare(name, options.runs / name, "--processes", options.processes)


if __name__ == "__main__":
    main()
