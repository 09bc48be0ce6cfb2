"""What nodes remember goes when the run ends, and nothing else ever goes; perbit's mod has its place among others."""

# ruff: noqa: F401, F811 - fixtures are imported to be found by their names

from __future__ import annotations

import gc
import logging
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from flower_network import Network, app_of, first_model, messages, network, start
from perbit.engines.flower import CompressedGrid, folders, perbit_mod

LONG_AGO = time.time() - folders.LONG_OVER - 100


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def counting(calls: list[int]) -> Any:
    """A mod that sees what reaches the app."""

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        calls.append(context.node_id)
        return call_next(message, context)

    return mod


# --- the end of a run -------------------------------------------------------------------------------------------------


def test_at_the_end_the_nodes_delete_what_they_remember(tmp_path: Path) -> None:
    calls: list[int] = []
    network = Network(app_of(perbit_mod(tmp_path), counting(calls)))
    with CompressedGrid(network) as grid:
        start(grid, rounds=2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["7-1", "7-2"]
    assert not list(tmp_path.iterdir())
    assert len(calls) == 2 * 2 * 2  # training and evaluation; the app knows nothing of goodbyes
    assert all("perbit" not in context.state for context in network.contexts.values())


def test_a_grid_that_nobody_closes_says_goodbye_too(network: Network, tmp_path: Path) -> None:
    start(CompressedGrid(network))
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_nodes_that_failed_are_told_as_well(tmp_path: Path) -> None:
    def fail(message: Message, context: Context, call_next: Any) -> Message:
        raise RuntimeError("no data")

    with CompressedGrid(Network(app_of(perbit_mod(tmp_path), fail))) as grid:
        list(grid.send_and_receive(messages(1, 2), timeout=5))
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_goodbyes_can_be_left_out(network: Network, tmp_path: Path) -> None:
    with CompressedGrid(network, goodbye_seconds=0) as grid:
        start(grid)
    assert len(list(tmp_path.iterdir())) == 2


def test_nodes_that_are_gone_are_not_waited_for(network: Network, tmp_path: Path) -> None:
    with CompressedGrid(network) as grid:
        start(grid)
        network.get_node_ids = lambda: [2]  # type: ignore[method-assign]
        sent = len(network.down_bytes)
    assert len(network.down_bytes) == sent + 1
    assert [path.name for path in tmp_path.iterdir()] == ["7-1"]


def test_a_run_whose_network_is_down_ends_in_peace(network: Network, log: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Iterable[str]:
        raise ConnectionError("the SuperLink is gone")

    with CompressedGrid(network) as grid:
        start(grid)
        network.push_messages = fail  # type: ignore[method-assign]
    assert "the SuperLink is gone" in log.text


def test_a_closed_grid_starts_anew(network: Network, tmp_path: Path) -> None:
    grid = CompressedGrid(network)
    start(grid, rounds=1)
    grid.close()
    replies = list(grid.send_and_receive(messages(1, 2, value=3), timeout=5))
    assert all(reply.has_content() for reply in replies)
    assert grid.traffic.n_resyncs == 0  # no request, no refusal: the whole model at once
    grid.close()
    assert not list(tmp_path.iterdir())


# --- folders ----------------------------------------------------------------------------------------------------------


def aged(folder: Path, seconds: float = LONG_AGO) -> Path:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (seconds, seconds))
    return folder


def made(folder: Path, *names: str, mark: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name in (*names, *([folders.MARK] if mark else [])):
        (folder / name).write_bytes(b"x")
    return folder


def test_only_old_folders_of_ours_are_swept(tmp_path: Path, network: Network) -> None:
    """Runs whose end a node missed; anybody else's files stay, whatever their names."""
    swept = aged(made(tmp_path / "1-1", "state-0.npz", "state-1.npz", "anchor-0a1b.npz", ".state-0.npz.a1b2c3d4"))
    unmarked = aged(made(tmp_path / "2-2", "state-0.npz", mark=False))
    shared = aged(made(tmp_path / "3-3", "state-0.npz", "thesis.npz"))
    other_name = aged(made(tmp_path / "results", "state-0.npz"))
    young = aged(made(tmp_path / "4-4", "state-0.npz"), time.time() - 3600)
    (tmp_path / "5-5.npz").write_bytes(b"x")
    os.utime(tmp_path / "5-5.npz", (LONG_AGO, LONG_AGO))
    elsewhere = aged(made(tmp_path.parent / f"{tmp_path.name}-elsewhere", "state-0.npz"))
    (tmp_path / "6-6").symlink_to(elsewhere)
    start(CompressedGrid(network, goodbye_seconds=0), rounds=1)
    assert not swept.exists()
    assert (unmarked / "state-0.npz").exists()
    assert [path.name for path in sorted(shared.iterdir())] == [folders.MARK, "thesis.npz"]
    assert (other_name / "state-0.npz").exists()
    assert (young / "state-0.npz").exists()
    assert (tmp_path / "5-5.npz").exists()
    assert (elsewhere / "state-0.npz").exists()


def test_folders_are_private(network: Network, tmp_path: Path) -> None:
    start(CompressedGrid(network, goodbye_seconds=0), rounds=1)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o700}


def test_a_folder_that_was_there_is_used_and_stays(network: Network, tmp_path: Path) -> None:
    made(tmp_path / "7-1", "notes.txt", mark=False)
    with CompressedGrid(network) as grid:
        start(grid)
    assert "notes.txt" in {path.name for path in (tmp_path / "7-1").iterdir()}


def test_the_folder_can_be_chosen_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERBIT_STATE", str(tmp_path / "here"))
    assert folders.root_of(None) == tmp_path / "here"
    assert folders.root_of(tmp_path) == tmp_path
    monkeypatch.delenv("PERBIT_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folders.root_of(None) == tmp_path / "perbit"


def test_whatever_a_node_cannot_read_is_healed_by_a_whole_model(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = CompressedGrid(network)
    list(grid.send_and_receive(messages(1), timeout=5))
    session = perbit_mod.__globals__["ClientSession"]
    troubles = iter([OSError("input/output error")])

    def troubled(folder: Path, **more: Any) -> Any:
        for trouble in troubles:
            raise trouble
        return session(folder, **more)

    monkeypatch.setitem(perbit_mod.__globals__, "ClientSession", troubled)
    (reply,) = grid.send_and_receive(messages(1, value=1), timeout=5)
    assert reply.has_content()
    assert (grid.traffic.n_resyncs, grid.traffic.n_dropped) == (1, 0)


# --- beside other mods ------------------------------------------------------------------------------------------------


def clipped(*mods: Any) -> tuple[CompressedGrid, Any]:
    """Two rounds with Flower's own clipping mod."""
    grid = CompressedGrid(Network(app_of(*mods)), up="raw", down="raw")
    strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.01, 5.0, 2)
    return grid, strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=2, timeout=5)


def test_mods_after_perbits_see_models(tmp_path: Path) -> None:
    grid, result = clipped(perbit_mod(tmp_path), fixedclipping_mod)
    assert grid.traffic.n_dropped == 0
    assert result.arrays["w"].numpy().any()


def test_mods_before_perbits_fail_with_the_advice(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    grid, _ = clipped(fixedclipping_mod, perbit_mod(tmp_path))
    assert grid.traffic.n_dropped == 4
    failures = [record.message for record in log.records if "failed" in record.message]
    assert failures
    assert all("perbit_mod() must be the first of mods" in message for message in failures)
