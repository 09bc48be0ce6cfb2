"""What MCM's theory says beyond the steps of perbit.theory: the rate of the downlink memory, and the stationary variance over γσ²/(Nb)."""

from __future__ import annotations


def memory_rate_bound(omega_down: float) -> float:
    """α ≤ 1/(4ω): the largest downlink rate Theorem 5 allows (at most 1).

    >>> memory_rate_bound(2.0), memory_rate_bound(0.0)
    (0.125, 1.0)
    """
    return min(1.0, 1 / (4 * omega_down)) if omega_down > 0 else 1.0


def variance_factor_mcm(L: float, gamma: float, omega_up: float, omega_down: float) -> float:
    """Φ(γ) = (1 + ω_up)(1 + 64γLω_down²): the stationary variance, at most.

    >>> variance_factor_mcm(1.0, 0.0, 3.0, 5.0)
    4.0
    """
    return (1 + omega_up) * (1 + 64 * gamma * L * omega_down**2)


def variance_factor_degraded(omega_up: float, omega_down: float) -> float:
    """(1 + ω_up)(1 + ω_down): the same for algorithms that step with the compressed aggregate.

    >>> variance_factor_degraded(3.0, 5.0)
    24.0
    """
    return (1 + omega_up) * (1 + omega_down)
