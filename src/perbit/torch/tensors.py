"""torch tensors at the door: read as arrays without a copy where memory allows, and made of arrays again.

bfloat16 passes as 16-bit integers, so numpy need not know it. Lossy codecs take no 8-bit floats: these travel as float16, which holds them exactly
(scales, float8_e8m0fnu, as float32), and become 8-bit floats again where the receiver says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.afar import Afar
from perbit.coding.bits import Reader
from perbit.coding.codec import Pipeline
from perbit.errors import EncodeError
from perbit.frame import payload
from perbit.frame.header import Entry
from perbit.torch.device import afar

Tensors = Mapping[str, torch.Tensor]
DeviceLike = torch.device | str | None


def stored(x: object, name: str | None = None) -> tuple[str, NDArray[Any]]:
    """The dtype that a frame gives a tensor, and its values as arrays are stored; `name` is for errors."""
    dtype, tensor = storable(x, name)
    return dtype, on_host(tensor)


def values_of(tensor: torch.Tensor, codec: Pipeline) -> NDArray[Any] | Afar:
    """The values of a tensor that is storable: where they lie if the codec has kernels there, else on the host as they are stored."""
    there = afar(tensor, codec)
    return on_host(tensor) if there is None else there


def storable(x: object, name: str | None = None) -> tuple[str, torch.Tensor]:
    """The dtype that a frame gives a tensor, and the tensor in it."""
    tensor = strided(x, name)
    if is_float8(tensor.dtype):
        tensor = tensor.to(torch.float32 if tensor.dtype == torch.float8_e8m0fnu else torch.float16)
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in arrays.DTYPES:
        raise EncodeError(f"cannot encode {_called(name)} of dtype {dtype}; use floats or integers")
    return dtype, tensor


def on_host(tensor: torch.Tensor) -> NDArray[Any]:
    """The values of a tensor as arrays are stored."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy(force=True).view(np.uint16)
    found: NDArray[Any] = tensor.numpy(force=True)
    return found


def strided(x: object, name: str | None = None) -> torch.Tensor:
    """A tensor that holds its values itself, without its history; whatever else is refused with the way out."""
    if not isinstance(x, torch.Tensor):
        raise EncodeError(f"{_called(name)} must be a torch tensor, got {type(x).__name__}; perbit itself takes arrays")
    if hasattr(x, "full_tensor"):  # a DTensor, whose module takes long to import
        raise EncodeError(
            f"{_called(name)} is a DTensor, spread over several ranks; pass x.to_local() for the part of this rank, "
            "or x.full_tensor(), which all ranks must call"
        )
    if x.layout != torch.strided or x.is_quantized:
        raise EncodeError(f"{_called(name)} is {_layout(x)}; pass a dense tensor, e.g. x.{_dense(x)}")
    if x.device.type == "meta":
        raise EncodeError(f"{_called(name)} is on the meta device and has no values")
    return x.detach()


def read_tensor(src: Reader, entry: Entry) -> torch.Tensor:
    """The next tensor of a frame, in memory of its own."""
    return from_stored(payload.read_stored(src, entry), entry.dtype)


def from_stored(array: NDArray[Any], dtype: str) -> torch.Tensor:
    """The tensor in the memory of a stored array."""
    mine = array if array.flags.writeable else array.copy()
    if dtype == "bfloat16":
        return torch.from_numpy(mine.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(mine)


def cast(x: torch.Tensor, dtype: torch.dtype | None, device: DeviceLike = None) -> torch.Tensor:
    """The tensor as another dtype; what a narrower float cannot hold saturates."""
    if dtype is None or dtype == x.dtype:
        return x.to(device)
    if dtype.is_floating_point and x.is_floating_point():
        limit = torch.finfo(dtype).max
        if torch.finfo(x.dtype).max > limit:
            x = x.clamp(-limit, limit)
    return x.to(device=device, dtype=dtype)


def is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1 and str(dtype).startswith("torch.float8")


def named_tensors(model: torch.nn.Module | Tensors) -> dict[str, torch.Tensor]:
    """The tensors of a model (parameters and buffers, those that `state_dict()` has), or those of a mapping."""
    found = model.state_dict(keep_vars=True) if isinstance(model, torch.nn.Module) else model
    if not isinstance(found, Mapping):
        raise EncodeError(f"expected a module or tensors by name, got {type(model).__name__}")
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def _called(name: str | None) -> str:
    return f"tensor {name!r}" if name else "the tensor"


def _layout(x: torch.Tensor) -> str:
    return "quantized" if x.is_quantized else str(x.layout).removeprefix("torch.")


def _dense(x: torch.Tensor) -> str:
    return "dequantize()" if x.is_quantized else "to_dense()"
