"""Golden frames decode exactly, and are written again byte for byte, under every kernel back end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest

import perbit
from golden import make
from perbit import kernels
from perbit.coding import registry
from perbit.coding.codec import Codec

CASES = make.cases()
# Their bytes belong to zlib, libzstd and LAPACK, or to a search for the best trade: all of these may improve.
FOREIGN = ("deflate", "zstd", "lowrank", "rd(")


@pytest.fixture(params=kernels.available())
def back_end(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.using(request.param):
        yield request.param


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_frame_decodes_exactly(case: make.Case, back_end: str) -> None:
    entry = make.read_index()[case.name]
    tensors = make.decode(case.frame_path.read_bytes())
    assert make.describe(tensors) == entry["tensors"]
    values = make.values_of(tensors)
    if case.values_path.exists():
        assert values == case.values_path.read_bytes()
    assert hashlib.sha256(values).hexdigest() == entry["sha256"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_todays_code_writes_the_golden_bytes(case: make.Case, back_end: str) -> None:
    is_foreign = case.source == "message" or any(name in case.what for name in FOREIGN)
    if is_foreign:  # versions decide the bytes, the back end must not
        with kernels.using("numpy"):
            expected = case.encode()
    else:
        expected = case.frame_path.read_bytes()
    assert case.encode() == expected


# The numpy back end is slow: once is enough.
RUNS = [("numpy", 2), *((name, threads) for name in kernels.available() if name != "numpy" for threads in (1, 2))]


@pytest.mark.parametrize("spec", ["uniform(4) | rans", "qsgd(7) | huffman", "topk(0.01) | uniform(3, random=true)"])
def test_a_long_frame_depends_neither_on_back_end_nor_on_threads(spec: str) -> None:
    x = make.gradient((1 << 20) + 77)
    frames, values = set(), set()
    try:
        for name, threads in RUNS:
            perbit.set_threads(threads)
            with kernels.using(name):
                frames.add(perbit.encode(x, spec, seed=5))
                values.add(perbit.decode(next(iter(frames))).tobytes())
    finally:
        perbit.set_threads(1)
    assert (len(frames), len(values)) == (1, 1)


def _names(codec: Codec) -> Iterator[str]:
    """The names of a codec, of its stages and of the codecs among its parameters."""
    if codec.name != "pipeline":
        yield codec.name
    for value in vars(codec).values():
        for part in value if isinstance(value, tuple) else [value]:
            if isinstance(part, Codec):
                yield from _names(part)


def test_every_codec_has_a_golden_frame() -> None:
    covered = {name for case in CASES if case.source != "message" for name in _names(perbit.codec(case.what))}
    assert registry.classes().keys() <= covered, "run `python tests/golden/make.py` and commit what it adds"


def test_every_wanted_frame_is_there_and_no_file_is_a_stray() -> None:
    index = make.read_index()
    missing = [case.name for case in make.wanted() if case.name not in index]
    assert not missing, "run `python tests/golden/make.py` and commit what it adds"
    assert {path.stem for path in make.FRAMES.iterdir()} == index.keys()


def test_inputs_never_change() -> None:
    x = make.gradient(1000)
    assert hashlib.sha256(x.tobytes()).hexdigest()[:16] == "5d09ba562c5f8819"
    assert np.isfinite(x).all()
