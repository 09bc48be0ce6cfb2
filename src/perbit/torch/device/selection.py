"""Positions of the largest magnitudes of a tensor on a device, ascending, with their values."""

from __future__ import annotations

import numpy as np
import torch

from perbit.torch.device.kernels import select as kernels
from perbit.torch.device.launching import launch, on_host, programs_for

_SIZE = 2048
_SHIFTS = (24, 16, 8, 0)  # of the digits of a magnitude, the highest one first
_ALL = 0x7FFFFFFF

Selected = tuple[torch.Tensor, torch.Tensor]  # positions as int32, values


def top_k(x: torch.Tensor, k: int) -> Selected:
    """The k largest magnitudes; of equal ones those at the lowest positions."""
    if not 0 <= k <= x.numel():
        raise ValueError("k is larger than the array")
    if k == 0:
        return torch.empty(0, dtype=torch.int32, device=x.device), x[:0]
    threshold, n_ties = _kth(x, k)
    return _collected(x, threshold, n_ties)


def above(x: torch.Tensor, threshold: float) -> Selected:
    """All magnitudes of at least the threshold."""
    return _collected(x, int(np.float32(threshold).view(np.int32)) & _ALL, _ALL)


def _kth(x: torch.Tensor, k: int) -> tuple[int, int]:
    """The k-th largest magnitude as a whole number, and how many of its equals are among the k."""
    n, prefix, wanted = x.numel(), 0, k
    for shift in _SHIFTS:
        counts = torch.zeros(int(kernels.DIGITS.value), dtype=torch.int32, device=x.device)
        launch(kernels.digit_counts, programs_for(n, _SIZE), x, counts, n, prefix, shift=shift, SIZE=_SIZE)
        from_top = np.cumsum(on_host(counts)[::-1], dtype=np.int64)
        steps = int(np.searchsorted(from_top, wanted))
        wanted -= int(from_top[steps - 1]) if steps else 0
        prefix = prefix << 8 | (len(from_top) - 1 - steps)
    return prefix, wanted


def _collected(x: torch.Tensor, threshold: int, n_ties: int) -> Selected:
    n, programs = x.numel(), programs_for(x.numel(), _SIZE)
    counts = torch.empty((programs, 2), dtype=torch.int32, device=x.device)
    launch(kernels.reaching_counts, programs, x, counts, n, threshold, SIZE=_SIZE)
    after = counts.cumsum(0)
    n_above, n_on = on_host(after[-1]).tolist() if programs else (0, 0)
    kept = n_above + min(n_on, n_ties)
    positions = torch.empty(kept, dtype=torch.int32, device=x.device)
    values = torch.empty(kept, dtype=torch.float32, device=x.device)
    before = (after - counts).to(torch.int32)
    launch(kernels.collect, programs, x, before, positions, values, n, threshold, n_ties, SIZE=_SIZE)
    return positions, values
