"""Replies for which a strategy of Flower's would end the run: those that mean nothing, and those that are unlike the others of their round."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Any

import numpy as np
from flwr.app import Array, Message, MetricRecord, RecordDict

from perbit.errors import DecodeError
from perbit.protocols.protocol import LARGEST

UNLIKE = "its records are named otherwise than those of most nodes in this round, or have other types or shapes"
NOT_FINITE = "a metric is not finite, which is finite at most nodes"
TOO_HEAVY = "it claims far more examples than the others"
MOST_EXAMPLES = 2.0**53  # beyond that no float counts
_NUMPY = "numpy.ndarray"  # Flower's name of arrays that strategies read; others are of the application's own making
UNKNOWN = BYTES, OTHER = "bytes", "dtypes that numpy has not"  # of which it is not looked at what they are
Form = tuple[tuple[Any, ...], ...]


def check_arrays(content: RecordDict) -> None:
    """Refuse arrays that came as they are and cannot be averaged: the codecs have not looked at them."""
    for record in content.array_records.values():
        for name, array in record.items():
            if array.stype == _NUMPY:
                _check_array(name, array)


def check_weight(content: RecordDict, weighted_by: str | None) -> None:
    """Refuse a weight by which nothing can be divided."""
    for record in content.metric_records.values():
        weight = record.get(weighted_by) if weighted_by is not None else None
        if weight is not None and not (isinstance(weight, int | float) and 0 < weight <= MOST_EXAMPLES):
            raise DecodeError(f"{weighted_by!r} is {str(weight)[:50]}, which is no number of examples")


class Rounds:
    """Knows how most nodes answer, for rounds in which as many answer otherwise.

    Args:
        weighted_by: the metric that weighs a reply.
        max_weight: how many times the median of a round it may be; None: any.
    """

    def __init__(self, weighted_by: str | None, max_weight: float | None = None) -> None:
        self.weighted_by, self.max_weight = weighted_by, max_weight
        self._usual: dict[str, Form] = {}

    def odd_ones(self, replies: Iterable[Message], asked: Mapping[str, Message]) -> dict[int, str]:
        """Why a strategy should not see some of these replies, by their id.

        Args:
            replies: of one round.
            asked: the messages of that round, by their number.
        """
        by_type: dict[str, list[Message]] = defaultdict(list)
        for reply in replies:
            if reply.has_content() and reply.metadata.reply_to_message_id in asked:
                by_type[asked[reply.metadata.reply_to_message_id].metadata.message_type].append(reply)
        n_asked = Counter(message.metadata.message_type for message in asked.values())
        found: dict[int, str] = {}
        for kind, group in by_type.items():
            found |= self._unlike(kind, group, n_asked[kind])
            for test in (_not_finite, self._too_heavy):
                found |= test([reply for reply in group if id(reply) not in found])
        return found

    def _unlike(self, kind: str, replies: list[Message], n_asked: int) -> dict[int, str]:
        """Those of another form than most; where as many have one form as another, the usual one is right, or the fuller one.
        Where not even half of them agree, replies are meant to differ."""
        forms = {id(reply): _form(reply.content) for reply in replies}
        counts, before = Counter(forms.values()), self._usual.get(kind)
        if 2 * max(counts.values()) < len(forms):
            return {}
        if before is not None and n_asked > 1:  # one more vote, so that no node speaks for all that have not answered
            counts[before] += 1
        usual = max(counts, key=lambda form: (counts[form], form == before, self._is_weighed(form), len(form), form))
        self._usual[kind] = usual
        return {key: UNLIKE for key, form in forms.items() if form != usual}

    def _is_weighed(self, form: Form) -> bool:
        return any(name == self.weighted_by for _, _, name, *_ in form)

    def _too_heavy(self, replies: list[Message]) -> dict[int, str]:
        weights = {id(reply): _weight(reply.content, self.weighted_by) for reply in replies}
        if self.max_weight is None or not weights:
            return {}
        most = self.max_weight * median_low(weights.values())
        return {key: TOO_HEAVY for key, weight in weights.items() if weight > most}


def _check_array(name: str, array: Array) -> None:
    try:
        x = array.numpy()
        is_as_said = (
            isinstance(x, np.ndarray) and x.shape == array.shape and _kind(array)[0] in (x.dtype.kind, *UNKNOWN)
        )
    except Exception as error:  # whatever the bytes are
        raise DecodeError(f"array {name!r} cannot be read: {error}") from error
    if not is_as_said:
        raise DecodeError(f"array {name!r} is not what it is said to be")
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fc" and x.size and not np.abs(x).max() <= LARGEST:
            raise DecodeError(f"array {name!r} is not finite, or too large to be summed up")


def _form(content: RecordDict) -> Form:
    """What must be the same for all: the names of records, and names, types and shapes of what is in them, in their order."""
    arrays = [
        ("arrays", record, name, *_kind(array))
        for record, held in content.array_records.items()
        for name, array in held.items()
    ]
    metrics = [
        ("metrics", record, name, f"list of {len(value)}" if isinstance(value, list) else "number")
        for record, held in sorted(content.metric_records.items())
        for name, value in sorted(held.items())
        if not name.startswith("perbit-")  # which replies to uncoded models do not have
    ]
    empty = [("empty", type(held).__name__, name) for name, held in content.items() if not len(held) and _counts(held)]
    return (*arrays, *metrics, *empty)


def _counts(record: Any) -> bool:
    """Whether strategies count such records: they want one of arrays and one of metrics."""
    return not type(record).__name__.startswith("Config")


def _kind(array: Array) -> tuple[str, ...]:
    if array.stype != _NUMPY:
        return (array.stype,)
    if array.dtype == "uint8" and len(array.shape) == 1:  # as FedXgb's trees: as many as they are
        return (BYTES,)
    try:
        return np.dtype(array.dtype).kind, str(array.shape)
    except (TypeError, ValueError, SyntaxError):
        return OTHER, array.dtype


def _not_finite(replies: list[Message]) -> dict[int, str]:
    """Those that would spoil a mean of a metric; one that is undefined at half the nodes spoils it anyway."""
    bad = {id(reply): _undefined(reply.content) for reply in replies}
    counts = Counter(name for names in bad.values() for name in names)
    rare = {name for name, count in counts.items() if 2 * count < len(replies)}
    return {key: NOT_FINITE for key, names in bad.items() if names & rare}


def _undefined(content: RecordDict) -> set[tuple[str, str]]:
    return {
        (key, name)
        for key, record in content.metric_records.items()
        for name, value in record.items()
        if not all(map(math.isfinite, value if isinstance(value, list) else [value]))
    }


def _weight(content: RecordDict, weighted_by: str | None) -> float:
    held = (record.get(weighted_by) for record in content.metric_records.values() if weighted_by is not None)
    return next((float(weight) for weight in held if isinstance(weight, int | float)), 0.0)


def without_our_metrics(content: RecordDict) -> RecordDict:
    """What a node says in perbit's name is not believed."""
    forged = {
        key: MetricRecord({name: value for name, value in record.items() if not name.startswith("perbit-")})
        for key, record in content.metric_records.items()
        if any(name.startswith("perbit-") for name in record)
    }
    return RecordDict({**dict(content.items()), **forged}) if forged else content
