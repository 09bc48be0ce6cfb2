"""A tensor on a device as an array that frames are made of, and that frames are added to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perbit.coding.afar import Afar
from perbit.coding.bits import Reader
from perbit.coding.codec import Quantizer, Rest
from perbit.coding.families.sparse import Sparsifier, decode_sparse
from perbit.coding.values import Dequantizer, Shape, size
from perbit.kernels import K
from perbit.kernels.api import F32, U32, Symbols
from perbit.torch.device.floats import DeviceFloats, place_in_bucket
from perbit.torch.device.kernels import adding
from perbit.torch.device.launching import SIZE, launch, on_device, on_host, programs_for
from perbit.torch.device.reductions import scan


class DeviceArray(Afar):
    """The float32 values of a contiguous tensor. `source` has them as the caller gave them, where that is another dtype."""

    def __init__(self, x: torch.Tensor, source: torch.Tensor | None = None) -> None:
        self.x = x
        self.source = x if source is None else source

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return tuple(self.x.shape)

    @property
    def size(self) -> int:
        return self.x.numel()

    def reshape(self, shape: Shape | int) -> DeviceArray:
        return DeviceArray(self.x.reshape(shape))

    def __getitem__(self, part: slice) -> DeviceArray:
        return DeviceArray(self.x[part])

    def floats(self) -> DeviceFloats:
        return DeviceFloats(self.x.reshape(-1), self.shape)

    def on_host(self) -> NDArray[Any]:
        narrow = self.source.dtype == torch.bfloat16
        found: NDArray[Any] = (self.source.float() if narrow else self.source).numpy(force=True)
        return found

    def scan(self) -> tuple[float, float, int]:
        """Smallest value, largest value, how many are NaN or infinite."""
        return scan(self.x)

    def fill(self, value: float) -> None:
        self.x.fill_(value)

    def zeros(self, n: int) -> DeviceArray:
        """So many zeros on the same device."""
        return DeviceArray(torch.zeros(n, dtype=torch.float32, device=self.x.device))

    def placed(self, values: F32) -> DeviceArray:
        """An array of the host on the same device."""
        return DeviceArray(on_device(values, self.x.device))

    # --- sums in place -----------------------------------------------------------------------------------------------

    def axpy(self, values: F32 | DeviceArray, weight: float) -> None:
        given = values.x if isinstance(values, DeviceArray) else on_device(values, self.x.device)
        n = self.size
        launch(adding.axpy, programs_for(n), self.x, given, n, float(np.float32(weight)), SIZE=SIZE)

    def fed(self, memory: DeviceArray, gamma: float) -> DeviceArray:
        """self + γ·memory, in memory of its own."""
        out = DeviceArray(torch.empty_like(self.x))
        self._feed_into(out, memory, gamma)
        return out

    def feed(self, g: DeviceArray, gamma: float) -> None:
        """self = g + γ·self"""
        g._feed_into(self, self, gamma)

    def _feed_into(self, out: DeviceArray, memory: DeviceArray, gamma: float) -> None:
        n = self.size
        launch(adding.feedback_add, programs_for(n), self.x, memory.x, out.x, n, float(np.float32(gamma)), SIZE=SIZE)

    def add(self, src: Reader, shape: Shape, rest: Rest, weight: float) -> None:
        head = rest.head
        if isinstance(head, Sparsifier):
            src.spend(head.cost(shape))
            self._scatter_add(*decode_sparse(src, size(shape), head.positions, rest.tail), weight)
        elif isinstance(head, Quantizer) and type(head).decode_add is Quantizer.decode_add:
            src.spend(head.cost(shape))
            for lo, symbols, known in head.decode_symbols(src, size(shape), rest.tail):
                self._add_symbols(lo, symbols, known, weight)
        else:
            self.axpy(rest.decode_floats(src, shape).reshape(-1), weight)

    def _scatter_add(self, positions: U32, values: F32, weight: float) -> None:
        n = positions.size
        if np.any(positions[1:] <= positions[:-1]):  # rare: they may repeat, and the order of sums counts
            whole = on_host(self.x).copy()
            K.scatter_add(whole, positions, values, weight)
            self.x.copy_(torch.from_numpy(whole))
            return
        if n and int(positions[-1]) >= self.size:
            raise ValueError("a position lies outside the output")
        launch(
            adding.scatter_add, programs_for(n), self.x, on_device(positions, self.x.device), on_device(values, self.x.device), n,
            float(np.float32(weight)), SIZE=SIZE,
        )  # fmt: skip

    def _add_symbols(self, lo: int, symbols: Symbols, known: Dequantizer, weight: float) -> None:
        n, device = symbols.size, self.x.device
        if n and int(symbols.max()) >= known.alphabet:
            raise ValueError("a symbol lies outside its table")
        table, norms, within, bucket = on_device(known.table, device), None, 0, 1
        if known.norms is not None:
            norms = on_device(known.norms[lo // known.bucket : (lo + n - 1) // known.bucket + 1], device)
            within, bucket = place_in_bucket(lo, known.bucket)
        launch(
            adding.add_symbols, programs_for(n), self.x[lo : lo + n], on_device(symbols, device), table, table if norms is None else norms,
            n, float(np.float32(weight)), within, bucket, HAS_NORMS=norms is not None, SIZE=SIZE,
        )  # fmt: skip
