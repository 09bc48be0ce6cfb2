"""`patterns`, the vector quantizer: hand-worked blocks, what it catches and costs, three back ends, error feedback, attacks."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import perbit
from numeric_backends import SPECIAL, fails_on_all, filled, normal, on_all
from perbit.channels import Direct, ErrorFeedback
from perbit.coding.families.patterns import GROUP, LENGTHS
from perbit.errors import DecodeError, SpecError
from perbit.kernels import K
from perbit.randomness import hash32, random_signs, splitmix64


def around(x: np.ndarray, spec: str, seed: int = 0) -> np.ndarray:
    return perbit.decode(perbit.encode(x, spec, seed=seed))


def caught(x: np.ndarray, spec: str, seed: int = 0) -> float:
    """The share of the energy that is gone when what was decoded is taken away."""
    wide = x.astype(np.float64)
    return 1 - float(((wide - around(x, spec, seed)) ** 2).sum() / (wide**2).sum())


# --- the kernel


def matched(x: np.ndarray, length: int, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    def call() -> tuple[np.ndarray, np.ndarray]:
        agreement = np.full(x.size // length, 99, np.float32)
        symbols = filled(np.uint16, agreement.size, lambda out: K.match_patterns(x, length, signs, out, agreement))
        return symbols, agreement

    return on_all(call)


def test_a_block_by_hand() -> None:
    """Row 1 of the Hadamard matrix is + - + - …; the second turn flips the first four signs."""
    alternating = np.array([1, -1] * 4, np.float32)
    flipped = np.array([-1] * 4 + [1] * 4, np.float32)
    signs = np.concatenate([np.ones(8, np.float32), flipped])
    x = np.concatenate(
        [alternating, -3 * alternating, alternating * flipped * 2, np.zeros(8), [5, 0, 0, 0, 0, 0, 0, 0]]
    )
    symbols, agreement = matched(x.astype(np.float32), 8, signs)
    assert symbols.tolist() == [2 * 1, 2 * 1 + 1, 2 * (4 + 1) + 1, 0, 0]  # + - + - flipped by halves is minus row 5
    assert agreement.tolist() == [8, 24, 16, 0, 5]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_search_is_exhaustive_on_every_back_end(length: int) -> None:
    signs = random_signs(3, 4 * length)
    matrix = np.ones((1, 1))
    while len(matrix) < length:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    book = np.concatenate([matrix * turn for turn in signs.reshape(-1, length)])
    x = normal(37 * length, seed=length)
    symbols, agreement = matched(x, length, signs)
    products = x.reshape(-1, length).astype(np.float64) @ book.T
    best = np.abs(products).argmax(axis=1)
    assert np.array_equal(symbols >> 1, best)
    assert np.array_equal(symbols & 1, products[np.arange(37), best] < 0)
    assert np.allclose(agreement, np.abs(products).max(axis=1), rtol=1e-5)


def test_ties_and_special_values_are_the_same_on_every_back_end() -> None:
    for x in (np.resize(SPECIAL * np.float32(2**-12), 1024), np.round(normal(1024)), np.ones(1024, np.float32)):
        matched(x.astype(np.float32), 32, random_signs(1, 256))


def test_wrong_arguments_are_refused() -> None:
    x, out, agreement = normal(64), np.empty(2, np.uint16), np.empty(2, np.float32)
    ones = np.ones(32, np.float32)
    fails_on_all(lambda: K.match_patterns(x, 24, ones, out, agreement), "power of two")
    fails_on_all(lambda: K.match_patterns(x, 512, ones, out, agreement), "power of two")
    fails_on_all(lambda: K.match_patterns(x[:63], 32, ones, out, agreement), "whole blocks")
    fails_on_all(lambda: K.match_patterns(x, 32, ones[:31], out, agreement), "whole blocks")
    fails_on_all(lambda: K.match_patterns(x, 32, ones[:0], out, agreement), "signs")
    fails_on_all(lambda: K.match_patterns(x, 32, ones, out[:1], agreement), "lengths differ")


# --- the codec


def test_a_tensor_that_is_a_pattern_comes_back_exactly() -> None:
    x = around(normal(32, seed=5), "patterns(32, 9)", seed=8)
    assert len(set(np.abs(x).tolist())) == 1
    assert np.array_equal(around(x, "patterns(32, 9)", seed=8), x)


@pytest.mark.parametrize(
    ("spec", "rate", "share"), [("patterns", 9 / 32, 0.25), ("patterns(16, 8)", 8 / 16, 0.40), ("patterns(64, 10)", 10 / 64, 0.15)]
)  # fmt: skip
def test_what_it_catches_of_normal_and_flatter_values(spec: str, rate: float, share: float) -> None:
    """R(D) of a normal source allows 1 - 4^-rate; we come to three quarters of it, at the stated rate and a byte for 2048 values."""
    n = 1 << 17
    flat = np.random.default_rng(1).uniform(-1, 1, n).astype(np.float32)
    for x in (normal(n), flat, np.sign(flat)):
        assert share < caught(x, spec) < 1 - 4.0**-rate
    assert len(perbit.encode(normal(n), spec, seed=0)) < n * rate / 8 + n / GROUP + 60


def test_at_a_rate_below_a_third_of_a_bit_it_catches_more_than_top_k() -> None:
    for x in (normal(1 << 17), np.random.default_rng(1).uniform(-1, 1, 1 << 17).astype(np.float32)):
        sparse = "topk(0.036) | mwl2(2, 2) | rans"
        assert len(perbit.encode(x, "patterns", seed=0)) < 1.1 * len(perbit.encode(x, sparse, seed=0))
        assert caught(x, "patterns") > 1.15 * caught(x, sparse)


def test_each_group_has_its_own_scale() -> None:
    x = normal(8 * GROUP).reshape(8, GROUP) * np.float32(10.0) ** -np.arange(8, dtype=np.float32)[:, None]
    x[3] = 0
    x[4] *= np.float32(1e-20)  # a scale too small beside the largest
    y = around(x, "patterns", seed=1)
    assert not y[[3, 4]].any()
    for row in (0, 1, 2, 5, 6, 7):
        scale = np.abs(y[row, 0])
        assert np.all(np.abs(y[row]) == scale)
        error = ((x[row].astype(np.float64) - y[row]) ** 2).sum() / (x[row].astype(np.float64) ** 2).sum()
        assert error < 0.78


def test_values_near_the_largest_float() -> None:
    x = np.random.default_rng(2).uniform(-3.4e38, 3.4e38, 5000).astype(np.float32)
    y = around(x, "patterns(8, 8)")
    assert np.isfinite(y).all()
    assert ((x / 1e38 - y / 1e38).astype(np.float64) ** 2).sum() < 0.6 * ((x / 1e38).astype(np.float64) ** 2).sum()


def test_new_patterns_in_every_frame_let_error_feedback_drain() -> None:
    """One vector, then nothing: the memory falls in every frame, about as fast as the share that is caught."""
    channel = ErrorFeedback(Direct("patterns"))
    state, _ = channel.init(4096)
    x = normal(4096)
    energies = []
    for number in range(20):
        sent = channel.send(x if number == 0 else np.zeros_like(x), state, seed=1)
        state = sent.state
        energies.append(float((state.memory[0].astype(np.float64) ** 2).sum()))
    ratios = np.array(energies[1:]) / np.array(energies[:-1])
    assert np.all(ratios < 0.8)
    assert energies[-1] < 0.01 * energies[0]


def test_a_last_block_that_is_not_full_has_the_scale_of_its_own_values() -> None:
    assert around(np.array([-7.0], np.float32), "patterns").tolist() == [-7]
    x = normal(GROUP + 5)
    pair = around(x, "patterns")[GROUP:], x[GROUP:]
    assert float(np.abs(pair[0][0]) * 5) == pytest.approx(
        float(np.abs(pair[0] @ pair[1]) / np.abs(pair[0][0])), rel=0.05
    )


def test_omega_is_below_one_so_error_feedback_needs_no_decay() -> None:
    worst = np.zeros(GROUP, np.float32)
    worst[7] = 1  # all energy of a group in one value
    for spec in ("patterns", "patterns(8, 8)", "patterns(256, 9)"):
        assert 0 < 1 - perbit.codec(spec).omega(GROUP) <= caught(worst, spec) + 1e-9
        assert perbit.codec(spec).omega(10**7) < 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("patterns(24)", "length must be one of 8"),
        ("patterns(32, 5)", "bits must be 6 to 16"),
        ("patterns(32, 17)", "bits must be 6 to 16"),
        ("patterns(32, 9.5)", "bits must be"),
        ("patterns(32, true)", "bits must be"),
        ("patterns(8, 9)", "bits must be 4 to 8"),
        ("patterns(32.0, 9)", "length must be one of 8"),
    ],
)
def test_parameters_that_make_no_sense(spec: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        perbit.codec(spec)


# --- attacks: a frame of 64 values, patterns(32, 9): seed, largest scale, one code; two symbols of nine bits


def frame_of(side: bytes, patterns: bytes) -> bytes:
    honest = perbit.encode(normal(64), "patterns", seed=0)
    head = honest[: len(honest) - 4 - 1 - 9 - 1 - 3]
    body = head + bytes([len(side)]) + side + bytes([len(patterns)]) + patterns
    return body + struct.pack("<I", K.crc32c(body))


SIDE = struct.pack("<IfB", 1, 0.5, 0)


def test_a_frame_made_by_hand_decodes() -> None:
    assert set(np.abs(perbit.decode(frame_of(SIDE, bytes(3)))).tolist()) == {0.5}
    quarter = struct.pack("<IfB", 1, 0.5, 8)
    assert set(np.abs(perbit.decode(frame_of(quarter, bytes(3)))).tolist()) == {0.25}
    nothing = struct.pack("<IfB", 1, 0.5, 255)
    assert not perbit.decode(frame_of(nothing, bytes(3))).any()


def test_the_decoder_does_what_the_format_says() -> None:
    """Value by value, as docs/format.md has it."""
    seed, symbols, code = 77, (2 * (32 * 5 + 19) + 1, 2 * (32 * 2 + 7)), 13
    packed = (symbols[0] | symbols[1] << 9).to_bytes(3, "little")
    decoded = perbit.decode(frame_of(struct.pack("<IfB", seed, 0.75, code), packed))
    eighth, scale = np.sqrt(np.sqrt(np.sqrt(0.5))), 0.75 / 2
    for _ in range(5):
        scale *= eighth
    key = splitmix64(seed) & 0xFFFFFFFF
    for block, symbol in enumerate(symbols):
        pattern = symbol >> 1
        for i in range(32):
            place = np.array([(pattern // 32 * 32 + i) ^ key], np.uint32)
            drawn = int(hash32(hash32(place) + np.uint32(key))[0]) >> 31
            minus = ((i & pattern % 32).bit_count() + drawn + symbol) % 2
            assert decoded[32 * block + i] == pytest.approx(-scale if minus else scale, rel=1e-6)


@pytest.mark.parametrize(
    ("side", "patterns"),
    [
        (SIDE[:-1], bytes(3)),
        (SIDE + b"\0", bytes(3)),
        (b"", bytes(3)),
        (struct.pack("<IfB", 1, float("nan"), 0), bytes(3)),
        (struct.pack("<IfB", 1, float("inf"), 0), bytes(3)),
        (struct.pack("<IfB", 1, -0.5, 0), bytes(3)),
        (SIDE, bytes(2)),
        (SIDE, bytes(4)),
        (SIDE, b"\0\0\xff"),  # padding that is not zero
    ],
)
def test_malformed_sections_are_refused(side: bytes, patterns: bytes) -> None:
    with pytest.raises(DecodeError):
        perbit.decode(frame_of(side, patterns))
