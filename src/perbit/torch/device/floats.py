"""Values on their way through a pipeline that lie on a device: what codecs ask of them is done there, and only the answers come to the host.

Answers are those of the host's kernels, bit for bit, so frames are the same. What is asked for in another way is copied to the host.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from perbit.coding.families.entropy import unpack, width
from perbit.coding.values import Floats, symbol_dtype
from perbit.kernels import CHUNK
from perbit.kernels.api import F32, U32, Symbols
from perbit.randomness import splitmix64
from perbit.torch.device import reductions, selection
from perbit.torch.device.kernels import pack, quantize
from perbit.torch.device.launching import SIZE, launch, on_device, on_host, programs_for

_TORCH = {np.uint8: torch.uint8, np.uint16: torch.int16}  # the same bits
_WIDEST_BUCKET = 1 << 30


class DeviceFloats(Floats):
    """Float32 values of a contiguous tensor with one dimension; `shape` is what codecs see."""

    def __init__(self, x: torch.Tensor, shape: tuple[int, ...] | None = None) -> None:
        self.x = x
        self.shape = tuple(x.shape) if shape is None else shape
        self._selected: tuple[U32 | None, torch.Tensor] = (None, x)

    @cached_property
    def array(self) -> F32:  # type: ignore[override]
        """A copy on the host, for codecs that have no kernels here."""
        found: F32 = on_host(self.x).reshape(self.shape)
        return found

    @property
    def n(self) -> int:
        return self.x.numel()

    @cached_property
    def range(self) -> tuple[float, float, int]:
        return reductions.scan(self.x)

    @cached_property
    def moments(self) -> tuple[float, float, float, float, int]:
        return reductions.moments(self.x)

    def bucket_norms(self, bucket: int, kind: str) -> F32:
        return reductions.bucket_norms(self.x, bucket, kind)

    def top_k(self, k: int) -> U32:
        return self._remembered(*selection.top_k(self.x, k))

    def above(self, threshold: float) -> U32:
        return self._remembered(*selection.above(self.x, threshold))

    def every(self, stride: int) -> F32:
        found: F32 = on_host(self.x[::stride])
        return found

    def at(self, positions: U32) -> Floats:
        known, values = self._selected
        if positions is known:
            return DeviceFloats(values)
        return DeviceFloats(self.x[on_device(positions.astype(np.int64), self.x.device)])

    def _remembered(self, positions: torch.Tensor, values: torch.Tensor) -> U32:
        """The positions on the host. Their values stay here: they are asked for next."""
        found = on_host(positions).view(np.uint32)
        self._selected = found, values
        return found

    # --- symbols of the values [lo, hi), which are those of one chunk ------------------------------------------------

    def quantize_uniform(self, lo: int, hi: int, scale: float, offset: float, levels: int, out: Symbols) -> None:
        self._uniform(lo, hi, scale, offset, levels, None, out)

    def quantize_uniform_random(
        self, lo: int, hi: int, scale: float, offset: float, levels: int, key: int, out: Symbols
    ) -> None:
        self._uniform(lo, hi, scale, offset, levels, key, out)

    def _uniform(
        self, lo: int, hi: int, scale: float, offset: float, levels: int, key: int | None, out: Symbols
    ) -> None:
        symbols, halves = self._room(lo, hi, levels), _halves(key or 0, lo)
        launch(
            quantize.uniform, programs_for(hi - lo), self.x[lo:hi], symbols, hi - lo, scale, offset, levels - 1, *halves,
            RANDOM=key is not None, SIZE=SIZE,
        )  # fmt: skip
        _fetch(symbols, levels, out)

    def quantize_levels_random(
        self, lo: int, hi: int, scales: F32, bucket: int, levels: int, key: int, out: Symbols
    ) -> None:
        alphabet = 2 * levels + 1
        symbols, (within, length) = self._room(lo, hi, alphabet), place_in_bucket(lo, bucket)
        here = on_device(scales[lo // bucket : (hi - 1) // bucket + 1], self.x.device)
        launch(
            quantize.levels_random, programs_for(hi - lo), self.x[lo:hi], here, symbols, hi - lo, within, length, levels,
            *_halves(key, lo), SIZE=SIZE,
        )  # fmt: skip
        _fetch(symbols, alphabet, out)

    def quantize_codebook(self, lo: int, hi: int, thresholds: F32, out: Symbols) -> None:
        symbols, count = self._room(lo, hi, len(thresholds) + 1), len(thresholds)
        launch(
            quantize.codebook, programs_for(hi - lo), self.x[lo:hi], on_device(thresholds, self.x.device), symbols, hi - lo,
            count, STEPS=count.bit_length(), SIZE=SIZE,
        )  # fmt: skip
        _fetch(symbols, len(thresholds) + 1, out)

    def _room(self, lo: int, hi: int, alphabet: int) -> torch.Tensor:
        assert lo % CHUNK == 0
        assert hi - lo <= CHUNK
        return torch.empty(hi - lo, dtype=_TORCH[symbol_dtype(alphabet)], device=self.x.device)


def place_in_bucket(start: int, bucket: int) -> tuple[int, int]:
    """How far into its bucket a chunk begins, and how long the bucket is; both may be as much shorter as no chunk can tell."""
    within = start % bucket
    left = min(bucket - within, _WIDEST_BUCKET)
    length = min(bucket, _WIDEST_BUCKET)
    return (within, length) if bucket <= _WIDEST_BUCKET else (length - left, length)


def packed(symbols: torch.Tensor, bits: int) -> torch.Tensor:
    """Symbols as `bits` bits each, lowest first."""
    n = symbols.numel()
    out = torch.empty(-(-n * bits // 8), dtype=torch.uint8, device=symbols.device)
    launch(pack.pack, programs_for(out.numel()), symbols, out, n, out.numel(), BITS=bits, SIZE=SIZE)
    return out


def _fetch(symbols: torch.Tensor, alphabet: int, out: Symbols) -> None:
    """Symbols to the host, as few bits as they need."""
    unpack(on_host(packed(symbols, width(alphabet))).data, alphabet, out)


def _halves(key: int, start: int) -> tuple[int, int]:
    """The halves of the key of a chunk, as signed numbers of 32 bits."""
    z: Any = splitmix64(key + (start // CHUNK) & ((1 << 64) - 1))
    low, high = np.array([z & 0xFFFFFFFF, z >> 32], np.uint32).view(np.int32).tolist()
    return low, high
