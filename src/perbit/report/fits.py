"""How well the normal, the Laplace and the GenNorm distribution describe each tensor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit.coding.arrays import FLOATS
from perbit.gennorm import GenNorm, fit, fit_laplace, fit_normal, kurtosis, wasserstein
from perbit.gennorm.fit import Method

FAMILIES = ("normal", "laplace", "gennorm")
FEWEST = 8  # values below which a fit says nothing


@dataclass(frozen=True)
class TensorFit:
    """One tensor: exact zeros counted apart, all else measured and fitted on the values that are not zero."""

    name: str
    shape: tuple[int, ...]
    n: int
    zero_mass: float
    mean: float
    sigma: float
    kurtosis: float  # excess, of the values
    beta: float
    alpha: float
    gennorm_kurtosis: float  # excess, of the fitted GenNorm
    w1: dict[str, float]
    w2: dict[str, float]
    dists: dict[str, GenNorm]

    @property
    def best(self) -> str:
        """The family at the smallest W₂."""
        return min(FAMILIES, key=lambda family: self.w2[family])

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        del row["dists"]
        return row | {
            "shape": list(self.shape),
            "best_w1": min(FAMILIES, key=self.w1.__getitem__),
            "best_w2": self.best,
        }


def fit_tensor(name: str, x: NDArray[Any], method: Method = "moments") -> TensorFit | None:
    """Fit one tensor; None where there is nothing to fit: integers, too few values, or all the same.

    >>> row = fit_tensor("w", GenNorm(beta=0.7, alpha=1e-3).sample(50_000, seed=1))
    >>> round(row.beta, 1), row.best
    (0.7, 'gennorm')
    """
    if x.dtype.name not in FLOATS:
        return None
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    values = flat[flat != 0]
    if values.size < FEWEST or values.min() == values.max():
        return None
    dists = {
        "normal": fit_normal(values),
        "laplace": fit_laplace(values),
        "gennorm": fit(values, method, mu="mean").dist,
    }
    return TensorFit(
        name,
        tuple(x.shape),
        flat.size,
        1 - values.size / flat.size,
        float(np.mean(values, dtype=np.float64)),
        float(np.std(values, dtype=np.float64)),
        kurtosis(values),
        dists["gennorm"].beta,
        dists["gennorm"].alpha,
        dists["gennorm"].excess_kurtosis,
        {family: wasserstein(values, dist, p=1) for family, dist in dists.items()},
        {family: wasserstein(values, dist, p=2) for family, dist in dists.items()},
        dists,
    )


def table_line(row: TensorFit | None, width: int) -> str:
    """A line of the printed table (None: its heading); distances in units of sigma."""
    if row is None:
        names = "".join(f"{f'{w} {family}':<12}" for w in ("W1", "W2") for family in FAMILIES)
        return f"{'tensor':<{width}}{'values':>9}{'zeros':>7}{'sigma':>10}{'kurtosis':>10}{'beta':>7}{'alpha':>10}  {names}"
    distances = "".join(
        f"{f'{d[family] / row.sigma:.4f}' + ('*' if d[family] == min(d.values()) else ''):<12}"
        for d in (row.w1, row.w2)
        for family in FAMILIES
    ).rstrip()
    return (
        f"{row.name:<{width}}{row.n:>9}{row.zero_mass:>7.1%}{row.sigma:>10.2e}{row.kurtosis:>10.2f}"
        f"{row.beta:>7.3f}{row.alpha:>10.2e}  {distances}"
    )
