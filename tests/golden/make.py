"""Golden frames: bytes that must decode to the same arrays for ever.

    python tests/golden/make.py            adds a frame for every example of a registered codec that has none yet
    python tests/golden/make.py --force    also rewrites the frames that today's code would write differently

To add frames for a new codec: give it `examples`, run the first command, commit what it added. Existing files are never
touched without --force, and --force is right only before a release: afterwards a changed bitstream needs a new version.

`index.json` says for every frame its spec (or message), seed, input, and the SHA-256 of the decoded values. Small
frames have these values beside them (`.values`: the tensors' little-endian bytes, one after the other). Inputs are made
by integer arithmetic, so that every machine encodes the same arrays.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import perbit
from perbit import testing

FOLDER = Path(__file__).parent
INDEX = FOLDER / "index.json"
FRAMES = FOLDER / "frames"
SEED = 7
MAX_VALUES_FILE = 4096  # bytes; larger arrays are known by their hash alone

Tensors = dict[str, np.ndarray[Any, Any]]


def gradient(n: int, stream: int = 0) -> np.ndarray[Any, Any]:
    """Values crowded around zero with a heavy tail, exact on every machine (a bit generator's raw stream never changes)."""
    a, b, c = (np.random.PCG64(stream).random_raw(3 * n) >> np.uint64(44)).astype(np.int64).reshape(3, n)
    return ((a - b) * c).astype(np.float32) * np.float32(2.0**-42)


def low_rank(rows: int, columns: int, rank: int = 2) -> np.ndarray[Any, Any]:
    """A matrix of this rank and an eighth of noise, exact on every machine."""
    raw = np.random.PCG64(rank).random_raw(rank * (rows + columns) + rows * columns)
    whole = (raw >> np.uint64(56)).astype(np.int64) - 128
    left, right, noise = np.split(whole, [rank * rows, rank * (rows + columns)])
    product = left.reshape(rows, rank) @ right.reshape(rank, columns) + 8 * noise.reshape(rows, columns)
    return product.astype(np.float32) * np.float32(2.0**-14)


def kernels(out: int, taken: int, side: int) -> np.ndarray[Any, Any]:
    """Convolution kernels whose taps change together."""
    common = gradient(out * taken, stream=1).reshape(out, taken, 1, 1)
    return 4 * common + gradient(out * taken * side * side, stream=2).reshape(out, taken, side, side)


# What arrays are made of. Names and meanings never change: the index refers to them.
INPUTS: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
    "gradient": lambda: gradient(19 * 13).reshape(19, 13),
    "long": lambda: gradient(70_001),
    "empty": lambda: np.zeros((0, 3), np.float32),
    "scalar": lambda: np.float32(-1.5).reshape(()),
    "zeros": lambda: np.zeros(100, np.float32),
    "float64": lambda: gradient(60).astype(np.float64) / 3,
    "float16": lambda: gradient(60).astype(np.float16),
    "bfloat16": lambda: gradient(60).astype(ml_dtypes.bfloat16),
    "float8_e4m3fn": lambda: gradient(60).astype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": lambda: gradient(60).astype(ml_dtypes.float8_e5m2),
    "int64": lambda: np.arange(-20, 20, dtype=np.int64) ** 7,
    "bool": lambda: np.arange(50) % 3 == 0,
    "lowrank": lambda: low_rank(48, 64),
    "kernels": lambda: kernels(24, 16, 3),
    "spikes": lambda: gradient(6000) * np.where(np.arange(6000) % 97, np.float32(2.0**-6), np.float32(1)),
}

# Beyond the examples: streams of 32 lanes and 8 parts, and inputs at the edge.
EXTRA = {
    "long": (
        "uniform(4) | rans", "uniform(9) | rans", "uniform(4) | huffman", "uniform(10) | huffman", "qsgd(1) | rans",
        'qsgd(15, bucket=64, norm="max") | huffman', "topk(0.01) | qsgd(15) | rans", "randk(0.01) | fp16",
        "fp(2, 1) | rans", "mwl2(2, 2) | huffman", "natural | rans", "eden(2) | rans",
        "topk(0.05) | fitpoly", "topk(0.05) | fitdexp", "skcompress(0.05)", "threelc(1.9)", "patterns", "patterns(16, 12)",
        "rd(0.02)", "rd(0.0005)", "rd(0.01, random=true)",
    ),
    "gradient": ("rd(0.02)", "rd(0.0005)", "rd(0.00001)", "rd(0.02, random=true)"),
    "lowrank": ("rd(0.05)", "rd(bits=1)", "rd(0.05, random=true)", "rd(0.0001)"),
    "spikes": ("rd(0.02)",),
    "kernels": ("rd(0.05)", "rd(db=-12)", "rd(0.05, random=true)"),
    "empty": (
        "raw", "topk(0.05) | fp16", "uniform(4) | rans", "qsgd(1) | rans", "fp(2, 1) | rans", "eden(1)",
        "fitpoly", "fitdexp", "sketchml", "threelc", "patterns", "lowrank", "rd(bits=1)",
    ),
    "scalar": ("raw", "topk(k=3)", "uniform(4) | huffman", "rd(0.1)", "rd(1e-9)"),
    "zeros": (
        "uniform(4) | rans", "qsgd(1) | rans", "threshold(0.5)", "fp(2, 1) | rans", "mwl2(2, 2) | rans", "eden(1)", "natural",
        "fitpoly", "fitdexp", "skcompress", "threelc", "patterns", "rd(0.5)",
    ),
    "float64": ("raw", "uniform(4) | rans", "rd(0.01)"),
    "float16": ("raw", "qsgd(7)"),
    "bfloat16": ("raw", "bf16"),
    "float8_e4m3fn": ("raw", "raw | zstd"),
    "float8_e5m2": ("raw",),
    "int64": ("raw", "raw | zstd"),
    "bool": ("raw | deflate",),
}  # fmt: skip


def _model() -> Tensors:
    names = [f"layers.{i}.{part}" for i in range(4) for part in ("conv.weight", "conv.bias")]
    return {name: gradient(40 + 8 * i, stream=i).reshape(-1, 4) for i, name in enumerate(names)}


MESSAGES: dict[str, Callable[[], tuple[Tensors, Any, dict[str, Any]]]] = {
    "one spec": lambda: (_model(), "topk(0.1) | qsgd(15) | rans", {}),
    "plan": lambda: (
        _model() | {"head.weight": INPUTS["gradient"](), "steps": np.array(7, np.int64), "half": INPUTS["bfloat16"]()},
        perbit.Plan.of("uniform(4) | rans", rules={"head.*": "fp16"}, small_below=64),
        {},
    ),
    "stateful": lambda: (_model(), "uniform(2) | huffman", {"sequence": 300, "digest": b"\x00digest\xff"}),
    "rd": lambda: (_model() | {"conv.weight": INPUTS["kernels"](), "bn.running_var": gradient(9)}, "rd(bits=1)", {}),
    "no tensors": lambda: ({}, "raw", {}),
    "integers": lambda: ({name: INPUTS[name]() for name in ("int64", "bool")}, "uniform(4) | rans", {}),
}


@dataclass(frozen=True)
class Case:
    """What a golden frame is made from: a spec and an input, or a message."""

    what: str
    source: str

    @property
    def name(self) -> str:
        slug = re.sub(r"[^a-z0-9.]+", "-", self.what.lower()).strip("-")[:40]
        digest = hashlib.sha256(f"{self.what}\n{self.source}\n{SEED}".encode()).hexdigest()
        return f"{slug}-{self.source}-{digest[:8]}"

    def encode(self) -> bytes:
        """The frame today's code writes."""
        if self.source == "message":
            tensors, plan, options = MESSAGES[self.what]()
            return perbit.dumps(tensors, plan, seed=SEED, **options)
        return perbit.encode(INPUTS[self.source](), self.what, seed=SEED)

    @property
    def frame_path(self) -> Path:
        return FRAMES / f"{self.name}.pbit"

    @property
    def values_path(self) -> Path:
        return FRAMES / f"{self.name}.values"


def decode(frame: bytes) -> Tensors:
    """The tensors of any frame; an array has no name."""
    is_message = perbit.frame.wire.read_header(frame).is_message
    return perbit.loads(frame) if is_message else {"": perbit.decode(frame)}


def values_of(tensors: Tensors) -> bytes:
    return b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values())


def describe(tensors: Tensors) -> list[list[Any]]:
    return [[name, x.dtype.name, list(x.shape)] for name, x in tensors.items()]


def wanted() -> Iterator[Case]:
    """Every case that must have a golden frame today."""
    for spec in testing.specs():
        yield Case(spec, "gradient")
    for source, specs in EXTRA.items():
        for spec in specs:
            yield Case(str(perbit.codec(spec)), source)
    for name in MESSAGES:
        yield Case(name, "message")


def read_index() -> dict[str, dict[str, Any]]:
    index: dict[str, dict[str, Any]] = json.loads(INDEX.read_text()) if INDEX.exists() else {}
    return index


def cases() -> list[Case]:
    """Every committed golden frame."""
    return [Case(entry["what"], entry["source"]) for entry in read_index().values()]


def write(case: Case) -> dict[str, Any]:
    """Write one golden frame; returns its line of the index."""
    frame = case.encode()
    tensors = decode(frame)
    values = values_of(tensors)
    case.frame_path.write_bytes(frame)
    if len(values) <= MAX_VALUES_FILE:
        case.values_path.write_bytes(values)
    return {
        "what": case.what,
        "source": case.source,
        "seed": SEED,
        "tensors": describe(tensors),
        "sha256": hashlib.sha256(values).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Add golden frames for new specs.")
    parser.add_argument("--force", action="store_true", help="rewrite frames that today's code writes differently")
    force = parser.parse_args().force
    index = read_index()
    FRAMES.mkdir(exist_ok=True)
    for case in wanted():
        known = case.name in index
        if known and not (force and case.frame_path.read_bytes() != case.encode()):
            continue
        index[case.name] = write(case)
        print(f"{'rewrote' if known else 'added'} {case.name}")
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(index.items()))
    INDEX.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
