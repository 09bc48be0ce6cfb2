"""Federated and distributed deep learning that pays by the bit.

>>> import numpy as np, perbit
>>> x = np.random.default_rng(0).laplace(size=100_000).astype(np.float32)
>>> frame = perbit.encode(x, "topk(0.01) | qsgd(15) | rans", seed=0)
>>> x.nbytes / len(frame) > 300  # times smaller
True
>>> perbit.decode(frame).shape
(100000,)
"""

from perbit.budget import BudgetPlan, fit_budget, solve_k, topk_bits
from perbit.codec import Codec
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
from perbit.listing import codecs
from perbit.parallel import get_threads, set_threads
from perbit.plan import Plan, codec
from perbit.registry import register
from perbit.wire import decode, decode_add, dumps, encode, inspect, loads

__version__ = "0.1.0"

__all__ = [
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
    "codec",
    "codecs",
    "decode",
    "decode_add",
    "dumps",
    "encode",
    "fit_budget",
    "get_threads",
    "inspect",
    "loads",
    "register",
    "set_threads",
    "solve_k",
    "topk_bits",
]
