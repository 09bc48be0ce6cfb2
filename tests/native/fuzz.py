"""Coverage-guided fuzzing of the C++ decoders: `make fuzz-native`, or `python tests/native/fuzz.py --seconds 600 --keep`.

Starts from corpus.zip. With clang this is libFuzzer; without, the corpus is replayed with random changes. An input that crashes, reads or
writes outside, lets the back ends disagree or takes longer than ten seconds is saved in fuzz-corpus/ and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from native import build

CORPUS = build.NATIVE / "corpus.zip"
CRASHES = build.ROOT / "fuzz-corpus"
LIMITS = ["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]


def unpacked(folder: Path) -> list[Path]:
    """The inputs of the corpus as files, and tensors of `rd`."""
    with zipfile.ZipFile(CORPUS) as archive:
        archive.extractall(folder)
    for number, data in enumerate(tensors()):
        (folder / f"tensor-{number}").write_bytes(data)
    return sorted(folder.iterdir())


def tensors() -> Iterator[bytes]:
    """Inputs for the target `tensor` of decoders.cpp: frames of matrices and of convolution kernels, without their heads."""
    import numpy as np

    import perbit

    rng = np.random.default_rng(0)
    for rows, columns, taps in ((24, 40, 1), (50, 50, 1), (8, 9, 9), (20, 30, 4)):
        low_rank = rng.normal(size=(rows, 2)) @ rng.normal(size=(2, columns))
        values = low_rank[:, :, None] + 0.1 * rng.laplace(size=(rows, columns, taps)) + 3 * rng.normal(size=taps)
        for step in (0.001, 0.02, 0.1, 0.5, 2.0):
            for codec in (f"rd({step})", f"rd({step}, rank=0)", f"rd({step}, random=true)"):
                x = (values if taps > 1 else values[..., 0]).astype(np.float32)
                frame = perbit.encode(x, codec, seed=0)
                head = [1, rows - 1, columns - 1] if taps == 1 else [0, taps - 2, rows - 1, columns - 1]
                yield (
                    struct.pack(f"<B{len(head)}IfI", 240, *head, step, 1)
                    + frame[perbit.inspect(frame)["header_bytes"] : -4]
                )


def packed(folder: Path) -> None:
    """The same inputs make the same archive."""
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)


def guided(fuzzer: Path, seconds: int, keep: bool) -> int:
    with tempfile.TemporaryDirectory() as name:
        corpus, merged = Path(name) / "corpus", Path(name) / "merged"
        corpus.mkdir()
        merged.mkdir()
        unpacked(corpus)
        CRASHES.mkdir(exist_ok=True)
        command = [
            fuzzer,
            f"-max_total_time={seconds}",
            f"-artifact_prefix={CRASHES}/native-",
            "-print_final_stats=1",
            *LIMITS,
        ]
        code = subprocess.run([*command, corpus]).returncode
        if keep and code == 0:
            subprocess.run([fuzzer, "-merge=1", *LIMITS, merged, corpus], check=True)
            packed(merged)
            print(f"{CORPUS} holds {len(list(merged.iterdir()))} inputs")
    return code


def replayed(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        return subprocess.run([build.replay(), str(rounds), *unpacked(Path(name))]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the C++ decoders.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument(
        "--keep", action="store_true", help="add what was found new to the corpus, and leave out what adds nothing"
    )
    options = parser.parse_args()
    fuzzer = build.fuzzer()
    if fuzzer is None:
        print(
            "no clang++ here (Debian: apt-get install clang libclang-rt-14-dev): the corpus is replayed with random changes instead"
        )
        return replayed(1000)
    return guided(fuzzer, options.seconds, options.keep)


if __name__ == "__main__":
    raise SystemExit(main())
