"""Modules that have moved since docs or README showed them: the old name imports the new module, or says where to look."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NEW_NAMES = {
    "perbit.bits": "perbit.coding.bits",
    "perbit.values": "perbit.coding.values",
    "perbit.families": "perbit.coding.families",
    "perbit.presets": "perbit.protocols.presets",
    "perbit.protocol": "perbit.protocols.protocol",
    "perbit.downlinks": "perbit.protocols.downlinks",
    "perbit.wire": "perbit.frame.wire",
    "perbit.codec": "perbit.coding.codec",
    "perbit.rules": "perbit.plan.rules",
    "perbit.budget": "perbit.plan.budget",
}
NAMES = dict.fromkeys(("solve_k", "topk_bits"), "; it is in perbit_papers.counts now")
GONE = {
    "perbit.deepreduce": "it belongs to the paper's reproduction now: experiments/deepreduce/dr_notation.py",
    "perbit.sim.convex": "it is perbit_papers.convex now: pip install perbit-papers",
    "perbit.sim.gradients": "it is perbit_papers.gradients now: pip install perbit-papers",
}


class _Moved(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in GONE:
            raise ModuleNotFoundError(f"there is no {name} any more: {GONE[name]}", name=name)
        return ModuleSpec(name, self) if name in NEW_NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(NEW_NAMES[spec.name])

    def exec_module(self, module: ModuleType) -> None:
        """It has run already, under its new name."""


def install() -> None:
    """Once, behind all other finders: whatever exists is found by them."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
