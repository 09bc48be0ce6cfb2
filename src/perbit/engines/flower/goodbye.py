"""The end of a run: the nodes delete what they remember of it."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from perbit.engines.flower.records import GOODBYE, RUN
from perbit.printing import logger

LOG = logger("flwr.perbit")


def say_goodbye(grid: Grid, members: dict[int, str], seconds: float, home: str | None = None) -> None:
    """Let the nodes that are there delete what they remember of the run; others do when they start another one."""
    kinds = dict(members)
    members.clear()
    if not kinds or seconds <= 0:
        return
    try:
        here = [node for node in grid.get_node_ids() if node in kinds]
        content = RecordDict(
            {GOODBYE: ConfigRecord(), **({} if home is None else {RUN: ConfigRecord({"secret": home})})}
        )
        list(grid.send_and_receive([Message(content, node, kinds[node]) for node in here], timeout=seconds))
    except Exception as error:  # the run is over, whatever it is: nothing that was trained may suffer from it
        LOG.info("perbit: the nodes could not be told that the run is over: %s", error)
