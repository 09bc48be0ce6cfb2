"""Kernels of packing, Golomb positions and checksums: three back ends agree byte for byte, also on corrupt input."""

# ruff: noqa: B023 - the functions made in loops are called before the loop goes on

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numeric_backends import SIZES, fails_on_all, filled, on_all, same_bits
from perbit.kernels import K

# --- packing


def plain_pack(symbols: list[int], bits: int) -> bytes:
    whole = sum(s << i * bits for i, s in enumerate(symbols))
    return whole.to_bytes((len(symbols) * bits + 7) // 8, "little")


def test_pack_by_hand() -> None:
    assert on_all(lambda: K.pack(np.array([1, 2, 3], dtype=np.uint8), 3)) == bytes([0b11_010_001, 0b0])
    assert on_all(lambda: K.pack(np.array([0xABC, 0x123], dtype=np.uint16), 12)) == bytes([0xBC, 0x3A, 0x12])


@pytest.mark.parametrize("bits", range(1, 17))
def test_pack_round_trip(bits: int) -> None:
    for n in [*SIZES, 2, 3, 4, 5, 6, 9, 10, 65_536 + 9]:
        for dtype in (np.uint8, np.uint16):
            symbols = np.random.default_rng(n).integers(0, 1 << bits, n).astype(dtype)
            if bits > 8 * symbols.itemsize:
                fails_on_all(lambda: K.pack(symbols, bits), "bits must be")
                fails_on_all(lambda: K.unpack(b"", bits, symbols), "bits must be")
                continue
            data = on_all(lambda: K.pack(symbols, bits))
            if n <= 1000:
                assert data == plain_pack(symbols.tolist(), bits)
            odd = memoryview(b"x" + data)[1:]
            got = on_all(lambda: filled(dtype, n, lambda out: K.unpack(odd, bits, out)))
            assert np.array_equal(got, symbols)
            if n and bits < 8 * symbols.itemsize:
                symbols[n // 2] = 1 << bits
                fails_on_all(lambda: K.pack(symbols, bits), "does not fit")


def corruptions(data: bytes) -> Iterator[bytes]:
    """Every truncation, an extension, every bit flip."""
    yield from (data[:i] for i in range(len(data)))
    yield data + b"\0"
    yield data + b"\xff"
    for i in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        yield bytes(flipped)


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or that it failed: back ends must agree on both."""
    try:
        return call()
    except ValueError:
        return "ValueError"


@pytest.mark.parametrize(("n", "bits"), [(5, 3), (16, 4), (7, 1), (11, 7), (9, 8), (13, 11), (3, 16)])
def test_unpack_corrupt(n: int, bits: int) -> None:
    dtype = np.uint8 if bits <= 8 else np.uint16
    data = K.pack(np.random.default_rng(n).integers(0, 1 << bits, n).astype(dtype), bits)
    for bad in corruptions(data):
        result = on_all(lambda: outcome(lambda: filled(dtype, n, lambda out: K.unpack(bad, bits, out))))
        if not isinstance(result, str):
            assert K.pack(result, bits) == bad


# --- positions


def plain_golomb(positions: list[int], b: int) -> bytes:
    bits, following = "", 0
    for p in positions:
        gap = p - following
        bits += "".join(str(gap >> i & 1) for i in range(b)) + "0" * (gap >> b) + "1"
        following = p + 1
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def test_golomb_by_hand() -> None:
    # gaps 0, 3, 9 with b = 2: low bits 00 1, then 11 1, then 10 001 (LSB first)
    positions = np.array([0, 4, 14], dtype=np.uint32)
    assert on_all(lambda: K.golomb_encode(positions, 2)) == bytes([0b01_111_100, 0b100])
    assert on_all(lambda: K.golomb_encode(positions[:0], 2)) == b""
    assert on_all(lambda: K.golomb_decode(b"", 0, 2, 0)).tolist() == []


@given(
    gaps=st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5000)), max_size=60),
    b=st.sampled_from([0, 1, 2, 5, 9, 20, 31]),
)
@settings(max_examples=150, deadline=None)
def test_golomb_round_trip(gaps: list[int], b: int) -> None:
    positions = (np.cumsum(np.array(gaps, dtype=np.int64) + 1) - 1).astype(np.uint32)
    n = int(positions[-1]) + 1 if gaps else 0
    data = on_all(lambda: K.golomb_encode(positions, b))
    assert data == plain_golomb(positions.tolist(), b)
    view = memoryview(b"abc" + data)[3:]
    assert same_bits(on_all(lambda: K.golomb_decode(view, len(gaps), b, n)), positions)
    if gaps:
        fails_on_all(lambda: K.golomb_decode(data, len(gaps), b, n - 1))
        fails_on_all(lambda: K.golomb_decode(data[:-1], len(gaps), b, n))
    fails_on_all(lambda: K.golomb_decode(data + b"\0", len(gaps), b, n))
    fails_on_all(lambda: K.golomb_decode(data, 8 * len(data) + 1, b, 2**32))


def test_golomb_large() -> None:
    for n, k, b in ((1 << 22, 40_000, 6), (1 << 32, 5000, 19), (200_000, 100_000, 0)):
        rng = np.random.default_rng(k)
        positions = np.unique(np.append(rng.integers(0, n, k), n - 1)).astype(np.uint32)
        data = on_all(lambda: K.golomb_encode(positions, b))
        assert same_bits(on_all(lambda: K.golomb_decode(data, len(positions), b, n)), positions)


@pytest.mark.parametrize(("positions", "b"), [([0], 0), ([3, 4, 90], 2), ([7, 200, 201, 1000], 5), ([1 << 31], 31)])
def test_golomb_corrupt(positions: list[int], b: int) -> None:
    data = K.golomb_encode(np.array(positions, dtype=np.uint32), b)
    n = positions[-1] + 5
    for bad in corruptions(data):
        for count in (len(positions), len(positions) + 1):
            result = on_all(lambda: outcome(lambda: K.golomb_decode(bad, count, b, n)))
            if not isinstance(result, str):
                assert K.golomb_encode(result, b) == bad


def test_golomb_rejects() -> None:
    for bad in ([3, 3], [5, 4], [0, 0], [1, 2, 2**32 - 1, 0]):
        fails_on_all(lambda: K.golomb_encode(np.array(bad, dtype=np.uint32), 3), "strictly ascending")
    zeros = bytes(5000)
    fails_on_all(lambda: K.golomb_decode(zeros, 1, 31, 2**32), "ends within")
    late = zeros + b"\x80"  # a quotient of 40 000 with b = 31 would overflow 32 bits, and more zeros 64
    fails_on_all(lambda: K.golomb_decode(late, 1, 31, 2**32), "outside the tensor")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 2**60, 0, 2**32), "too short")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 8, 0, 2**32 + 1), "32-bit")
    fails_on_all(lambda: K.golomb_decode(b"\xff", 8, 32, 100), "0 to 31")


# --- checksums


def test_crc32c_known_values() -> None:
    for data, crc in (
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ):
        assert on_all(lambda: K.crc32c(data)) == crc


def test_crc32c_lengths_pieces_and_buffers() -> None:
    data = np.random.default_rng(8).integers(0, 256, 2_500_000, dtype=np.uint8).tobytes()
    lengths = [*range(40), 255, 256, 257, 767, 768, 769, 1535, 12_287, 12_288, 12_289, 40_000, 1 << 20, len(data)]
    for n in lengths:
        whole = on_all(lambda: K.crc32c(memoryview(data)[:n]))
        cut = n // 3
        assert K.crc32c(data[cut:n], K.crc32c(data[:cut])) == whole
        assert on_all(lambda: K.crc32c(memoryview(data)[1 : n + 1], 0xDEADBEEF)) >= 0
    assert K.crc32c(bytearray(b"123456789")) == K.crc32c(np.frombuffer(b"123456789", dtype=np.uint8).data)
