"""One process that mutates frames and reads them: what it has read, how that went, and what must never happen.

Most frames are read once by one back end; a share of them in every way (attacks/targets.py) by all, which must agree.
"""

from __future__ import annotations

import json
import mmap
import random
import re
import resource
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import perbit
from attacks.build import sealed
from attacks.targets import probe, read
from fuzzing.mutations import MAX_FRAME, mutate, seeds
from perbit import kernels
from perbit.frame.wire import read_header

MAX_VALUES = 1 << 16
MAX_SECONDS = 2.0  # for one frame in every way
SLOWED_BY_SANITIZERS = 5  # times, measured 3.5
MAX_GROWTH = (64 << 20) + 4 * MAX_VALUES  # bytes of memory beyond what was there before the first frame
MAX_CORPUS = 4000
REPORT_SECONDS = 5.0
THOROUGH, WITH_NUMPY = 0.15, 0.03  # the shares of frames read in every way by the native back ends, and by numpy too
OUT_OF_MEMORY = "this machine has not the memory"
COUNTED = 8  # every eighth frame is looked at once more for the codecs that it names
NATIVE = [name for name in kernels.available() if name != "numpy"]


class Slot:
    """The frame a worker is reading, in shared memory, so that it survives a crash of the worker."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), MAX_FRAME + 1024)

    def put(self, frame: bytes) -> None:
        self.memory[4 : 4 + len(frame)] = frame
        self.memory[:4] = len(frame).to_bytes(4, "little")

    def get(self) -> bytes:
        return bytes(self.memory[4 : 4 + int.from_bytes(self.memory[:4], "little")])


class Finding(Exception):  # noqa: N818  not an error of the fuzzer
    """Something that must never happen."""


def read_once(frame: bytes, back_end: str) -> str | None:
    """The error a frame was refused with, or None."""
    with kernels.using(back_end):
        try:
            read(frame, max_values=MAX_VALUES)
        except perbit.DecodeError as error:
            return str(error)
    return None


def read_in_every_way(frame: bytes, back_ends: list[str]) -> str | None:
    """Read a frame under several back ends, which must agree."""
    outcomes = []
    for name in back_ends:
        with kernels.using(name):
            outcomes.append(probe(frame, MAX_VALUES))
    if len({outcome.agreed for outcome in outcomes}) != 1:
        raise Finding(f"{back_ends} disagree: {outcomes}")
    return outcomes[0].error


def kind(error: str) -> str:
    """An error without its numbers and names."""
    return re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?|'[^']*'|\"[^\"]*\"", "#", error)[:120]


def codecs_of(frame: bytes) -> set[str]:
    """The codecs that a frame names in its header."""
    try:
        header = read_header(frame, MAX_VALUES)
    except perbit.DecodeError:
        return {"(header refused)"}
    return {type(stage).name for entry in header.entries for stage in entry.codec.stages}


class Worker:
    def __init__(self, slot: Slot, seed: int, sanitized: bool) -> None:
        self.rng, self.slot, self.sanitized = random.Random(seed), slot, sanitized
        self.corpus, self.kinds = seeds(), set[str]()
        self.counts = dict.fromkeys(("frames", "reads", "decoded"), 0)
        self.by_codec: dict[str, Counter[str]] = {}
        self.slowest, self.slowest_frame, self.growth, self.start = 0.0, b"", 0, 0

    def report(self) -> None:
        slowest = {"slowest_ms": round(1000 * self.slowest), "slowest_frame": self.slowest_frame.hex()}
        rows = {**slowest, "growth_bytes": self.growth, "by_codec": self.by_codec}
        print(
            json.dumps({**self.counts, "ways_refused": len(self.kinds), "corpus": len(self.corpus), **rows}), flush=True
        )

    def run(self, seconds: float, frames: int) -> int:
        warnings.simplefilter("error")  # a warning while reading hostile bytes is a failure too
        self.report()
        for body in self.corpus[::5]:  # whatever is loaded on first use is there before the limits hold
            read_in_every_way(sealed(body), [*NATIVE, "numpy"])
        self.limit_memory()
        end, next_report = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < end and self.counts["frames"] < frames:
            if now > next_report:
                self.report()
                next_report = now + REPORT_SECONDS
            frame = mutate(self.rng, self.corpus)
            self.slot.put(frame)
            try:
                self.take(frame)
            except BaseException:
                print(json.dumps({"failure": traceback.format_exc(limit=12)}), flush=True)
                return 1
        self.report()
        return 0

    def take(self, frame: bytes) -> None:
        """Read one frame; afterwards it has cost what it may cost."""
        chance, back_ends = self.rng.random(), [self.rng.choice(NATIVE)]
        if chance < THOROUGH:
            back_ends = [*NATIVE, "numpy"] if chance < WITH_NUMPY else NATIVE

        def read_it() -> str | None:
            return read_in_every_way(frame, back_ends) if len(back_ends) > 1 else read_once(frame, back_ends[0])

        begin = time.process_time()  # a busy machine makes no frame slow
        error = read_it()
        seconds, most = time.process_time() - begin, MAX_SECONDS * (SLOWED_BY_SANITIZERS if self.sanitized else 1)
        if seconds > most:
            raise Finding(f"reading took {seconds:.1f} s of the processor")
        if error and OUT_OF_MEMORY in error:  # that is no refusal: the cost was to be known before
            raise Finding("reading took more memory than there was")
        growth = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.start
        if growth > MAX_GROWTH and not self.sanitized:
            raise Finding(f"memory grew by {growth} bytes")
        if seconds > self.slowest:
            self.slowest, self.slowest_frame = seconds, frame
        self.growth = max(self.growth, growth)
        self.count(frame, error, len(back_ends))

    def count(self, frame: bytes, error: str | None, n_reads: int) -> None:
        self.counts["frames"] += 1
        self.counts["reads"] += n_reads
        self.counts["decoded"] += error is None
        outcome = "decoded" if error is None else "refused"
        if self.counts["frames"] % COUNTED == 0:
            for name in codecs_of(frame):
                self.by_codec.setdefault(name, Counter())[outcome] += 1
        if error is not None and (said := kind(error)) not in self.kinds:
            self.kinds.add(said)
            if len(self.corpus) < MAX_CORPUS:
                self.corpus.append(frame[:-4])

    def limit_memory(self) -> None:
        """No allocation may go far beyond what a frame may cost; a sanitizer has limits of its own."""
        self.start = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if not self.sanitized:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MAX_GROWTH
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
