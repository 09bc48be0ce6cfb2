"""NVFlare: four filters between its real messages, whatever is lost, repeated, damaged or restarted."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from perbit.session import ResyncNeeded

pytest.importorskip("nvflare")

from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable

from nvflare_federation import Federation, flipped, frame_of, model, step_by, task_of, with_frame
from perbit.engines.nvflare.filters import FRAME


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
