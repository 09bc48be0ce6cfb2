"""M22, Figs. 3 and 4: the Table-I CNN with every message within 664 or 996 kbit of real bytes.

    python experiments/m22/fig3.py --budget 664 [--seeds 0 1 2] [--rounds 10]        results/m22_fig3_664.json

One threshold for the whole model, as the authors' code sorts all layers together; no entropy coder; Adam 1e-4, two users, three local epochs,
ten rounds. mw-L₂ three times: fitted to the kept values in every message, fitted to all values, and frozen (shape and scale of every layer)
after the first round, the boot-up phase.

99 % of the time is training, at 300 to 450 pictures a second on one core. By default every user has 2000 pictures (`--samples 8000`: 4000), so that
a run takes about five minutes. Can be killed; the same command goes on. float32 is run for one of the budgets and serves both.

The tests are stated in `claims`: the mean accuracy of the last third of the rounds, paired over seeds, one-sided, level .05.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from perbit import hold
from perbit.channels import Channel, Direct
from perbit.gennorm import fit
from perbit.kernels.api import F32
from perbit.sim.federated import Task
from perbit.sim.verdicts import Claim
from perbit_papers.budgets import WithinBudget
from perbit_papers.results import RESULTS
from perbit_papers.series import Contest, options, series
from perbit_papers.training import Refit, train

BUDGETS = {664: (2, 2), 996: (3, 4)}  # kbit: bits and M of the text
BOOT_UP = 1  # rounds
HALF, POINT = 0.005, 0.01


def specs(bits: int, m: int) -> dict[str, str]:
    return {
        "top K + uniform": f"topk(0.2) | uniform({bits})",
        "top K + fp16": "topk(0.05) | fp16",
        "top K + fp8": "topk(0.1) | fp(5, 2)",
        "top K + mw-L₂, adaptive": f"topk(0.2) | mwl2({bits}, {m})",
        "top K + mw-L₂, all values": f"topk(0.2) | mwl2({bits}, {m})",
        "top K + mw-L₂, frozen": f"topk(0.2) | mwl2({bits}, {m})",
    }


def claims(budget: int) -> list[Contest]:
    ours = "top K + mw-L₂, adaptive"
    found = [
        Contest(Claim(f"Fig. 3, {budget} kbit: mw-L₂ beats {rival}", HALF), ours, f"top K + {rival}")
        for rival in ("uniform", "fp16", "fp8")
    ]
    found.append(Contest(Claim(f"Fig. 3, {budget} kbit: adaptive beats frozen", HALF), ours, "top K + mw-L₂, frozen"))
    found.append(
        Contest(Claim(f"{budget} kbit: mw-L₂ loses at most five points to float32", -5 * POINT), ours, "float32")
    )
    return found


def schedule(name: str, budget: int, shapes: list[dict[str, float]]) -> tuple[Channel, Refit]:
    """The uplink of a strategy; `shapes` takes up the fitted β of every round (Fig. 4)."""

    def record(mean: dict[str, F32]) -> None:
        shapes.append({key: float(fit(x).dist.beta) for key, x in mean.items() if x.ndim > 1 and np.any(x)})

    if name == "float32":
        return Direct("raw"), lambda epoch, mean: record(mean)
    plan = WithinBudget.within(specs(*BUDGETS[budget])[name], 1000 * budget)
    if name.endswith("all values"):
        plan = replace(plan, fit="all")

    def refit(epoch: int, mean: dict[str, F32]) -> Channel | None:
        record(mean)
        return Direct(hold(plan, mean)) if name.endswith("frozen") and epoch == BOOT_UP else None

    return Direct(plan), refit


def other_budgets(task: dict[str, Any], budget: int, seed: int) -> dict[str, Any] | None:
    """The float32 run of another budget, which has nothing to do with it."""
    same = json.loads(json.dumps(task))
    for path in (RESULTS / f"m22_fig3_{other}.json" for other in BUDGETS if other != budget):
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {"settings": {}, "runs": []}
        is_alike = {**found["settings"], "budget": 0} == {**same, "budget": 0}
        for run in found["runs"] if is_alike else []:
            if (run["method"], run["seed"]) == ("float32", seed):
                return {"history": run["history"], "shapes": run["shapes"]}
    return None


def main() -> None:
    parser = options(__doc__ or "", model="cnn", samples=4000)
    parser.add_argument("--budget", type=int, choices=list(BUDGETS), default=664, help="kbit a message")
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    task = Task(
        data=chosen.data, model=chosen.model, clients=2, rounds=chosen.rounds, local_epochs=3, batch=32, optimiser="adam", rate=1e-4,
        train_samples=chosen.samples, test_samples=2000,
    )  # fmt: skip

    def one(name: str, seed: int) -> dict[str, Any]:
        if name == "float32" and (known := other_budgets(asdict(task), chosen.budget, seed)):
            return known
        shapes: list[dict[str, float]] = []
        return {"history": train(task, seed, *schedule(name, chosen.budget, shapes)), "shapes": shapes}

    output = chosen.output or RESULTS / f"m22_fig3_{chosen.budget}.json"
    methods = ("float32", *specs(*BUDGETS[chosen.budget]))
    series(output, {"budget": chosen.budget, **asdict(task)}, methods, chosen.seeds, one, claims(chosen.budget))


if __name__ == "__main__":
    main()
