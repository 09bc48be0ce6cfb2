"""Valid frames that cost as much as a few bytes can: every codec on constant values, and by hand the most of every parameter.

Each is decoded within its budget or refused with a LimitError; tests/test_costs.py and benchmarks/hostile_frames.py measure both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import zstandard

import perbit
from attacks.build import MESSAGE, PACKED, array, directory, message, section, spec, tensor
from perbit import testing
from perbit.coding.bits import varint
from perbit.kernels import CHUNK, K

CONSTANT = 1 << 20  # values of the frames that codecs write themselves
SKCOMPRESS = bytes.fromhex(
    "70626974010000018080804001351803040501000001040000803f80808040030200000200005cc29562"
)  # took 54 seconds and 10.5 GiB before frames had budgets
ALL_NEIGHBOURS = section(b"\x00" + varint(0) + section(b"\x00\x00"))  # huffgaps: every gap is zero


def zeros(n: int) -> bytes:
    """The payload of `uniform(1) | rans` for n times the same value."""
    return section(struct.pack("<ff", 0.0, 1.0)) + section(b"\x00\x00") * -(-n // CHUNK)


def nested_randk(depth: int, n: int, ratio: float = 0.999999) -> bytes:
    counts = [n]
    for _ in range(depth):
        counts.append(max(1, round(ratio * counts[-1])))
    return array(" | ".join([f"randk({ratio}, seed=1)"] * depth + ["uniform(1) | rans"]), (n,), zeros(counts[-1]))


def nested_huffgaps(depth: int, n: int) -> bytes:
    stages = ["threshold(0.0, positions=huffgaps)"] * depth + ["uniform(1) | rans"]
    return array(" | ".join(stages), (n,), (varint(n) + ALL_NEIGHBOURS) * depth, zeros(n))


def rd_components(rows: int, columns: int) -> bytes:
    """64 components, all of them zero."""
    return array("rd(0.5)", (rows, columns), b"\x04", varint(64), b"\0", b"\x80\x3f" * 64, b"\0\0")


def rd_taps(rows: int, columns: int) -> bytes:
    """256 taps and 64 components."""
    head = b"\x06" + varint(64) + b"\0" + b"\x80\x3f" * 64 + b"\0"
    return array("rd(0.5)", (rows, columns, 16, 16), head, bytes(256), b"\0")


def rd_adaptive(n: int) -> bytes:
    return array("rd(0.5)", (n,), b"\0\1\1\0", section(b""))


def bloom(policy: str, n: int) -> bytes:
    """A filter that accepts everything."""
    codec = f'topk(k={n}, positions=bloom("{policy}", 0.000001)) | uniform(1) | rans'
    return array(codec, (n,), varint(n), section(b"seed" + b"\xff" * 64), zeros(n))


def bloom_by_density(policy: str, n: int) -> bytes:
    """The same with a number of hashes in the section."""
    codec = f'topk(k={n}, positions=bloom("{policy}", 0.1, rule="density")) | uniform(1) | rans'
    return array(codec, (n,), varint(n), section(b"seed\x20" + b"\xff" * 64), zeros(n))


def lowrank(side: int) -> bytes:
    return array("lowrank(128) | uniform(1) | rans", (side, side), zeros(256 * side))


def counted(n: int) -> bytes:
    """The last value of every chunk: a decision for each value, and few bits."""
    ends = np.arange(4095, n, 4096, dtype=np.uint32)
    stream = K.counted_encode(ends, np.ones(ends.size, np.uint32), 4096, n)
    return array(
        "nonzero(positions=counted) | uniform(1) | rans",
        (n,),
        varint(ends.size),
        section(b"\x02" + stream),
        zeros(ends.size),
    )


def gaps(n: int) -> bytes:
    """Positions whose code is all zeros, whatever that means."""
    return array("nonzero(positions=gaps) | uniform(1) | rans", (n,), varint(n), section(bytes(200)), zeros(n))


def many_tensors(count: int, spec: str) -> bytes:
    tensors = {str(index): np.zeros(1, np.float32) for index in range(count)}
    return perbit.dumps(tensors, perbit.Plan.of(spec, small=None), seed=0)


def packed(n_codecs: int, n_tensors: int) -> bytes:
    """A directory that is compressed to next to nothing."""
    tensors = [tensor(f"{index:05}", (1,)) for index in range(n_tensors)]
    contents = directory([spec("fp16")] * n_codecs, tensors)
    return message(zstandard.ZstdCompressor(19).compress(contents), flags=MESSAGE | PACKED)


def by_hand() -> Iterator[tuple[str, bytes]]:
    yield "skcompress in 42 bytes", SKCOMPRESS
    yield "randk 14 times", nested_randk(14, 1 << 27)
    yield "randk 14 times, small", nested_randk(14, 1 << 18)
    yield "huffgaps 14 times", nested_huffgaps(14, 1 << 27)
    yield "huffgaps 14 times, small", nested_huffgaps(14, 1 << 18)
    yield "64 components", rd_components(4096, 8192)
    yield "64 components, small", rd_components(1024, 1024)
    yield "256 taps", rd_taps(256, 256)
    yield "256 taps, small", rd_taps(32, 64)
    yield "adaptive levels", rd_adaptive(1 << 26)
    yield "adaptive levels, small", rd_adaptive(1 << 18)
    for policy in ("p0", "p1", "p2", "p2_authors", "naive"):
        yield f"bloom {policy}", bloom(policy, 1 << 24)
        yield f"bloom {policy}, small", bloom(policy, 1 << 16)
        yield f"bloom {policy}, by density", bloom_by_density(policy, 1 << 24)
    yield "128 pairs of vectors", lowrank(1 << 13)
    yield "128 pairs of vectors, small", lowrank(1 << 10)
    yield "positions without bits", gaps(1 << 22)
    yield "a value in every chunk", counted(1 << 24)
    yield "billions of values", array("topk(k=1)", (1 << 31,), varint(0), section(b"\0"), section(b""))
    yield "billions of bytes", array("raw | zstd", (1 << 40,), section(b""))
    yield "twenty thousand codecs", packed(20_000, 1)
    yield "twenty thousand tensors", packed(1, 20_000)
    yield "two thousand tensors", many_tensors(2000, "uniform(12) | huffman")


def by_codec(n: int = CONSTANT) -> Iterator[tuple[str, bytes]]:
    """What every codec writes for many times the same value."""
    for each in testing.specs():
        for value in (0.0, 1.0):
            yield f"{each}, all {value:g}", perbit.encode(np.full((n >> 10, 1 << 10), value, np.float32), each, seed=0)


def all_costly() -> list[tuple[str, bytes]]:
    return [*by_hand(), *by_codec()]
