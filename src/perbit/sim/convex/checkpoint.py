"""Checkpoints of convex runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from perbit.sim import packing
from perbit.sim.convex.run import Progress


def save(path: Path, progress: Progress, about: dict[str, Any]) -> None:
    """Write a checkpoint; `about` must be the same when it is read."""
    packing.save(path, progress, about)


def restore(path: Path, about: dict[str, Any]) -> Progress:
    """Read a checkpoint of the same run."""
    progress: Progress = packing.restore(path, about, Progress)
    return replace(progress, counts={name: array.copy() for name, array in progress.counts.items()})
