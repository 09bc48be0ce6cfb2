"""Device kernels where gradients are coded: own loops, all_reduce, DDP. All bits are those of the host's kernels."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import device_scenarios as scenarios
import perbit
import perbit.torch
from fake_device import FakeDevice
from perbit.coding.bits import Piece
from perbit.torch.collective.buckets import Bucket, BucketGradients, CodedParameter
from perbit.torch.collective.bytegroup import ByteGroup
from perbit.torch.collective.devices import InPlace, Resident, staging_for
from perbit.torch.collective.reduction import Sharded
from perbit.torch.device import serves, using, vector_of
from perbit.torch.device.arrays import DeviceArray
from perbit.torch.feedback import Memories
from ranks import Ranks

SPECS = ["topk(0.1) | qsgd(15) | rans", "uniform(2) | rans"]
CPU = torch.device("cpu")


def compressed(kinds: tuple[str, ...], spec: str, dtype: torch.dtype) -> list[Any]:
    """Frames of an error-feedback loop that is resumed half-way, and what the memories end with."""
    generator = torch.Generator().manual_seed(0)
    plan = perbit.Plan.of(spec, small_below=10)
    with using(*kinds):
        coder = perbit.torch.ErrorFeedback(scenarios_like(dtype, generator), plan, seed=1)
        frames = [coder.compress(scenarios_like(dtype, generator)) for _ in range(2)]
        resumed = perbit.torch.ErrorFeedback(scenarios_like(dtype, generator), plan, seed=9)
        resumed.load_state_dict(coder.state_dict())
        tensors = scenarios_like(dtype, generator)
        frames += [coder.compress(tensors), resumed.compress(tensors)]
        assert frames[2] == frames[3]
        return [frames, scenarios.bits(coder.state_dict()["memory"]), coder.metrics()["memory_norm"]]


def scenarios_like(dtype: torch.dtype, generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in scenarios.SHAPES.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_error_feedback_has_the_same_frames_and_memories(dtype: torch.dtype) -> None:
    for spec in SPECS:
        assert compressed(("cpu",), spec, dtype) == compressed((), spec, dtype)


@pytest.mark.parametrize(
    "plan", [SPECS[0], perbit.Plan.of(SPECS[1], rules={"c": "rd(bits=0.5)"})], ids=["topk", "rule"]
)
def test_all_reduce_has_the_same_bits(two: Ranks, plan: Any) -> None:
    assert two.run(scenarios.averaged, ("cpu",), plan) == two.run(scenarios.averaged, (), plan)


class Threads(ByteGroup):
    """Ranks that are threads of one process, which costs less than processes."""

    world = 3

    def __init__(self, rank: int, said: list[Any], meeting: threading.Barrier) -> None:
        self.rank, self.said, self.meeting = rank, said, meeting

    def gather(self, message: Piece, channel: int | None) -> list[Piece]:
        return [bytes(one) for one in self._told(message)]

    def exchange(self, messages: Sequence[Piece]) -> list[Piece]:
        return [b"" if j == self.rank else said[self.rank] for j, said in enumerate(self._told(list(messages)))]

    def _told(self, what: Any) -> list[Any]:
        self.said[self.rank] = what
        self.meeting.wait()
        found = list(self.said)
        self.meeting.wait()
        return found


def sharded(kinds: tuple[str, ...]) -> list[Any]:
    """What each of three ranks, which own pieces of all parameters, ends two steps with."""
    spec, said, meeting = perbit.codec(SPECS[0]), [None] * Threads.world, threading.Barrier(Threads.world)
    bucket = Bucket(
        (CodedParameter.of("a", (40, 30), spec, True, 0), CodedParameter.of("b", (7,), perbit.codec("raw"), True, 1200))
    )

    def run(rank: int) -> list[Any]:
        memories, found = Memories(), []
        reduction = Sharded(Threads(rank, said, meeting), memories, seed=3)
        for step in range(2):
            values = torch.randn(1207, generator=torch.Generator().manual_seed(10 * step + rank))
            gradients = BucketGradients(bucket, vector_of(values), step, index=0)
            reduction.finish(gradients, reduction.encode(gradients))
            found.append(values.numpy().tobytes())
        return [*found, {name: memory.tobytes() for name, memory in memories.copies().items()}]

    with using(*kinds), ThreadPoolExecutor(Threads.world) as pool:
        return list(pool.map(run, range(Threads.world)))


def test_so_it_has_where_each_rank_averages_a_piece() -> None:
    there = sharded(("cpu",))
    assert there == sharded(())
    assert all(run[:2] == there[0][:2] for run in there)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ddp_has_the_same_bits(two: Ranks, dtype: torch.dtype) -> None:
    there = two.run(scenarios.in_ddp, ("cpu",), SPECS[0], dtype)
    host = two.run(scenarios.in_ddp, (), SPECS[0], dtype)
    assert [run[:-1] for run in there] == [run[:-1] for run in host]
    assert (there[0][-1], host[0][-1]) == ("Resident", "InPlace")


def test_fsdp_has_the_same_bits(two: Ranks) -> None:
    assert two.run(scenarios.in_fsdp, ("cpu",), SPECS[0]) == two.run(scenarios.in_fsdp, (), SPECS[0])


@pytest.mark.parametrize("late", [False, True])
def test_kernels_wait_until_gradients_are_computed(two: Ranks, late: bool) -> None:
    there = two.run(scenarios.in_ddp, ("cpu",), SPECS[0], torch.float32, late)
    assert there == two.run(scenarios.in_ddp, ("cpu",), SPECS[0])


def test_a_kernel_that_does_not_wait_is_found() -> None:
    """Gradients that are not computed yet are NaN."""

    class Hasty(Resident):
        def fetch(self, ticket: Any) -> Any:
            return super().fetch((ticket[0], None, ticket[2]))

    with using("cpu"):
        for kind, is_finite in ((Resident, True), (Hasty, False)):
            staging = kind(FakeDevice(is_early=False))
            ticket = staging.begin(torch.ones(50))
            values = staging.fetch(ticket)
            assert isinstance(values, DeviceArray)
            assert (values.scan() == (1.0, 1.0, 0)) == is_finite


def test_a_gradient_that_is_not_finite_makes_the_mean_nan(two: Ranks) -> None:
    assert two.run(scenarios.not_finite, ("cpu",)) == [True, True]


def test_what_has_no_kernels_takes_the_way_over_the_host() -> None:
    assert not serves(CPU)
    assert isinstance(staging_for(CPU, perbit.codec(SPECS[0])), InPlace)
    with using("cpu"):
        assert isinstance(staging_for(CPU, perbit.codec(SPECS[0])), Resident)
        assert isinstance(staging_for(CPU, perbit.codec("rd(bits=1)")), InPlace)
        assert isinstance(vector_of(torch.zeros(4)), DeviceArray)
        x = torch.randn(300)
        frame = perbit.torch.encode(x, "rd(bits=1)", seed=0)
    assert frame == perbit.torch.encode(x, "rd(bits=1)", seed=0)


def test_the_cpu_needs_the_interpreter() -> None:
    code = "import torch, perbit.torch; perbit.torch.encode(torch.ones(9), 'topk(0.5)')"
    environment = {
        "PATH": "",
        "PERBIT_DEVICE_KERNELS": "cpu",
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": ":".join(sys.path),
    }
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "device kernels run on the cpu only with TRITON_INTERPRET=1" in ended.stderr


def test_without_triton_nothing_changes() -> None:
    """In a process where Triton cannot be found, the switch makes no difference."""
    code = """
import sys; sys.modules["triton"] = None
import torch, perbit.torch
from perbit.torch import device
with device.using("cpu"):
    frame, is_served = perbit.torch.encode(torch.arange(99.0), "uniform(4) | rans", seed=0), device.serves(torch.device("cpu"))
print(frame == perbit.torch.encode(torch.arange(99.0), "uniform(4) | rans", seed=0), is_served)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "True False\n", ended.stderr
