"""NVFlare: four filters between its real messages: rounds of several clients, their bytes, and every kind of content."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit.protocols.downlinks import Versions

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_copy

from nvflare_federation import Federation, frame_of, model, over_the_wire, step_by, task_of
from perbit.engines.nvflare import ServerOutput
from perbit.engines.nvflare.filters import FRAME, TRAFFIC

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
    code = Versions._step
    monkeypatch.setattr(Versions, "_step", lambda self, *args: coded.append(1) or code(self, *args))
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
    digests = {federation.side.session.digest(name) for name in federation.clients}
    assert len(digests) == 2
    assert federation.traffic.n_resyncs == 0


def test_tasks_for_many_clients_at_the_same_time(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 8)
    for round_ in range(3):
        task = task_of(model(round_ / 3))
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda name: federation.exchange(name, task, step_by(1.0)), federation.clients))  # noqa: B023
        assert len(done) == 8
    traffic = federation.traffic
    assert traffic.plain_down_bytes == traffic.plain_up_bytes == 3 * 8 * (40 * 50 * 4 + 5 * 8 + 8 + 2)
    assert traffic.n_resyncs == traffic.n_dropped == traffic.n_stale == 0


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


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_results_of_some_tensors_are_coded_too(tmp_path: Path, kind: str) -> None:
    """As personal layers and frozen backbones make them: the workflow gets these tensors, and only their bytes count."""
    federation = Federation(tmp_path, 1, up="uniform(8) | rans")
    way = np.linspace(0.5, 1, 2000, dtype=np.float32).reshape(40, 50)
    for round_ in range(3):
        before = perbit.session.Traffic(**vars(federation.traffic))
        received = federation.arrived("site-0", federation.down("site-0", task_of(model(round_ / 3, round_))))
        start = {"w": 0, "steps": 0} if kind == DataKind.WEIGHT_DIFF else received
        answer = federation.answer("site-0", {"steps": start["steps"] + np.array(1), "w": start["w"] + way}, kind)
        assert len(frame_of(answer)) < 40 * 50 * 4 / 3.5
        got = federation.up("site-0", answer)
        assert (got.data_kind, list(got.data)) == (kind, ["w", "steps"])
        sent = 0 if kind == DataKind.WEIGHT_DIFF else model(round_ / 3)["w"]
        assert np.abs(got.data["w"] - sent - way).max() < 0.01
        assert got.data["steps"] == (1 if kind == DataKind.WEIGHT_DIFF else 2**60 + round_ + 1)
        assert federation.traffic.plain_up_bytes - before.plain_up_bytes == 40 * 50 * 4 + 8
        assert federation.in_step("site-0")
    assert federation.traffic.n_dropped == 0


def test_a_difference_of_truth_values_says_which_are_flipped(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1, up="raw")
    received = federation.arrived("site-0", federation.down("site-0", task_of(model(1))))
    change = {name: np.zeros_like(x) for name, x in received.items()} | {"mask": np.array([True, True])}
    got = federation.up("site-0", federation.answer("site-0", change, DataKind.WEIGHT_DIFF)).data
    assert got["mask"].tolist() == [True, True]
    assert (got["mask"].dtype, got["steps"]) == (np.bool_, 0)


def test_a_model_that_a_server_optimiser_made_float64_goes_and_counts_as_float32(tmp_path: Path) -> None:
    federation, sizes = Federation(tmp_path, 1), []
    for value, dtype in ((0.1, np.float32), (0.2, np.float64), (0.3, np.float64)):
        message = federation.down("site-0", task_of({"w": np.full((40, 50), value, dtype)}))
        sizes.append(len(frame_of(message)))
        received = federation.arrived("site-0", message)
        assert received["w"].dtype == np.float32
        federation.up("site-0", federation.answer("site-0", {"w": (received["w"] + 1).astype(dtype)}))
    assert max(sizes[1:]) < sizes[0] / 10  # and no second full frame
    assert federation.traffic.plain_down_bytes == federation.traffic.plain_up_bytes == 3 * 40 * 50 * 4


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
        other = federation.answer("site-0", {"w": received["w"].T})
    assert "goes to site-0 as it is" in caplog.text
    assert "goes to the server as it is" in caplog.text
    before = federation.traffic.up_bytes
    assert np.array_equal(federation.up("site-0", other).data["w"], received["w"].T)
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
    assert federation.failed("site-0").get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    federation.exchange("site-0", task_of(model(2)), step_by(1.0))


def test_a_spec_that_cannot_be_read_is_refused_where_the_job_is_written() -> None:
    with pytest.raises(perbit.SpecError):
        ServerOutput(up="topq(0.1)")
    with pytest.raises(perbit.SpecError, match="no protocol"):
        ServerOutput("mmc")
