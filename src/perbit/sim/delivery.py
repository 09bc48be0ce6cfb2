"""The way down of one round, for all workers that take part."""

from __future__ import annotations

from collections.abc import Sequence

from perbit.downlinks import Shared
from perbit.protocol import Delivered, Protocol, Server, Worker


def deliver_all(
    protocol: Protocol, server: Server, workers: Sequence[Worker], present: Sequence[int], seed: int
) -> tuple[Server, dict[int, Delivered]]:
    """Bring those present up to date. Workers with one and the same state get one and the same result, computed once."""
    known: dict[tuple[int, int], Delivered] = {}
    delivered: dict[int, Delivered] = {}
    groups = protocol.downlink.groups if isinstance(protocol.downlink, Shared) else 0
    for i in present:
        key = (id(workers[i].downlink), i % groups) if groups else (-1, i)
        if key not in known:
            known[key] = protocol.deliver(server, workers[i], seed)
            server = known[key].server
        same, own = known[key].worker, workers[i]
        worker = Worker(i, own.layout, same.point, own.uplink, same.downlink, same.round)
        delivered[i] = known[key]._replace(worker=worker)
    return server, delivered
