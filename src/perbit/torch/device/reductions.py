"""Range, moments and norms of a tensor on a device, finished on the host in the order of the contract."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from perbit.kernels.api import F32
from perbit.torch.device.kernels import reductions as kernels
from perbit.torch.device.launching import launch, on_host, programs_for

_BLOCK, _LANES, _UNROLL = (int(c.value) for c in (kernels.BLOCK, kernels.LANES, kernels.UNROLL))
_SCANNED = 4096  # values that a program looks at
_ROWS = 2  # blocks that a program sums: 16 lanes each fill a warp
_NORM_ROWS = 8


def scan(x: torch.Tensor) -> tuple[float, float, int]:
    """Smallest value, largest value, how many are NaN or infinite."""
    n = x.numel()
    if n == 0:
        return 0.0, 0.0, 0
    programs = programs_for(n, _SCANNED)
    parts = torch.empty((programs, 3), dtype=torch.int32, device=x.device)
    launch(kernels.scan_parts, programs, x, parts, n, SIZE=_SCANNED)
    found = on_host(parts)
    n_nonfinite = int(found[:, 2].sum(dtype=np.int64))
    if n_nonfinite:
        return 0.0, 0.0, n_nonfinite
    return _from_ordered(found[:, 0].min()), _from_ordered(found[:, 1].max()), 0


def moments(x: torch.Tensor) -> tuple[float, float, float, float, int]:
    """Sum, sum of magnitudes, sum of squares, largest magnitude, how many are zero."""
    n = x.numel()
    blocks = -(-n // _BLOCK)
    parts = torch.empty((blocks, 5), dtype=torch.float64, device=x.device)
    steps = programs_for(min(n, _BLOCK), _LANES * _UNROLL)
    launch(kernels.moment_parts, programs_for(blocks, _ROWS), x, parts, n, steps, ROWS=_ROWS)
    found = on_host(parts)
    total, total_abs, total_sq = _in_order(found[:, :3].T).tolist()
    return total, total_abs, total_sq, float(found[:, 3].max(initial=0.0)), int(found[:, 4].sum())


def bucket_norms(x: torch.Tensor, bucket: int, kind: str) -> F32:
    """The norm of every bucket: "l2", or "max"."""
    n = x.numel()
    bucket = min(bucket, max(n, 1))
    count, blocks = -(-n // bucket), -(-bucket // _BLOCK)
    parts = torch.empty((count, blocks), dtype=torch.float64, device=x.device)
    launch(
        kernels.norm_parts, programs_for(parts.numel(), _NORM_ROWS), x, parts, n, bucket, blocks, parts.numel(),
        programs_for(min(bucket, _BLOCK), _LANES * _UNROLL), LARGEST=kind == "max", ROWS=_NORM_ROWS,
    )  # fmt: skip
    found = on_host(parts)
    with np.errstate(over="ignore"):
        whole = found.max(axis=1) if kind == "max" else np.sqrt(_in_order(found))
        norms: F32 = whole.astype(np.float32)
    return norms


def _in_order(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of every row, from the left to the right."""
    totals = np.zeros(len(rows))
    for column in rows.T:
        totals += column
    return totals


def _from_ordered(key: np.int32) -> float:
    bits = np.int32(key) ^ ((np.int32(key) >> np.int32(31)) & np.int32(0x7FFFFFFF))
    return float(bits.view(np.float32)) + 0.0  # -0 becomes +0
