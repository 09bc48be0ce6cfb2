"""What a message cost, among the metrics that an app sends anyway."""

from __future__ import annotations

import math
import time

from flwr.app import Message, MetricRecord, RecordDict

from perbit.engines.flower.records import TIMES, with_record


def with_metrics(content: RecordDict, metrics: dict[str, float | int]) -> RecordDict:
    """Beside the app's own metrics: strategies expect exactly one MetricRecord, so no new one is made."""
    name = next(iter(content.metric_records), None)
    if name is None:
        return content
    return with_record(content, name, MetricRecord({**dict(content.metric_records[name].items()), **metrics}))


def with_round_ratio(reply: Message, ratio: float) -> Message:
    """The same number in all replies of a round: whatever mean a strategy takes, this one stays true."""
    if reply.has_content() and any("perbit-ratio" in record for record in reply.content.metric_records.values()):
        reply.content = with_metrics(reply.content, {"perbit-round-ratio": ratio})
    return reply


def client_ms(content: RecordDict, name: str) -> float:
    """A time that the client measured, as far as it can be believed."""
    value = content.config_records[TIMES].get(name) if TIMES in content.config_records else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def ms_since(started: float) -> float:
    return 1000 * (time.perf_counter() - started)
