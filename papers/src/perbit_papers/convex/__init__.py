"""The convex test bed: least squares and logistic regression on N workers in one process, with real frames both ways."""

from perbit_papers.convex import checkpoint
from perbit_papers.convex.data import load, prepare, synthetic
from perbit_papers.convex.problem import Problem
from perbit_papers.convex.run import Ledger, Settings, run

__all__ = ["Ledger", "Problem", "Settings", "checkpoint", "load", "prepare", "run", "synthetic"]
