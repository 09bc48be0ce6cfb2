"""Fuzzing of every way into a frame: `make fuzz`, or `python tests/fuzz.py --frames 10000000 --cores 2 --output results/fuzz.json`.

Starts from the golden frames and the attacks; mutates bits, bytes, varints and lengths, splices frames, and seals most of them again so
that the decoders see the damage. A frame that is refused in new words joins the corpus.

Workers are processes of their own: a crash, a hang, an exception that is no DecodeError, disagreement between back ends, more processor
time or more memory than a frame may cost saves the frame in fuzz-corpus/ and ends with exit code 1. With `--output` counts are kept in
that file and grow from run to run; `--sanitized` builds the kernels under ASan and UBSan first and counts apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
CRASHES = TESTS.parent / "fuzz-corpus"
HANG_SECONDS = 120.0
REPORT_SECONDS = 10.0
SUMS = ("frames", "reads", "decoded", "refused")

Counts = dict[str, Any]


class Process:
    """A worker process and the last thing it said."""

    def __init__(
        self, folder: Path, seed: int, options: argparse.Namespace, frames: int, environment: dict[str, str]
    ) -> None:
        from fuzzing.mutations import MAX_FRAME
        from fuzzing.worker import Slot

        path = folder / f"slot-{seed}"
        path.write_bytes(bytes(MAX_FRAME + 1024))
        self.slot = Slot(path)
        self.last: Counts = {"frames": 0, "reads": 0, "decoded": 0, "by_codec": {}}
        command = [sys.executable, __file__, "--worker", str(path), "--seed", str(seed)]
        command += ["--seconds", str(options.seconds), "--frames", str(frames)]
        command += ["--sanitized"] if options.sanitized else []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def listen(self) -> None:
        """Read reports until the worker ends; kill it when it falls silent."""
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


def added(before: Counts, reports: Iterable[Counts], seconds: float) -> Counts:
    """Counts with those of some workers added."""
    total = {
        **dict.fromkeys(SUMS, 0),
        "slowest_ms": 0,
        "slowest_frame": "",
        "growth_bytes": 0,
        "by_codec": {},
        "seconds": 0,
        "findings": [],
        **before,
    }
    total["by_codec"] = {name: dict(row) for name, row in total["by_codec"].items()}
    total["findings"] = list(total["findings"])
    for last in reports:
        for key in ("frames", "reads", "decoded"):
            total[key] += last[key]
        total["refused"] += last["frames"] - last["decoded"]
        if last.get("slowest_ms", 0) > total["slowest_ms"]:
            total["slowest_ms"], total["slowest_frame"] = last["slowest_ms"], last["slowest_frame"]
        total["growth_bytes"] = max(total["growth_bytes"], last.get("growth_bytes", 0))
        for name, row in last["by_codec"].items():
            into = total["by_codec"].setdefault(name, {"decoded": 0, "refused": 0})
            for outcome, count in row.items():
                into[outcome] += count
        total["findings"] += [last["failure"].strip().splitlines()[-1]] if "failure" in last else []
    total["seconds"] = round(total["seconds"] + seconds)
    total["by_codec"] = dict(sorted(total["by_codec"].items()))
    return total


def about(frame: str) -> str:
    """A frame for people."""
    from fuzzing.worker import codecs_of

    codecs = " and ".join(sorted(codecs_of(bytes.fromhex(frame))))
    return f"{len(frame) // 2} bytes, {codecs}, {frame[:120]}{'...' if len(frame) > 120 else ''}"


def save_frame(frame: bytes, why: str) -> None:
    CRASHES.mkdir(exist_ok=True)
    path = CRASHES / f"{hashlib.sha256(frame).hexdigest()[:16]}.pbit"
    path.write_bytes(frame)
    print(f"\nFAILED: {why}\nframe of {len(frame)} bytes saved as {path}")


def limits() -> Counts:
    from fuzzing.worker import MAX_GROWTH, MAX_SECONDS, MAX_VALUES

    return {"max_values": MAX_VALUES, "max_seconds_a_frame": MAX_SECONDS, "max_growth_bytes": MAX_GROWTH}


def run(options: argparse.Namespace) -> int:
    from perbit.files import write_json

    kept: Counts = json.loads(options.output.read_text()) if options.output and options.output.exists() else {}
    part = "sanitized" if options.sanitized else "plain"
    before: Counts = kept.get(part, {})
    wanted = options.frames - before.get("frames", 0)
    if wanted <= 0:
        print(f"{options.output} has {before['frames']} frames already")
        return 0
    environment = dict(os.environ)
    if options.sanitized:
        from native import build

        environment = build.environment()
    seed = (
        options.seed if options.seed is not None else 1000 * before.get("runs", 0) + (500 if options.sanitized else 0)
    )
    start, total = time.monotonic(), before

    def keep(processes: list[Process]) -> Counts:
        total = added(before, [process.last for process in processes], time.monotonic() - start)
        total["runs"] = before.get("runs", 0) + 1
        if options.output:
            write_json(options.output, {**kept, "limits": limits(), part: total})
        return total

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.cores) as pool:
        share = -(-wanted // options.cores)
        processes = [Process(Path(folder), seed + i, options, share, environment) for i in range(options.cores)]
        listeners = [pool.submit(process.listen) for process in processes]
        while wait(listeners, timeout=REPORT_SECONDS).not_done:
            total = keep(processes)
            rate = (total["frames"] - before.get("frames", 0)) / (time.monotonic() - start)
            print(f"{total['frames']} frames, {rate:.0f} a second", file=sys.stderr, flush=True)
        for listener in listeners:
            listener.result()
        total = keep(processes)
        elapsed = time.monotonic() - start
        ran = total["frames"] - before.get("frames", 0)
        print(f"{ran} frames in {elapsed:.0f} s ({ran / elapsed:.0f} a second), seed {seed}; {total['frames']} in all")
        print(f"{total['decoded']} decoded, {total['refused']} refused")
        print(f"the slowest took {total['slowest_ms']} ms of the processor: {about(total['slowest_frame'])}")
        failed = [process for process in processes if "failure" in process.last]
        for process in failed:
            save_frame(process.slot.get(), process.last["failure"])
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz perbit's decoders.")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument(
        "--frames",
        type=int,
        default=1 << 62,
        help="stop after so many; with --output those counted there are part of them",
    )
    parser.add_argument("--seed", type=int, help="by default another one in every run that --output counts")
    parser.add_argument("--cores", type=int, default=1, help="worker processes")
    parser.add_argument(
        "--sanitized", action="store_true", help="under AddressSanitizer and UndefinedBehaviorSanitizer"
    )
    parser.add_argument("--output", type=Path, help="a JSON file whose counts grow")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    if options.worker:
        from fuzzing.worker import Slot, Worker

        return Worker(Slot(options.worker), options.seed, options.sanitized).run(options.seconds, options.frames)
    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
