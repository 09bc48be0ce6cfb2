"""Pins every package that an install needs to one file by its hash: `python tools/lock.py`, on the machine and Python it is for.

Writes requirements/SYSTEM-MACHINE-PYTHON/{build,run,dev}.txt: what builds perbit, what `make demo` needs beside it, and what the tests need
beside that. `make` uses them where they match. torch stays out: its CPU build has another hash in every place it comes from, so
constraints.txt pins its version only.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ["pip", "setuptools", "wheel", "scikit-build-core", "nanobind", "cmake", "ninja"]
RUN = ["-e", ".[sim,report]"]
DEV = ["-e", ".[sim,report,dev]", "-e", "./papers"]
NOT_LOCKED = {"torch", "perbit", "perbit-papers"}

Pins = dict[str, tuple[str, str]]  # version and hash by name


def tag() -> str:
    """As the Makefile has it."""
    return f"{platform.system()}-{platform.machine()}-py3.{sys.version_info.minor}".lower()


def resolved(wanted: list[str], constraints: list[str]) -> Pins:
    """What pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        given, report = Path(folder) / "constraints.txt", Path(folder) / "report.json"
        given.write_text("\n".join(constraints) + "\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
        ]
        subprocess.run([*command, "-c", str(ROOT / "constraints.txt"), "-c", str(given), *wanted], cwd=ROOT, check=True)
        installed: list[Any] = json.loads(report.read_text())["install"]
    pins = {}
    for item in installed:
        name = normal(item["metadata"]["name"])
        if name not in NOT_LOCKED:
            pins[name] = item["metadata"]["version"], item["download_info"]["archive_info"]["hashes"]["sha256"]
    return pins


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def versions_here() -> list[str]:
    """What is installed beside this interpreter, as constraints."""
    command = [sys.executable, "-m", "pip", "list", "--format=freeze", "--exclude-editable"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [line for line in lines if normal(line.split("==")[0]) not in {*NOT_LOCKED, "pip"}]


def write(path: Path, about: str, pins: Pins) -> None:
    lines = [f"# {about} Made by tools/lock.py for {tag()}: do not edit."]
    lines += [f"{name}=={version} --hash=sha256:{digest}" for name, (version, digest) in sorted(pins.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(pins)} packages")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pin all packages by their hashes.")
    parser.add_argument(
        "--as-installed", action="store_true", help="the versions that are installed here, not the newest"
    )
    options = parser.parse_args()
    dev = resolved([*DEV, *BUILD], versions_here() if options.as_installed else [])
    same = [f"{name}=={version}" for name, (version, _) in dev.items()]
    build, run = resolved(BUILD, same), resolved(RUN, same)
    folder = ROOT / "requirements" / tag()
    write(folder / "build.txt", "What builds perbit.", build)
    write(folder / "run.txt", "What `make demo` needs.", {name: pin for name, pin in run.items() if name not in build})
    rest = {name: pin for name, pin in dev.items() if name not in build and name not in run}
    write(folder / "dev.txt", "What the tests need.", rest)


if __name__ == "__main__":
    main()
