"""Arrays at the door: what comes in becomes float32 (or keeps its bytes under `raw`), what goes out has the dtype and shape it came with."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit import dtypes
from perbit.coding.bits import bytes_of
from perbit.coding.values import Floats
from perbit.errors import DecodeError, EncodeError, NonFiniteError
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.parallel import chunks

# The number of each dtype in a frame. Never reused.
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
FLOATS = DTYPES[:4]  # what lossy codecs take; float8 are as small as they should be, and go as they are
_BF16_MAX_BITS = 0x7F7F
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name of a dtype; numpy spells it anew whenever it is asked, which shows in messages of many small tensors."""
    return dtype.name


def as_numpy(x: Any) -> NDArray[Any]:
    """A numpy array, aligned and in native byte order, for an array, a torch tensor on any device, or anything numpy can read."""
    array = np.asarray(_from_torch(x) if hasattr(x, "detach") else x)
    if dtype_name(array.dtype) not in DTYPES:
        raise EncodeError(f"cannot encode dtype {dtype_name(array.dtype)}; use one of {', '.join(DTYPES)}")
    if not (array.dtype.isnative and array.flags.aligned):  # the kernels read memory as it lies
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _from_torch(x: Any) -> NDArray[Any]:
    """The values of a torch tensor, without importing torch."""
    try:
        kind = str(x.dtype).removeprefix("torch.")
        if kind in dtypes.STORED:  # which numpy has not
            return x.detach().float().numpy(force=True).astype(dtypes.named(kind))  # type: ignore[no-any-return]
        return x.numpy(force=True)  # type: ignore[no-any-return]
    except dtypes.DtypeError as error:
        raise EncodeError(str(error)) from None
    except (TypeError, RuntimeError) as error:
        raise EncodeError(
            f"cannot read this tensor ({error}); convert it first, e.g. to x.to_dense().float()"
        ) from error


def item_size(dtype: str) -> int:
    return dtypes.stored(dtype).itemsize


def to_floats(array: NDArray[Any], name: str | None, scan: bool = True) -> Floats:
    """The values as contiguous float32, finite if `scan` looks for others; anything else is an error that names the tensor."""
    where = f"tensor {name!r}" if name else "the array"
    if dtype_name(array.dtype) not in FLOATS:
        raise EncodeError(
            f"{where} is {dtype_name(array.dtype)}; only raw encodes integers and float8, lossy codecs need wider floats"
        )
    with np.errstate(over="ignore"):
        values = Floats(np.asarray(array, np.float32, order="C"))
    if scan and values.range[2]:
        raise nonfinite(array, name)
    return values


def check_finite(array: NDArray[Any], name: str | None) -> None:
    """Refuse NaN and infinity in an array that is stored as it is."""
    if not _all_finite(array):
        raise nonfinite(array, name)


def _all_finite(array: NDArray[Any]) -> bool:
    if dtype_name(array.dtype) == "float32":
        return K.scan(np.asarray(array, order="C").reshape(-1))[2] == 0
    return dtype_name(array.dtype) not in FLOATS or bool(np.isfinite(array).all())


def nonfinite(array: NDArray[Any], name: str | None) -> EncodeError:
    """The error that says how many values are not finite."""
    where = f"tensor {name!r}" if name else "the array"
    wide = array.astype(np.float64)
    n_nan, n_inf = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    if not n_nan + n_inf:
        n_huge = int((np.abs(wide) > _FLOAT32_MAX).sum())
        return EncodeError(f"{where} holds {n_huge} values beyond float32's range; scale it down or use raw")
    counts = [f"{count} {what}" for count, what in ((n_nan, "NaN"), (n_inf, "infinite")) if count]
    return NonFiniteError(
        f"{where} holds {' and '.join(counts)} of {array.size} values; a diverged step? Skip it or clip before encoding"
    )


def native_bytes(array: NDArray[Any]) -> memoryview:
    """The little-endian bytes of a stored array, without a copy where possible."""
    flat = np.asarray(stored(array), order="C").reshape(-1)
    return bytes_of(flat.astype(flat.dtype.newbyteorder("<"), copy=False))


def from_native(data: bytes | bytearray | memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array whose little-endian bytes these are, as it is stored."""
    if dtype == "bool":
        flags = np.frombuffer(data, np.uint8)
        if flags.size and flags.max() > 1:
            raise DecodeError("a truth value is neither 0 nor 1")
        return flags.astype(bool).reshape(shape)
    kind = dtypes.stored(dtype)
    flat = np.frombuffer(data, kind.newbyteorder("<")).astype(kind)
    if not (_are_finite_bf16(flat) if dtype == "bfloat16" else _all_finite(flat)):
        raise DecodeError("the frame holds NaN or infinite values")
    return flat.reshape(shape)


def stored_float32(values: F32, dtype: str) -> NDArray[Any]:
    """Decoded values as an array of this dtype is stored; what half precision cannot hold saturates."""
    if dtype == "float32":
        return values
    if dtype == "float64":
        return values.astype(np.float64)
    if dtype == "float16":
        return np.clip(values, -65504, 65504).astype(np.float16)
    flat, bits = values.reshape(-1), np.empty(values.size, np.uint16)
    for lo, hi in chunks(values.size):
        bits[lo:hi] = round_to_bf16(flat[lo:hi])
    return bits.reshape(values.shape)


def from_float32(values: F32, dtype: str) -> NDArray[Any]:
    """Decoded values in the dtype of the frame."""
    return as_dtype(stored_float32(values, dtype), dtype)


# --- what numpy does not know: it is stored as whole numbers, and becomes a dtype of ml_dtypes at the door --------------------------------


def as_dtype(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """A stored array with the dtype it is to have for a caller."""
    try:
        return stored.view(dtypes.named(dtype)) if dtype in dtypes.STORED else stored
    except dtypes.DtypeError as error:
        raise DecodeError(str(error)) from None


def stored(array: NDArray[Any]) -> NDArray[Any]:
    """An array as it is stored, without a copy."""
    name = dtype_name(array.dtype)
    return array.view(dtypes.stored(name)) if name in dtypes.STORED else array


def without_bf16(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The values of a stored array in a dtype that numpy knows."""
    return from_bf16(stored) if dtype == "bfloat16" and stored.dtype == np.uint16 else stored


def round_to_bf16(x: F32) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even, never infinite."""
    bits: NDArray[np.uint32] = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    magnitude = np.minimum(rounded & 0x7FFF, _BF16_MAX_BITS)
    upper: NDArray[np.uint16] = (magnitude | (bits >> 16 & 0x8000)).astype(np.uint16)
    return upper


def _are_finite_bf16(bits: NDArray[Any]) -> bool:
    return not bool(((bits & 0x7F80) == 0x7F80).any())  # the exponent of NaN and infinity


def from_bf16(bits: NDArray[Any]) -> F32:
    """The values of these bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
