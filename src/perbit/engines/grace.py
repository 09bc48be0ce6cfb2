"""Codecs in the shape of GRACE's compressors: `compress(tensor, name)` and `decompress(payload, ctx)`, one tensor at a time.

    compressor = grace.Compressor("topk(0.01) | qsgd(15) | rans", seed=rank)
    payload, ctx = compressor.compress(gradient, "fc.weight")     # payload: one tensor of bytes, a whole frame
    gradient = compressor.decompress(payload, ctx)

A framework with GRACE's interface (Xu et al., ICDCS 2021) takes it where it takes its own compressors: around it stand that framework's
memory, such as its residual memory, and its communicator.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from perbit import extras

try:
    import torch
except ModuleNotFoundError as error:
    raise extras.explained(error, "perbit.engines.grace") from error

from perbit.coding.values import Shape
from perbit.errors import DecodeError
from perbit.plan.plan import PlanLike
from perbit.randomness import fold
from perbit.torch import frames
from perbit.torch.collective.buckets import plan_by_parameter


@dataclass(frozen=True)
class Context:
    """What a receiver must know beside the payload: it is the same on every rank and does not travel."""

    name: str
    shape: Shape
    dtype: torch.dtype
    device: torch.device


class Compressor:
    """Every tensor becomes a frame and comes back from it.

    Args:
        plan: a spec for all large tensors, or a Plan. With a spec, small and one-dimensional tensors (biases, norms) go raw.
        seed: of all random choices, which differ by name and call. Give every rank its own.
        average: whether the communicator is to divide the sum by the number of ranks.

    >>> compressor = Compressor("topk(k=1)", seed=0)
    >>> payload, ctx = compressor.compress(torch.eye(32), "layer.weight")
    >>> payload[0].dtype, compressor.decompress(payload, ctx).sum()
    (torch.uint8, tensor(1.))
    """

    tensors_size_are_same = False  # frames of one tensor may have other lengths on other ranks

    def __init__(self, plan: PlanLike, seed: int = 0, average: bool = True) -> None:
        self.plan, self.seed, self.average = plan_by_parameter(plan), seed, average
        self._calls: dict[str, int] = {}

    def compress(self, tensor: torch.Tensor, name: str) -> tuple[list[torch.Tensor], Context]:
        """The frame of a tensor as a tensor of bytes, in a list as GRACE has it, and what `decompress` needs beside it."""
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        seed = fold(fold(self.seed, zlib.crc32(name.encode())), call)
        frame = frames.dumps({name: tensor}, self.plan, seed=seed)
        payload = torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(tensor.device)
        return [payload], Context(name, tuple(tensor.shape), tensor.dtype, tensor.device)

    def decompress(self, payload: Sequence[torch.Tensor], ctx: Context) -> torch.Tensor:
        """The tensor of a payload. What is no frame of this tensor raises `DecodeError`."""
        if len(payload) != 1:
            raise DecodeError(f"a payload is one tensor of bytes, got {len(payload)} tensors")
        frame = payload[0].detach().to("cpu", torch.uint8).numpy().tobytes()
        return frames.loads(frame, device=ctx.device, expect={ctx.name: ctx.shape})[ctx.name].to(ctx.dtype)

    def aggregate(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum over ranks."""
        return torch.stack(list(tensors)).sum(dim=0)
