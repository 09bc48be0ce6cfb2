"""Where the M-magnitude-weighted L₂ quantizer puts its levels: Fig. 2 of both versions of the paper (docs/bibliography.md).

    python experiments/m22/fig2_centroids.py        writes results/m22_fig2_centroids.json and .png

Positive levels at unit variance against β for R ∈ {2, 3}, M ∈ {2, 4} (revised version); against M for a uniform density (first version).
"""

from __future__ import annotations

import numpy as np

from perbit.gennorm import design
from perbit.report.style import COLOURS, picture
from perbit_papers.results import RESULTS, verdict, write_json
from perbit_papers.uniform import design_uniform

BETAS = np.round(np.arange(0.5, 1.001, 0.025), 3)
SETTINGS = [(bits, m) for bits in (2, 3) for m in (2, 4)]
WEIGHTS = np.round(np.arange(0, 8.01, 0.5), 1)
KNOWN = {(0.5, 2, 2): (2.5896, 9.0657), (1.0, 2, 2): (1.4717, 3.6027), (1.0, 3, 4): (1.9179, 3.3057, 4.8354, 7.0494)}


def positive(levels: np.ndarray) -> list[float]:
    return [float(x) for x in levels[levels.size // 2 :]]


def draw(by_beta: dict[str, list[list[float]]], by_weight: dict[str, list[list[float]]]) -> None:
    with picture(RESULTS / "m22_fig2_centroids.png", 2, 3, width=13, height=7.5) as drawing:
        panels = [drawing.axes[index] for index in (0, 1, 3, 4)]
        for ax, (bits, m) in zip(panels, SETTINGS, strict=True):
            for index, line in enumerate(np.array(by_beta[f"R={bits}, M={m}"]).T):
                ax.plot(BETAS, line, color=COLOURS[index], marker="o", markersize=3)
            ax.set(title=f"GenNorm, R = {bits}, M = {m}", xlabel="β", ylabel="positive levels (σ = 1)", ylim=(0, None))
        for ax, bits in zip((drawing.axes[2], drawing.axes[5]), (2, 3), strict=True):
            for index, line in enumerate(np.array(by_weight[f"R={bits}"]).T):
                ax.plot(WEIGHTS, line, color=COLOURS[index], marker="o", markersize=3)
            ax.set(title=f"uniform density on [-1, 1], R = {bits}", xlabel="M", ylabel="positive levels", ylim=(0, 1))


def main() -> None:
    by_beta = {f"R={bits}, M={m}": [positive(design(float(beta), m, bits)) for beta in BETAS] for bits, m in SETTINGS}
    by_weight = {f"R={bits}": [positive(design_uniform(float(m), bits) / 3**0.5) for m in WEIGHTS] for bits in (2, 3)}
    off = max(
        abs(got - want)
        for (beta, bits, m), levels in KNOWN.items()
        for got, want in zip(positive(design(beta, m, bits)), levels, strict=True)
    )
    falling = all(np.all(np.diff(np.array(lines), axis=0) < 0) for lines in by_beta.values())
    further = all(np.all(np.array(by_beta[f"R={bits}, M=4"]) > np.array(by_beta[f"R={bits}, M=2"])) for bits in (2, 3))
    outward = all(np.all(np.diff(np.array(lines), axis=0) > 0) for lines in by_weight.values())
    sentences = [
        verdict(
            falling and further and off < 1e-3,
            "Fig. 2, revised version",
            f"every level moves away from zero as β falls from 1 to .5 and as M goes from 2 to 4; "
            f"the known levels are met to {off:.0e}",
        ),
        verdict(
            outward,
            "Fig. 2, first version",
            "for a uniform density every level moves outward as M grows; M = 0 is the uniform quantizer only for this density "
            "(in general it is Lloyd-Max, not uniform as the paper says)",
        ),
    ]
    data = {
        "betas": BETAS.tolist(),
        "gennorm": by_beta,
        "m": WEIGHTS.tolist(),
        "uniform": by_weight,
        "verdicts": sentences,
    }
    write_json(RESULTS / "m22_fig2_centroids.json", data)
    draw(by_beta, by_weight)
    print("\n".join(sentences))


if __name__ == "__main__":
    main()
