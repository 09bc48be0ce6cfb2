"""What FSDP communicates together: the parameters of a sharded module that belong to no sharded module inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard

from perbit.coding.values import Shape, size
from perbit.plan.plan import Chooser
from perbit.torch.collective.buckets import CodedParameter

Parts = dict[str, Shape]  # what a shard holds of each parameter, one after the other


@dataclass(eq=False)
class UnitParameter:
    """A parameter of a sharded module."""

    name: str  # in the whole model
    module: torch.nn.Module
    key: str  # in its module
    sharded: DTensor

    @property
    def part(self) -> Shape:
        """The shape of its part in every shard; the last ones are filled up to it."""
        mesh, placements = self.sharded.device_mesh, self.sharded.placements
        dims = [(i, placement) for i, placement in enumerate(placements) if not isinstance(placement, Replicate)]
        if len(dims) != 1 or not isinstance(dims[0][1], Shard):
            return tuple(
                self.sharded.to_local().shape
            )  # tensor parallel besides: right if all shards are equally large
        axis, dim = dims[0][0], dims[0][1].dim
        shape = list(self.sharded.shape)
        shape[dim] = -(-shape[dim] // mesh.size(axis))
        return tuple(shape)

    def current(self) -> DTensor:
        """The sharded parameter. FSDP puts another tensor in its place while the whole is there; a checkpoint may replace it."""
        now = getattr(self.module, self.key)
        if isinstance(now, DTensor):
            self.sharded = now
        return self.sharded


@dataclass(eq=False)
class Unit:
    """A sharded module; `before` are the modules that came before it, with which it may share a group: `fully_shard([norm, head])`."""

    name: str
    parameters: list[UnitParameter]
    before: list[Unit] = field(default_factory=list)

    def members(self, shard: int, *, trained: bool) -> list[UnitParameter]:
        """The parameters that a shard of so many values is made up of, one after the other; none if nobody knows.

        If some parameters got no gradient in this step, FSDP leaves them out and does not say which.
        """
        for group in self._groups():
            found = [p for p in group if p.current().requires_grad or not trained]
            if sum(size(p.part) for p in found) == shard:
                return found
        return []

    def parts(self, shard: int, members: list[UnitParameter]) -> Parts:
        """What a shard holds of each; if nobody knows, the values are coded together as one large parameter."""
        return {p.name: p.part for p in members} or {f"{self.name}[{shard}]": (shard,)}

    def whole_shapes(self) -> dict[str, Shape]:
        return {p.name: tuple(p.sharded.shape) for group in self._groups() for p in group}

    def _groups(self) -> Iterator[list[UnitParameter]]:
        """The own parameters; those of the module before and the own ones; and so on."""
        found: list[UnitParameter] = []
        for unit in [self, *reversed(self.before)]:
            found = [*unit.parameters, *found]
            yield found


def coded_parameters(
    parts: Parts, unit: Unit, plan: Chooser, error_feedback: bool | float
) -> tuple[CodedParameter, ...]:
    """How the parts of a shard are coded. The plan chooses by the whole parameter: how many ranks share it makes no difference."""
    whole, start, coded = unit.whole_shapes(), 0, []
    for name, part in parts.items():
        codec = plan.codec_for(name, whole[name]) if name in whole else plan.default
        coded.append(CodedParameter.of(name, part, codec, error_feedback, start))
        start += size(part)
    return tuple(coded)


def units_of(model: torch.nn.Module) -> dict[str, tuple[FSDPModule, Unit]]:
    """All sharded modules of a model, by name."""
    names = {module: name for name, module in model.named_modules()}
    found: dict[str, tuple[FSDPModule, Unit]] = {}
    for module, name in names.items():
        if isinstance(module, FSDPModule):
            parameters = list(_parameters(cast(torch.nn.Module, module), names))
            found[name] = (module, Unit(name, parameters, [unit for _, unit in found.values()]))
    return found


def _parameters(root: torch.nn.Module, names: Mapping[torch.nn.Module, str]) -> Iterator[UnitParameter]:
    """In the order in which FSDP takes them: what is deeper first."""
    seen: set[torch.Tensor] = set()
    for module in _managed(root, root, set()):
        for key, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, DTensor) and parameter not in seen:
                seen.add(parameter)
                yield UnitParameter(f"{names[module]}.{key}".removeprefix("."), module, key, parameter)


def _managed(module: torch.nn.Module, root: torch.nn.Module, seen: set[torch.nn.Module]) -> Iterator[torch.nn.Module]:
    if module in seen or (module is not root and isinstance(module, FSDPModule)):
        return
    seen.add(module)
    for child in module.children():
        yield from _managed(child, root, seen)
    yield module
