"""What codecs make of whole models: all large tensors in one message, with one value of the parameter; and what another codec made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perbit import files
from perbit.coding.codec import Codec
from perbit.errors import PerbitError
from perbit.frame import wire
from perbit.gennorm.bounds import db
from perbit.plan.message import dumps
from perbit.plan.plan import Plan
from perbit.report.rd import RateCurve, RatePoint, candidates

MODEL_SPECS = ("rd(?)", "lowrank(?) | uniform(4) | rans", "topk(?) | mwl2(2, 2) | rans", "uniform(?) | rans")
ERRORS = (-13.0, -10.0, -5.0, -2.5, -1.2)  # decibels, of the table
LEAST_VALUES = 5000  # of a tensor that counts
_MOST_POINTS = 16  # of a curve
_REACH = 8.0  # a model's tensors differ in size: at steps that are fine for one, another may be all there is to send


class PeerError(PerbitError):
    """A file of points that is none, or knows nothing of these values."""


@dataclass(frozen=True)
class ModelSource:
    """The large tensors of a model."""

    name: str
    tensors: dict[str, NDArray[np.float32]]

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, NDArray[Any]]) -> ModelSource:
        return cls(name, {key: x.astype(np.float32) for key, x in tensors.items() if x.size >= LEAST_VALUES})

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """All of them."""
        return np.concatenate([x.reshape(-1) for x in self.tensors.values()])


def sweep(source: ModelSource, specs: Sequence[str]) -> Iterator[RateCurve]:
    """The curve of each spec, as it is ready."""
    for spec in specs:
        points = [measure(source, chosen) for chosen in candidates(spec, source, _MOST_POINTS, _REACH)]
        yield RateCurve(spec, tuple(sorted(points, key=lambda point: point.bits_per_value)))


def measure(source: ModelSource, chosen: Codec) -> RatePoint:
    """Encode, decode, compare. With `topk` the largest values of all tensors compete."""
    frame = dumps(source.tensors, Plan.of(chosen, small=None, whole_model=True), seed=0)
    decoded = wire.loads(frame, expect={name: x.shape for name, x in source.tensors.items()})
    error = sum(float(np.square(decoded[name] - x, dtype=np.float64).sum()) for name, x in source.tensors.items())
    energy = float(np.square(source.values, dtype=np.float64).sum())
    return RatePoint(str(chosen), 8 * len(frame) / source.values.size, float(db(max(error / energy, 1e-30))))


def peer_curves(path: Path, digest: str) -> list[RateCurve]:
    """The curves that a file written by benchmarks/rd_peers.py has for the recording with this SHA-256; none if it does not know it."""
    try:
        found = json.loads(files.read_bytes(path))
        known = [entry for entry in found["recordings"].values() if entry["sha256"] == digest]
        curves = [pair for entry in known for pair in entry["curves"].items()]
        return [_peer_curve(found["codec"], mode, points) for mode, points in curves]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PeerError(f"{path} holds no points; python benchmarks/rd_peers.py writes such a file") from None


def _peer_curve(codec: str, mode: str, points: list[dict[str, Any]]) -> RateCurve:
    found = [RatePoint(f"{codec} qp {p['qp']}", float(p["bits_per_value"]), float(p["db"])) for p in points]
    return RateCurve(f"{codec}, {mode}", tuple(sorted(found, key=lambda point: point.bits_per_value)))


def summary(curves: Sequence[RateCurve]) -> dict[str, dict[float, float | None]]:
    """Bits per value of every curve at the errors of the table."""
    return {curve.spec: {error: curve.rate_at(error) for error in ERRORS} for curve in curves}
