"""Frames of torch tensors: the functions of perbit itself, with tensors of any device and dtype in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.afar import Afar
from perbit.coding.agreed import AgreedLike
from perbit.coding.bits import Piece
from perbit.coding.codec import as_pipeline
from perbit.coding.spec import CodecLike, codec
from perbit.errors import DecodeError, EncodeError
from perbit.frame import wire
from perbit.frame.header import Entry
from perbit.plan.plan import PlanLike, as_plan
from perbit.torch.device import target
from perbit.torch.tensors import (
    DeviceLike,
    Tensors,
    cast,
    named_tensors,
    on_host,
    read_tensor,
    storable,
    strided,
    values_of,
)


def encode(x: torch.Tensor, spec: CodecLike, *, seed: int | None = None, name: str | None = None) -> bytes:
    """Encode one tensor as a frame. `seed` fixes every random choice; `name` appears in errors.

    >>> import torch, perbit.torch
    >>> frame = perbit.torch.encode(torch.ones(3, 4, dtype=torch.bfloat16), "raw")
    >>> perbit.torch.decode(frame).dtype
    torch.bfloat16
    """
    dtype, tensor = storable(x, name)
    pipeline = as_pipeline(codec(spec))
    entry = Entry("", dtype, tuple(tensor.shape), pipeline)
    return wire.write_one(entry, values_of(tensor, pipeline), seed=seed, name=name)


def decode(frame: Piece, *, device: DeviceLike = None, dtype: torch.dtype | None = None, **limits: Any) -> torch.Tensor:
    """Decode a frame of one tensor.

    Args:
        frame: the bytes.
        device: where the tensor is to be; None for the CPU.
        dtype: what it is to be; None for the frame's own. What a narrower float cannot hold saturates.
        limits: what to accept: `expect_shape`, `codecs`, `max_values`, `max_memory`, `max_operations`, as in `perbit.decode`.
    """
    return cast(wire.read_one(read_tensor, frame, **limits), dtype, device)


def dumps(tensors: Tensors, plan: PlanLike, *, seed: int | None = None) -> bytes:
    """Encode named tensors, such as a `state_dict()`, as one message.

    Args:
        tensors: by name; they may be on any device.
        plan: a spec for the large tensors (small and one-dimensional ones then go as they are), a Plan, or a Budget.
        seed: fixes every random choice.
    """
    chooser = as_plan(plan)
    given = {name: storable(x, name) for name, x in named_mapping(tensors).items()}
    hosted = {name: on_host(x) for name, (_, x) in given.items()} if chooser.looks_at_values else {}
    if hosted:
        codecs = chooser.codecs({name: arrays.without_bf16(x, given[name][0]) for name, x in hosted.items()}, seed)
    else:
        codecs = {name: chooser.codec_for(name, tuple(x.shape), dtype) for name, (dtype, x) in given.items()}
    entries = [Entry(name, dtype, tuple(x.shape), as_pipeline(codecs[name])) for name, (dtype, x) in given.items()]
    values = [hosted[entry.name] if hosted else values_of(given[entry.name][1], entry.codec) for entry in entries]
    return wire.write_entries(entries, values, seed=seed)


def loads(message: Piece, *, device: DeviceLike = None, **limits: Any) -> dict[str, torch.Tensor]:
    """Decode a message, ready for `load_state_dict`.

    Args:
        message: the bytes.
        device: where the tensors are to be; None for the CPU.
        limits: what to accept: `expect`, `codecs`, `max_values`, `max_memory`, `max_operations`, as in `perbit.loads`.

    >>> import torch, perbit.torch
    >>> model = torch.nn.Linear(40, 30)
    >>> message = perbit.torch.dumps(model.state_dict(), "fp16")
    >>> model.load_state_dict(perbit.torch.loads(message))
    <All keys matched successfully>
    """
    return {name: x.to(device) for name, x in wire.read_all(read_tensor, message, **limits).items()}


def load_into(
    model: torch.nn.Module | Tensors, message: Piece, *, strict: bool = True, codecs: AgreedLike | None = None
) -> None:
    """Write the tensors of a message into those of a model, in the model's devices and dtypes. Nothing changes unless all of them fit.

    Args:
        model: a module, or tensors by name.
        message: the bytes.
        strict: the message must hold every tensor of the model. False: it may hold some of them; names that the model does not have
            are refused all the same.
        codecs: a spec, several, or `Plan.agreed`: what is coded in another form is refused.
    """
    targets = {name: strided(x, name) for name, x in named_tensors(model).items()}
    header = wire.read_header(message)
    wire.check_message(header)
    held = {entry.name for entry in header.entries}
    expect = {name: tuple(x.shape) for name, x in targets.items() if strict or name in held}
    values = wire.read_all(read_tensor, message, expect, codecs=codecs)
    _check_kinds(targets, values)
    for name, value in values.items():
        targets[name].copy_(cast(value, targets[name].dtype))


def decode_add(
    frame: Piece, out: torch.Tensor | Tensors, weight: float = 1.0, *, codecs: AgreedLike | None = None
) -> None:
    """Add `weight` times the decoded values to a tensor, or to named tensors for a message; `codecs` is that of `decode`.

    A contiguous float32 tensor is added to where it lies (on a GPU with Triton), and sparse frames touch only what they hold. For others
    the frame is decoded first, the sum is made in float32 (float64 for float64), and rounded once.
    """
    targets = {name: strided(x, name) for name, x in (out if isinstance(out, Mapping) else {"": out}).items()}
    if wrong := [name for name, x in targets.items() if not x.is_floating_point()]:
        raise EncodeError(f"`out`{f'[{wrong[0]!r}]' if wrong[0] else ''} must be a tensor of floats")
    sums = {name: _in_place(x) for name, x in targets.items()}
    added = {name: np.zeros(x.shape, np.float32) if sums[name] is None else sums[name] for name, x in targets.items()}
    wire.decode_add(frame, added if isinstance(out, Mapping) else added[""], weight, codecs=codecs)
    for name, x in targets.items():
        array = added[name]
        if sums[name] is None and isinstance(array, np.ndarray) and array.any():
            _add_rounded(x, torch.from_numpy(array))


def named_mapping(tensors: Tensors) -> Tensors:
    """Refuse what is no mapping of names."""
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        raise EncodeError(f"a message holds tensors by name, e.g. model.state_dict(), got {type(tensors).__name__}")
    return tensors


def _in_place(x: torch.Tensor) -> NDArray[np.float32] | Afar | None:
    """The memory of a tensor as an array that frames can be added to, if it is such memory."""
    if (there := target(x)) is not None:
        return there
    if x.device.type != "cpu" or x.dtype != torch.float32 or not x.is_contiguous() or x.is_neg():
        return None
    return x.numpy()


def _add_rounded(x: torch.Tensor, values: torch.Tensor) -> None:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    x.copy_(cast(x.to(wide) + values.to(device=x.device, dtype=wide), x.dtype))


def _check_kinds(targets: Tensors, values: Tensors) -> None:
    """Floats do not become integers, nor the other way round."""
    for name, value in values.items():
        if value.is_floating_point() != targets[name].is_floating_point():
            raise DecodeError(f"tensor {name!r} is {value.dtype} in the message and {targets[name].dtype} in the model")
