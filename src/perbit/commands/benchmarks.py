"""`perbit bench`: kernels, coders and whole codecs as ratios to memcpy and to their peers.

Machines are noisy, so nothing here is a number of its own: every candidate is timed in turn with a memcpy of the same float32 buffer
(and with its peer), several times, and the best of each is compared. One thread unless asked otherwise.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import zstandard

import perbit
from perbit import kernels
from perbit.coding.families import tables
from perbit.coding.families.bloom import Bloom
from perbit.coding.families.entropy import pack
from perbit.kernels import K
from perbit.kernels.api import F32, U32

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Something to time: `run` works on `n` float32 values; `peers` do the same work by other means."""

    name: str
    n: int
    run: Run
    peers: dict[str, Run] = field(default_factory=dict)
    note: str = ""


def run(n: int, repeats: int, only: str | None = None, progress: bool = True) -> list[dict[str, Any]]:
    """Time all cases (or those whose name contains `only`); returns one plain dict a case."""
    rows = []
    if progress:
        print(f"back end {kernels.active()}, {perbit.get_threads()} thread(s), best of {repeats}; memcpy = 1.00")
    memory = memory_rows(n) if not only or only in "memory" else ()
    for row in chain((measure(case, repeats) for case in cases(n, only or "")), memory):
        rows.append(row)
        if progress:
            print(_line(row), flush=True)
    return rows


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """The best time of the case, of memcpy and of each peer, taken in turn."""
    source = np.ones(case.n, np.float32)
    target = np.zeros(case.n, np.float32)
    candidates: dict[str, Run] = {"": case.run, "memcpy": lambda: np.copyto(target, source), **case.peers}
    best = dict.fromkeys(candidates, float("inf"))
    for candidate in candidates.values():
        candidate()
    for _ in range(repeats):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            best[name] = min(best[name], time.perf_counter() - start)
    own = best.pop("")
    return {
        "name": case.name,
        "n": case.n,
        "milliseconds": 1e3 * own,
        "times_memcpy": best.pop("memcpy") / own,
        "times_peer": {peer: seconds / own for peer, seconds in best.items()},
        "note": case.note,
    }


def _line(row: dict[str, Any]) -> str:
    if "share_of_input" in row:
        return f"{row['name']:<44}{row['share_of_input']:>8.1%} of the input, beyond input and output"
    peers = ", ".join(f"{ratio:.3g} x {peer}" for peer, ratio in row["times_peer"].items())
    return f"{row['name']:<44}{row['milliseconds']:>9.3f} ms {row['times_memcpy']:>7.2f}  {peers or row['note']}"


def cases(n: int, only: str) -> Iterator[Case]:
    """All cases whose group or name contains `only`; arrays are made only where they are needed."""
    for make in (kernel_cases, selection_cases, coder_cases, codec_cases):
        yield from (case for case in make(n) if only in case.name)


def gradient(n: int, seed: int = 0) -> F32:
    """Values shaped like a gradient: Laplace, small."""
    return (np.random.default_rng(seed).laplace(size=n) * 1e-3).astype(np.float32)


def kernel_cases(n: int) -> Iterator[Case]:
    x = gradient(n)
    out8, out32 = np.empty(n, np.uint8), np.empty(n, np.float32)
    hist = np.zeros(2048, np.uint64)
    codebook16 = np.linspace(-4e-3, 4e-3, 16).astype(np.float32)
    codebook256 = np.linspace(-4e-3, 4e-3, 256).astype(np.float32)
    middle16, middle256 = _middles(codebook16), _middles(codebook256)
    scales = (15 / K.bucket_norms(x, 512, "l2")).astype(np.float32)
    yield Case("kernel: scan", n, lambda: K.scan(x))
    yield Case("kernel: moments", n, lambda: K.moments(x, None), {"numpy": lambda: (x.sum(), np.abs(x).sum(), x @ x)})
    yield Case("kernel: moments + histogram", n, lambda: K.moments(x, hist))
    yield Case("kernel: bucket norms (512)", n, lambda: K.bucket_norms(x, 512, "l2"))
    yield Case("kernel: uniform, 16 levels", n, lambda: K.quantize_uniform(x, 2e3, 8.0, 16, out8))
    yield Case("kernel: uniform, 16 levels, random", n, lambda: K.quantize_uniform_random(x, 2e3, 7.5, 16, 1, 0, out8))
    yield Case("kernel: qsgd levels, random", n, lambda: K.quantize_levels_random(x, scales, 512, 15, 1, 0, out8))
    numpy_search: dict[str, Run] = {"numpy": lambda: np.searchsorted(middle16, x, side="right")}
    yield Case("kernel: codebook 16", n, lambda: K.quantize_codebook(x, middle16, out8), numpy_search)
    yield Case("kernel: codebook 16, random", n, lambda: K.quantize_codebook_random(x, codebook16, 1, 0, out8))
    yield Case("kernel: codebook 256", n, lambda: K.quantize_codebook(x, middle256, out8))
    yield Case("kernel: low float E2M1", n, lambda: K.lowfloat(x, 1e3, 2, 1, 5, out8))
    yield Case("kernel: low float E5M2", n, lambda: K.lowfloat(x, 1e3, 5, 2, 123, out8))
    K.quantize_uniform(x, 2e3, 8.0, 16, out8)
    yield Case(
        "kernel: dequantize 16", n, lambda: K.dequantize(out8, codebook16, out32), {"numpy": lambda: codebook16[out8]}
    )
    yield Case("kernel: pack 4 bits", n, lambda: K.pack(out8, 4))
    yield Case("kernel: histogram of symbols", n, lambda: K.histogram(out8, 16), {"numpy": lambda: np.bincount(out8)})
    yield Case("kernel: error feedback, add", n, lambda: K.feedback_add(x, out32, 0.9, out32))
    yield Case("kernel: error feedback, update", n, lambda: K.feedback_update(x, x, 0.9, out8, codebook16, out32))
    yield Case("kernel: axpy", n, lambda: K.axpy(out32, x, 0.5), {"numpy": lambda: np.add(out32, 0.5 * x, out=out32)})
    data = x.tobytes()
    yield Case("kernel: crc32c", n, lambda: K.crc32c(data), {"BLAKE2b": lambda: hashlib.blake2b(data)})


def _middles(codebook: F32) -> F32:
    return ((codebook[1:] + codebook[:-1]) / 2).astype(np.float32)


def selection_cases(n: int) -> Iterator[Case]:
    for size in (4_000_000, n):
        x = gradient(size)
        for ratio in (0.001, 0.01, 0.1):
            k = int(size * ratio)
            peers = _torch_topk(x, k) if size == 4_000_000 else {}
            yield Case(f"select: top {ratio:.1%} of {size // 1_000_000} M", size, partial(K.top_k, x, k), peers)
    x = gradient(n)
    positions = K.top_k(x, n // 100)
    values, out = x[positions], np.zeros(n, np.float32)
    stream = K.golomb_encode(positions, 6)
    yield Case("positions: golomb encode 1 %", n, lambda: K.golomb_encode(positions, 6))
    yield Case("positions: golomb decode 1 %", n, lambda: K.golomb_decode(stream, positions.size, 6, n))
    adaptive = K.gaps_encode(positions, n)
    yield Case("positions: gaps encode 1 %", n, lambda: K.gaps_encode(positions, n))
    yield Case("positions: gaps decode 1 %", n, lambda: K.gaps_decode(adaptive, positions.size, n))
    for layout in ("standard", "blocked"):
        bloom = Bloom("p0", 0.001, layout)
        ask = partial(bloom.decode, *_bloom_frame(bloom, positions, n))
        yield Case(f"positions: bloom p0 query 1 %, {layout}", n, ask)
    yield Case("scatter: add 1 %", n, lambda: K.scatter_add(out, positions, values, 0.5))


def _bloom_frame(bloom: Bloom, positions: U32, n: int) -> tuple[bytes, int, int]:
    data, found = bloom.transmit(positions, n, 0)
    return data, n, found.size


def _torch_topk(x: F32, k: int) -> dict[str, Run]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    magnitude = torch.from_numpy(x).abs()
    return {"torch.topk": lambda: torch.topk(magnitude, k, sorted=False)}


def coder_cases(_: int) -> Iterator[Case]:
    """Entropy coders on one million symbols, against constriction and zstd on the same symbols."""
    n = 1_000_000
    for levels, scale in ((16, 1.0), (64, 5.0), (256, 20.0)):
        symbols = np.clip(
            np.rint(np.random.default_rng(1).laplace(size=n) * scale) + levels // 2, 0, levels - 1
        ).astype(np.uint8)
        counts = K.histogram(symbols, levels)
        entropy = tables.entropy_bits(counts)
        freqs, bits, table = tables.best_table(counts)
        stream = K.rans_encode(symbols, freqs, bits)
        lengths = tables.huffman_lengths(counts, tables.huffman_limit(levels))
        coded = K.huffman_encode(symbols, lengths)
        out = np.empty_like(symbols)
        ours = f"{8 * (len(stream) + len(table)) / entropy:.4f} of the entropy ({entropy / n:.2f} bits)"
        theirs = f"{8 * len(coded) / entropy:.4f} of the entropy"
        encode_peers, decode_peers = _coder_peers(symbols, counts, levels)
        name = f"{levels} symbols"
        yield Case(f"rans: encode {name}", n, partial(K.rans_encode, symbols, freqs, bits), encode_peers, ours)
        yield Case(f"rans: decode {name}", n, partial(K.rans_decode, stream, freqs, bits, out), decode_peers, ours)
        yield Case(f"huffman: encode {name}", n, partial(K.huffman_encode, symbols, lengths), note=theirs)
        yield Case(f"huffman: decode {name}", n, partial(K.huffman_decode, coded, lengths, out), note=theirs)


def _coder_peers(symbols: Any, counts: Any, levels: int) -> tuple[dict[str, Run], dict[str, Run]]:
    packed = pack(symbols, levels)
    squeezed = zstandard.ZstdCompressor(level=1).compress(packed)
    encoders: dict[str, Run] = {"zstd-1 on packed": lambda: zstandard.ZstdCompressor(level=1).compress(packed)}
    decoders: dict[str, Run] = {"zstd-1 on packed": lambda: zstandard.ZstdDecompressor().decompress(squeezed)}
    try:
        import constriction
    except ImportError:
        return encoders, decoders
    model = constriction.stream.model.Categorical(
        (counts + 1e-9).astype(np.float32) / np.float32(counts.sum()), perfect=False
    )
    whole = symbols.astype(np.int32)

    def encode() -> Any:
        coder = constriction.stream.stack.AnsCoder()
        coder.encode_reverse(whole, model)
        return coder.get_compressed()

    compressed = encode()
    encoders["constriction ANS"] = encode
    decoders["constriction ANS"] = lambda: constriction.stream.stack.AnsCoder(compressed).decode(model, len(whole))
    return encoders, decoders


END_TO_END = (
    "uniform(4) | rans",
    "uniform(4) | huffman",
    "uniform(8) | rans",
    "qsgd(15) | rans",
    "topk(0.01) | qsgd(127) | rans",
    "topk(0.1) | fp16",
    "patterns(32, 9)",
    "patterns(64, 12)",
    "fp16",
)


def codec_cases(n: int) -> Iterator[Case]:
    x = gradient(n)
    data = x.tobytes()
    compress: dict[str, Run] = {"zstd-1 on raw": lambda: zstandard.ZstdCompressor(level=1).compress(data)}
    for spec in END_TO_END:
        codec = perbit.codec(spec)
        frame = perbit.encode(x, codec, seed=0)
        total = np.zeros(n, np.float32)
        note = f"{8 * len(frame) / n:.3f} bits a value"
        peers = compress if spec == END_TO_END[0] else {}
        yield Case(f"{spec}: encode", n, partial(perbit.encode, x, codec, seed=0), peers, note)
        yield Case(f"{spec}: decode", n, partial(perbit.decode, frame, expect_shape=x.shape), note=note)
        yield Case(f"{spec}: decode_add", n, partial(perbit.decode_add, frame, total, 0.1), note=note)


_MEMORY_PROBE = """
import sys
import numpy as np, perbit
n, spec, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
perbit.decode(perbit.encode(np.ones(1 << 16, np.float32), spec, seed=0))  # load every table first
def peak():  # of this process image; getrusage would also count the parent's, up to exec
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
if path:
    frame = open(path, "rb").read()
    before = peak()
    result = perbit.decode(frame, max_values=n).nbytes
else:
    x = np.random.default_rng(0).standard_normal(n, np.float32)
    before = peak()
    result = len(perbit.encode(x, spec, seed=0))
print(peak() - before - result)
"""


def memory_rows(n: int, specs: tuple[str, ...] = END_TO_END[:1]) -> Iterator[dict[str, Any]]:
    """Peak memory beyond input and output, each in a process of its own."""
    for spec in specs:
        with tempfile.NamedTemporaryFile() as file:
            file.write(perbit.encode(np.random.default_rng(0).standard_normal(n, np.float32), spec, seed=0))
            file.flush()
            for what, path in (("encode", ""), ("decode", file.name)):
                command = [sys.executable, "-c", _MEMORY_PROBE, str(n), spec, path]
                beyond = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                yield {"name": f"memory: {spec}: {what}", "n": n, "share_of_input": max(0, beyond) / (4 * n)}
