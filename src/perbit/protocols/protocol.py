"""Protocols: a way up, a way down, and what goes down. This is the one round machine: simulations and sessions both run it.

    deliver(server, client)         the frames that bring a client up to date
    accept(client, ...)             the client's model of these frames
    respond(client, gradient)       the client's frame
    advance(server, frames, step)   the server decodes, averages, steps, and publishes what goes down next

All are functions of values: Server and Client are states, and nothing has happened until a result is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from perbit.channels import Channel, Layout, State, Summed
from perbit.channels.store import Changes, ClientId, Store, store_in
from perbit.coding.bits import Piece
from perbit.errors import DecodeError, EncodeError, SpecError
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.protocols import downlinks
from perbit.protocols.downlinks import Downlink, PerClient, Start, one_for_all
from perbit.randomness import fold

F64 = NDArray[np.float64]
# a rate, or a server optimiser: from the mean of what came up to the model's change
Step = float | Callable[[F64], F64]
Carries = Literal["model", "update", "ghost"]
_UP, _DOWN = 1, 2  # purposes of seeds
LARGEST = float(np.finfo(np.float32).max) / 2**32  # leaves room for a weighted sum over clients


@dataclass(frozen=True, eq=False)
class Server:
    """The server between two rounds."""

    layout: Layout
    model: F64  # flat; the exact model, or what the clients hold if they step with the same compressed update
    uplinks: Store  # of the clients' channel states
    places: Store  # where each client is on the way down
    downlink: Any
    round: int = 0
    predicted: F64 | None = (
        None  # sum over all clients of what their uplink memories predict; None: they predict nothing
    )
    previous: F64 | None = None  # the model before the last step (only the Ghost algorithm looks at it)
    population: int | None = None  # how many clients there are; None: those that were heard of

    @property
    def n_clients(self) -> int:
        return len(self.uplinks) if self.population is None else self.population

    @property
    def expected(self) -> F64 | None:
        """The mean over all clients of what their memories predict."""
        return None if self.predicted is None else self.predicted / max(1, self.n_clients)


@dataclass(frozen=True, eq=False)
class Client:
    """A client between two rounds; `point` is the flat model at which it computes its next gradient."""

    index: int
    layout: Layout
    point: F32
    uplink: State
    downlink: Any
    round: int = 0

    @property
    def model(self) -> Any:
        """The point as an array or as named tensors."""
        return self.layout.unflatten(self.point)


class Delivered(NamedTuple):
    """The frames that brought a client up to date (none if it was), and both states afterwards."""

    frames: list[bytes]
    server: Server
    client: Client
    was_reset: bool = False


class Response(NamedTuple):
    """The client's frame, and its state to keep once the frame is delivered."""

    frame: bytes
    client: Client


@dataclass(frozen=True)
class Protocol:
    """How a distributed algorithm sends. `presets` has the ones with a name.

    Args:
        name: what it is called.
        uplink: the channel of the clients' frames.
        downlink: how the model reaches the clients.
        carries: "model": the downlink takes the server's exact model, and the clients hold what it gives (MCM; with raw: SGD).
            "update": it takes the step, the clients add it up; the server steps with the same compressed step ("degraded"),
            unless `exact`. "ghost": clients get w_{k-1} + C(step): no message can do that, a simulation lends them w_{k-1}.
        exact: where updates are carried, the server keeps its own model exact.
        local_steps: above 0, clients send the difference after so many local steps instead of a gradient (FedAvg).
        folder: keep the server's memories of each client in files of this folder, and the last full models of absent clients.
    """

    name: str
    uplink: Channel
    downlink: Downlink
    carries: Carries = "model"
    exact: bool = False
    local_steps: int = 0
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.carries not in get_args(Carries):
            raise SpecError(f"a protocol carries {', '.join(map(repr, get_args(Carries)))}, got {self.carries!r}")
        if self.local_steps < 0:
            raise SpecError(f"local_steps cannot be negative, got {self.local_steps}")

    @classmethod
    def of(
        cls, name: str, uplink: Channel, downlink: Channel | Downlink, carries: Any = "model", **more: Any
    ) -> Protocol:
        """A protocol; a channel as downlink is shared by all clients, and adds up where updates are carried."""
        if isinstance(downlink, Channel):
            downlink = one_for_all(Summed(downlink) if carries == "update" else downlink)
        return cls(name, uplink, downlink, carries, **more)

    # --- the start ----------------------------------------------------------------------------------------------------

    def server(
        self, layout: Layout, model: F64, known: F32, n_clients: int | None = None, is_durable: bool = False
    ) -> Server:
        """The server at the start; `known` is the first model as the clients know it. Files of the folder that are durable stay when
        the process ends, and are part of what is saved."""
        side, place, _ = self.downlink.init(layout, known, n_clients)
        if self.folder is not None:
            self.downlink.keep_in(side, self.folder, is_durable)
        uplinks = store_in(self.folder, self.uplink.init(layout)[1], is_durable)
        places = store_in(self.folder if isinstance(self.downlink, PerClient) else None, place, is_durable)
        predicts = self.uplink.expectation(uplinks.first) is not None
        predicted = np.zeros(layout.n) if predicts else None
        return Server(layout, model, uplinks, places, side, predicted=predicted, population=n_clients)

    def client(self, index: int, layout: Layout, known: F32) -> Client:
        """A client that knows the first model."""
        return Client(index, layout, known, self.uplink.init(layout)[0], self.downlink.init(layout, known, 1)[2])

    def init(self, model: Any, n_clients: int) -> tuple[Server, list[Client]]:
        """The server and N clients, who all know the first model."""
        layout = Layout.of(model)
        flat = np.array(layout.flatten(model))
        flat.flags.writeable = False
        first = self.client(0, layout, flat)
        server = self.server(layout, flat.astype(np.float64), flat, n_clients)
        for _ in range(n_clients):
            self.downlink.enter(server.downlink, server.places.first)
        return server, [replace(first, index=index) for index in range(n_clients)]

    # --- down ---------------------------------------------------------------------------------------------------------

    def publish(self, server: Server, model: F64, change: F64, seed: int) -> Server:
        """Make what goes down after the model changed to this one."""
        x = (model if self.carries == "model" else change).astype(np.float32)
        downlink, value = self.downlink.publish(server.downlink, x, fold(seed, _DOWN))
        if self.carries == "update" and not self.exact and value is not None:
            model = value.astype(np.float64)
        previous = server.model if self.carries == "ghost" else None
        return replace(server, model=model, downlink=downlink, round=server.round + 1, previous=previous)

    def deliver(self, server: Server, client: Client, seed: int) -> Delivered:
        """Send a client what it lacks, and let it accept that."""
        return self.deliver_all(server, [client], [0], seed)[1][0]

    def deliver_all(
        self, server: Server, clients: Sequence[Client], present: Sequence[int], seed: int
    ) -> tuple[Server, dict[int, Delivered]]:
        """Bring those present up to date. Clients with one and the same state get one and the same result, computed once."""
        accepted: dict[Any, tuple[Any, F32]] = {}
        delivered: dict[int, Delivered] = {}
        places = Changes(server.places)
        for i in present:
            client = clients[i]
            if client.round == server.round:
                delivered[i] = Delivered([], server, client)
                continue
            before = places.get(client.index)
            sent = self.downlink.deliver(server.downlink, before, client.index, fold(seed, _DOWN))
            self.downlink.release(server.downlink, before)
            if sent.side is not server.downlink:
                server = replace(server, downlink=sent.side)
            places.put(client.index, sent.place)
            key = (id(client.downlink), sent.start, *map(id, sent.frames))
            if key not in accepted:
                accepted[key] = self.accept(client.downlink, list(sent.frames), sent.start, server.previous)
            held, point = accepted[key]
            after = Client(client.index, client.layout, point, client.uplink, held, server.round)
            delivered[i] = Delivered(sent.frames, server, after, sent.start == Start.RESET)
        server = replace(server, places=places.settled())
        return server, {i: got._replace(server=server) for i, got in delivered.items()}

    def accept(self, held: Any, frames: list[Piece], start: Start, previous: F64 | None = None) -> tuple[Any, F32]:
        """The client's side of the downlink after these frames, and its model."""
        held, point = self.downlink.accept(held, frames, start)
        if self.carries == "ghost" and previous is not None:
            point = previous.astype(np.float32) + point
        return held, point

    # --- up -----------------------------------------------------------------------------------------------------------

    def respond(self, client: Client, gradient: Any, seed: int) -> Response:
        """Send a gradient, or w - w_local after local steps: whatever the server is to subtract."""
        sent = self.uplink.send(gradient, client.uplink, up_seed(seed, client.index))
        at = Client(client.index, client.layout, client.point, sent.state, client.downlink, client.round)
        return Response(sent.frame, at)

    def advance(self, server: Server, frames: Mapping[int, bytes], step: Step, seed: int) -> Server:
        """Decode and average the clients' frames, step (by -step·mean, or as an optimiser says), and publish what goes down."""
        average = Average(self, server)
        for client, frame in frames.items():
            average.add(client, average.read(client, frame))
        return average.advance(step, seed)


def up_seed(seed: int, number: int) -> int:
    """The seed of a client's random choices in a round."""
    return fold(fold(seed, _UP), number)


def down_seed(seed: int) -> int:
    """The seed of what one client is sent in a round."""
    return fold(seed, _DOWN)


class Update(NamedTuple):
    """What a client's frame says, as a flat vector, and the states of its uplink before and after."""

    value: F32
    before: State
    after: State


class Average:
    """The mean over all clients, taken up frame by frame: h̄ + mean over those present of ĝ_i - h_i, where h_i is what a client's
    memory predicts and h̄ the mean of that over all clients. So an absent client counts as predicted; without memories h is zero."""

    def __init__(self, protocol: Protocol, server: Server) -> None:
        self.protocol, self.server = protocol, server
        self.uplinks, self._n_clients = Changes(server.uplinks), max(1, server.n_clients)
        self.count = 0
        self._surprise = np.zeros(server.layout.n)  # sum of ĝ_i - h_i
        n_predicted = 0 if server.predicted is None else server.layout.n
        self._moved = np.zeros(n_predicted, np.float32)  # sum of changes of h_i
        self._difference = np.empty(n_predicted, np.float32)  # room for one of them

    def read(self, client: ClientId, frame: Piece, anew: State | None = None) -> Update:
        """What a frame says; nothing has happened yet. A client of some tensors only says nothing of the others.

        Args:
            client: who sent it.
            frame: of the uplink's channel.
            anew: the state from which this client starts again, if it does.
        """
        before = self.uplinks.get(client) if anew is None else anew
        value, after = self.protocol.uplink.receive_flat(frame, before)
        flat = self._whole(before.layout, value)
        low, high, n_nonfinite = K.scan(flat)
        if n_nonfinite or not max(-low, high, 0.0) <= LARGEST:
            raise DecodeError(f"what client {client} sent is not finite, or too large to be summed up")
        return Update(flat, before, after)

    def add(self, client: ClientId, update: Update) -> None:
        """Take up what a client said."""
        predicted, now = self._prediction(update.before), self._prediction(update.after)
        if predicted is None or now is None:
            self._surprise += update.value
        else:
            self._surprise += np.subtract(update.value, predicted, out=self._difference)
            self._moved += np.subtract(now, predicted, out=self._difference)
        self.count += 1
        self.uplinks.put(client, update.after)

    def forget(self, client: ClientId) -> None:
        """Count this client no longer: if it comes again in this round, it does so with a memory of zero."""
        predicted = self._prediction(self.uplinks.get(client))
        if predicted is not None and self.server.predicted is not None and predicted.any():
            self.server = replace(self.server, predicted=self.server.predicted - predicted)
            vars(self).pop("_expected", None)
        self.uplinks.remove(client)

    def restart(self, client: ClientId, state: State) -> None:
        """A client's uplink starts anew, in this state."""
        self.forget(client)
        self.uplinks.put(client, state)

    def shift(self, client: ClientId) -> F32 | None:
        """h̄ - h_i: what a plain mean of those present lacks, as far as this client is concerned. To be asked before `add`."""
        own = self._prediction(self.uplinks.get(client))
        return None if own is None or self._expected is None else self._expected - own

    @cached_property
    def _expected(self) -> F32 | None:
        predicted = self.server.predicted
        return None if predicted is None else (predicted / self._n_clients).astype(np.float32)

    @property
    def mean(self) -> F64:
        """Of everything taken up so far."""
        if not self.count:
            raise EncodeError("a round needs at least one client; keep the server as it is when none takes part")
        predicted, surprise = self.server.predicted, self._surprise / self.count
        return surprise if predicted is None else predicted / self._n_clients + surprise

    def settled(self) -> Server:
        """The server that knows the new states of the uplinks."""
        predicted = None if self.server.predicted is None else self.server.predicted + self._moved
        return replace(self.server, uplinks=self.uplinks.settled(), predicted=predicted)

    def advance(self, step: Step, seed: int) -> Server:
        """Step with the mean and publish."""
        mean = self.mean
        return self.stepped(step(mean) if callable(step) else -step * mean, seed)

    def stepped(self, change: F64, seed: int) -> Server:
        """Change the model by this and publish."""
        server = self.settled()
        return self.protocol.publish(server, server.model + change, change, seed)

    @property
    def held(self) -> tuple[Any, ...]:
        """The vectors that are held while a mean is taken."""
        return self._surprise, self._moved, self._difference, vars(self).get("_expected")

    def _prediction(self, state: State) -> F32 | None:
        predicted = self.protocol.uplink.expectation(state)
        return None if predicted is None else self._whole(state.layout, predicted)

    def _whole(self, layout: Layout, flat: F32) -> F32:
        """Some tensors of the model as a vector of all, zero elsewhere."""
        if layout is self.server.layout or layout == self.server.layout:
            return flat
        found, whole = layout.split(flat), np.zeros(self.server.layout.n, np.float32)
        for name, part in self.server.layout.split(whole).items():
            if name in found:
                part[...] = found[name]
        return whole


STATE_TYPES = (Server, Client, State, Layout, *downlinks.STATE_TYPES)  # what a checkpoint of a run holds
