"""Which codec each tensor of a file gets: the options that say so, for every command that has them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

import perbit
from perbit.errors import SpecError
from perbit.plan.plan import AUTO, Plan
from perbit.plan.rules import idle_rules


def exception_options(parser: argparse.ArgumentParser) -> None:
    """Tensors that get another spec: by rule, or because they are small."""
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="RULE=SPEC",
        help='other tensors, the first match wins: "embed*=nonzero | fp16", "dims:4 size:1e5..=topk(0.001)"',
    )
    parser.add_argument(
        "--small",
        default=AUTO,
        metavar="SPEC",
        help="what small tensors get: biases, norms and others with one dimension or few values (default: raw, unless the spec is good for "
        "them too, as rd is); same: what large ones get",
    )


def plan_options(parser: argparse.ArgumentParser) -> None:
    """All that a plan is made of, but the spec of the large tensors."""
    exception_options(parser)
    parser.add_argument("--small-below", type=int, default=1024, metavar="N", help="smaller is small (default 1024)")
    parser.add_argument("--flat-too", action="store_true", help="one-dimensional tensors are not small by themselves")
    parser.add_argument("--whole-model", action="store_true", help="one topk threshold for all tensors together")


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan that `spec` and the options describe."""
    return Plan.of(
        options.spec,
        map(split_rule, options.rule),
        options.small,
        options.small_below,
        flat_is_small=not options.flat_too,
        whole_model=options.whole_model,
    )


def split_rule(text: str) -> tuple[str, str]:
    """The rule and its spec. A spec may hold further equals signs, and so may a name in quotes.

    >>> split_rule("fc*=topk(0.1, positions=bitmap)"), split_rule('"a = b"=fp16')
    (('fc*', 'topk(0.1, positions=bitmap)'), ('"a = b"', 'fp16'))
    """
    start = _end_of_quotes(text.lstrip()) + len(text) - len(text.lstrip())
    rest, equals, spec = text[start:].partition("=")
    rule = (text[:start] + rest).strip()
    if not (equals and rule and spec.strip()):
        raise SpecError(f'{text!r} is no rule; write RULE=SPEC, e.g. "conv*=topk(0.01) | fp16"')
    return rule, spec.strip()


def _end_of_quotes(text: str) -> int:
    try:
        return json.JSONDecoder().raw_decode(text)[1] if text.startswith('"') else 0
    except ValueError:
        return 0  # the rule itself will say that its quotes do not close


def encoded(value: Any, plan: Plan, seed: int | None, name: str) -> bytes:
    """The frame of what a file holds. A lone array has no name and is coded whatever its size; `name` is for errors."""
    warn_of_idle_rules(plan, value)
    if isinstance(value, np.ndarray):
        return perbit.encode(value, plan.codec_for("", value.shape), seed=seed, name=name)
    return perbit.dumps(value, plan, seed=seed)


def warn_of_idle_rules(plan: Plan, value: Any) -> None:
    """A rule that matches nothing is most likely misspelt."""
    named = {"": value} if isinstance(value, np.ndarray) else value
    for rule in idle_rules([rule for rule, _ in plan.rules], {name: x.shape for name, x in named.items()}):
        print(f"perbit: the rule {rule!r} matches no tensor", file=sys.stderr)
