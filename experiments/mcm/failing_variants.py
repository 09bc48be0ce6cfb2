"""The figure of the variants that keep the server's model but fail: update, model, and model-difference compression against MCM.

    python experiments/mcm/failing_variants.py --data FOLDER

γ = 1/L as in the paper, whose sets (quantum, superconduct) are replaced by phishing and a9a, for 60 epochs.
"""

from __future__ import annotations

from common import BATCH, contest, dataset, judged, kept, options, save

from perbit.sim.verdicts import Claim
from perbit_papers.convex import Settings

CONTESTS = [
    contest(Claim(f"{variant} falls behind MCM by .2 or more", 0.2), "mcm", variant)
    for variant in ("update_compression", "model_compression", "model_difference")
]
VARIANTS = ("mcm", "update_compression", "model_compression", "model_difference", "ghost")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--sets", default="phishing,a9a")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        problem = dataset(arguments.data, name)
        rounds = arguments.epochs * (problem.n_rows // BATCH[name])
        print(f"{name}: {rounds} rounds")
        setting, step = f"{name}, {arguments.epochs} epochs", 1 / problem.smoothness_frobenius
        by_seed = []
        for seed in arguments.seeds:
            settings = Settings(rounds, step, BATCH[name], seed=seed)
            by_seed.append([kept(setting, problem, variant, settings) for variant in VARIANTS])
            content = {
                "dataset": name,
                "epochs": arguments.epochs,
                **judged(setting, CONTESTS, by_seed, arguments.seeds),
            }
            title = f"{name}: non-degraded variants, γ = 1/L, s = 1"
            save(arguments.output, f"failing_variants_{name}", content, title)


if __name__ == "__main__":
    main()
