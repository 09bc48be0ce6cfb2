"""Hostile frames end in a DecodeError or in arrays of the claimed shape, under every back end, within bounded memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import perbit
from attacks import all_attacks
from attacks.build import Attack, array, directory, message, sealed, section, spec, tensor
from attacks.measure import ALLOWED, MAX_VALUES
from attacks.targets import probe, read
from perbit import kernels, testing

ATTACKS = all_attacks()
TINY = np.array([[0.5, -1.25, 0, 3], [0.01, 2, -0.7, 0.125]], np.float32)


@pytest.fixture(params=kernels.available())
def back_end(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.using(request.param):
        yield request.param


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_refused_for_the_right_reason(attack: Attack, back_end: str) -> None:
    error = probe(attack.frame, MAX_VALUES).error
    assert error is not None
    assert re.search(attack.reason, error), error


def test_attacks_have_names_of_their_own() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(set(names)) == len(names)


def tiny_frames() -> dict[str, bytes]:
    """A small frame of every example, and messages."""
    frames = {text: perbit.encode(TINY, text, seed=1) for text in testing.specs()}
    tensors = {"a": TINY, "b": TINY[0], "n": np.arange(3)}
    frames["message"] = perbit.dumps(tensors, "uniform(2) | rans", seed=1)
    frames["stateful"] = perbit.dumps({"a": TINY}, "topk(k=2)", sequence=3, digest=b"12345678")
    names = {f"layers.{i}.weight": TINY[0, :2] for i in range(5)}
    frames["packed directory"] = perbit.dumps(names, "topk(k=1) | fp16", seed=1)
    return frames


FRAMES = tiny_frames()


def flips(body: bytes) -> Iterator[bytes]:
    """Every body that differs in a single bit."""
    for at in range(len(body)):
        for bit in range(8):
            yield body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]


@pytest.mark.parametrize("name", FRAMES)
def test_damage_is_seen_by_the_checksum(name: str) -> None:
    frame = FRAMES[name]
    for damaged in (*(frame[:cut] for cut in range(len(frame))), *flips(frame)):
        assert probe(damaged, MAX_VALUES).error is not None


@pytest.mark.parametrize("name", FRAMES)
def test_truncated_frames_with_a_valid_checksum_are_refused(name: str) -> None:
    body = FRAMES[name][:-4]
    for cut in range(len(body)):
        assert probe(sealed(body[:cut]), MAX_VALUES).error is not None


@pytest.mark.parametrize("name", FRAMES)
def test_flipped_bits_with_a_valid_checksum_mean_the_same_to_every_back_end(name: str) -> None:
    for damaged in map(sealed, flips(FRAMES[name][:-4])):
        outcomes = {probe(damaged, MAX_VALUES).values}
        for back_end in kernels.available():
            with kernels.using(back_end):
                outcomes.add(values_or_none(damaged))
        assert len(outcomes) == 1, damaged.hex()


def values_or_none(frame: bytes) -> bytes | None:
    try:
        return b"".join(x.tobytes() for x in read(frame, max_values=MAX_VALUES).values())
    except perbit.DecodeError:
        return None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_is_refused_or_keeps_the_claimed_shape(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(list(FRAMES.values())))[:-4])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(5, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    probe(sealed(bytes(body)), MAX_VALUES)


@pytest.mark.parametrize("bad", [None, 5, "pbit", [1, 2], np.zeros(20, np.uint8)], ids=lambda x: type(x).__name__)
def test_what_is_no_bytes_is_no_frame(bad: Any) -> None:
    for reader in (perbit.decode, perbit.loads, perbit.inspect, perbit.frame.wire.read_header):
        with pytest.raises(perbit.DecodeError, match="a frame is bytes"):
            reader(bad)


def test_views_of_bytes_are_frames_if_they_are_contiguous() -> None:
    frame = perbit.encode(TINY, "raw")
    padded = frame + bytes(-len(frame) % 4)
    assert np.array_equal(perbit.decode(memoryview(padded)[: len(frame)]), TINY)
    assert np.array_equal(perbit.decode(bytearray(frame)), TINY)
    for view in (memoryview(padded)[::2], memoryview(np.zeros((0, 4), np.float32)), memoryview(np.zeros(8))[::-1]):
        with pytest.raises(perbit.DecodeError):
            perbit.decode(view)


def test_a_frame_whose_header_does_not_fit_is_not_added_at_all() -> None:
    for attack in ATTACKS:
        total = np.ones((3, 7), np.float32)  # no attack has this shape
        with pytest.raises(perbit.DecodeError):
            perbit.decode_add(attack.frame, total)
        assert np.all(total == 1), f"{attack.name}: some of it was added"


def test_a_message_that_fails_half_way_was_added_in_part() -> None:
    """As decode_add says: the header is checked before anything is added, the payload is not."""
    contents = directory([spec("raw")], [tensor("a", (2,)), tensor("b", (2,))])
    good = section(np.ones(2, np.float32).tobytes())
    total = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    with pytest.raises(perbit.DecodeError):
        perbit.decode_add(message(contents, good, section(bytes(7))), total)
    assert total["a"].tolist() == [1, 1]
    assert total["b"].tolist() == [0, 0]


def test_expectations_are_checked_before_the_payload_is_touched() -> None:
    frame = array("raw | zstd", (3, 4), section(b"garbage"))
    with pytest.raises(perbit.DecodeError, match="expected shape"):
        perbit.decode(frame, expect_shape=(12,))
    with pytest.raises(perbit.LimitError):
        perbit.decode(frame, max_values=11)


def test_limits_hold_for_everything_a_frame_can_be_read_by() -> None:
    frame = perbit.encode(TINY, "uniform(2)")
    for reader in (read, perbit.inspect, perbit.frame.wire.read_header):
        with pytest.raises(perbit.LimitError, match="claims 8 values"):
            reader(frame, max_values=7)


MANY = 1 << 22


@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        ("uniform(12) | rans", "float32"),
        ("qsgd(1, bucket=0) | huffman", "float64"),
        ("randk(1.0) | uniform(1) | rans", "float32"),
        ("raw | zstd", "float64"),
        ("raw | deflate", "int64"),
        ("bf16 | zstd", "float16"),
        ("topk(k=1) | fp16", "float32"),
    ],
)
def test_a_small_frame_of_many_zeros_decodes_within_bounded_memory(codec: str, dtype: str) -> None:
    frame = perbit.encode(np.zeros(MANY, dtype), codec, seed=0)
    assert len(frame) < MANY // 100
    tracemalloc.start()
    try:
        value = perbit.decode(frame, max_values=MANY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not value.any()
    assert peak <= (64 << 20) + 4 * MANY


@pytest.fixture(scope="module")
def folder_of_attacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacks")
    for index, attack in enumerate(ATTACKS):
        (folder / f"{index}").write_bytes(attack.frame)
    return folder


def test_no_attack_takes_memory_beyond_the_cap(folder_of_attacks: Path, back_end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attacks.measure", str(folder_of_attacks)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PERBIT_KERNELS": back_end},
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(done.stdout)
    assert measured["frames"] == len(ATTACKS)
    greedy = {ATTACKS[int(name)].name: peak for name, peak in measured["peaks"].items() if peak > ALLOWED}
    assert not greedy
    assert measured["rss_growth"] <= ALLOWED, ATTACKS[int(measured["rss_culprit"])].name
