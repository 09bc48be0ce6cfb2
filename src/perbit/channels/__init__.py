"""Channels: one direction with a memory at each end. States are values; frames say which memory they were made against."""

from perbit.channels.base import Channel, Sent, State
from perbit.channels.kinds import Direct, ErrorFeedback, Momentum, Shifted, Summed, Warmup
from perbit.channels.layout import Layout

__all__ = [
    "Channel", "Direct", "ErrorFeedback", "Layout", "Momentum", "Sent", "Shifted", "State", "Summed", "Warmup",
]  # fmt: skip
