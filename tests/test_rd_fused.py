"""What `rd` does in one call of a compiled back end is what it does by single kernels and in numpy: choices, bytes, values, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import perbit
from attacks.build import sealed
from attacks.rd import cut_frames
from fuzzing.mutations import MUTATIONS
from numeric_backends import F32, normal, same_bits
from perbit import kernels, parallel
from perbit.coding.bits import Reader
from perbit.coding.cost import Budget
from perbit.coding.families.rd import judging, parts, streams, tensor, trellis
from perbit.coding.families.rd.factors import Found, Matrix
from perbit.kernels import CHUNK

NATIVE = [name for name in kernels.available() if name != "numpy"]


def ways(numpy_too: bool = True) -> Iterator[Any]:
    """Every back end at once, one of them by single kernels, and numpy."""
    for name in NATIVE:
        with kernels.using(name):
            yield nullcontext()
    if NATIVE:
        with kernels.using(NATIVE[-1]):
            yield kernels.unfused()
    if numpy_too:
        with kernels.using("numpy"):
            yield nullcontext()


def in_all_ways(call: Callable[[], Any], numpy_too: bool = True) -> Any:
    results = []
    for way in ways(numpy_too):
        with way:
            results.append(call())
    for result in results[1:]:
        assert same_bits(result, results[0])
    return results[0]


def test_compiled_back_ends_do_it_in_one_call() -> None:
    for name in NATIVE:
        with kernels.using(name):
            assert kernels.fuses()
            with kernels.unfused():
                assert not kernels.fuses()
    with kernels.using("numpy"):
        assert not kernels.fuses()


# --- choosing components ---------------------------------------------------------------------------------------------


def low_rank(rows: int, columns: int, rank: int, noise: float, seed: int = 0) -> F32:
    rng = np.random.default_rng(seed)
    product = rng.laplace(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    return (product + noise * rng.normal(size=(rows, columns))).astype(np.float32)


def embedding(rows: int, columns: int) -> F32:
    """Most of the energy is in few rows, which are judged by themselves."""
    x = low_rank(rows, columns, 3, 0.1)
    x[np.random.default_rng(1).permutation(rows)[rows // 10 :]] *= np.float32(1e-4)
    return x


MATRICES = {
    "low rank": low_rank(60, 90, 3, 0.1),
    "tall": low_rank(300, 20, 2, 0.3),
    "noise": normal(40 * 50).reshape(40, 50),
    "many components": low_rank(130, 140, 40, 0.05),
    "an embedding": embedding(700, 24),
    "two rows": low_rank(2, 400, 1, 0.1),
}


@pytest.mark.parametrize("name", MATRICES)
def test_components_are_chosen_alike(name: str) -> None:
    found = Found(Matrix(MATRICES[name], 1.0, 8.0), 64)
    ranks = set()
    for step in (1e-4, 0.01, 0.1, 0.5, 2.0, 20.0):
        rank, _, error, bits = in_all_ways(lambda step=step: _chosen(found, step), numpy_too=step == 0.1)
        assert min(error, bits) >= 0
        ranks.add(rank)
    assert len(ranks) > 1 or name == "noise"


def _chosen(found: Found, step: float) -> tuple[int, int, float, float]:
    choice, error, bits = found.choice(step)
    return (choice.rank, choice.coarse_index, error, bits) if choice else (0, 0, error, bits)


def test_what_cannot_be_judged_is_refused() -> None:
    found = Found(Matrix(MATRICES["low rank"], 1.0, 8.0), 4)
    sent, sigma, values, left, right = found.sample
    numbers = 0, 1.0, 1.0, 8.0, 60, 90
    with kernels.using(NATIVE[0]):
        for arrays in (
            (sent[1:], sigma, values, left, right),
            (sent, sigma[1:], values, left, right),
            (sent, sigma, values[1:], left, right),
            (sent, sigma, values, left[:0], right),
        ):
            with pytest.raises(ValueError):
                judging.choose_components(*arrays, judging.normal(5000), *numbers)
        with pytest.raises(ValueError, match="noise"):
            judging.choose_components(*found.sample, judging.normal(100), *numbers)
        with pytest.raises(ValueError, match="rows"):
            judging.choose_components(*found.sample, judging.normal(5000), 1000, *numbers[1:])


# --- streams and parts -----------------------------------------------------------------------------------------------


def symbols(kind: str, n: int, dtype: type[np.uint8] | type[np.uint16]) -> np.ndarray[Any, Any]:
    rng, zero, reach = np.random.default_rng(n), trellis.ZERO[dtype], trellis.ZERO[dtype] - 1
    drawn = {
        "zeros": np.zeros(n),
        "one other": np.eye(1, n, n // 2)[0],
        "constant": np.full(n, -3),
        "small": rng.laplace(0, 1, n),
        "rare": rng.laplace(0, 3, n) * (rng.random(n) < 0.01),
        "flat": rng.integers(-8, 8, n),
        "far": rng.normal(0, reach / 4, n),
        "all there are": np.resize(np.arange(-zero, zero), n),
        "in columns": rng.laplace(0, 1, n) * np.resize(np.geomspace(0.1, 8, 32), n),
        "in rows": rng.laplace(0, 1, n) * np.repeat(np.geomspace(0.1, 8, n // 32 + 1), 32)[:n],
    }[kind]
    return np.clip(np.rint(drawn) + zero, 0, 2 * zero - 1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize(
    "kind", ["zeros", "one other", "constant", "small", "rare", "flat", "far", "all there are", "in columns", "in rows"]
)
def test_streams_have_the_same_bytes(kind: str, dtype: type[np.uint8] | type[np.uint16]) -> None:
    modes = set()
    for n, columns, block in (
        (1, 0, 8),
        (511, 32, CHUNK),
        (513, 32, CHUNK),
        (800, 400, CHUNK),
        (3000, 0, 1000),
        (9000, 32, CHUNK),
        (20_000, 1, 8192),
    ):
        coded = symbols(kind, n, dtype)
        stream = in_all_ways(
            lambda coded=coded, columns=columns, block=block: bytes(streams.write_stream(coded, columns, block)),
            numpy_too=n < 5000,
        )
        modes.add(stream[0])
        levels = np.empty(n, np.float32)
        table = np.arange(2 * trellis.ZERO[dtype], dtype=np.float32)
        streams.read(Reader(stream), columns, block, table, levels)
        assert np.array_equal(levels, coded)
    assert (max(modes) > 0) == (kind != "zeros")


def test_symbols_outside_the_alphabet_are_refused() -> None:
    for name in NATIVE:
        with kernels.using(name), pytest.raises(ValueError, match="alphabet"):
            streams.write_stream(np.full(5000, 60_000, np.uint16), 0, CHUNK)


@pytest.mark.parametrize("n", [1, 7, 255, 256, 1023, 8192, 20_000, 70_001])
def test_parts_have_the_same_bytes(n: int) -> None:
    for scale in (0.01, 0.3, 1.0, 6.0, 80.0, 700.0):
        values = np.random.default_rng(n).laplace(0, scale, n).clip(-4000, 4000).astype(np.float32)
        for columns, slope in ((1, 0.25), (32, 0.0625)):
            in_all_ways(
                lambda values=values, columns=columns, slope=slope: bytes(parts.write_part(values, columns, slope)),
                numpy_too=n < 3000,
            )


def test_a_part_of_several_chunks_is_the_same_on_threads() -> None:
    x = np.random.default_rng(0).laplace(0, 0.8, CHUNK + 3000).astype(np.float32).reshape(4, -1)
    frame = in_all_ways(lambda: perbit.encode(x, "rd(1, rank=0)"), numpy_too=False)
    decoded = in_all_ways(lambda: perbit.decode(frame, max_values=x.size), numpy_too=False)
    threads = parallel.get_threads()
    perbit.set_threads(2)
    try:
        assert perbit.encode(x, "rd(1, rank=0)") == frame
        assert np.array_equal(perbit.decode(frame, max_values=x.size), decoded)
    finally:
        perbit.set_threads(threads)


# --- whole tensors ---------------------------------------------------------------------------------------------------


def kernels_with_taps() -> F32:
    rng = np.random.default_rng(3)
    smooth = 3 * rng.normal(size=(24, 24, 1, 1)) + rng.normal(size=(24, 24, 3, 3))
    return (smooth + 4 * rng.normal(size=(24, 1, 1, 1)) * rng.normal(size=(1, 24, 1, 1))).astype(np.float32)


TENSORS = {
    **MATRICES,
    "kernels": kernels_with_taps(),
    "one dimension": normal(3000),
    "one value": np.float32([3.5]),
    "no values": np.empty((0, 5), np.float32),
    "zeros": np.zeros((20, 30), np.float32),
    "outliers": normal(2000) * np.where(np.arange(2000) % 500, 1, 1e6).astype(np.float32),
}


@pytest.mark.parametrize("spec", ["rd(0.02)", "rd(0.5)", "rd(3)", "rd(0.3, rank=0)", "rd(0.4, random=true)"])
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_are_coded_and_decoded_alike(name: str, spec: str) -> None:
    x = TENSORS[name]
    is_small = x.size < 4000
    frame = in_all_ways(lambda: perbit.encode(x, spec, seed=1), numpy_too=is_small)
    decoded = in_all_ways(lambda: perbit.decode(frame), numpy_too=True)
    added = in_all_ways(lambda: _added(frame, x), numpy_too=is_small)
    assert np.array_equal(added, np.ones_like(x) + decoded)
    in_all_ways(lambda: repr(perbit.inspect(frame)), numpy_too=is_small)  # the same sections


def _added(frame: bytes, x: F32) -> F32:
    out = np.ones_like(x)
    perbit.decode_add(frame, out)
    return out


def test_bits_and_decibels_lead_to_the_same_message() -> None:
    tensors = {name: MATRICES[name] for name in ("low rank", "noise", "an embedding")} | {"k": TENSORS["kernels"]}
    for spec in ("rd(bits=0.4)", "rd(db=-8)"):
        in_all_ways(lambda spec=spec: perbit.dumps(tensors, spec), numpy_too=False)


def outcome(payload: bytes, shape: tuple[int, ...], step: float, budget: Budget | None = None) -> tuple[str, Any]:
    """Values, or why there are none; what was read and paid for."""
    src = Reader(payload, budget)
    try:
        values = tensor.read(src, shape, step)
    except perbit.LimitError as error:
        return "too expensive", str(error)
    except ValueError:
        return "refused", None
    return values.tobytes().hex(), (src.position, src.sections, budget and (budget.memory, budget.operations))


@pytest.mark.parametrize("name", ["low rank", "kernels", "outliers", "noise", "one dimension"])
def test_damaged_tensors_mean_the_same_and_cost_the_same(name: str) -> None:
    """A thousand of each: values or refusals, sections and costs."""
    x, step = TENSORS[name], 0.25
    frame = perbit.encode(x, f"rd({step})")
    payload = frame[perbit.inspect(frame)["header_bytes"] : -4]
    rng = random.Random(0)
    seen = set()
    for number in range(1000):
        damaged = bytearray(payload)
        for _ in range(rng.choice((1, 1, 2))):
            rng.choice(MUTATIONS)(rng, damaged, [payload])
        if number % 3 == 0:
            damaged = bytearray(payload[: rng.randrange(60)]) + damaged[60:]
        left = rng.choice((10, 10**4, 10**5, 10**9))

        def call(damaged: bytes = bytes(damaged), left: int = left) -> tuple[str, Any]:
            return outcome(damaged, x.shape, step, Budget(left, left))

        found = in_all_ways(lambda call=call: repr(call()), numpy_too=False)
        seen.add(found.split("'")[1][:13])
    assert {"too expensive", "refused"} < seen


def test_costs_are_refused_alike() -> None:
    refusals = 0
    for _, frame in cut_frames():
        payload, shape = frame[perbit.inspect(frame)["header_bytes"] : -4], tuple(perbit.inspect(frame)["shape"])
        for left in (0, 100, 1000, 10**4, 10**5, 10**6):
            found = in_all_ways(lambda p=payload, s=shape, n=left: repr(outcome(p, s, 0.5, Budget(n, n))))
            refusals += "above its limit" in found
    assert refusals > 10


def test_frames_cut_short_are_refused_alike() -> None:
    for _, frame in cut_frames():
        for cut in range(perbit.inspect(frame)["header_bytes"], len(frame) - 5):
            for way in ways(numpy_too=cut % 7 == 0):
                with way, pytest.raises(perbit.DecodeError):
                    perbit.decode(sealed(frame[:cut]))
