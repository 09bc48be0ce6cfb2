"""Gradients on a device: what is copied, coded and copied back is complete at every moment, whatever the device does first."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ddp_scenarios as scenarios
from fake_device import RACES, CopiesTooEarly, FakeDevice, ReadsTooEarly
from perbit.torch.collective.devices import Accelerator, Copied, InPlace, Staging, staging_for
from ranks import Ranks

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def passed_through(staging: Staging, buckets: list[torch.Tensor]) -> list[torch.Tensor]:
    """Every bucket doubled by a coder, with the next ones already under way."""
    buffers = [bucket.clone() for bucket in buckets]
    tickets = [staging.begin(buffer) for buffer in buffers]
    for ticket in tickets:
        values = staging.fetch(ticket)
        with staging.returning(ticket):
            values *= 2
    return buffers


def buckets(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=generator).to(dtype) for n in (5, 300, 40, 0, 7, 1000, 8)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_values_are_the_same_as_on_the_cpu(dtype: torch.dtype, is_early: bool, slots: int) -> None:
    given = buckets(dtype)
    staged = passed_through(Copied(FakeDevice(is_early), slots), given)
    plain = passed_through(InPlace(), given)
    for one, other, bucket in zip(staged, plain, given, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, (2 * bucket.float()).to(dtype))


@pytest.mark.parametrize("race", RACES)
def test_the_fake_device_finds_a_race(race: type[Copied]) -> None:
    given = buckets()
    found = []
    for is_early in (False, True):
        came = passed_through(race(FakeDevice(is_early)), given)
        found.append(any(not torch.equal(x, 2 * bucket) for x, bucket in zip(came, given, strict=True)))
    assert any(found)


def test_a_slot_that_is_given_away_too_early_is_found() -> None:
    """The next bucket comes into the slot while the mean of the first one is still being copied back."""
    device = FakeDevice(is_early=False)
    staging = Copied(device, slots=1)
    first, second = torch.ones(5), torch.full((5,), 7.0)
    ticket = staging.begin(first)
    values = staging.fetch(ticket)
    values *= 2
    slot, host, _ = ticket.copying.result()
    back = device.copy_back(host, first)
    staging.free.put(slot)  # before `back` was waited for
    staging.begin(second).copying.result()
    back.wait()
    assert not torch.equal(first, torch.full((5,), 2.0))


def test_a_failure_gives_the_slot_back() -> None:
    staging = Copied(FakeDevice(is_early=False), slots=1)
    for _ in range(3):
        ticket = staging.begin(torch.ones(5))
        with pytest.raises(RuntimeError, match="lost"), staging.returning(ticket):
            raise RuntimeError("lost")
    assert torch.equal(passed_through(staging, [torch.ones(5)])[0], torch.full((5,), 2.0))


def test_a_copy_that_cannot_begin_is_an_error_and_gives_the_slot_back() -> None:
    class Broken(FakeDevice):
        def copy_out(self, *arguments: Any) -> Any:
            raise RuntimeError("no memory")

    staging = Copied(Broken(is_early=False), slots=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no memory"):
            staging.fetch(staging.begin(torch.ones(5)))


# --- in DDP ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_early", [False, True])
def test_ddp_has_the_same_bits_as_on_the_cpu(two: Ranks, is_early: bool) -> None:
    spec = "topk(0.05) | qsgd(15) | rans"
    plain, staged = two.run(scenarios.train, spec, 12), two.run(scenarios.on_fake_device, spec, 12, is_early)
    assert staged[0]["checksums"] == staged[1]["checksums"] == plain[0]["checksums"]


@pytest.mark.parametrize("race", [CopiesTooEarly, ReadsTooEarly])
def test_a_race_in_ddp_is_found(two: Ranks, race: type[Copied]) -> None:
    spec = "topk(0.05)"
    plain = two.run(scenarios.train, spec, 4)[0]["checksums"]
    runs = [two.run(scenarios.on_fake_device, spec, 4, is_early, race)[0]["checksums"] for is_early in (False, True)]
    assert any(checksums != plain for checksums in runs)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_an_accelerator_copies_in_a_stream_of_its_own_behind_what_was_queued() -> None:
    """With a stand-in for torch.cuda: which stream waits for, records and runs what."""
    said: list[tuple[Any, ...]] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.name = "copies"

        def wait_event(self, event: Any) -> None:
            said.append(("copies wait for", event.at))

    class Events:
        def record(self, stream: Any) -> None:
            self.at = stream.name
            said.append(("record", stream.name))

        def synchronize(self) -> None:
            said.append(("host waits for", self.at))

    module = SimpleNamespace(
        Stream=Stream,
        Event=Events,
        current_stream=lambda device: SimpleNamespace(name="backward"),
        stream=lambda stream: said.append(("in", stream.name)) or nullcontext(),
    )
    device = Accelerator(torch.device("cuda", 0), module)
    gradients, host = torch.ones(5, dtype=torch.bfloat16), torch.zeros(5)
    copied = device.copy_out(gradients, host, device.computed(gradients))
    assert said == [("record", "backward"), ("in", "copies"), ("copies wait for", "backward"), ("record", "copies")]
    said.clear()
    copied.wait()
    device.copy_back(2 * host, gradients).wait()
    assert said == [("host waits for", "copies"), ("in", "copies"), ("record", "copies"), ("host waits for", "copies")]
    assert torch.equal(gradients, torch.full((5,), 2, dtype=torch.bfloat16))


def test_gradients_on_the_cpu_are_read_where_they_are() -> None:
    buffer = torch.ones(5)
    staging = staging_for(torch.device("cpu"))
    assert staging.fetch(staging.begin(buffer)).ctypes.data == buffer.data_ptr()
