"""Who holds which samples: every partition gives each sample to exactly one client, and the same seed the same partition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perbit.errors import PerbitError
from perbit.sim.dataset import Array, Split
from perbit.sim.imports import imported_function, is_import_path

Parts = list[Array]  # the sample indices of each client, ascending


class PartitionError(PerbitError, ValueError):
    """A partition that the data do not allow."""


def iid(split: Split, n_clients: int, seed: int = 0) -> Parts:
    """A random permutation cut into parts whose sizes differ by at most one."""
    _at_least(len(split), n_clients, 1)
    return _sorted(np.array_split(np.random.default_rng(seed).permutation(len(split)), n_clients))


def dirichlet(split: Split, n_clients: int, alpha: float, seed: int = 0, minimum: int = 10) -> Parts:
    """Each class is shared out by proportions from Dirichlet(alpha): small alpha, few classes a client (Hsu et al. 2019).

    Clients left with fewer than `minimum` samples get random ones from the largest client, so that nobody is empty.
    """
    if not alpha > 0:
        raise PartitionError(f"dirichlet needs alpha above 0, not {alpha}")
    y = _classes(split)
    _at_least(len(y), n_clients, minimum)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(y), np.int64)
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        cuts = np.cumsum(rng.dirichlet(np.full(n_clients, alpha)))[:-1] * len(members)
        owner[members] = np.searchsorted(cuts.round(), np.arange(len(members)), side="right")
    return _level([np.flatnonzero(owner == client) for client in range(n_clients)], minimum, rng)


def shards(split: Split, n_clients: int, per_client: int = 2, seed: int = 0) -> Parts:
    """Samples sorted by label, cut into equal shards, `per_client` random shards each (McMahan et al. 2017)."""
    y = _classes(split)
    _at_least(len(y), n_clients, per_client)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    pieces = np.array_split(order[np.argsort(y[order], kind="stable")], n_clients * per_client)
    deal = rng.permutation(len(pieces)).reshape(n_clients, per_client)
    return _sorted([np.concatenate([pieces[i] for i in hand]) for hand in deal])


def natural(split: Split, n_clients: int | None = None, seed: int = 0) -> Parts:
    """One client per person. With fewer clients than people, whole people are dealt out at random, the fullest to the emptiest."""
    if split.group is None:
        raise PartitionError("these data have no natural groups; use iid, dirichlet or shards")
    people = [np.flatnonzero(split.group == person) for person in np.unique(split.group)]
    n_clients = len(people) if n_clients is None else n_clients
    if not 1 <= n_clients <= len(people):
        raise PartitionError(f"these data come from {len(people)} people; {n_clients} clients cannot be made of them")
    rng = np.random.default_rng(seed)
    people = sorted((people[i] for i in rng.permutation(len(people))), key=len, reverse=True)
    held: list[list[Array]] = [[part] for part in people[:n_clients]]
    for part in people[n_clients:]:
        min(held, key=lambda hand: sum(map(len, hand))).append(part)
    return sorted(_sorted([np.concatenate(hand) for hand in held]), key=lambda part: int(part[0]))


def own(path: str, split: Split, n_clients: int, seed: int = 0) -> Parts:
    """What the user's function (split, clients, seed) returns: for each client the indices of its samples."""
    said = f"partition {path} must return a list of {n_clients} lists of sample numbers"
    found = imported_function("partition", path)(split, n_clients, seed)
    if not (hasattr(found, "__len__") and hasattr(found, "__iter__") and len(found) == n_clients):
        n = f"{len(found)} of them" if hasattr(found, "__len__") else f"a {type(found).__name__}"
        raise PartitionError(f"{said}, one for each client; it returned {n}")
    parts = [np.asarray(part) for part in found]
    for client, part in enumerate(parts):
        if part.ndim != 1 or not len(part) or part.dtype.kind not in "iu":
            raise PartitionError(f"{said}, and what client {client} gets is none, or empty")
        if part.min() < 0 or part.max() >= len(split):
            raise PartitionError(
                f"{said} from 0 to {len(split) - 1}, and client {client} gets {part.min()} to {part.max()}"
            )
    return _sorted([part.astype(np.int64) for part in parts])


def partition(kind: str, split: Split, n_clients: int | None = None, seed: int = 0) -> Parts:
    """A partition by its text: "iid", "dirichlet(0.5)", "shards(2)", "natural" or the user's own "module:function".

    Only a natural one knows its number of clients.

    >>> split = Split(np.zeros((6, 1)), np.array([0, 1, 0, 1, 0, 1]))
    >>> [part.tolist() for part in partition("shards(1)", split, 2)]
    [[1, 3, 5], [0, 2, 4]]
    """
    name, _, argument = kind.replace(" ", "").removesuffix(")").partition("(")
    if n_clients is None and name == "natural":
        return natural(split, None, seed)
    if n_clients is None:
        raise PartitionError(f"the partition {kind} needs a number of clients")
    if is_import_path(kind):
        return own(kind, split, n_clients, seed)
    try:
        return _KINDS[name](split, n_clients, argument, seed)
    except PartitionError:
        raise
    except (KeyError, ValueError):
        known = 'iid, dirichlet(0.5), shards(2), natural, or your own "module:function"'
        raise PartitionError(f"cannot read the partition {kind!r}; write one of {known}") from None


_KINDS: dict[str, Callable[[Split, int, str, int], Parts]] = {
    "iid": lambda split, n, _, seed: iid(split, n, seed),
    "dirichlet": lambda split, n, alpha, seed: dirichlet(
        split, n, float(alpha), seed, min(10, len(split) // max(n, 1))
    ),
    "shards": lambda split, n, count, seed: shards(split, n, int(count or 2), seed),
    "natural": lambda split, n, _, seed: natural(split, n, seed),
}


def _classes(split: Split) -> Array:
    if split.y.ndim != 1:
        raise PartitionError("these data have no single label per sample; use iid or natural")
    return split.y


def _at_least(n_samples: int, n_clients: int, minimum: int) -> None:
    if n_clients < 1:
        raise PartitionError(f"a partition needs at least one client, not {n_clients}")
    if minimum < 1:
        raise PartitionError(f"every client needs at least one sample or shard, not {minimum}")
    if n_samples < n_clients * minimum:
        raise PartitionError(f"{n_samples} samples are too few for {n_clients} clients with {minimum} each")


def _level(parts: Parts, minimum: int, rng: np.random.Generator) -> Parts:
    """Move random samples from the largest client to those below the minimum."""
    parts = [rng.permutation(part) for part in parts]
    for client in range(len(parts)):
        while len(parts[client]) < minimum:
            largest = max(range(len(parts)), key=lambda i: len(parts[i]))
            n = min(minimum - len(parts[client]), len(parts[largest]) - minimum)
            parts[client] = np.concatenate([parts[client], parts[largest][:n]])
            parts[largest] = parts[largest][n:]
    return _sorted(parts)


def _sorted(parts: Parts) -> Parts:
    return [np.sort(part) for part in parts]
