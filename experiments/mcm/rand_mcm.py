"""Rand-MCM with partial participation, with N memories, G groups, and a single averaged memory (s = 2).

    python experiments/mcm/rand_mcm.py --data FOLDER

The paper's set (quantum) is replaced by phishing; every client takes part in a round with probability one half, 100 epochs.
"""

from __future__ import annotations

from common import BATCH, S2, contest, dataset, judged, kept, options, save

from perbit.sim.verdicts import Claim
from perbit_papers.convex import Settings

RUNS = (
    ("sgd", "sgd", {}),
    ("diana", "diana", {}),
    ("mcm", "mcm (replay or reset)", {"catch_up": "cheapest"}),
    ("rand_mcm", "rand_mcm", {}),
    ("rand_mcm_groups", "rand_mcm, 4 groups", {"groups": 4}),
    ("rand_mcm_averaged", "rand_mcm, one memory", {}),
)


CONTESTS = [contest(Claim(f"{label} loses at most .4 to DIANA", -0.4), label, "diana") for _, label, _ in RUNS[2:]]


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    problem = dataset(arguments.data, "phishing")
    rounds = arguments.epochs * (problem.n_rows // BATCH["phishing"])
    step = 1 / problem.smoothness_frobenius
    setting, by_seed = f"phishing, half of the clients, {arguments.epochs} epochs", []
    for seed in arguments.seeds:
        settings = Settings(rounds, step, BATCH["phishing"], participation=0.5, seed=seed)
        by_seed.append([kept(setting, problem, name, settings, S2, label, **more) for name, label, more in RUNS])  # type: ignore[arg-type]
        content = {"epochs": arguments.epochs, **judged(setting, CONTESTS, by_seed, arguments.seeds)}
        save(arguments.output, "rand_mcm_participation", content, "phishing, half of the clients in each round, s = 2")


if __name__ == "__main__":
    main()
