"""CO₃ Fig. 6: the best pre-scale of fp4 and fp8 against the shape β, beside the polynomials (15) and (16).

python experiments/co3/fig6_scale.py            writes results/co3_fig6_scale.json and .png
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perbit.gennorm import GenNorm, optimal_scale, paper_scale_fp4, paper_scale_fp8
from perbit.gennorm.lowfloat import mse
from perbit.report.style import COLOURS, picture
from perbit_papers.results import RESULTS, verdict, write_json

BETAS = np.round(np.arange(0.3, 2.201, 0.05), 2)
FP4, FP8 = (2, 1), (5, 2)  # exponent and mantissa bits
STATED = (0.5, 2.0)  # where the polynomials are meant to hold


def relative_error(scale: float, beta: float, form: tuple[int, int]) -> float:
    """Mean squared error over the variance; a scale that is not positive quantizes nothing."""
    return float(mse(scale, beta, *form)) / GenNorm(beta, 1.0).variance if scale > 0 else 1.0


def row(beta: float) -> dict[str, Any]:
    fp4, fp8 = optimal_scale(beta, *FP4), optimal_scale(beta, *FP8)
    eq15, eq16 = paper_scale_fp4(beta), paper_scale_fp8(beta)
    return {
        "beta": beta,
        "fp4_optimal": fp4,
        "fp4_eq15": eq15,
        "fp8_optimal": fp8,
        "fp8_eq16": eq16,
        "fp4_error_optimal": relative_error(fp4, beta, FP4),
        "fp4_error_eq15": relative_error(eq15, beta, FP4),
        "fp4_error_eq15_over_sigma": relative_error(eq15 / GenNorm(beta, 1.0).std, beta, FP4),
        "fp8_error_optimal": relative_error(fp8, beta, FP8),
        "fp8_error_eq16": relative_error(eq16, beta, FP8),
        "fp8_plateau": plateau(beta),
    }


def plateau(beta: float) -> tuple[float, float]:
    """The range of s over which the fp8 error stays within 10 % of its minimum."""
    scales = 10.0 ** np.linspace(-5, 7, 241)
    error = mse(scales, beta, *FP8)
    flat = scales[error <= 1.1 * error.min()]
    return float(flat[0]), float(flat[-1])


def draw(rows: list[dict[str, Any]]) -> None:
    betas = [r["beta"] for r in rows]
    with picture(RESULTS / "co3_fig6_scale.png", 2, 2, width=11, height=7.5) as drawing:
        for line, name, equation in ((0, "fp4", "eq15"), (1, "fp8", "eq16")):
            scale, error = drawing.axes[2 * line : 2 * line + 2]
            label = f"eq. ({equation[2:]})"
            scale.plot(betas, [r[f"{name}_optimal"] for r in rows], color=COLOURS[0], label="exact optimum")
            scale.plot(betas, [r[f"{name}_{equation}"] for r in rows], color=COLOURS[1], linestyle="--", label=label)
            scale.set(title=f"{name}: pre-scale s", xlabel="β", ylabel="s · α")
            error.plot(betas, [r[f"{name}_error_optimal"] for r in rows], color=COLOURS[0], label="at the optimum")
            error.plot(
                betas,
                [r[f"{name}_error_{equation}"] for r in rows],
                color=COLOURS[1],
                linestyle="--",
                label=f"at {label}/α",
            )
            error.set(title=f"{name}: error", xlabel="β", ylabel="MSE / variance", yscale="log")
            for ax in (scale, error):
                ax.axvspan(*STATED, color="#f3f3f3", zorder=0)
                ax.legend()
        drawing.axes[1].plot(
            betas,
            [r["fp4_error_eq15_over_sigma"] for r in rows],
            color=COLOURS[2],
            linestyle=":",
            label="at eq. (15)/σ, as printed",
        )
        drawing.axes[1].legend()
        flat = np.array([r["fp8_plateau"] for r in rows]).T
        drawing.axes[2].fill_between(betas, *flat, color="#cfe0ee", label="error within 10 % of the minimum", zorder=1)
        drawing.axes[2].set(yscale="log", ylim=(1e-4, 1e6))
        drawing.axes[2].legend(loc="upper left")


def main() -> None:
    rows = [row(float(beta)) for beta in BETAS]
    inside = [r for r in rows if STATED[0] <= r["beta"] <= STATED[1]]
    off15 = max(abs(r["fp4_eq15"] / r["fp4_optimal"] - 1) for r in inside)
    cost15 = max(r["fp4_error_eq15"] / r["fp4_error_optimal"] for r in inside) - 1
    cost16 = max(r["fp8_error_eq16"] / r["fp8_error_optimal"] for r in inside) - 1
    sigma = next(r for r in rows if r["beta"] == 0.5)
    low, high = next(r for r in rows if r["beta"] == 1.0)["fp8_plateau"]
    flat = float(np.log10(high / low))
    negative = [r["beta"] for r in rows if r["fp8_eq16"] <= 0]
    sentences = [
        verdict(
            off15 <= 0.05,
            "eq. (15), fp4",
            f"within {off15:.1%} of the exact optimum for β in [.5, 2], at most {cost15:.1%} more error, if divided by α; "
            f"divided by σ as printed, the error at β = .5 is {sigma['fp4_error_eq15_over_sigma']:.2f} of the variance "
            f"instead of {sigma['fp4_error_optimal']:.2f}",
        ),
        verdict(
            False,
            "eq. (16), fp8",
            f"there is no sharp optimum to fit: the error is within 10 % of its minimum over {flat:.1f} decades of s "
            f"(β = 1); eq. (16) lies on that plateau (at most {cost16:.1%} more error for β in [.5, 2]) "
            f"but is negative at β in {negative}",
        ),
    ]
    write_json(RESULTS / "co3_fig6_scale.json", {"rows": rows, "fp8_flat_decades": flat, "verdicts": sentences})
    draw(rows)
    print("\n".join(sentences))


if __name__ == "__main__":
    main()
