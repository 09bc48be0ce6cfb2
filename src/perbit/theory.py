"""Step sizes and memory rates that the theory allows, from the variance constants ω that codecs declare.

L is the smoothness constant of the objective, N the number of clients, ω_up and ω_down the constants of the two codecs.
"""

from __future__ import annotations

import math


def memory_rate(omega: float) -> float:
    """α = 1/(2(ω + 1)): what the authors of DIANA's heirs and MCM run with, both ways.

    >>> memory_rate(0.0), memory_rate(9.0)
    (0.5, 0.05)
    """
    return 1 / (2 * (omega + 1))


def step_unidirectional(L: float, n_clients: int, omega_up: float) -> float:
    """γ ≤ 1/(2L(1 + ω_up/N)): QSGD and DIANA.

    >>> step_unidirectional(2.0, 10, 10.0)
    0.125
    """
    return 1 / (2 * L * (1 + omega_up / n_clients))


def step_mcm(L: float, n_clients: int, omega_up: float, omega_down: float) -> float:
    """γ ≤ min(1/(2L(1 + ω_up/N)), 1/(8Lω_down), 1/(8√2·Lω_down·√(8ω_down + ω_up/N))): MCM and Rand-MCM.

    >>> step_mcm(1.0, 1, 0.0, 2.0) == 1 / (8 * math.sqrt(2) * 2 * 4)
    True
    """
    up = step_unidirectional(L, n_clients, omega_up)
    if omega_down <= 0:
        return up
    combined = 8 * math.sqrt(2) * L * omega_down * math.sqrt(8 * omega_down + omega_up / n_clients)
    return min(up, 1 / (8 * L * omega_down), 1 / combined)


def step_degraded(L: float, n_clients: int, omega_up: float, omega_down: float) -> float:
    """γ ≤ 1/(8L(1 + ω_down)(1 + ω_up/N)): Dore, Artemis and all that step with the compressed aggregate.

    >>> step_degraded(1.0, 4, 4.0, 1.0)
    0.03125
    """
    return 1 / (8 * L * (1 + omega_down) * (1 + omega_up / n_clients))


def step_ghost(L: float, n_clients: int, omega_up: float, omega_down: float) -> float:
    """γ ≤ 1/(2L·max(1 + ω_up/N, 1 + ω_down)): the Ghost algorithm.

    >>> step_ghost(1.0, 2, 4.0, 1.0)
    0.16666666666666666
    """
    return 1 / (2 * L * max(1 + omega_up / n_clients, 1 + omega_down))
