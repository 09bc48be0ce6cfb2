"""NVFlare: four filters between its real messages, whatever is lost, repeated, damaged or restarted; and its simulator."""

from __future__ import annotations

import ast
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.session import ResyncNeeded, ServerSession

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_copy, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.fuel.utils import fobs

from perbit.engines.nvflare import ClientInput, ClientOutput, ServerInput, ServerOutput
from perbit.engines.nvflare.filters import _CLIENT, _SERVER, FRAME, TRAFFIC

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
        for f in self.filters:
            f.handle_event(EventType.START_RUN, engine.context())

    def filtered(self, message: Shareable, which: int, peer: Engine) -> Shareable:
        fl_ctx, way = self.engine.context(peer), self.ways[which]
        return apply_filters("", message, fl_ctx, self.tables[which], "train", way)

    def get(self, key: str) -> Any:
        return self.engine.context().get_prop(key)


class Federation:
    """A server and its clients, and the way of a task from one to the other and back."""

    def __init__(self, folder: Path, n_clients: int = 2, **codecs: Any) -> None:
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

    @property
    def traffic(self) -> Any:
        return self.server.filters[0].traffic

    def down(self, name: str, task: Shareable) -> Shareable:
        """The frame for one client; the task belongs to all of them."""
        return over_the_wire(self.server.filtered(make_copy(task), 0, self.clients[name].engine))

    def arrived(self, name: str, message: Shareable) -> Tensors:
        return dict(from_shareable(self.clients[name].filtered(make_copy(message), 0, self.server.engine)).data)

    def answer(self, name: str, data: Tensors, kind: str = DataKind.WEIGHTS, meta: Any = None) -> Shareable:
        result = DXO(kind, data, meta or {}).to_shareable()
        return over_the_wire(self.clients[name].filtered(result, 1, self.server.engine))

    def up(self, name: str, message: Shareable) -> DXO:
        return from_shareable(self.server.filtered(make_copy(message), 1, self.clients[name].engine))

    def exchange(self, name: str, task: Shareable, step: Step) -> Tensors:
        got = self.up(name, self.answer(name, step(self.arrived(name, self.down(name, task)))))
        assert self.in_step(name)
        return dict(got.data)

    def in_step(self, name: str) -> bool:
        """Whether both ends hold the same, by their digests."""
        digest = self.server.get(_SERVER).session.digest(name)
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


# --- rounds ------------------------------------------------------------------------------------------------------------


def test_rounds_of_several_clients_learn_what_plain_averaging_learns_with_fewer_bytes(tmp_path: Path) -> None:
    federation, current = Federation(tmp_path, 3), model()
    steps = {name: step_by(1.0 + i) for i, name in enumerate(federation.clients)}
    for round_ in range(5):
        task = task_of(current)
        results = [federation.exchange(name, task, steps[name]) for name in federation.clients]
        assert from_shareable(task).data is current  # one task for all: it must stay as it is
        assert from_shareable(task).meta == {"round": 1}
        assert all(r["steps"] == 2**60 + round_ + 1 and r["steps"].dtype == np.int64 for r in results)
        assert all(r["mask"].tolist() == [True, False] and r["b"].dtype == np.float64 for r in results)
        current = {**results[0], **{name: np.mean([r[name] for r in results], axis=0) for name in ("w", "b")}}
    assert abs(current["w"].mean() - 10) < 0.5  # five rounds of steps of 1, 2 and 3
    traffic = federation.traffic
    assert traffic.plain_up_bytes == traffic.plain_down_bytes == 15 * (40 * 50 * 4 + 5 * 8 + 8 + 2)
    assert traffic.up_bytes < traffic.plain_up_bytes / 4
    assert traffic.down_bytes < traffic.plain_down_bytes / 2  # the first frame of each is whole
    assert traffic.n_resyncs == traffic.n_dropped == 0


def test_bytes_are_those_of_the_frames_and_stand_in_the_meta_of_results(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    n_down = n_up = 0
    for value in range(3):
        message = federation.down("site-0", task_of(model(value)))
        n_down += len(frame_of(message))
        answer = federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", message)), meta={"weight": 7})
        n_up += len(frame_of(answer))
        meta = federation.up("site-0", answer).meta
        assert (meta[TRAFFIC]["down_bytes"], meta[TRAFFIC]["up_bytes"], meta["weight"]) == (n_down, n_up, 7)
        assert meta[TRAFFIC]["up_ratio"] == round(federation.traffic.plain_up_bytes / n_up, 2)


def test_the_model_is_coded_once_a_round_however_often_the_filter_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, coded = Federation(tmp_path, 4), []
    code = ServerSession._code
    monkeypatch.setattr(ServerSession, "_code", lambda self, *args: coded.append(1) or code(self, *args))
    for round_ in range(4):
        task = task_of(model(round_ + 0.123))
        frames = {name: federation.down(name, task) for name in federation.clients}
        if round_ == 2:  # a client asks again for the task it has, and NVFlare filters it again
            frames["site-1"] = federation.down("site-1", task)
        held = []
        for name, message in frames.items():
            received = federation.arrived(name, message)
            held.append(received["w"].tobytes())
            federation.up(name, federation.answer(name, step_by(1.0)(received)))
            assert federation.in_step(name)
        assert len(set(held)) == 1
    assert len(coded) == 3  # the first round sends the model whole


def test_clients_in_different_states_each_get_their_own_frame(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2)
    for round_, present in enumerate((["site-0", "site-1"], ["site-0"], ["site-0"], ["site-0", "site-1"])):
        task = task_of(model(round_ / 3, round_))
        for name in present:
            assert federation.exchange(name, task, step_by(1.0))["steps"] == 2**60 + round_ + 1
    digests = {federation.server.get(_SERVER).session.digest(name) for name in federation.clients}
    assert len(digests) == 2
    assert federation.traffic.n_resyncs == 0


def test_tasks_for_many_clients_at_the_same_time(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 8)
    for round_ in range(3):
        task = task_of(model(round_ / 3))
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda name: federation.exchange(name, task, step_by(1.0)), federation.clients))  # noqa: B023
        assert len(done) == 8
    assert federation.traffic.n_resyncs == federation.traffic.n_dropped == 0


# --- restarts, losses, damage -------------------------------------------------------------------------------------------


def test_a_restarted_client_goes_on_from_its_file(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    for round_ in range(4):
        federation.exchange("site-0", task_of(model(round_ / 3)), step_by(1.0))
        federation.restart("site-0")
    assert federation.traffic.n_resyncs == 0
    assert federation.in_step("site-0")


def test_a_client_that_lost_its_state_is_resynchronised_within_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(tmp_path)
    for name in federation.clients:
        federation.exchange(name, task_of(model(0.5)), step_by(1.0))
    (tmp_path / "site-0" / "perbit.npz").unlink()
    federation.restart("site-0")
    with caplog.at_level(logging.WARNING):
        got = federation.exchange("site-0", task_of(model(0.7, 9)), step_by(1.0))
    assert "holds no state" in caplog.text
    assert "resync of client site-0" in caplog.text
    assert abs(got["w"].mean() - 1.7) < 0.1  # the task was done, nothing is missing
    assert got["steps"] == 2**60 + 10
    federation.exchange("site-1", task_of(model(0.7, 9)), step_by(1.0))
    assert (federation.traffic.n_resyncs, federation.traffic.n_dropped) == (1, 0)


@pytest.mark.parametrize("what", ["damaged", "replayed"])
def test_a_damaged_or_replayed_frame_is_noticed_and_healed(tmp_path: Path, what: str) -> None:
    federation = Federation(tmp_path, 1)
    frames = []
    for value in (0.1, 0.2):
        frames.append(federation.down("site-0", task_of(model(value))))
        federation.up("site-0", federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", frames[-1]))))
    message = federation.down("site-0", task_of(model(0.3)))
    received = federation.arrived("site-0", flipped(message) if what == "damaged" else frames[1])
    assert np.array_equal(received["w"], model(0.3)["w"])  # of the full frame, so exactly
    federation.up("site-0", federation.answer("site-0", step_by(1.0)(received)))
    assert federation.in_step("site-0")
    assert federation.traffic.n_resyncs == 1
    federation.exchange("site-0", task_of(model(0.4)), step_by(1.0))
    assert federation.traffic.n_resyncs == 1


def test_without_an_answer_to_a_resync_the_task_fails_and_the_next_one_heals(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.5)), step_by(1.0))
    (tmp_path / "site-0" / "perbit.npz").unlink()
    federation.restart("site-0")
    engine = federation.clients["site-0"].engine
    server, engine.server = engine.server, None
    message = federation.down("site-0", task_of(model(0.6)))
    with pytest.raises(ResyncNeeded, match="holds no state"):
        federation.arrived("site-0", message)
    plain = from_shareable(federation.answer("site-0", model(1)))  # nothing was received, so nothing is answered
    assert FRAME not in plain.data
    engine.server = server
    federation.exchange("site-0", task_of(model(0.7)), step_by(1.0))


@pytest.mark.parametrize("what", ["damaged", "replayed", "nonsense"])
def test_a_bad_answer_is_dropped_and_counted_and_only_that_client_is_concerned(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(tmp_path, 2)
    old: dict[str, Shareable] = {}
    for value in (0.1, 0.2):
        for name in federation.clients:
            received = federation.arrived(name, federation.down(name, task_of(model(value))))
            old[name] = federation.answer(name, step_by(1.0)(received))
            federation.up(name, old[name])
    task = task_of(model(0.3))
    answer = federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", federation.down("site-0", task))))
    bad = {"damaged": flipped(answer), "replayed": old["site-0"], "nonsense": with_frame(answer, b"no frame")}[what]
    with caplog.at_level(logging.WARNING):
        assert federation.up("site-0", bad).data == {}
    assert "result of client site-0 is dropped" in caplog.text
    federation.exchange("site-1", task, step_by(1.0))
    assert federation.traffic.n_dropped == 1
    whole = federation.down("site-0", task_of(model(0.4)))
    assert len(frame_of(whole)) > 40 * 50 * 4
    received = federation.arrived("site-0", whole)
    federation.up("site-0", federation.answer("site-0", step_by(1.0)(received)))
    assert federation.in_step("site-0")


def test_a_restarted_server_sends_everything_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    for value in (0.1, 0.2):
        federation.exchange("site-0", task_of(model(value)), step_by(1.0))
    federation.start_server()
    federation.restart("site-0")
    for value in (0.3, 0.4):
        federation.exchange("site-0", task_of(model(value)), step_by(1.0))


# --- what else NVFlare sends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["mcm", "fedavg_topk_ef"])
def test_differences_come_back_as_differences(tmp_path: Path, protocol: str) -> None:
    """From the server's model: what the client changed (mcm), and where it started from (what steps from there)."""
    federation = Federation(tmp_path, 1, protocol=protocol, up="raw", down="qsgd(7) | rans")
    for round_ in range(3):
        sent = {"w": np.full((40, 50), round_ / 3, np.float32), "steps": np.array(5 + round_)}
        received = federation.arrived("site-0", federation.down("site-0", task_of(sent)))
        change = {"steps": np.array(2), "w": np.linspace(0, 1, 2000, dtype=np.float32).reshape(40, 50)}  # another order
        got = federation.up("site-0", federation.answer("site-0", change, DataKind.WEIGHT_DIFF))
        assert received["steps"] == 5 + round_
        assert got.data_kind == DataKind.WEIGHT_DIFF
        assert got.data["steps"] == 2
        start = sent["w"] if protocol == "mcm" else received["w"]
        assert np.abs(sent["w"] + got.data["w"] - (start + change["w"])).max() < 1e-6
        assert (round_ == 0) == np.array_equal(sent["w"], received["w"])  # it went down coarsely
        assert federation.in_step("site-0")


def test_a_task_that_answers_with_metrics_acknowledges_and_the_model_need_not_go_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    task = task_of(model(0.25))
    for round_ in range(2):
        message = federation.down("site-0", task)
        assert (len(frame_of(message)) < 30) == (round_ == 1)
        federation.arrived("site-0", message)
        got = federation.up("site-0", federation.answer("site-0", {"accuracy": 0.9}, DataKind.METRICS))
        assert (got.data_kind, got.data) == (DataKind.METRICS, {"accuracy": 0.9})
        assert federation.in_step("site-0")


def test_torch_tensors_stay_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    federation = Federation(tmp_path, 1)
    sent = {
        "w": torch.ones(40, 50),
        "h": torch.full((3,), 0.5, dtype=torch.bfloat16),
        "steps": torch.tensor(2**60 + 1),
        "mask": torch.tensor([True, False]),
    }
    dtypes = {name: x.dtype for name, x in sent.items()}
    server, client = federation.server, federation.clients["site-0"]
    for _ in range(2):
        message = over_the_wire(server.filtered(make_copy(task_of(sent)), 0, client.engine))
        received = federation.arrived("site-0", message)
        assert {name: x.dtype for name, x in received.items()} == dtypes
        received["w"] += 1  # as training does
        got = federation.up("site-0", federation.answer("site-0", {**received, "steps": received["steps"] + 1})).data
        assert {name: x.dtype for name, x in got.items()} == dtypes
        assert got["steps"].item() == sent["steps"].item() + 1
        assert federation.in_step("site-0")
        sent = got


def test_what_cannot_be_coded_goes_as_it_is_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    diverged = {**model(0.2), "w": np.full((40, 50), np.nan, np.float32)}
    with caplog.at_level(logging.WARNING):
        received = federation.arrived("site-0", federation.down("site-0", task_of(diverged)))
        assert np.isnan(received["w"]).all()
        assert FRAME not in from_shareable(federation.answer("site-0", received)).data
        received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.3))))
        other = federation.answer("site-0", {"w": received["w"]})
    assert "goes to site-0 as it is" in caplog.text
    assert "goes to the server as it is" in caplog.text
    before = federation.traffic.up_bytes
    assert np.array_equal(federation.up("site-0", other).data["w"], received["w"])
    assert federation.traffic.up_bytes - before == 40 * 50 * 4
    assert federation.traffic.down_bytes > 2 * 40 * 50 * 4  # the first model, whole, and the one with NaN, plain
    federation.exchange("site-0", task_of(model(0.4)), step_by(1.0))
    assert (federation.traffic.n_resyncs, federation.traffic.n_dropped) == (0, 0)


def test_collections_and_failed_tasks_pass(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    both = {name: DXO(DataKind.WEIGHTS, model(1)) for name in ("a", "b")}
    client, server = federation.clients["site-0"], federation.server
    passed = from_shareable(server.filtered(DXO(DataKind.COLLECTION, both).to_shareable(), 0, client.engine))
    assert all(FRAME not in part.data for part in passed.data.values())
    federation.arrived("site-0", federation.down("site-0", task_of(model(1))))
    failed = client.filtered(make_reply(ReturnCode.EXECUTION_EXCEPTION), 1, server.engine)
    assert failed.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    federation.exchange("site-0", task_of(model(2)), step_by(1.0))


def test_a_spec_that_cannot_be_read_is_refused_where_the_job_is_written() -> None:
    with pytest.raises(perbit.SpecError):
        ServerOutput(up="topq(0.1)")
    with pytest.raises(perbit.SpecError, match="no preset"):
        ServerOutput("mmc")


# --- the real engine ----------------------------------------------------------------------------------------------------

LEARNING = '''
import numpy as np
from sklearn.datasets import load_digits

SITES = ["site-1", "site-2"]
x, labels = load_digits(return_X_y=True)
features = np.maximum(x / 16 @ np.random.default_rng(0).normal(size=(64, 400)), 0).astype(np.float32) / 40


def trained(weights, site):
    """Thirty steps of softmax regression on this site's half of the digits."""
    mine = slice(SITES.index(site), 1500, 2)
    for _ in range(30):
        odds = np.exp(features[mine] @ weights)
        error = odds / odds.sum(1, keepdims=True) - np.eye(10)[labels[mine]]
        weights = weights - 5 * features[mine].T @ error / len(error)
    return weights.astype(np.float32)


def accuracy(weights):
    return float(np.mean((features[1500:] @ weights).argmax(1) == labels[1500:]))
'''

CLIENT = """
import os
import nvflare.client as flare
from learning import accuracy, trained

flare.init()
while flare.is_running():
    model = flare.receive()
    with open(os.environ["PROCESSES"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    params = {name: trained(x, flare.get_site_name()) for name, x in model.params.items()}
    flare.send(flare.FLModel(params=params, params_type="FULL", metrics={"accuracy": accuracy(*params.values())}))
"""

SPOIL = '''
from nvflare.apis.dxo_filter import DXOFilter


class Spoil(DXOFilter):
    """Damages one client's frame of one round."""

    def __init__(self, number, site):
        super().__init__(None, None)
        self.number, self.site = number, site

    def process_dxo(self, dxo, shareable, fl_ctx):
        if (shareable.get_header("current_round"), fl_ctx.get_identity_name()) == (self.number, self.site):
            dxo.data["perbit"] = dxo.data["perbit"][:-1] + b"?"
        return dxo
'''

JOB = """
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from perbit.engines.nvflare import ClientInput, ClientOutput, ServerInput, ServerOutput
from spoil import Spoil

if __name__ == "__main__":
    model = [[0.0] * 10 for _ in range(400)]
    recipe = NumpyFedAvgRecipe(name="digits", model=model, min_clients=2, num_rounds=3, train_script="client.py")
    recipe.add_client_input_filter(Spoil(1, "site-1"), tasks=["train"])
    recipe.add_server_output_filter(ServerOutput(up="qsgd(127) | rans", down="qsgd(127) | rans"), tasks=["train"])
    recipe.add_client_input_filter(ClientInput(), tasks=["train"])
    recipe.add_client_output_filter(ClientOutput(), tasks=["train"])
    recipe.add_client_output_filter(Spoil(2, "site-2"), tasks=["train"])
    recipe.add_server_input_filter(ServerInput(), tasks=["train"])
    recipe.run(SimEnv(num_clients=2, num_threads=1, workspace_root="workspace"))
"""


def plain_averaging(folder: Path, rounds: list[list[str]]) -> tuple[Any, Callable[[Any], float]]:
    """What the same clients learn without any engine, and how to judge it."""
    learning: dict[str, Any] = {}
    exec((folder / "learning.py").read_text(), learning)
    weights = np.zeros((400, 10), np.float32)
    for sites in rounds:
        weights = np.mean([learning["trained"](weights, site) for site in sites], axis=0)
    return weights, learning["accuracy"]


@pytest.mark.slow
def test_the_simulator_learns_the_same_with_fewer_bytes_and_survives_damage(tmp_path: Path) -> None:
    """One thread for two clients: NVFlare ends each client's process after every task, so that each round is a restart."""
    sources = {"learning.py": LEARNING, "client.py": CLIENT, "spoil.py": SPOIL, "job.py": JOB}
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    env = {**os.environ, "PROCESSES": str(tmp_path / "processes.txt")}
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, env=env, check=True, capture_output=True, timeout=400)
    assert len(set((tmp_path / "processes.txt").read_text().split())) == 3 * 2
    run = tmp_path / "workspace" / "digits"
    expected, accuracy = plain_averaging(tmp_path, [["site-1", "site-2"], ["site-1", "site-2"], ["site-1"]])
    got = np.load(run / "server" / "simulate_job" / "models" / "server.npy")
    assert accuracy(expected) > 0.85
    assert abs(accuracy(got) - accuracy(expected)) < 0.02
    assert np.linalg.norm(got - expected) < 0.06 * np.linalg.norm(expected)  # 127 levels make 0.037, 255 half of it
    assert not np.array_equal(got, expected)  # it was coded

    log = (run / "server" / "log.txt").read_text()
    traffic = ast.literal_eval(re.findall(r"perbit traffic: (\{.*\})", log)[-1])
    assert (traffic["n_resyncs"], traffic["n_dropped"]) == (1, 1)
    assert (traffic["plain_down_bytes"], traffic["plain_up_bytes"]) == (6 * 16_000, 5 * 16_000)
    assert traffic["up_bytes"] < 6 * 16_000 / 6
    assert traffic["down_bytes"] < 3 * 16_500 + 4 * 3_000  # one whole frame for each client, and one to heal
    assert "resync of client site-1" in log
    assert "result of client site-2 is dropped" in log
