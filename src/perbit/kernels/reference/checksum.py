"""CRC-32C (Castagnoli) in numpy: many lanes at a time, joined afterwards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perbit.kernels.api import U32, Buffer

_POLYNOMIAL = np.uint32(0x82F63B78)
_ONE = np.uint32(1)
_LANE_BYTES = 512
_LANES = 2048  # lanes of a piece; a power of two


def _byte_table() -> U32:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = crc >> _ONE ^ (crc & _ONE) * _POLYNOMIAL
    return crc


_TABLE = _byte_table()
_ENTRIES: list[int] = _TABLE.tolist()
_SHORT = 8192  # bytes; below, one by one is faster than many lanes


def _multiply(a: U32, factor: int) -> U32:
    """The product with a polynomial modulo the CRC polynomial; bit 31 is the coefficient of 1."""
    product = np.zeros_like(a)
    for bit in range(31, -1, -1):
        if factor >> bit & 1:
            product ^= a
        a = a >> _ONE ^ (a & _ONE) * _POLYNOMIAL
    return product


def _power_of_x(exponent: int) -> int:
    """x**exponent modulo the CRC polynomial."""
    result, square = np.array([1 << 31], dtype=np.uint32), np.array([1 << 30], dtype=np.uint32)
    while exponent:
        if exponent & 1:
            result = _multiply(result, int(square[0]))
        square = _multiply(square, int(square[0]))
        exponent >>= 1
    return int(result[0])


def _register_after(register: int, data: NDArray[np.uint8]) -> int:
    """The CRC register after at most a piece of data."""
    if len(data) < _SHORT:
        for byte in data.tobytes():
            register = register >> 8 ^ _ENTRIES[(register ^ byte) & 255]
        return register
    # A register of zero stays zero over leading zero bytes, and the old register acts like an exclusive-or on the first
    # four bytes: so the data can be completed at the front to whole lanes.
    lanes = 1
    while lanes * _LANE_BYTES < len(data):
        lanes *= 2
    padded = np.zeros(lanes * _LANE_BYTES, dtype=np.uint8)
    first = len(padded) - len(data)
    padded[first:] = data
    padded[first : first + 4] ^= np.frombuffer(register.to_bytes(4, "little"), dtype=np.uint8)
    columns = np.ascontiguousarray(padded.reshape(lanes, _LANE_BYTES).T)
    crc = np.zeros(lanes, dtype=np.uint32)
    for column in columns:
        crc = crc >> np.uint32(8) ^ _TABLE[crc.astype(np.uint8) ^ column]
    span = _LANE_BYTES
    while len(crc) > 1:  # join neighbours: the left one moves on over the bytes of the right one
        crc = _multiply(crc[0::2], _power_of_x(8 * span)) ^ crc[1::2]
        span *= 2
    return int(crc[0])


def crc32c(data: Buffer, value: int = 0) -> int:
    raw = np.frombuffer(data, dtype=np.uint8)
    register = value ^ 0xFFFFFFFF
    for begin in range(0, len(raw), _LANES * _LANE_BYTES):
        register = _register_after(register, raw[begin : begin + _LANES * _LANE_BYTES])
    return register ^ 0xFFFFFFFF
