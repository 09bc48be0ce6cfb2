"""Fuzzing of every way into a frame: `python tests/fuzz.py --seconds 600`, or `make fuzz`.

Starts from the golden frames, the attacks and small messages; mutates bits, bytes, varints and lengths, splices frames,
and seals most of them again so that the decoders see the damage. A frame that is refused in new words joins the corpus.
Each frame is read in every way (attacks/targets.py) under every native back end, sometimes under numpy; all must agree.

Workers are processes of their own: a crash, a hang, an exception that is no DecodeError, disagreement between back ends,
or memory beyond 64 MiB above the cap saves the frame in fuzz-corpus/ and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
CRASHES = TESTS.parent / "fuzz-corpus"
MAX_VALUES = 1 << 16
MEMORY_ALLOWED = (64 << 20) + 4 * MAX_VALUES
HANG_SECONDS = 120.0
MAX_FRAME = 4096  # bytes; larger seeds are left out, they are slow and add little
MAX_CORPUS = 4000
REPORT_SECONDS = 5.0
INTERESTING = (0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 127, 128, 255)

Mutation = Callable[[random.Random, bytearray, list[bytes]], None]


# --- mutations -------------------------------------------------------------------------------------------------------


def flip_bits(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(body))
        body[at] ^= 1 << rng.randrange(8)


def set_bytes(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 4))):
        body[rng.randrange(len(body))] = rng.choice(INTERESTING) if rng.random() < 0.6 else rng.randrange(256)


def nudge_byte(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body))
    body[at] = (body[at] + rng.choice((-2, -1, 1, 2))) % 256


def delete(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body))
    del body[at : at + rng.choice((1, 1, 2, 4, 16))]


def insert(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(body) + 1)
    body[at:at] = rng.randbytes(rng.choice((1, 1, 2, 4, 16)))


def insert_varint(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """Replace a byte by a number of any size: counts, lengths, dimensions."""
    from perbit.coding.bits import varint

    at = rng.randrange(len(body))
    body[at : at + 1] = varint(rng.getrandbits(rng.choice((7, 8, 14, 16, 17, 31, 32, 33, 47, 62))))


def repeat(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    begin = rng.randrange(len(body))
    piece = bytes(body[begin : begin + rng.choice((1, 2, 4, 8, 32))])
    body[begin:begin] = piece * rng.choice((1, 1, 2, 10))


def splice(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """The beginning of this frame and the end of another."""
    other = corpus[rng.randrange(len(corpus))]
    body[rng.randrange(len(body)) :] = other[rng.randrange(len(other)) :]


def transplant(rng: random.Random, body: bytearray, corpus: list[bytes]) -> None:
    """A piece of another frame in place of as many bytes of this one."""
    other = corpus[rng.randrange(len(corpus))]
    begin, length = rng.randrange(len(other)), rng.choice((2, 4, 8, 20))
    at = rng.randrange(len(body))
    body[at : at + length] = other[begin : begin + length]


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, set_bytes, set_bytes, nudge_byte, nudge_byte, delete, insert, insert_varint, repeat, splice, transplant,
)  # fmt: skip


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A new frame from an old one. Bodies begin with magic and version; nineteen of twenty are sealed."""
    from attacks.build import sealed

    body = bytearray(
        corpus[int(len(corpus) * rng.random() ** 3)]
    )  # the valid ones come first and are chosen more often
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if body:
            rng.choice(MUTATIONS)(rng, body, corpus)
    if rng.random() < 0.05:
        return bytes(body[:MAX_FRAME])
    body[:5] = b"pbit\x01"
    return sealed(bytes(body[:MAX_FRAME]))


# --- one execution ---------------------------------------------------------------------------------------------------


def seeds() -> list[bytes]:
    """Bodies (frames without checksum) to start from."""
    from attacks import all_attacks
    from golden import make

    frames = [case.frame_path.read_bytes() for case in make.cases()]
    frames += [attack.frame for attack in all_attacks()]
    return [frame[:-4] for frame in frames if 10 < len(frame) <= MAX_FRAME]


def execute(frame: bytes, back_ends: list[str]) -> str | None:
    """Read a frame under several back ends, which must agree; returns the error, without its numbers."""
    from attacks.targets import probe
    from perbit import kernels

    outcomes = []
    for name in back_ends:
        with kernels.using(name):
            outcomes.append(probe(frame, MAX_VALUES))
    assert len({outcome.agreed for outcome in outcomes}) == 1, f"{back_ends} disagree: {outcomes}"
    error = outcomes[0].error
    return None if error is None else re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)?|'[^']*'|\"[^\"]*\"", "#", error)[:120]


def limit_memory() -> None:
    """No allocation may take the process more than MEMORY_ALLOWED beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_ALLOWED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


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


def work(slot_path: Path, seed: int, seconds: float) -> int:
    """A worker: mutate and read until time is over; reports on stdout, one JSON object a line."""
    import warnings

    from attacks.build import sealed
    from perbit import kernels

    warnings.simplefilter("error")  # a warning while reading hostile bytes is a failure too
    native = [name for name in kernels.available() if name != "numpy"]
    rng, corpus, slot = random.Random(seed), seeds(), Slot(slot_path)
    errors: dict[str, int] = {}
    stats = {"frames": 0, "reads": 0, "decoded": 0}

    def report() -> None:
        print(json.dumps({**stats, "corpus": len(corpus), "errors": errors}), flush=True)

    report()
    for body in corpus[::5]:  # whatever is loaded on first use is there before the limit holds
        execute(sealed(body), native)
    limit_memory()
    end, next_report = time.monotonic() + seconds, 0.0
    while (now := time.monotonic()) < end:
        if now > next_report:
            report()
            next_report = now + REPORT_SECONDS
        frame = mutate(rng, corpus)
        slot.put(frame)
        back_ends = [*native, "numpy"] if rng.random() < 0.1 else native
        try:
            error = execute(frame, back_ends)
        except BaseException:
            print(json.dumps({"failure": traceback.format_exc(limit=12)}), flush=True)
            return 1
        stats["frames"] += 1
        stats["reads"] += len(back_ends)
        stats["decoded"] += error is None
        if error is not None and error not in errors and len(corpus) < MAX_CORPUS:
            corpus.append(frame[:-4])
        if error is not None:
            errors[error] = errors.get(error, 0) + 1
    report()
    return 0


# --- the parent ------------------------------------------------------------------------------------------------------


def save(frame: bytes, why: str) -> None:
    CRASHES.mkdir(exist_ok=True)
    path = CRASHES / f"{hashlib.sha256(frame).hexdigest()[:16]}.pbit"
    path.write_bytes(frame)
    print(f"\nFAILED: {why}\nframe of {len(frame)} bytes saved as {path}")


class Worker:
    """A worker process and the last thing it said."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        path = folder / f"slot-{seed}"
        path.write_bytes(bytes(MAX_FRAME + 1024))
        self.slot = Slot(path)
        self.last: dict[str, Any] = {"frames": 0, "reads": 0, "decoded": 0, "errors": {}}
        self.heard = time.monotonic()
        command = [sys.executable, __file__, "--worker", str(path), "--seed", str(seed), "--seconds", str(seconds)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def listen(self) -> None:
        """Read reports until the worker ends; kill it when it falls silent."""
        import select

        assert self.process.stdout is not None
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], HANG_SECONDS)
            if not ready:
                self.process.kill()
                self.last = {**self.last, "failure": f"no sign of life for {HANG_SECONDS} s"}
                break
            line = self.process.stdout.readline()
            if not line:
                break
            self.last = {**self.last, **json.loads(line)}
        code = self.process.wait()
        if code and "failure" not in self.last:
            self.last["failure"] = f"the process died with exit code {code}"


def run(seconds: float, seed: int, cores: int) -> int:
    from concurrent.futures import ThreadPoolExecutor

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:
        workers = [Worker(Path(folder), seed + i, seconds) for i in range(cores)]
        list(pool.map(Worker.listen, workers))
        elapsed = time.monotonic() - start
        frames, reads, decoded = (sum(w.last[key] for w in workers) for key in ("frames", "reads", "decoded"))
        errors = {error for worker in workers for error in worker.last["errors"]}
        print(f"{frames} frames, {reads} executions ({reads / elapsed:.0f}/s) in {elapsed:.0f} s, seed {seed}")
        print(f"{decoded} frames decoded, the others were refused in {len(errors)} different ways")
        failed = [worker for worker in workers if "failure" in worker.last]
        for worker in failed:
            save(worker.slot.get(), worker.last["failure"])
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz perbit's decoders.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    if options.worker:
        return work(options.worker, options.seed, options.seconds)
    return run(options.seconds, options.seed, options.cores)


if __name__ == "__main__":
    raise SystemExit(main())
