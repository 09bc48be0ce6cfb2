"""Everything that a run is given and does not change: data, who holds what, the network to compute with."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Layout
from perbit.errors import PerbitError
from perbit.randomness import fold
from perbit.sim import models
from perbit.sim.data import load
from perbit.sim.dataset import Array, DataError, Dataset, Items, Split
from perbit.sim.federated import local, tensors
from perbit.sim.federated.settings import SettingsError, Task
from perbit.sim.imports import why
from perbit.sim.objective import with_own
from perbit.sim.partition import partition

if TYPE_CHECKING:
    import torch


_TEST_PART = 5  # a purpose of seeds, as those of a round


class OneThread:
    """While this is there, torch and numpy's linear algebra compute with one thread; after that with as many as before.

    The same sums in the same order give the same bits, and runs side by side do not wait for each other's threads.
    """

    def __init__(self) -> None:
        import torch
        from threadpoolctl import threadpool_limits

        before, limits = torch.get_num_threads(), threadpool_limits(1)
        torch.set_num_threads(1)

        def restore() -> None:
            limits.restore_original_limits()
            torch.set_num_threads(before)

        weakref.finalize(self, restore)


_held: weakref.WeakValueDictionary[str, OneThread] = weakref.WeakValueDictionary()


def one_thread() -> OneThread:
    """The same for all who ask: with the last of them it goes, whatever the order."""
    held = _held.get("one")
    if held is None:
        held = _held["one"] = OneThread()
    return held


@dataclass(frozen=True, eq=False)
class World:
    """One network serves all clients in turn: their states live in the protocol, not in torch."""

    data: Dataset
    parts: list[Array]
    network: torch.nn.Module
    first: tensors.Arrays  # the values everybody starts with
    masked: frozenset[str]  # buffers that are not among them
    mask: NDArray[np.bool_]  # which of them are parameters
    variances: NDArray[np.bool_]  # and which batch norm's variances
    threads: OneThread  # held as long as the world is there

    def weight(self, client: int) -> float:
        """The client's share of all samples, times the number of clients: 1 if all hold the same number."""
        return len(self.parts[client]) * len(self.parts) / sum(map(len, self.parts))

    @property
    def n_parameters(self) -> int:
        return int(self.mask.sum())


def build(task: Task, seed: int) -> World:
    """Data, partition and first model for this seed."""
    import torch

    data = with_own(_drawn(task, seed), task.loss, task.metric)
    threads = one_thread()  # after the data: their loaders may bring libraries with threads of their own
    parts = partition(task.partition, data.train, task.clients, seed)
    network = models.seeded(task.model, data.info, seed)
    _refuse_other_floats(network, task)
    if ":" not in task.model:  # pictures compute faster so; a user's own code may not expect it
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _refuse_lone_samples(network, parts, task)
    masked = tensors.masks(network)
    first, counters = tensors.floats(network, masked), tensors.counters(network, masked)
    _refuse_a_bad_start(first, task)
    _try_training(network, data, parts[0][:2], replace(task, local_epochs=1, local_steps=0), seed)
    tensors.put(network, first | counters)
    layout = Layout.of(first)
    which = tensors.trainable(network, layout), tensors.variances(layout)
    return World(data, parts, network, first, masked, *which, threads)


def _try_training(network: torch.nn.Module, data: Dataset, part: Array, task: Task, seed: int) -> None:
    """What cannot be trained says so now. And torch is warm: the first client is timed like the others."""
    try:
        local.train(network, data, part, task, seed)
    except PerbitError:
        raise
    except Exception as error:  # whatever the user's class raises
        reason = why(error, type(network))
        raise SettingsError(f"the model {task.model} cannot be trained: {reason}", "model") from error


def _refuse_a_bad_start(first: tensors.Arrays, task: Task) -> None:
    for name, value in first.items():
        if not np.isfinite(value).all():
            raise SettingsError(f"the model {task.model} starts with NaN or infinity in its parameter {name}", "model")


def _refuse_other_floats(network: torch.nn.Module, task: Task) -> None:
    """Messages are of float32; what is computed in another precision is the model's business."""
    import torch

    for name, value in (*network.named_parameters(), *network.named_buffers()):
        if value.is_floating_point() and value.dtype != torch.float32:
            kind = str(value.dtype).removeprefix("torch.")
            said = f"{name} is {kind}, and comparisons train float32: make it so with .float(), and compute in {kind} by torch.autocast"
            raise SettingsError(f"the model {task.model} cannot be trained here: {said}", "model")


def _refuse_lone_samples(network: torch.nn.Module, parts: list[Array], task: Task) -> None:
    """Batch norm cannot train on a single sample: say so before the first round, not in the middle of one."""
    from torch.nn.modules.batchnorm import _BatchNorm

    if not any(isinstance(layer, _BatchNorm) for layer in network.modules()):
        return
    if task.batch == 1:
        raise SettingsError(f"{task.model} has batch norm, which needs batches of at least 2 samples", "batch")
    lone = [client for client, part in enumerate(parts) if len(part) == 1]
    if lone:
        clients = ", ".join(map(str, lone[:5])) + (" …" if len(lone) > 5 else "")
        said = f"gives a single sample to client {clients}, and {task.model} has batch norm, which needs two; use fewer clients"
        raise SettingsError(f"partition {task.partition} {said}", "partition")


def _drawn(task: Task, seed: int) -> Dataset:
    """The parts that this run trains and tests with."""
    data, n_train, n_test = _data(task.data), task.train_samples, task.test_samples
    if task.test_share:
        data = data.redrawn(task.test_share, fold(seed, _TEST_PART))
    if not n_train and not n_test:
        return data
    return data.head(n_train or len(data.train), n_test or len(data.test))


@lru_cache(maxsize=2)
def _data(name: str) -> Dataset:
    data = load(name)
    for which, split in (("train", data.train), ("test", data.test)):
        _refuse_not_finite(name, which, split)
    return data


def _refuse_not_finite(name: str, which: str, split: Split) -> None:
    """One NaN in the data makes every method diverge: say so before the first round. Samples fetched later cannot be looked at here."""
    for key, column in (("x", split.x), ("y", split.y)):
        if isinstance(column, Items) or column.dtype.kind != "f":
            continue
        bad = ~np.isfinite(column).reshape(len(column), -1).all(axis=1)
        if bad.any():
            first = split.number(int(np.argmax(bad)))
            many = f"{int(bad.sum())} of {len(column)} samples, the first is number {first}"
            raise DataError(f"data {name}: {key} of the {which} part holds NaN or infinity in {many}")
