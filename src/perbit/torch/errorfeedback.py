"""Error feedback for a training loop of one's own: tensors in, a frame out, and what the frame left out comes with the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.afar import Afar
from perbit.coding.bits import Piece, Reader
from perbit.coding.codec import Pipeline, as_pipeline
from perbit.coding.values import Known, Recall, size
from perbit.errors import EncodeError
from perbit.frame import payload, wire
from perbit.frame.header import Entry
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.plan.plan import PlanLike, as_plan
from perbit.randomness import fold
from perbit.torch import vectors
from perbit.torch.device import afar
from perbit.torch.feedback import decay as decay_of
from perbit.torch.frames import named_mapping
from perbit.torch.kept import Kept
from perbit.torch.tensors import Tensors, named_tensors, on_host, read_tensor, storable

if TYPE_CHECKING:
    from perbit.torch.vectors import Vector


class ErrorFeedback(Kept):
    """Codes the gradients of a model, or any other tensors of its shapes: v = x + γ·m, the frame holds C(v), m ← v - C(v).

    Args:
        model: a module, whose trained parameters are meant, or tensors by name. Names and shapes are taken from it.
        plan: a spec for the large tensors (small and one-dimensional ones then go as they are), a Plan, or a Budget.
        decay: γ. None: 1 for biased codecs (top-k, sign, rd); unbiased ones (QSGD) need no memory. A number from 0 to 1: every codec that
            is not exact has a memory, which counts that many times.
        seed: of all random choices. Workers that are to draw differently need different seeds.

    >>> import torch, perbit.torch
    >>> model = torch.nn.Linear(64, 32, bias=False)
    >>> compressor = perbit.torch.ErrorFeedback(model, "topk(0.05)")
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> frame = compressor.compress()                    # the gradients; or any tensors with the names of the parameters
    >>> compressor.decompress(frame)["weight"].count_nonzero().item()
    102
    """

    def __init__(
        self, model: torch.nn.Module | Tensors, plan: PlanLike, *, decay: float | None = None, seed: int = 0
    ) -> None:
        super().__init__(True if decay is None else decay, seed)
        self.plan = as_plan(plan)
        self._parameters = trained_parameters(model) if isinstance(model, torch.nn.Module) else None
        like = named_tensors(model) if self._parameters is None else self._parameters
        self.shapes = {name: tuple(x.shape) for name, x in like.items()}
        self._devices = {name: x.device for name, x in like.items()}
        self._decays = {name: self._decay(name, x) for name, x in like.items()}

    def compress(self, tensors: Tensors | None = None) -> bytes:
        """The frame of these tensors, or of the gradients of the model; what it leaves out is remembered.

        If anything cannot be coded (NaN, other shapes), the memories stay as they were.
        """
        given = {name: storable(x, name) for name, x in self._checked(tensors).items()}
        self.traffic.begin_step()
        self.follow_scale()
        with self.traffic.timed("encode"):
            values = {name: self._fed(name, x, dtype) for name, (dtype, x) in given.items()}
            recalls = {
                name: Recall(self.memories.recall(name).found)
                for name, gamma in self._decays.items()
                if gamma is not None
            }
            frame = self._encoded({name: dtype for name, (dtype, _) in given.items()}, values, recalls)
            left = wire.read_all(lambda src, entry: self._left(src, entry, values[entry.name]), frame, self.shapes)
        self.memories.arrays |= {name: memory for name, memory in left.items() if memory is not None}
        self.memories.recalls |= recalls
        self.step += 1
        self.traffic.sent_bytes += len(frame)
        self.traffic.dense_bytes += sum(4 * x.size for x in values.values())
        return frame

    def decompress(self, frame: Piece) -> dict[str, torch.Tensor]:
        """The tensors of a frame that a compressor with the same model and plan made, here or on another worker; on the model's devices."""
        values = wire.read_all(read_tensor, frame, self.shapes, codecs=self.plan.agreed)
        return {name: x.to(self._devices[name]) for name, x in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict()`."""
        for name, memory in state["memory"].items():
            if name not in self.shapes or len(memory) != size(self.shapes[name]):
                raise ValueError(f"the memory of {name!r} does not fit this model; the checkpoint is of another one")
        super().load_state_dict(state)

    def _decay(self, name: str, x: torch.Tensor) -> float | None:
        if not x.is_floating_point():
            return None
        codec = as_pipeline(self.plan.codec_for(name, tuple(x.shape)))
        return decay_of(self.error_feedback, codec, x.numel())

    def _checked(self, tensors: Tensors | None) -> Tensors:
        """What is to be sent, in the order of the model."""
        given = self._gradients() if tensors is None else named_mapping(tensors)
        if wrong := given.keys() ^ self.shapes.keys():
            name = min(wrong)
            raise EncodeError(f"tensor {name!r} {'was not given' if name in self.shapes else 'is not in the model'}")
        for name, shape in self.shapes.items():
            if tuple(given[name].shape) != shape:
                raise EncodeError(f"tensor {name!r} has shape {tuple(given[name].shape)}, in the model {shape}")
        return {name: given[name] for name in self.shapes}

    def _gradients(self) -> Tensors:
        """Zeros where a parameter was not used."""
        if self._parameters is None:
            raise EncodeError("pass the tensors to compress; only a module has gradients")
        if all(p.grad is None for p in self._parameters.values()):
            raise EncodeError("no parameter has a gradient; call backward() first, or pass the tensors to compress")
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self._parameters.items()}

    def _codec(self, name: str, dtype: str) -> Pipeline:
        """As far as its name, shape and dtype tell."""
        return as_pipeline(self.plan.codec_for(name, self.shapes[name], dtype))

    def _fed(self, name: str, x: torch.Tensor, dtype: str) -> NDArray[Any] | Afar:
        """What to encode: x + γ·m in memory of its own, or x as it is stored where there is no memory."""
        gamma = self._decays[name]
        there = None if self.plan.looks_at_values else afar(x, self._codec(name, dtype))
        if gamma is None:
            return on_host(x) if there is None else there
        if there is not None:
            return there.fed(vectors.placed(self.memories.of(name, there.size, there), there), gamma)  # type: ignore[arg-type]
        values: F32 = np.ascontiguousarray(arrays.without_bf16(on_host(x), dtype), np.float32)
        out = np.empty(values.size, np.float32)
        K.feedback_add(values.reshape(-1), self.memories.of(name, values.size), gamma, out)  # type: ignore[arg-type]
        return out.reshape(values.shape)

    def _left(self, src: Reader, entry: Entry, values: NDArray[Any] | Afar) -> Vector | None:
        """What the frame leaves out of these values: the next memory; None for tensors without one."""
        if self._decays[entry.name] is None or not isinstance(values, Afar):
            sent = arrays.without_bf16(payload.read_stored(src, entry), entry.dtype)
            if self._decays[entry.name] is None:
                return None
            return (values - sent).reshape(-1).astype(np.float32, copy=False)  # type: ignore[no-any-return]
        memory = values.reshape(-1)
        payload.add(src, entry, memory, -1.0)
        return memory  # type: ignore[return-value]

    def _encoded(
        self, dtypes: Mapping[str, str], values: Mapping[str, NDArray[Any] | Afar], recalls: Mapping[str, Recall]
    ) -> bytes:
        seed = fold(self.seed, self.step)
        hosted = {name: arrays.without_bf16(x, dtypes[name]) for name, x in values.items() if not isinstance(x, Afar)}
        chosen = self.plan.codecs(hosted, seed) if self.plan.looks_at_values else {}
        codecs = {name: as_pipeline(chosen[name]) if chosen else self._codec(name, dtypes[name]) for name in values}
        entries = [Entry(name, dtypes[name], x.shape, codecs[name]) for name, x in values.items()]
        known = [Known(recall=recalls.get(name)) for name in values]
        return wire.write_entries(entries, list(values.values()), seed=seed, known=known)


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters that get gradients, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
