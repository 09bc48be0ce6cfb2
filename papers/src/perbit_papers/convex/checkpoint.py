"""Checkpoints of convex runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from perbit.channels import packing
from perbit.protocols.protocol import STATE_TYPES
from perbit_papers.convex.run import ConvexProgress


def save(path: Path, progress: ConvexProgress, about: dict[str, Any]) -> None:
    """Write a checkpoint; `about` must be the same when it is read."""
    packing.save(path, progress, about)


def restore(path: Path, about: dict[str, Any]) -> ConvexProgress:
    """Read a checkpoint of the same run."""
    progress: ConvexProgress = packing.restore(path, (ConvexProgress, *STATE_TYPES), about)
    return replace(progress, counts={name: array.copy() for name, array in progress.counts.items()})
