"""Federated and distributed training of real networks, with every message a real frame."""

from perbit.sim.federated.runs import Outcome, Progress, run
from perbit.sim.federated.settings import Method, Task

__all__ = ["Method", "Outcome", "Progress", "Task", "run"]
