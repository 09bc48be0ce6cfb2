"""Federated and distributed deep learning that pays by the bit.

>>> import numpy as np, perbit
>>> x = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
>>> frame = perbit.encode(x, "topk(0.01) | qsgd(15) | rans", seed=0)
>>> x.nbytes / len(frame) > 300  # times smaller
True
>>> perbit.decode(frame).shape
(100000,)
"""

import importlib

import perbit.coding.families  # noqa: F401  registers perbit's own codecs
from perbit import _moved, channels, extend, session
from perbit.coding.codec import Codec
from perbit.coding.listing import codecs
from perbit.coding.registry import register
from perbit.coding.spec import codec
from perbit.errors import (
    BudgetError,
    DecodeError,
    EncodeError,
    LimitError,
    NonFiniteError,
    PerbitError,
    SpecError,
    StateMismatch,
)
from perbit.frame.wire import decode, decode_add, encode, inspect, loads
from perbit.parallel import get_threads, set_threads
from perbit.plan import Budget, Plan, dumps, fit_budget, hold
from perbit.protocols import presets

BudgetPlan = Budget  # its name in version 0.1
_moved.install()

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "BudgetPlan",
    "Codec",
    "DecodeError",
    "EncodeError",
    "LimitError",
    "NonFiniteError",
    "PerbitError",
    "Plan",
    "SpecError",
    "StateMismatch",
    "channels",
    "codec",
    "codecs",
    "decode",
    "decode_add",
    "dumps",
    "encode",
    "extend",
    "fit_budget",
    "get_threads",
    "hold",
    "inspect",
    "loads",
    "presets",
    "register",
    "session",
    "set_threads",
    "testing",
]


def __getattr__(name: str) -> object:
    """What needs other packages is loaded when it is asked for: `perbit.testing` needs Hypothesis, `perbit.torch` and `perbit.outer` PyTorch."""
    if name in ("outer", "testing", "torch"):
        return importlib.import_module(f"perbit.{name}")
    raise AttributeError(f"module 'perbit' has no attribute {name!r}{_moved.NAMES.get(name, '')}")
