"""Replies of one round that a strategy of Flower's would end the run for: their records are named otherwise than most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from flwr.app import Message

UNLIKE = "its records are named otherwise than those of most nodes in this round"
Shape = tuple[str, tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]


def odd_ones(replies: Iterable[Message]) -> dict[int, Message]:
    """Replies unlike most of the same type, by their id; where as many are of one kind as of another, those with fewer tensors."""
    shapes = {id(reply): (reply, _shape(reply)) for reply in replies if reply.has_content()}
    counts = Counter(shape for _, shape in shapes.values())
    usual: dict[str, Shape] = {}
    for shape in sorted(counts, key=lambda shape: (counts[shape], sum(map(len, shape[1])), shape)):
        usual[shape[0]] = shape
    return {key: reply for key, (reply, shape) in shapes.items() if shape != usual[shape[0]]}


def _shape(reply: Message) -> Shape:
    """What Flower compares: the names in every record of arrays and of metrics."""
    content = reply.content
    return reply.metadata.message_type, _names(content.array_records), _names(content.metric_records)


def _names(records: Any) -> tuple[tuple[str, ...], ...]:
    """perbit's own metrics aside, which replies to uncoded models do not have."""
    return tuple(
        tuple(sorted(name for name in record if not name.startswith("perbit-")))
        for _, record in sorted(records.items())
    )
