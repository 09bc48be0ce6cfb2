"""CO₃ as its text has it: SGD .01, batch 64, scales that are held and refitted every 5 epochs, one Huffman code a layer for all users.

    python experiments/co3/training.py [--epochs 10] [--seeds 0 1 2 3 4] [--samples 0]      results/co3_training.json

One core, about three minutes a run with LeNet; can be killed, the same command goes on with the runs that are missing. The tests are stated
in CLAIMS: the mean accuracy of the last third of the evaluations, paired over seeds, one-sided, level .05.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from perbit import hold
from perbit.channels import Channel, Direct, ErrorFeedback
from perbit.kernels.api import F32
from perbit.plan import Plan
from perbit.sim.federated import Task
from perbit.sim.verdicts import Claim
from perbit_papers.results import RESULTS
from perbit_papers.series import Contest, options, series
from perbit_papers.training import Refit, train

FIRST, EVERY = 1, 5  # epochs before the first fit, and from one to the next
FP4, FP8 = "fp(2, 1)", "fp(5, 2)"
SHARED = 'huffman(prior="always")'
METHODS: dict[str, tuple[str, str, float]] = {  # converter, what comes before it, γ; those of the claims first
    **{f"fp4, γ = {decay:g}": (FP4, "", decay) for decay in (0.7, 0.0, 1.0)},
    "fp8 then top 50 %": (FP8, "topk(0.5) | ", 0.0),
    "fp8, γ = 0.7": (FP8, "", 0.7),
    **{f"fp4, γ = {decay:g}": (FP4, "", decay) for decay in (0.5, 0.9)},
    "fp8, γ = 0": (FP8, "", 0.0),
}
HALF, POINT = 0.005, 0.01
CLAIMS = [
    Contest(Claim("Figs. 13-15: error feedback helps fp4", HALF), "fp4, γ = 0.7", "fp4, γ = 0"),
    Contest(Claim("Figs. 13-15: γ = .7 is better than γ = 1", HALF), "fp4, γ = 0.7", "fp4, γ = 1"),
    Contest(
        Claim("Fig. 16: fp4, γ = .7, loses at most a point to fp8 then top 50 %", -POINT),
        "fp4, γ = 0.7",
        "fp8 then top 50 %",
    ),
    Contest(Claim("fp4, γ = .7, loses at most a point to float32", -POINT), "fp4, γ = 0.7", "float32"),
    Contest(Claim("fp8, γ = .7, loses at most a point to float32", -POINT), "fp8, γ = 0.7", "float32"),
]


def schedule(name: str) -> tuple[Channel, Refit]:
    """The uplink before the first fit, scale 1, and what follows it."""
    if name == "float32":
        return Direct("raw"), lambda epoch, mean: None
    converter, before, decay = METHODS[name]

    def uplink(plan: Any) -> Channel:
        return ErrorFeedback(Direct(plan), decay)

    def refit(epoch: int, mean: dict[str, F32]) -> Channel | None:
        if (epoch - FIRST) % EVERY:
            return None
        return uplink(hold(Plan.of(f"{before}{converter} | {SHARED}", small=None), mean, of="all"))

    first = converter.replace(")", ", absolute=1.0)")
    return uplink(Plan.of(f"{before}{first} | {SHARED}", small=None)), refit


def main() -> None:
    parser = options(__doc__ or "", seeds=[0, 1, 2, 3, 4], model="lenet", output=RESULTS / "co3_training.json")
    parser.add_argument("--epochs", type=int, default=10)
    chosen = parser.parse_args()
    users, samples = 4, chosen.samples or 50_000
    rounds = chosen.epochs * -(-samples // (64 * users))
    task = Task(
        data=chosen.data, model=chosen.model, clients=users, rounds=rounds, local_epochs=0, batch=64, server_rate=0.01,
        evaluate_every=max(1, rounds // chosen.epochs), train_samples=chosen.samples,
    )  # fmt: skip

    def one(name: str, seed: int) -> dict[str, Any]:
        return {"history": train(task, seed, *schedule(name))}

    series(chosen.output, asdict(task), ("float32", *METHODS), chosen.seeds, one, CLAIMS)


if __name__ == "__main__":
    main()
