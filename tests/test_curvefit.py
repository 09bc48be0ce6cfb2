"""Fit-Poly, Fit-DExp and the order of values: worked by hand, bounds, hostile input."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

import perbit
from perbit.coding.bits import Reader, Writer
from perbit.coding.codec import as_pipeline
from perbit.coding.families import fitdexp, fitpoly
from perbit.coding.families.order import BLOCK, decode_order, encode_order, order_bytes, pack_words, unpack_words

RNG = np.random.default_rng(11)
HEAVY = (RNG.laplace(size=40_000) ** 3).astype(np.float32)


def payload(*parts: bytes | int | float | tuple[float, ...]) -> bytes:
    """Bytes are sections, whole numbers varints, a float a section of one float32, a tuple one of several."""
    out = Writer()
    for part in parts:
        if isinstance(part, int):
            out.varint(part)
        elif isinstance(part, bytes):
            out.section(part)
        else:
            out.section(np.atleast_1d(part).astype("<f4").tobytes())
    return out.join()


def decode(spec: str, data: bytes, n: int) -> np.ndarray:
    src = Reader(data)
    values = as_pipeline(perbit.codec(spec)).rest.decode_floats(src, (n,))
    src.end()
    return values


def relative_error(spec: str, x: np.ndarray) -> float:
    return float(np.linalg.norm(perbit.decode(perbit.encode(x, spec, seed=0)) - x) / np.linalg.norm(x))


# ---- order


def test_an_order_by_hand() -> None:
    assert encode_order(np.array([2, 0, 1]), "packed") == bytes([0, 0b01_00_10])
    # one block in full reverse is the last of its 20! arrangements
    reverse = encode_order(np.arange(BLOCK)[::-1], "blocks")
    assert reverse == bytes([1]) + (math.factorial(BLOCK) - 1).to_bytes(8, "little")


@pytest.mark.parametrize("method", ["auto", "packed", "blocks"])
@pytest.mark.parametrize("n", [0, 1, 2, 19, 20, 21, 40, 1000, 70_001])
def test_orders_survive(n: int, method: str) -> None:
    order = np.random.default_rng(n).permutation(n)
    data = encode_order(order, method)
    assert len(data) == order_bytes(n, method)
    assert np.array_equal(decode_order(data, n), order)


@pytest.mark.parametrize("n", [369, 5000, 100_000])
def test_blocks_are_close_to_the_logarithm_of_n_factorial(n: int) -> None:
    least = math.lgamma(n + 1) / math.log(2)
    assert least < 8 * order_bytes(n, "blocks") < least + 0.45 * n
    assert order_bytes(n, "blocks") < order_bytes(n, "packed") - 0.9 * n / 8


@pytest.mark.parametrize("width", [1, 7, 8, 33, 63, 64])
def test_words_of_any_width(width: int) -> None:
    words = RNG.integers(0, 1 << 63, 70_000, dtype=np.uint64) >> np.uint64(max(0, 63 - width))
    assert np.array_equal(unpack_words(pack_words(words, width), width, words.size), words)


@pytest.mark.parametrize(
    ("data", "n"),
    [
        (b"", 3),
        (bytes([7, 0]), 3),
        (bytes([0, 0b01_01_10]), 3),  # 1 twice
        (bytes([0, 0b11_00_10]), 3),  # 3 is not below 3
        (bytes([0, 0b1101_0010]), 3),  # padding
        (bytes([0]) + bytes(10**4), 3),
        (bytes([1]) + math.factorial(BLOCK).to_bytes(8, "little"), BLOCK),  # no arrangement
        (bytes([1]) + (math.factorial(BLOCK) - 1).to_bytes(8, "little"), 3),  # ranks beyond the three values
    ],
)
def test_a_permutation_that_is_none(data: bytes, n: int) -> None:
    with pytest.raises(perbit.DecodeError):
        decode_order(data, n)


def test_all_blocks_alike_are_refused() -> None:
    good = encode_order(np.arange(40), "blocks")
    with pytest.raises(perbit.DecodeError, match="not a permutation"):
        decode_order(good[:1] + bytes(5) + good[6:], 40)  # 40 one-bit block numbers, all zero


# ---- Fit-Poly


def test_a_line_needs_two_coefficients() -> None:
    x = np.array([3, 1, 2, 4], np.float32)
    out = Writer()
    fitpoly.FitPoly(degree=1, segments=1).encode_sorted(np.sort(x), out)
    # scale 4; one segment; mean 2.5/4; slope: t = (-3, -1, 1, 3)/4 and the line rises by 1/4 each step of 1/2
    assert out.join() == payload(4.0, 1, (0.625, 0.5))
    assert np.array_equal(perbit.decode(perbit.encode(x, "fitpoly(1, segments=1)")), x)


def test_signs_are_fitted_apart() -> None:
    x = np.array([-3, 5, -3, 5, 5], np.float32)
    assert np.array_equal(perbit.decode(perbit.encode(x, "fitpoly(0, segments=2)")), x)


def test_the_basis_is_orthogonal() -> None:
    terms = np.array(fitpoly._basis(50, 9))
    gram = terms @ terms.T
    assert np.allclose(gram, np.diag(np.diag(gram)), atol=1e-12)


def test_projection_is_least_squares() -> None:
    y = np.sort(RNG.laplace(size=300))
    by_numpy = np.polynomial.Polynomial.fit(np.arange(300), y, 5)(np.arange(300))
    assert np.allclose(fitpoly.evaluate(fitpoly.project(y, 5), 300), by_numpy)


def test_more_segments_fit_better_and_auto_is_good() -> None:
    errors = [relative_error(f"fitpoly(segments={n})", HEAVY) for n in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert relative_error("fitpoly", HEAVY) < 0.011  # 1e-4 of the energy
    sizes = [len(perbit.encode(HEAVY, f"fitpoly(segments=16, bits={bits})")) for bits in (16, 32)]
    assert sizes[1] - sizes[0] == pytest.approx(16 * 6 * 2, abs=2)


@pytest.mark.parametrize("coder", ["raw32", "golomb"])
def test_positions_in_the_order_of_values(coder: str) -> None:
    spec = f"topk(0.01, positions={coder}) | "
    x = HEAVY.reshape(200, 200)
    plain = perbit.decode(perbit.encode(x, spec + 'fitpoly(order="packed")'))
    by_value = perbit.encode(x, spec + 'fitpoly(order="positions")')
    assert np.array_equal(perbit.decode(by_value), plain)
    sections = {s["name"]: s["n_bytes"] for s in perbit.inspect(by_value)["sections"]}
    assert sections["positions"] == 400 * (4 if coder == "raw32" else 2)
    assert "order" not in sections
    total = np.ones_like(x)
    perbit.decode_add(by_value, total, 2.0)
    assert np.array_equal(total, 1 + 2 * plain)


@pytest.mark.parametrize("spec", ["topk(0.01) | fitpoly", "topk(0.1, positions=bitmap) | fitdexp"])
def test_auto_is_never_larger(spec: str) -> None:
    sizes = {
        order: len(perbit.encode(HEAVY, f'{spec}(order="{order}")')) for order in ("packed", "blocks", "positions")
    }
    assert len(perbit.encode(HEAVY, spec)) <= min(sizes.values())


# ---- Fit-DExp


def test_two_exponentials_are_found_again() -> None:
    i = np.arange(500) / 499
    x = (0.1 * np.exp(1.5 * i) + 1e-4 * np.exp(9 * i)).astype(np.float32)
    assert relative_error("fitdexp", x) < 2e-3
    assert relative_error("fitdexp", -x) < 2e-3


def test_few_values_and_constants() -> None:
    for x in ([2.5], [-1.0, 4.0], [3.0, 3.0, 3.0], [-2.0, 7.0, 7.0], [0.0, 0.0]):
        assert np.allclose(perbit.decode(perbit.encode(np.array(x, np.float32), "fitdexp")), x, rtol=1e-6)


def test_powers_are_products_in_a_fixed_order() -> None:
    assert fitdexp.powers(3.0, 7).tolist() == [3.0**i for i in range(7)]
    assert np.allclose(fitdexp.powers(0.999, 5000), 0.999 ** np.arange(5000), rtol=1e-13)


@pytest.mark.parametrize(("spec", "least"), [("fitpoly", 0.40), ("fitdexp", 0.50)])
def test_a_gradient_shrinks_as_much_as_the_paper_claims(spec: str, least: float) -> None:
    x = HEAVY[:36_864]
    pairs = 8 * round(0.01 * x.size)
    assert len(perbit.encode(x, f"topk(0.01) | {spec}")) < (1 - least) * pairs


# ---- hostile input

THREE = bytes([0, 0b10_01_00])  # the identity on three values
CURVE = np.zeros(1, fitdexp._CURVE)


def curve(weights: tuple[float, float] = (1, 0), factors: tuple[float, float] = (1, 1)) -> bytes:
    own = CURVE.copy()
    own["weights"], own["factors"] = weights, factors
    return own.tobytes()


def test_the_hand_made_payloads_are_good() -> None:
    assert decode("fitpoly(1)", payload(THREE, 2.0, 2, 1, (0.5, 1.0, 0.0)), 3).tolist() == [1, 2, 2]
    assert decode("fitdexp", payload(THREE, 2.0, 0, curve()), 3).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        ("fitpoly(1)", payload(THREE, 2.0, 2, 0, (0.5, 1.0, 0.0))),  # an empty segment
        ("fitpoly(1)", payload(THREE, 2.0, 2, 3, (0.5, 1.0, 0.0))),  # nothing left for the last one
        ("fitpoly(1)", payload(THREE, 2.0, 3, 2, 1, (0.5,) * 5)),  # an end at the end
        ("fitpoly(1)", payload(THREE, 2.0, 0, ())),  # no segment
        ("fitpoly(1)", payload(THREE, 2.0, 4, 1, 1, 1, (0.5,) * 4)),  # more segments than values
        ("fitpoly(1)", payload(THREE, 2.0, 1, (0.5, 1.0, 0.0))),  # a coefficient too many
        ("fitpoly(1)", payload(THREE, 2.0, 1, (math.nan, 1.0))),
        ("fitpoly(1)", payload(THREE, 2.0, 1, (math.inf, 1.0))),
        ("fitpoly(1)", payload(THREE, math.nan, 1, (1.0, 1.0))),
        ("fitpoly(1)", payload(THREE, -1.0, 1, (1.0, 1.0))),
        ("fitpoly(1)", payload(THREE, (1.0, 1.0), 1, (1.0, 1.0))),
        ("fitpoly(1)", payload(bytes([0, 0b01_01_10]), 2.0, 1, (1.0, 1.0))),
        ("fitdexp", payload(THREE, 2.0, 4, curve())),
        ("fitdexp", payload(THREE, 2.0, 1, curve())),  # two signs, one curve
        ("fitdexp", payload(THREE, 2.0, 0, curve((math.nan, 0)))),
        ("fitdexp", payload(THREE, 2.0, 0, curve(factors=(-1, 1)))),
        ("fitdexp", payload(THREE, 2.0, 0, curve(factors=(1e300, 1)))),  # overflows at the third value
        ("fitdexp", payload(THREE, 2.0, 0, curve(factors=(math.inf, 1)))),
        ("topk(k=3) | fitdexp", payload(4, 1, bytes([0]), 2.0, 0, curve())),  # four of three values
        ("topk(k=2) | fitdexp", payload(2, 2, bytes([0]), 2.0, 0, curve())),  # no such order of positions
        ("topk(k=2) | fitdexp", payload(2, 1, bytes([0b01_01]), 2.0, 0, curve())),  # one position twice
        ("topk(k=2) | fitdexp", payload(2, 1, bytes([0b11_01]), 2.0, 0, curve())),  # a position of 3
    ],
)
def test_hostile_payloads_are_refused(spec: str, data: bytes) -> None:
    with pytest.raises(perbit.DecodeError):
        decode(spec, data, 3)


@pytest.mark.parametrize("spec", ["fitpoly", "fitdexp", "topk(0.5) | fitpoly"])
def test_a_short_frame_that_claims_much_allocates_little(spec: str) -> None:
    data = payload(1 << 26, 1, THREE) if "topk" in spec else payload(THREE, 2.0, 1 << 26)
    tracemalloc.start()
    with pytest.raises(perbit.DecodeError):
        decode(spec, data, 1 << 27)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "spec",
    ["fitpoly(-1)", "fitpoly(16)", "fitpoly(segments=0)", "fitpoly(bits=8)", 'fitpoly(order="x")', "fitdexp(order=3)"],
)
def test_bad_parameters(spec: str) -> None:
    with pytest.raises(perbit.SpecError):
        perbit.codec(spec)
