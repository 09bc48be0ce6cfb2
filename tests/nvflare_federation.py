"""A server and clients of NVFlare in one process: the four filters at their places, and its own serialisation between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_copy, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs

from perbit.engines.nvflare import ClientInput, ClientOutput, ServerInput, ServerOutput
from perbit.engines.nvflare.filters import _CLIENT, _SERVER, FRAME
from perbit.engines.nvflare.sides import ServerSide

flare_decomposers.register()
numpy_decomposers.register()

Tensors = dict[str, Any]
Step = Callable[[Tensors], Tensors]


def over_the_wire(message: Shareable) -> Shareable:
    """What arrives: the bytes of NVFlare's own serialisation, read again."""
    received: Shareable = fobs.loads(fobs.dumps(message))
    return received


class Engine:
    """The part of an engine that filters use: a folder, and messages between sites beside the tasks."""

    def __init__(self, name: str, folder: Path, server: Engine | None = None) -> None:
        self.manager = FLContextManager(engine=self, identity_name=name, job_id="job")
        self.folder, self.server = folder, server
        self.handlers: dict[str, Any] = {}

    def get_workspace(self) -> Any:
        return SimpleNamespace(get_run_dir=lambda job: str(self.folder))

    def fire_event(self, event_type: str, fl_ctx: Any) -> None:
        """Warnings are events, too; nobody listens here."""

    def register_aux_message_handler(self, topic: str, handler: Any) -> None:
        assert topic not in self.handlers
        self.handlers[topic] = handler

    def send_aux_request(self, targets: Any, topic: str, request: Any, timeout: float, fl_ctx: Any) -> dict[str, Any]:
        if self.server is None:
            return {}
        try:
            reply = self.server.handlers[topic](topic, over_the_wire(request), self.server.context(self))
        except Exception:  # as NVFlare answers for a handler that fails
            reply = make_reply(ReturnCode.HANDLER_EXCEPTION)
        return {"server": over_the_wire(reply)}

    def context(self, peer: Engine | None = None) -> FLContext:
        fl_ctx = self.manager.new_context()
        if peer is not None:
            props = FLContext()
            props.set_public_props(peer.manager.new_context().get_all_public_props())
            fl_ctx.set_peer_context(props)
        return fl_ctx


class Site:
    """One side with its two filters, started as NVFlare starts a run."""

    def __init__(self, engine: Engine, data: Any, result: Any, ways: tuple[str, str]) -> None:
        self.engine, self.filters = engine, (data, result)
        self.tables = [{"train" + FilterKey.DELIMITER + way: [f]} for way, f in zip(ways, (data, result), strict=True)]
        self.ways = ways
        self.fire(EventType.START_RUN)

    def fire(self, event: str, **props: Any) -> None:
        """An event of NVFlare, told to both filters."""
        fl_ctx = self.engine.context()
        for name, value in props.items():
            fl_ctx.set_prop(name, value)
        for f in self.filters:
            f.handle_event(event, fl_ctx)

    def filtered(self, message: Shareable, which: int, peer: Engine, task: str = "train") -> Shareable:
        fl_ctx, way = self.engine.context(peer), self.ways[which]
        fl_ctx.set_prop(FLContextKey.TASK_NAME, task, private=True, sticky=False)
        return apply_filters("", message, fl_ctx, self.tables[which], "train", way)

    def get(self, key: str) -> Any:
        return self.engine.context().get_prop(key)


class Federation:
    """A server and its clients, and the way of a task from one to the other and back."""

    def __init__(self, folder: Path, n_clients: int = 2, /, **codecs: Any) -> None:
        self.folder, self.codecs = folder, codecs or {"up": "qsgd(31) | rans"}
        self.start_server()
        self.clients = {name: self.start(name) for name in (f"site-{i}" for i in range(n_clients))}

    def start_server(self) -> None:
        engine = Engine("server", self.folder)
        self.server = Site(engine, ServerOutput(**self.codecs), ServerInput(), (FilterKey.OUT, FilterKey.IN))

    def start(self, name: str) -> Site:
        engine = Engine(name, self.folder / name, self.server.engine)
        return Site(engine, ClientInput(), ClientOutput(), (FilterKey.IN, FilterKey.OUT))

    def restart(self, name: str) -> None:
        self.clients[name] = self.start(name)

    def state(self, name: str) -> Path:
        """Where a client keeps its state."""
        return self.folder / name / "perbit"

    def lose_state(self, name: str) -> None:
        """The client restarts, and its files are gone."""
        shutil.rmtree(self.state(name))
        self.restart(name)

    @property
    def side(self) -> ServerSide:
        side: ServerSide = self.server.get(_SERVER)
        return side

    @property
    def traffic(self) -> Any:
        return self.server.filters[0].traffic

    def down(self, name: str, task: Shareable) -> Shareable:
        """The frame for one client; the task belongs to all of them."""
        return over_the_wire(self.server.filtered(make_copy(task), 0, self.clients[name].engine))

    def arrived(self, name: str, message: Shareable, task: str = "train") -> Tensors:
        return dict(from_shareable(self.clients[name].filtered(make_copy(message), 0, self.server.engine, task)).data)

    def answer(self, name: str, data: Tensors, kind: str = DataKind.WEIGHTS, meta: Any = None) -> Shareable:
        result = DXO(kind, data, meta or {}).to_shareable()
        return over_the_wire(self.clients[name].filtered(result, 1, self.server.engine))

    def up(self, name: str, message: Shareable) -> DXO:
        return from_shareable(self.server.filtered(make_copy(message), 1, self.clients[name].engine))

    def failed(self, name: str) -> Shareable:
        """The task of this client ended with an error."""
        failed = self.clients[name].filtered(make_reply(ReturnCode.EXECUTION_EXCEPTION), 1, self.server.engine)
        return self.server.filtered(failed, 1, self.clients[name].engine)

    def exchange(self, name: str, task: Shareable, step: Step) -> Tensors:
        got = self.up(name, self.answer(name, step(self.arrived(name, self.down(name, task)))))
        assert self.in_step(name)
        return dict(got.data)

    def in_step(self, name: str) -> bool:
        """Whether both ends hold the same, by their digests."""
        digest = self.side.session.digest(name)
        return digest is not None and digest == self.clients[name].get(_CLIENT).session.digest


def task_of(tensors: Tensors) -> Shareable:
    return DXO(DataKind.WEIGHTS, tensors, {"round": 1}).to_shareable()


def model(value: float = 0.0, steps: int = 0) -> Tensors:
    return {
        "w": np.full((40, 50), value, np.float32),
        "b": np.full(5, -value, np.float64),
        "steps": np.array(2**60 + steps),
        "mask": np.array([True, False]),
    }


def step_by(amount: float) -> Step:
    rng = np.random.default_rng(0)

    def step(x: Tensors) -> Tensors:
        noise = 0.01 * rng.normal(size=x["w"].shape)
        return {**x, "w": (x["w"] + amount + noise).astype(np.float32), "b": x["b"] + amount, "steps": x["steps"] + 1}

    return step


def frame_of(message: Shareable) -> bytes:
    frame = from_shareable(message).data[FRAME]
    assert isinstance(frame, bytes)
    return frame


def with_frame(message: Shareable, frame: bytes) -> Shareable:
    dxo = from_shareable(message)
    return DXO(dxo.data_kind, {**dxo.data, FRAME: frame}, dxo.meta).to_shareable()


def flipped(message: Shareable) -> Shareable:
    frame = bytearray(frame_of(message))
    frame[len(frame) // 2] ^= 1
    return with_frame(message, bytes(frame))
