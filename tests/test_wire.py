"""Frames: headers, limits, messages, dtypes, accumulation, and what a frame costs."""

from __future__ import annotations

import numpy as np
import pytest

import perbit
from perbit import kernels
from perbit.coding.bits import Writer
from perbit.dtypes import named
from perbit.frame import wire
from perbit.frame.seal import seal, unsealed
from perbit.frame.wirespec import write_spec

RNG = np.random.default_rng(0)
X = RNG.laplace(size=(40, 50)).astype(np.float32)


def test_overhead_is_at_most_32_bytes_plus_the_spec() -> None:
    for n in (0, 1, 1000, 1_000_000):
        x = np.zeros(n, np.float32)
        frame = perbit.encode(x, "raw")
        assert len(frame) - x.nbytes - len(write_spec(perbit.codec("raw"))) <= 32


def test_a_frame_by_hand() -> None:
    frame = perbit.encode(np.array([1.0, -2.0], np.float32), "raw")
    body = b"pbit" + bytes([1, 0, 0, 1, 2]) + bytes([1, 1, 0]) + bytes([8]) + bytes.fromhex("0000803f000000c0")
    assert frame[:-4] == body


@pytest.mark.parametrize(
    "dtype",
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float8_e4m3fn", "float8_e5m2"],
)
def test_integers_and_float8_survive_exactly_as_raw_only(dtype: str) -> None:
    x = RNG.integers(0, 2, (3, 5)).astype(named(dtype))
    for spec in ("raw", "raw | zstd", "raw | deflate"):
        value = perbit.decode(perbit.encode(x, spec))
        assert value.dtype == x.dtype
        assert np.array_equal(value, x)
    with pytest.raises(perbit.EncodeError, match="only raw encodes integers"):
        perbit.encode(x, "fp16", name="counter")


def test_raw_keeps_float64_exactly() -> None:
    x = RNG.normal(size=100) * 1e200
    assert np.array_equal(perbit.decode(perbit.encode(x, "raw")), x)
    with pytest.raises(perbit.EncodeError, match="100 values beyond float32's range"):
        perbit.encode(x, "fp16")


def test_bfloat16_survives() -> None:
    import ml_dtypes

    x = X.astype(ml_dtypes.bfloat16)
    for spec in ("raw", "bf16"):
        value = perbit.decode(perbit.encode(x, spec))
        assert value.dtype == x.dtype
        assert np.array_equal(value, x)


def test_torch_tensors_are_arrays_too() -> None:
    import torch

    x = torch.from_numpy(X.copy()).requires_grad_()
    assert np.array_equal(perbit.decode(perbit.encode(x, "raw")), X)
    half = x.bfloat16()
    assert np.array_equal(perbit.decode(perbit.encode(half, "raw")).astype(np.float32), half.detach().float().numpy())


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_of_torch_stays_itself(kind: str) -> None:
    import torch

    x = torch.tensor([1.5, -0.25, 0.0]).to(getattr(torch, kind))
    value = perbit.decode(perbit.encode(x, "raw"))
    assert (value.dtype.name, value.astype(np.float32).tolist()) == (kind, [1.5, -0.25, 0.0])


def test_tensors_that_numpy_cannot_read_are_refused_with_the_fix() -> None:
    import torch

    x = torch.eye(3).to_sparse()
    with pytest.raises(perbit.EncodeError, match=r"convert it first, e\.g\. to x\.to_dense\(\)\.float\(\)"):
        perbit.encode(x, "raw")
    assert np.array_equal(perbit.decode(perbit.encode(x.to_dense().float(), "raw")), np.eye(3))


def test_a_tensor_that_is_negated_lazily_is_read() -> None:
    import torch

    negated = torch.tensor([1 + 2j]).conj().imag
    assert perbit.decode(perbit.encode(negated, "raw")).tolist() == [-2]


@pytest.mark.parametrize("back_end", kernels.available())
@pytest.mark.parametrize("spec", ["raw", "fp16", "topk(0.1) | qsgd(7) | rans", "uniform(4) | huffman"])
def test_foreign_byte_orders_and_odd_addresses_change_nothing(spec: str, back_end: str) -> None:
    with kernels.using(back_end):
        for dtype in ("float32", "float64", "float16"):
            x = X.astype(dtype)
            frame = perbit.encode(x, spec, seed=1)
            assert perbit.encode(x.astype(x.dtype.newbyteorder(">")), spec, seed=1) == frame
            assert perbit.encode(at_an_odd_address(x), spec, seed=1) == frame
            message = perbit.dumps({"x": x}, spec, seed=1)
            assert perbit.dumps({"x": at_an_odd_address(x.astype(x.dtype.newbyteorder(">")))}, spec, seed=1) == message


def at_an_odd_address(x: np.ndarray) -> np.ndarray:
    room = np.zeros(x.nbytes + 1, np.uint8)
    room[1:] = x.reshape(-1).view(np.uint8)
    return room[1:].view(x.dtype).reshape(x.shape)


def test_strided_and_scalar_input() -> None:
    assert np.array_equal(perbit.decode(perbit.encode(X[::2, ::3].T, "raw")), X[::2, ::3].T)
    assert perbit.decode(perbit.encode(np.float32(3.5), "raw")) == np.float32(3.5)
    assert perbit.decode(perbit.encode([1.0, 2.0], "fp16")).dtype == np.float64


def test_the_caller_bounds_what_a_frame_may_claim() -> None:
    frame = perbit.encode(X, "topk(0.01)")
    assert perbit.decode(frame, max_values=2000, expect_shape=(40, 50)).shape == (40, 50)
    with pytest.raises(perbit.LimitError, match="pass max_values=2000"):
        perbit.decode(frame, max_values=1999)
    with pytest.raises(perbit.DecodeError, match=r"expected shape \(2000,\)"):
        perbit.decode(frame, expect_shape=(2000,))
    zeros = perbit.encode(np.zeros(1 << 10, np.float32), "uniform(4) | rans")
    assert len(zeros) < 50


def test_messages_and_arrays_are_not_confused() -> None:
    with pytest.raises(perbit.DecodeError, match=r"use perbit\.loads"):
        perbit.decode(perbit.dumps({"x": X}, "raw"))
    with pytest.raises(perbit.DecodeError, match=r"use perbit\.decode"):
        perbit.loads(perbit.encode(X, "raw"))


def test_a_message_is_checked_against_what_is_expected() -> None:
    frame = perbit.dumps({"a": X, "b": X[0]}, "fp16")
    assert list(perbit.loads(frame, expect={"b": (50,), "a": (40, 50)})) == ["a", "b"]
    for expect, problem in [
        ({"a": (40, 50)}, "not expected"),
        ({"a": (40, 50), "b": (51,)}, "got"),
        ({"c": ()}, "lacks|not expected"),
    ]:
        with pytest.raises(perbit.DecodeError, match=problem):
            perbit.loads(frame, expect=expect)


def test_a_plan_chooses_per_tensor_and_the_header_is_small() -> None:
    plan = perbit.Plan.of("topk(0.05) | qsgd(15) | rans", rules={"head.*": "fp16"})
    tensors = {f"layers.{i}.conv.weight": RNG.normal(size=(64, 32)).astype(np.float32) for i in range(30)}
    tensors |= {f"layers.{i}.bn.bias": np.zeros(64, np.float32) for i in range(30)}
    tensors |= {"head.weight": X, "bn.num_batches_tracked": np.array(7, np.int64)}
    frame = perbit.dumps(tensors, plan, seed=1)
    info = perbit.inspect(frame)
    specs = {tensor["name"]: tensor["spec"] for tensor in info["tensors"]}
    assert specs["layers.3.conv.weight"] == "topk(0.05) | qsgd(15) | rans"
    assert (specs["layers.3.bn.bias"], specs["head.weight"], specs["bn.num_batches_tracked"]) == ("raw", "fp16", "raw")
    assert info["header_bytes"] + 4 + sum(tensor["n_bytes"] for tensor in info["tensors"]) == len(frame)
    assert info["header_bytes"] < 62 * 12
    assert perbit.loads(frame)["bn.num_batches_tracked"] == 7


def test_sequence_and_digest_travel() -> None:
    frame = perbit.dumps({"x": X}, "raw", sequence=300, digest=b"abcdefgh")
    header = wire.read_header(frame)
    assert (header.sequence, header.digest) == (300, b"abcdefgh")
    assert perbit.inspect(frame)["digest"] == b"abcdefgh".hex()
    with pytest.raises(perbit.EncodeError):
        perbit.dumps({}, "raw", sequence=1)


def test_decode_add_checks_before_it_adds() -> None:
    frame = perbit.encode(X, "topk(0.1)")
    odd = at_an_odd_address(np.zeros((40, 50), np.float32))
    for bad in (np.zeros((40, 51), np.float32), np.zeros((40, 50)), np.zeros((50, 40), np.float32).T, odd):
        with pytest.raises(perbit.PerbitError):
            perbit.decode_add(frame, bad)
        assert not bad.any()
    with pytest.raises(perbit.DecodeError, match="no tensor 'x'"):
        perbit.decode_add(perbit.dumps({"x": X}, "raw"), {"y": np.zeros((40, 50), np.float32)})


def test_threads_do_not_change_the_bytes() -> None:
    x = RNG.normal(size=(1 << 21) + 77).astype(np.float32)
    for spec in ("uniform(4) | rans", "qsgd(7) | huffman", "uniform(5, random=true)"):
        frame = perbit.encode(x, spec, seed=5)
        value = perbit.decode(frame)
        perbit.set_threads(2)
        try:
            assert perbit.encode(x, spec, seed=5) == frame
            assert np.array_equal(perbit.decode(frame), value)
        finally:
            perbit.set_threads(1)


def test_without_a_seed_every_frame_is_drawn_anew() -> None:
    assert perbit.encode(X, "qsgd(1)") != perbit.encode(X, "qsgd(1)")


@pytest.mark.slow
def test_a_hundred_million_values() -> None:
    x = np.arange(100_000_000, dtype=np.float32)
    frame = perbit.encode(x, "uniform(8) | rans")
    value = perbit.decode(frame)
    assert np.abs(value - x).max() <= 1e8 / 255 / 2 * 1.01
    assert np.array_equal(perbit.decode(perbit.encode(np.zeros_like(x), "qsgd(15) | rans")), np.zeros_like(x))


@pytest.mark.parametrize(
    ("spec", "dtype"),
    [
        ("raw", "float32"),
        ("raw", "float64"),
        ("raw", "float16"),
        ("fp16", "float32"),
        ("bf16", "float32"),
        ("topk(k=2)", "float32"),
    ],
)
def test_a_forged_infinity_is_refused(spec: str, dtype: str) -> None:
    """An encoder never writes one, so a frame that holds one would only poison the server's sum."""
    frame = bytearray(perbit.encode(np.ones(2, dtype), spec))
    frame[-8 if dtype == "float64" else -6 : -4] = b"\xff" * (4 if dtype == "float64" else 2)
    with pytest.raises(perbit.DecodeError, match=r"infinite|NaN"):
        perbit.decode(resealed(frame[:-4]))


def resealed(body: bytes | bytearray) -> bytes:
    out = Writer()
    out.raw(body)
    return seal(out)


@pytest.mark.parametrize("lengths", [[], [0], [5], [3, 0, 1], [20_000], [7, 40_000, 1, 1 << 17]])
def test_a_seal_is_a_checksum_of_all_pieces(lengths: list[int]) -> None:
    out = Writer()
    for length in lengths:
        out.raw(RNG.bytes(length))
    body = out.join()
    sealed = seal(out)
    assert sealed == body + kernels.K.crc32c(body).to_bytes(4, "little")
    assert unsealed(memoryview(sealed)) == body


def test_what_is_too_short_or_changed_has_no_seal() -> None:
    sealed = resealed(b"some bytes")
    flipped = [sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :] for i in range(len(sealed))]
    for bad in [*(bytes(n) for n in range(1, 4)), b"", *(sealed[:i] for i in range(len(sealed))), *flipped]:
        with pytest.raises(perbit.DecodeError, match="checksum"):
            unsealed(memoryview(bad))
