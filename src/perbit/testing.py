"""Laws that every codec obeys, as functions to call from tests; third-party codecs can use them too (needs hypothesis).

from perbit.testing import laws, specs

@pytest.mark.parametrize("law", laws(), ids=str)
@pytest.mark.parametrize("spec", specs("mycodec"))
def test_laws(spec, law):
    law(spec)
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, given, seed, settings

import perbit
from perbit import kernels
from perbit.coding import registry
from perbit.coding.bits import Reader
from perbit.coding.codec import Codec, as_pipeline
from perbit.coding.cost import Budget, Cost
from perbit.coding.spec import parse
from perbit.frame import payload, wire
from perbit.frame.wirespec import read_spec, write_spec
from perbit.kernels.api import F32

Law = Callable[[str], None]

_SIZES = (0, 1, 2, 7, 31, 33, 100, 511, 513, 1030)
_MAKERS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "heavy": lambda rng, n: rng.laplace(size=n) ** 3,
    "zeros": lambda rng, n: np.zeros(n),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.1),
    "positive": lambda rng, n: rng.exponential(size=n) + 5,
    "huge": lambda rng, n: rng.uniform(-3e38, 3e38, n),
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-30,
    "denormal": lambda rng, n: rng.integers(-9, 10, n) * 1e-45,
    "mixed": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
    "ternary": lambda rng, n: rng.integers(-1, 2, n),
}
_EVERYTHING = tuple(_MAKERS)
# where float32 neither over- nor underflows
_TAME = ("normal", "heavy", "constant", "sparse", "positive", "tiny", "ternary")


@st.composite
def float_arrays(draw: st.DrawFn, kinds: tuple[str, ...] = _EVERYTHING) -> F32:
    """Arrays as gradients come, and as they should not: empty, constant, huge, denormal, one to three dimensions."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.sampled_from(_SIZES))
    x = np.asarray(_MAKERS[draw(st.sampled_from(kinds))](rng, n)).astype(np.float32)
    shapes = [(n,)] + [(n // d, d) for d in (3, 7, 11) if n % d == 0] + [(1, n, 1)] + [()] * (n == 1)
    return x.reshape(draw(st.sampled_from(shapes)))


def specs(name: str | None = None) -> list[str]:
    """The example specs of every registered codec, or of one."""
    chosen = [registry.classes()[name]] if name else list(registry.classes().values())
    return list(dict.fromkeys(str(perbit.codec(example)) for cls in chosen for example in cls.examples))


def laws() -> list[Law]:
    """All laws; each takes a spec and raises AssertionError where the codec breaks it."""
    return [
        text_round_trip,
        value_round_trip,
        same_on_every_back_end,
        dtype_and_shape_survive,
        addition_agrees,
        message_agrees,
        nonfinite_is_refused,
        damage_is_detected,
        unbiased_if_declared,
        omega_holds,
        memory_is_declared,
    ]


def _check(law: Callable[..., None], *strategies: st.SearchStrategy[Any], examples: int = 25) -> None:
    """Run one law over Hypothesis examples, the same ones every time."""
    profile = settings(
        max_examples=examples, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck)
    )
    seed(20240)(profile(given(*strategies)(law)))()


def text_round_trip(spec: str) -> None:
    """A codec survives its text and its bytes."""
    codec = perbit.codec(spec)
    assert parse(str(codec)) == codec
    assert hash(parse(str(codec))) == hash(codec)
    src = Reader(write_spec(codec))
    assert read_spec(src) == codec
    src.end()


def value_round_trip(spec: str) -> None:
    """A frame decodes to finite values of the same shape, and the same seed gives the same frame."""

    def law(x: F32, seed: int) -> None:
        frame = perbit.encode(x, spec, seed=seed)
        value = perbit.decode(frame)
        assert value.shape == x.shape
        assert value.dtype == x.dtype
        assert np.isfinite(value).all()
        assert perbit.encode(x, spec, seed=seed) == frame
        assert perbit.inspect(frame)["n_bytes"] == len(frame)
        assert np.array_equal(perbit.decode(frame, expect_shape=x.shape, max_values=x.size), value)

    _check(law, float_arrays(), st.integers(0, 2**63))


def same_on_every_back_end(spec: str) -> None:
    """Every kernel back end writes the same frame and reads the same values."""

    def law(x: F32, seed: int) -> None:
        frame = perbit.encode(x, spec, seed=seed)
        value = perbit.decode(frame)
        for name in kernels.available():
            with kernels.using(name):
                assert perbit.encode(x, spec, seed=seed) == frame, name
                assert np.array_equal(perbit.decode(frame).view(np.uint32), value.view(np.uint32)), name

    _check(law, float_arrays(), st.integers(0, 2**63), examples=12)


def dtype_and_shape_survive(spec: str) -> None:
    """float64, float16 and float32 come back as what they were."""

    def law(x: F32, dtype: str) -> None:
        with np.errstate(over="ignore"):
            typed = np.nan_to_num(x.astype(dtype))
        value = perbit.decode(perbit.encode(typed, spec, seed=1))
        assert (value.dtype, value.shape) == (typed.dtype, typed.shape)
        assert np.isfinite(value).all()

    _check(law, float_arrays(), st.sampled_from(["float16", "float64"]), examples=10)


def addition_agrees(spec: str) -> None:
    """decode_add adds exactly what decode gives."""

    def law(x: F32, weight: float) -> None:
        frame = perbit.encode(x, spec, seed=3)
        total = np.ones(x.shape, np.float32)
        perbit.decode_add(frame, total, weight)
        assert np.array_equal(total, 1 + np.float32(weight) * perbit.decode(frame))

    _check(law, float_arrays(_TAME), st.sampled_from([1.0, 0.1, -2.5]), examples=10)


def message_agrees(spec: str) -> None:
    """A message of several tensors gives every one of them back."""
    rng = np.random.default_rng(5)
    tensors = {
        "a.weight": rng.normal(size=(13, 7)),
        "b": rng.normal(size=40),
        "empty": np.zeros((0, 3)),
        "one": np.ones(()),
    }
    tensors = {name: np.asarray(x, np.float32) for name, x in tensors.items()}
    frame = perbit.dumps(tensors, spec, seed=1, sequence=7, digest=b"12345678")
    values = perbit.loads(frame, expect={name: x.shape for name, x in tensors.items()})
    assert list(values) == list(tensors)
    total = {name: np.zeros_like(x) for name, x in tensors.items()}
    perbit.decode_add(frame, total)
    for name, x in tensors.items():
        assert values[name].shape == x.shape
        assert np.array_equal(total[name], values[name])


def nonfinite_is_refused(spec: str) -> None:
    """NaN and infinity raise an error that names the tensor and counts them."""
    x = np.ones(50, np.float32)
    x[[3, 9]], x[4] = np.nan, np.inf
    try:
        perbit.encode(x, spec, name="layer1")
    except perbit.NonFiniteError as error:
        message = str(error)
    else:
        message = "NaN was encoded"
    assert all(part in message for part in ("layer1", "2 NaN", "1 infinite")), message


def damage_is_detected(spec: str) -> None:
    """Truncation anywhere and a flip of any bit is a DecodeError."""
    frame = perbit.encode(np.random.default_rng(0).normal(size=20).astype(np.float32), spec, seed=0)
    damaged = [frame[:cut] for cut in range(len(frame))]
    damaged += [
        bytes([*frame[:i], frame[i] ^ (1 << bit), *frame[i + 1 :]]) for i in range(len(frame)) for bit in range(8)
    ]
    for bad in damaged:
        try:
            perbit.decode(bad)
        except perbit.DecodeError:
            continue
        raise AssertionError(f"a damaged frame was decoded: {bad.hex()}")


class _Recorded(Budget):
    """A budget for everything that remembers the most that was held at a time."""

    most = 0

    def spend(self, cost: Cost) -> None:
        super().spend(cost)
        self.most = max(self.most, self.memory)


def memory_is_declared(spec: str, n: int = 1 << 14) -> None:
    """Decoding takes no more memory than its stages declare (`cost`) and pay for on the way (`src.spend`)."""
    for kind in ("normal", "zeros", "sparse", "ternary"):
        x = np.asarray(_MAKERS[kind](np.random.default_rng(0), n)).astype(np.float32).reshape(-1, 8, 4, 4)
        frame = perbit.encode(x, spec, seed=0)
        perbit.decode(frame, expect_shape=x.shape)  # whatever is loaded on first use
        src, header = wire.open_frame(frame, n)
        src.budget = recorded = _Recorded(1 << 60, 1 << 60)
        tracemalloc.start()
        try:
            with payload.decoding():
                payload.read(src, header.entries[0])
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert taken <= recorded.most, f"{spec} took {taken} bytes for {n} values and paid for {recorded.most}"


def _samples(codec: Codec, x: F32, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.stack([perbit.decode(perbit.encode(x, codec, seed=s)).astype(np.float64) for s in range(count)])


def unbiased_if_declared(spec: str) -> None:
    """The mean over many seeds is the input, where a codec says so.

    Coordinates that are rarely drawn say nothing by themselves, so the error is projected on directions: the input itself (a codec that shrinks), its
    signs, the mean, and random signs. Each projection stays within five standard errors.
    """
    codec = as_pipeline(perbit.codec(spec))
    if not codec.unbiased:
        return
    rng = np.random.default_rng(2)
    x = (rng.laplace(size=600) * 1e-3).astype(np.float32)
    directions = np.stack([x, np.sign(x), np.ones(600), *rng.choice([-1.0, 1.0], (20, 600))])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    drift = (_samples(codec, x, 400) - x) @ directions.T
    standard_error = drift.std(0) / np.sqrt(len(drift))
    assert np.all(np.abs(drift.mean(0)) <= 5 * standard_error + 1e-6 * np.linalg.norm(x))


def omega_holds(spec: str) -> None:
    """The mean squared error is at most ω|x|², where a codec declares ω."""
    codec = as_pipeline(perbit.codec(spec))

    def law(x: F32) -> None:
        omega = codec.omega(x.size)
        if not np.isfinite(omega):
            return
        values = _samples(codec, x, 8 if codec.unbiased else 1)
        error = ((values - x.astype(np.float64)) ** 2).sum(axis=tuple(range(1, values.ndim)))
        energy = float((x.astype(np.float64) ** 2).sum())
        noise = 4 * error.std() / np.sqrt(len(error))
        assert error.mean() <= omega * energy * (1 + 1e-5) + noise + 1e-13 * energy

    _check(law, float_arrays(_TAME), examples=15)
