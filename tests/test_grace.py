"""The adapter in GRACE's shape, in a loop as GRACE's own communicator and residual memory run it."""

from __future__ import annotations

import pytest
import torch

import perbit
from perbit.engines import grace


class ResidualMemory:
    """What GRACE puts around a compressor."""

    def __init__(self) -> None:
        self.residuals: dict[str, torch.Tensor] = {}

    def compensate(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        return tensor + self.residuals.get(name, torch.zeros_like(tensor))

    def update(self, tensor: torch.Tensor, name: str, sent: torch.Tensor) -> None:
        self.residuals[name] = tensor - sent


def test_ranks_with_a_residual_memory_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    ranks = [(grace.Compressor("topk(0.1) | qsgd(15) | rans", seed=rank), ResidualMemory()) for rank in range(3)]
    wanted = arrived = torch.zeros(40, 50)
    for _ in range(5):
        received = []
        for compressor, memory in ranks:
            gradient = torch.randn(40, 50, generator=generator)
            wanted = wanted + gradient
            tensor = memory.compensate(gradient, "fc")
            payload, ctx = compressor.compress(tensor, "fc")
            received.append(compressor.decompress(payload, ctx))
            memory.update(tensor, "fc", received[-1])
        arrived = arrived + ranks[0][0].aggregate(received)
    held = torch.stack([memory.residuals["fc"] for _, memory in ranks]).sum(dim=0)
    assert torch.allclose(arrived + held, wanted, atol=1e-4)


def test_a_payload_is_the_bytes_of_a_frame() -> None:
    gradient = torch.randn(64, 64)
    payload, ctx = grace.Compressor("topk(0.01) | fp16").compress(gradient, "conv.weight")
    (data,) = payload
    assert data.dtype == torch.uint8
    assert data.numel() < gradient.numel() * 4 / 20
    assert list(perbit.loads(data.numpy().tobytes())) == ["conv.weight"] == [ctx.name]


def test_small_tensors_go_as_they_are_and_dtypes_come_back() -> None:
    compressor = grace.Compressor("topk(0.01)")
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for shape in ((7,), (), (4, 5)):
            x = torch.randn(shape).to(dtype)
            found = compressor.decompress(*compressor.compress(x, "bias"))
            assert found.dtype == dtype
            assert torch.equal(found, x)


def test_random_choices_differ_by_call_name_and_seed() -> None:
    def frame(compressor: grace.Compressor, name: str) -> bytes:
        return (
            compressor.decompress(*compressor.compress(torch.linspace(-1, 1, 4096).reshape(64, 64), name))
            .numpy()
            .tobytes()
        )

    one, two = grace.Compressor("qsgd(1)", seed=0), grace.Compressor("qsgd(1)", seed=1)
    assert len({frame(one, "a"), frame(one, "a"), frame(one, "b"), frame(two, "a")}) == 4
    assert frame(grace.Compressor("qsgd(1)"), "a") == frame(grace.Compressor("qsgd(1)"), "a")


def test_what_does_not_belong_is_refused() -> None:
    compressor = grace.Compressor("fp16")
    payload, ctx = compressor.compress(torch.randn(40, 40), "a")
    other = compressor.compress(torch.randn(40, 41), "a")[1]
    for bad, context in (([payload[0][:-1]], ctx), (payload, other), ([*payload, *payload], ctx), ([], ctx)):
        with pytest.raises(perbit.DecodeError):
            compressor.decompress(bad, context)
    with pytest.raises(ValueError, match="whole model"):
        grace.Compressor(perbit.Plan.of("topk(0.01)", whole_model=True))
