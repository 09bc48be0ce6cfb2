"""The figure of the variants that keep the server's model but fail: update, model, and model-difference compression against MCM.

    python experiments/mcm/failing_variants.py --data FOLDER

γ = 1/L as in the paper, whose sets (quantum, superconduct) are replaced by phishing and a9a, for 60 epochs.
"""

from __future__ import annotations

from common import BATCH, dataset, measure, options, save

from perbit_papers.convex import Settings

VARIANTS = ("mcm", "update_compression", "model_compression", "model_difference", "ghost")


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--sets", default="phishing,a9a")
    arguments = parser.parse_args()
    for name in arguments.sets.split(","):
        problem = dataset(arguments.data, name)
        rounds = arguments.epochs * (problem.n_rows // BATCH[name])
        settings = Settings(rounds, 1 / problem.smoothness_frobenius, BATCH[name], seed=arguments.seed)
        print(f"{name}: {rounds} rounds")
        results = [measure(problem, variant, settings) for variant in VARIANTS]
        got = {result["algorithm"]: result["log10_excess"] for result in results}
        worse = all(got[variant] is None or got[variant] > got["mcm"] + 0.2 for variant in VARIANTS[1:4])
        words = "agrees: all three fall behind MCM" if worse else "does NOT agree: a failing variant keeps up with MCM"
        verdict = f"{name}: {words}; log10 excess {got} (none: diverged)"
        content = {"dataset": name, "epochs": arguments.epochs, "verdict": verdict, "results": results}
        save(arguments.output, f"failing_variants_{name}", content, f"{name}: non-degraded variants, γ = 1/L, s = 1")


if __name__ == "__main__":
    main()
