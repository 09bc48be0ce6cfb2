"""NVFlare: four filters between its real messages, whatever is lost, repeated, damaged or restarted."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.session import ResyncNeeded
from perbit.session.envelope import ask_for_resync

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable

from nvflare_federation import Engine, Federation, flipped, frame_of, model, step_by, task_of, with_frame
from perbit.engines.nvflare import ServerOutput
from perbit.engines.nvflare.filters import FRAME, RESYNC
from perbit.engines.nvflare.settings import key_from
from perbit.engines.nvflare.sides import ClientSide, ServerSide


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
    federation.lose_state("site-0")
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
    federation.lose_state("site-0")
    engine = federation.clients["site-0"].engine
    server, engine.server = engine.server, None
    message = federation.down("site-0", task_of(model(0.6)))
    with pytest.raises(ResyncNeeded, match="holds no state"):
        federation.arrived("site-0", message)
    plain = from_shareable(federation.answer("site-0", model(1)))  # nothing was received, so nothing is answered
    assert FRAME not in plain.data
    engine.server = server
    federation.exchange("site-0", task_of(model(0.7)), step_by(1.0))


@pytest.mark.parametrize("what", ["damaged", "nonsense", "no bytes"])
def test_a_bad_answer_is_dropped_and_counted_and_only_that_client_is_concerned(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(tmp_path, 2)
    for value in (0.1, 0.2):
        for name in federation.clients:
            federation.exchange(name, task_of(model(value)), step_by(1.0))
    task = task_of(model(0.3))
    answer = federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", federation.down("site-0", task))))
    bad = {"damaged": flipped(answer), "nonsense": with_frame(answer, b"no frame"), "no bytes": with_frame(answer, 7)}
    with caplog.at_level(logging.WARNING):
        assert federation.up("site-0", bad[what]).data == {}
    assert "result of client site-0 is dropped" in caplog.text
    federation.exchange("site-1", task, step_by(1.0))
    assert federation.traffic.n_dropped == 1
    coded = federation.down("site-0", task_of(model(0.4)))  # as if the answer had been lost
    assert len(frame_of(coded)) < 40 * 50 * 2
    received = federation.arrived("site-0", coded)
    federation.up("site-0", federation.answer("site-0", step_by(1.0)(received)))
    assert federation.in_step("site-0")


POISON = np.full((40, 50), 1e6, np.float32)


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS])
@pytest.mark.parametrize("frame", ["damaged", "acknowledgement"])
def test_values_beside_a_frame_are_not_averaged(tmp_path: Path, frame: str, kind: str) -> None:
    """Metrics beside an acknowledgement are; nothing is beside a frame that was refused."""
    federation = Federation(tmp_path, 1)
    received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.1))))
    acknowledged = from_shareable(federation.answer("site-0", {"loss": 1.0}, DataKind.METRICS)).data[FRAME]
    held = {FRAME: acknowledged if frame == "acknowledgement" else acknowledged[:-1], **received, "w": POISON}
    got = federation.up("site-0", DXO(kind, held).to_shareable())
    may_pass = kind == DataKind.METRICS and frame == "acknowledgement"
    assert set(got.data) == (set(received) if may_pass else set())
    assert federation.traffic.n_dropped == (frame == "damaged")


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38], ids=str)
def test_what_comes_without_a_frame_must_be_fit_for_a_mean(tmp_path: Path, value: float) -> None:
    federation = Federation(tmp_path, 1)
    federation.down("site-0", task_of(model(0.1)))
    plain = DXO(DataKind.WEIGHTS, {"w": np.full((40, 50), value, np.float32)})
    assert federation.up("site-0", plain.to_shareable()).data == {}
    assert federation.traffic.n_dropped == 1
    federation.exchange("site-0", task_of(model(0.2)), step_by(1.0))


@pytest.mark.parametrize("steps", [-5, 0, float("nan"), 1e300, "many", [1]], ids=str)
def test_a_result_must_weigh_something(tmp_path: Path, steps: Any) -> None:
    federation = Federation(tmp_path, 1)
    received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.1))))
    answer = federation.answer("site-0", received, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: steps})
    assert federation.up("site-0", answer).data == {}
    assert federation.traffic.n_dropped == 1
    federation.exchange("site-0", task_of(model(0.2)), step_by(1.0))


def test_a_restarted_server_sends_everything_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    for value in (0.1, 0.2):
        federation.exchange("site-0", task_of(model(value)), step_by(1.0))
    federation.start_server()
    federation.restart("site-0")
    for value in (0.3, 0.4):
        federation.exchange("site-0", task_of(model(value)), step_by(1.0))


@pytest.mark.parametrize("when", ["between tasks", "with an answer under way"])
def test_a_server_with_a_folder_goes_on_after_a_restart(tmp_path: Path, when: str) -> None:
    federation = Federation(tmp_path, 1, up="qsgd(31) | rans", folder="run")
    for value in (0.1, 0.2):
        federation.exchange("site-0", task_of(model(value)), step_by(1.0))
    late = None
    if when == "with an answer under way":
        received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.25))))
        late = federation.answer("site-0", step_by(1.0)(received))
    federation.side.session.close()  # all that a killed process does: its lock goes
    federation.start_server()
    federation.restart("site-0")
    if late is not None:
        assert federation.up("site-0", late).data == {}
    frame = federation.down("site-0", task_of(model(0.3)))
    assert len(frame_of(frame)) < 40 * 50 * 2
    federation.up("site-0", federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", frame))))
    assert federation.in_step("site-0")
    assert federation.traffic.n_resyncs == 0
    federation.server.fire(EventType.END_RUN)
    assert not (tmp_path / "perbit-server").exists()


def test_a_question_before_the_first_task_after_a_restart_is_answered(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1, folder="run")
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    federation.side.session.close()
    federation.start_server()
    client = ClientSide(tmp_path / "elsewhere")
    received = client.session.receive(federation.side.resync("site-0", ask_for_resync(b"", "lost all")))
    answer = client.session.reply({**received, "w": received["w"] + 1})
    changed = federation.side.receive("site-0", answer, is_diff=True)
    assert changed is not None
    assert changed["w"].max() > 0.5  # the largest differences


@pytest.mark.parametrize("request_", [{}, {FRAME: b"no question"}, {FRAME: 7}], ids=str)
def test_a_hostile_question_is_answered_with_an_error(tmp_path: Path, request_: dict[str, Any]) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    replies = federation.clients["site-0"].engine.send_aux_request(
        [], RESYNC, Shareable(request_), 1.0, federation.clients["site-0"].engine.context()
    )
    assert replies["server"].get_return_code() == ReturnCode.BAD_REQUEST_DATA


def test_a_storm_of_resyncs_is_ended(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    federation.down("site-0", task_of(model(0.2)))
    before = federation.traffic.down_bytes
    for _ in range(50):
        with contextlib.suppress(perbit.DecodeError):
            federation.side.resync("site-0", ask_for_resync(b"", "more"))
    assert federation.traffic.n_resyncs == 3
    assert federation.traffic.down_bytes - before < 4 * 9000


def test_a_key_of_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIGITS_KEY", "ab" * 32)
    assert key_from("DIGITS_KEY") == b"\xab" * 32
    for value, said in (("", "is not set"), ("zz", "does not hold a key in hex")):
        monkeypatch.setenv("OTHER", value) if value else monkeypatch.delenv("OTHER", raising=False)
        with pytest.raises(perbit.SpecError, match=said):
            key_from("OTHER")
    side = ServerSide(ServerOutput(key_env="DIGITS_KEY")._session(Engine("server", tmp_path).context()))
    client = ClientSide(tmp_path / "client", key_from("DIGITS_KEY"))
    answer = client.session.reply(client.session.receive(side.send("site-0", model(0.1))))
    assert side.receive("site-0", answer, is_diff=False) is not None


def test_an_answer_that_comes_twice_or_late_is_left_out_and_costs_no_full_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.2))))
    late = federation.answer("site-0", step_by(1.0)(received))
    message = federation.down("site-0", task_of(model(0.3)))  # the workflow did not wait
    with caplog.at_level(logging.WARNING):
        assert federation.up("site-0", late).data == {}
    assert "it keeps its place" in caplog.text
    assert len(frame_of(message)) < 40 * 50 * 4 / 10
    answer = federation.answer("site-0", step_by(1.0)(federation.arrived("site-0", message)))
    assert abs(federation.up("site-0", answer).data["w"].mean() - 1.3) < 0.1
    assert federation.up("site-0", answer).data == {}
    assert federation.in_step("site-0")
    assert (federation.traffic.n_stale, federation.traffic.n_dropped, federation.traffic.n_resyncs) == (2, 0, 0)


# --- clients that never answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["failed", "disconnected", "plain"])
def test_nothing_is_kept_for_a_client_that_will_not_answer(tmp_path: Path, what: str) -> None:
    federation = Federation(tmp_path, 2)
    for name in federation.clients:
        federation.exchange(name, task_of(model(0.1)), step_by(1.0))
    message = federation.down("site-0", task_of(model(0.2)))
    assert list(federation.side._sent) == list(federation.side.session._pending) == ["site-0"]
    if what == "failed":
        federation.arrived("site-0", message)
        federation.failed("site-0")
    elif what == "disconnected":
        federation.server.fire(EventType.CLIENT_DISCONNECTED, **{FLContextKey.DISCONNECTED_CLIENT_NAME: "site-0"})
    else:
        federation.up("site-0", task_of(model(0.2)))
    assert federation.side._sent == federation.side.session._pending == {}
    assert len(frame_of(federation.down("site-0", task_of(model(0.3))))) < 40 * 50 * 4 / 10
    federation.exchange("site-0", task_of(model(0.3)), step_by(1.0))


def test_the_server_waits_for_the_last_two_models_only(tmp_path: Path) -> None:
    """However many clients time out: a model held for each would fill the memory of a long run."""
    federation = Federation(tmp_path, 12)
    for round_, name in enumerate(federation.clients):
        federation.down(name, task_of(model(round_ / 10)))
    assert list(federation.side._sent) == list(federation.side.session._pending) == ["site-10", "site-11"]
    assert len({id(sent) for sent in federation.side._sent.values()}) == 2


def test_a_client_whose_first_task_failed_takes_part_in_the_next_one(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    federation.arrived("site-0", federation.down("site-0", task_of(model(0.1))))
    federation.failed("site-0")
    federation.exchange("site-0", task_of(model(0.2)), step_by(1.0))


def test_a_resync_may_bring_a_newer_model_and_differences_are_from_that_one(tmp_path: Path) -> None:
    federation, up = Federation(tmp_path, 2, up="raw"), np.full((40, 50), 0.25, np.float32)
    first, second, third = (task_of({"w": model(value)["w"]}) for value in (0.1, 0.2, 5.0))
    for name in federation.clients:
        federation.exchange(name, first, lambda x: {"w": x["w"] + up})
    message = federation.down("site-0", second)
    federation.down("site-1", third)
    received = federation.arrived("site-0", flipped(message))
    assert np.array_equal(received["w"], model(5.0)["w"])
    got = federation.up("site-0", federation.answer("site-0", {"w": up}, DataKind.WEIGHT_DIFF)).data
    assert np.abs(got["w"] - up).max() < 1e-6


# --- the end of a run ----------------------------------------------------------------------------------------------------


def test_a_run_that_is_over_leaves_no_state_and_touches_nothing_else(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 2)
    for value in (0.1, 0.2):
        for name in federation.clients:
            federation.exchange(name, task_of(model(value)), step_by(1.0))
    log = tmp_path / "site-0" / "log.txt"
    log.write_text("a file of the run")
    assert len(list(federation.state("site-0").iterdir())) == 3
    federation.clients["site-0"].fire(EventType.END_RUN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site-0", "site-1"]
    assert list((tmp_path / "site-0").iterdir()) == [log]
    assert len(list(federation.state("site-1").iterdir())) == 3
    federation.clients["site-1"].fire(EventType.SWAP_OUT)  # the simulator goes on with another client
    assert len(list(federation.state("site-1").iterdir())) == 3


def test_files_of_others_in_the_state_folder_stay(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    (federation.state("site-0") / "notes.txt").write_text("mine")
    federation.clients["site-0"].fire(EventType.END_RUN)
    assert [path.name for path in federation.state("site-0").iterdir()] == ["notes.txt"]


def test_a_result_after_the_end_of_the_run_leaves_no_state(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 1)
    received = federation.arrived("site-0", federation.down("site-0", task_of(model(0.1))))
    federation.clients["site-0"].fire(EventType.END_RUN)
    assert FRAME not in from_shareable(federation.answer("site-0", received)).data
    assert not federation.state("site-0").exists()


def test_the_log_tells_the_traffic_at_the_end_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path, 1)
    federation.exchange("site-0", task_of(model(0.1)), step_by(1.0))
    with caplog.at_level(logging.INFO):
        federation.server.fire(EventType.END_RUN)
    assert f"perbit traffic: {federation.traffic.summary()}" in caplog.text
