"""The convex test bed: least squares and logistic regression on N workers in one process, with real frames both ways."""

from perbit.sim.convex import checkpoint
from perbit.sim.convex.data import load, prepare, synthetic
from perbit.sim.convex.problem import Problem
from perbit.sim.convex.run import Ledger, Settings, run

__all__ = ["Ledger", "Problem", "Settings", "checkpoint", "load", "prepare", "run", "synthetic"]
