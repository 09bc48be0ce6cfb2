"""Triton's kernels against those of the host, bit for bit, in Triton's interpreter: every frame is the one that the host makes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import perbit
import perbit.torch
from perbit.errors import EncodeError
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.torch import device
from perbit.torch.device import reductions, selection
from perbit.torch.device.floats import DeviceFloats, packed, place_in_bucket

SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 64, 65, 100, 127, 128, 129, 200, 300)
SPECS = (
    "topk(0.1) | qsgd(15) | rans",
    "topk(0.3)",
    "topk(k=3, positions=bloom) | fp16",
    'topk(0.2, method="sampled") | uniform(3) | huffman',
    "threshold(0.5)",
    "nonzero | qsgd(3) | pack",
    "randk(0.2)",
    "uniform(1)",
    "uniform(4) | rans",
    "uniform(9, random=true) | rans",
    'uniform(3, loading="optimal") | pack | zstd',
    "qsgd(1) | rans",
    "qsgd(7, bucket=16) | huffman",
    'qsgd(127, bucket=0, norm="max") | rans',
    "qsgd(2047, bucket=33)",
    "fp(2, 1) | rans",
    'fp(3, 2, reconstruct="centroid") | rans',
    "mwl2(3, 2) | rans",
    "topk(0.4) | mwl2(2, 1.5)",
    "lloyd(5) | huffman",
    "sign | rans",
)
CASES = 24  # for each spec


def values(random: np.random.Generator) -> F32:
    """Few values of many kinds: ties, denormals, zeros of both signs, huge ones, and what can be encoded by no codec."""
    n = int(random.choice(SIZES))
    x = random.standard_normal(n).astype(np.float32)
    kind = random.integers(9)
    if kind == 0:
        x = np.round(2 * x)  # ties
    elif kind == 1:
        x *= np.float32(1e-40)
    elif kind == 2:
        x *= (random.random(n) < 0.3).astype(np.float32)  # zeros, also negative ones
    elif kind == 3:
        x *= np.float32(1e37)
    elif kind == 4:
        x = np.full(n, x[0] if n else 0, np.float32)
    elif kind == 5:
        x = np.exp(8 * x)
    elif kind == 6 and random.random() < 0.4:
        x[random.random(n) < 0.2] = random.choice([np.nan, np.inf, -np.inf])
    return x.astype(np.float32)


def tensors(random: np.random.Generator) -> Iterator[torch.Tensor]:
    for case in range(CASES):
        x = torch.from_numpy(values(random))
        if x.numel() % 4 == 0 and case % 2:
            x = x.reshape(4, -1)
        if case % 7 == 0:
            x = x.to(random.choice([torch.float64, torch.float16, torch.bfloat16]))  # type: ignore[call-overload]
        yield x.T if x.dim() == 2 and case % 3 == 0 else x


def coded(x: torch.Tensor, spec: str) -> bytes | str:
    try:
        return perbit.torch.encode(x, spec, seed=5, name="x")
    except EncodeError as error:
        return str(error)


@pytest.mark.parametrize("spec", SPECS)
def test_frames_are_those_of_the_host(spec: str) -> None:
    """24 tensors for each of 21 specs; what cannot be encoded has the same error. Every fifth frame is added to sums as well."""
    random = np.random.default_rng(len(spec))
    for case, x in enumerate(tensors(random)):
        there = device_coded(x, spec)
        assert there == coded(x, spec)
        if case % 5 == 0 and isinstance(there, bytes):
            total = torch.from_numpy(random.standard_normal(tuple(x.shape)).astype(np.float32))
            assert same_bits(*sums(there, total, weight=float(random.choice([1.0, -1.0, 0.3]))))


def device_coded(x: torch.Tensor, spec: str) -> bytes | str:
    with device.using("cpu"):
        return coded(x, spec)


def sums(frame: bytes, total: torch.Tensor, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum with a decoded frame, by the host and by device kernels."""
    host, there = total.clone(), total.clone()
    if perbit.inspect(frame)["dtype"] == "float32":
        perbit.torch.decode_add(frame, host, weight)
        with device.using("cpu"):
            perbit.torch.decode_add(frame, there, weight)
    return host, there


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_kernels_answer_as_those_of_the_host() -> None:
    random = np.random.default_rng(0)
    for _ in range(40):
        x = values(random)
        there, n = torch.from_numpy(x.copy()), x.size
        assert reductions.scan(there) == K.scan(x)
        k = int(random.integers(n + 1))
        positions, kept = selection.top_k(there, k)
        assert np.array_equal(positions.numpy().view(np.uint32), K.top_k(x, k))
        assert np.array_equal(kept.numpy(), x[K.top_k(x, k)], equal_nan=True)
        threshold = float(np.float32(abs(random.standard_normal())))
        assert np.array_equal(
            selection.above(there, threshold)[0].numpy().view(np.uint32), K.select_above(x, threshold)
        )


def test_sums_have_the_order_of_the_contract() -> None:
    random = np.random.default_rng(1)
    for n in (0, 1, 40, 130, 257):
        x = random.standard_cauchy(n).astype(np.float32)
        there = torch.from_numpy(x)
        assert reductions.moments(there) == K.moments(x, None)
        for bucket, kind in ((7, "l2"), (64, "l2"), (1000, "l2"), (48, "max")):
            assert np.array_equal(reductions.bucket_norms(there, bucket, kind), K.bucket_norms(x, bucket, kind))


@pytest.mark.slow
def test_blocks_are_added_in_their_order() -> None:
    """More blocks than one, and a bucket that is longer than a block: the interpreter needs its time."""
    x = np.random.default_rng(1).standard_cauchy(65536 + 70).astype(np.float32)
    there = torch.from_numpy(x)
    assert reductions.bucket_norms(there, x.size, "l2") == K.bucket_norms(x, x.size, "l2")
    assert reductions.moments(there) == K.moments(x, None)


@pytest.mark.parametrize("bits", range(1, 13))
def test_symbols_are_packed_as_on_the_host(bits: int) -> None:
    random = np.random.default_rng(bits)
    for n in (0, 1, 5, 8, 63):
        symbols = random.integers(1 << bits, size=n).astype(np.uint16 if bits > 8 else np.uint8)
        there = torch.from_numpy(symbols.view(np.int16) if bits > 8 else symbols)
        assert packed(there, bits).numpy().tobytes() == K.pack(symbols, bits)


def test_chunks_have_their_own_random_numbers_and_find_their_bucket() -> None:
    """A tensor of more than 2^20 values, of which the interpreter sees the second chunk alone."""
    random = np.random.default_rng(3)
    chunk, n, key = 1 << 20, (1 << 20) + 100, 0xFEDCBA9876543210
    x, bucket = random.standard_normal(n).astype(np.float32), 300
    scales = random.random(-(-n // bucket)).astype(np.float32)
    there, out, same = DeviceFloats(torch.from_numpy(x)), np.empty(100, np.uint8), np.empty(100, np.uint8)
    there.quantize_levels_random(chunk, n, scales, bucket, 7, key, out)
    K.quantize_levels_random(x[chunk:], scales, bucket, 7, key, chunk, same)
    assert np.array_equal(out, same)
    there.quantize_uniform_random(chunk, n, 2.0, 8.0, 16, key, out)
    K.quantize_uniform_random(x[chunk:], 2.0, 8.0, 16, key, chunk, same)
    assert np.array_equal(out, same)


@pytest.mark.parametrize("bucket", [1, 3, 512, (1 << 30) - 1, 1 << 30, (1 << 30) + 5, 1 << 31, (1 << 32) - 1])
def test_long_buckets_fit_into_32_bits(bucket: int) -> None:
    for start in (0, 1 << 20, 1 << 30, (1 << 30) - (1 << 20), (1 << 31) - (1 << 21)):
        within, length = place_in_bucket(start, bucket)
        assert within + (1 << 20) < 1 << 31
        for i in (0, 1, 4, 5, 6, 511, (1 << 20) - 1):
            assert (within + i) // length == (start + i) // bucket - start // bucket
