"""Federated runs: every byte is in the ledger, the same seed gives the same run, and a killed one goes on as if nothing had been."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.errors import PerbitError
from perbit.files import FileError
from perbit.randomness import fold
from perbit.sim.data import DataError
from perbit.sim.federated import Method, Progress, Task, ledger, local, run, tensors, world
from perbit.sim.federated.ledger import Lines
from perbit.sim.federated.optimiser import Moments, step
from perbit.sim.federated.rounds import Federation
from perbit.sim.federated.settings import SettingsError
from perbit.sim.models import ModelError

torch = pytest.importorskip("torch")

SMALL = Task(
    data="digits", model="mlp", partition="dirichlet(0.5)", clients=4, rounds=4, train_samples=160, test_samples=100
)
TOPK = Method("topk", "co3", "topk(0.05) | qsgd(7) | rans", small="same", options={"decay": 1.0})
METHODS = [
    Method("float32"),
    TOPK,
    Method("small", "fedavg", "uniform(4) | rans", small="fp16"),
    Method("mcm", "mcm", "qsgd(15) | rans", "qsgd(15) | rans"),
    Method("squeeze", "double_squeeze", "topk(0.1)", "topk(0.1)"),
    Method("randomised", "rand_mcm", "qsgd(15) | rans", "qsgd(15) | rans"),
]


class BatchNormMLP(torch.nn.Sequential):
    """Float buffers and an integer counter."""

    def __init__(self) -> None:
        layers = (torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
        super().__init__(torch.nn.Flatten(), *layers)


class NormFirst(torch.nn.Sequential):
    """Batch norm of the pixels themselves, of which those in the corners are always dark."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))


def models_into(seen: list[Any]) -> Any:
    """Something that watches a run and keeps its models."""
    return lambda now, federation: seen.append(federation.server.flat)


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same in two runs with one seed: everything but measured times."""
    return {name: (folder / name).read_bytes() for name in ("ledger.jsonl", "result.json")}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_byte_is_in_the_ledger(method: Method, tmp_path: Path) -> None:
    task = replace(SMALL, per_round=3)
    outcome = run(task, method, 1, tmp_path)
    lines = list(ledger.read(tmp_path / "ledger.jsonl"))
    for direction, most in (("up", 250), ("down", 1500)):  # headers and checksums; a first message also has the terms
        of = [line for line in lines if line["direction"] == direction]
        assert sum(line["n_bytes"] for line in of) == outcome[f"bytes_{direction}"] > 0
        assert all(0 <= line["n_bytes"] - sum(line["tensors"].values()) < most for line in of)
    assert Counter(line["round"] for line in lines if line["direction"] == "up") == dict.fromkeys(range(1, 5), 3)
    assert outcome["history"][-1]["bytes_up"] == outcome["bytes_up"]


def test_training_learns_and_compression_pays(tmp_path: Path) -> None:
    task = replace(SMALL, train_samples=0, test_samples=0, partition="iid", rounds=6, momentum=0.9)
    plain, sparse = (run(task, method, 0, tmp_path / method.name) for method in (METHODS[0], TOPK))
    assert plain["history"][-1]["accuracy"] > 0.85
    assert sparse["history"][-1]["accuracy"] > 0.7
    assert sparse["bytes_up"] * 20 < plain["bytes_up"]
    assert plain["n_parameters"] == 4810
    assert all(0.1 <= fit["beta"] <= 10 for fit in plain["fits"])


@pytest.mark.parametrize("method", METHODS[1:4], ids=lambda method: method.name)
def test_same_seed_same_files(method: Method, tmp_path: Path) -> None:
    task = replace(SMALL, rounds=2)
    for name in "ab":
        run(task, method, 3, tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert (
        run(task, method, 4, tmp_path / "c")["model_sha256"]
        != json.loads(files(tmp_path / "a")["result.json"])["model_sha256"]
    )


class Killed(BaseException):
    """Stands for kill -9: nothing gets a chance to tidy up."""


def _killer(last: int) -> Any:
    def kill(now: Progress, federation: Federation) -> None:
        if now.done == last:
            raise Killed

    return kill


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_resumed_like_uninterrupted(method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perbit.sim.federated.runs.SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    monkeypatch.setattr("perbit.sim.federated.runs.SHARE_OF_CHECKPOINTS", float("inf"))
    server = "adam" if method is TOPK else "sgd"
    task = replace(SMALL, per_round=3, server=server, server_rate=0.1, server_momentum=0.5)
    run(task, method, 2, tmp_path / "whole")

    for last in (1, 3):  # the ledger has the lines of this round, the checkpoint is not written yet
        with pytest.raises(Killed):
            run(task, method, 2, tmp_path / "killed", resume=True, watch=_killer(last))
    run(task, method, 2, tmp_path / "killed", resume=True)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(SMALL, TOPK, 0, tmp_path)

    def never(_: Progress) -> None:
        raise AssertionError

    assert run(SMALL, TOPK, 0, tmp_path, resume=True, watch=never) == first


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    run(SMALL, TOPK, 0, tmp_path, until=1)
    with pytest.raises(FileError, match="another run"):
        run(SMALL, METHODS[0], 0, tmp_path, resume=True)


def test_batch_norm_buffers_travel(tmp_path: Path) -> None:
    """Running statistics go with the model, the number of batches exactly, in a frame of its own."""
    task = replace(SMALL, model=f"{__name__}:BatchNormMLP", batch=16)
    outcome = run(task, TOPK, 0, tmp_path, dump_frames=True)
    lines = list(ledger.read(tmp_path / "ledger.jsonl"))
    counted = [line for line in lines if "2.num_batches_tracked" in line["tensors"]]
    assert {line["direction"] for line in counted} == {"up", "down"}
    assert all("2.running_mean" in line["tensors"] for line in lines)
    assert outcome["n_values"] == outcome["n_parameters"] + 32
    frames = sorted((tmp_path / "frames").glob("*.pbit"))
    inside = sum(len(frame.read_bytes()) for frame in frames)
    assert (
        0 < outcome["bytes_up"] + outcome["bytes_down"] - inside < 1500 * task.clients
    )  # envelopes, and the terms once
    last = perbit.loads(max(path for path in frames if "up-1" in path.name).read_bytes())
    assert last["2.num_batches_tracked"].dtype == np.int64
    assert last["2.num_batches_tracked"] >= task.rounds


def test_gradient_per_step_and_fedprox(tmp_path: Path) -> None:
    gradient = replace(SMALL, local_epochs=0, server_rate=0.3, rounds=20, evaluate_every=10, partition="iid")
    outcome = run(gradient, METHODS[0], 0, tmp_path / "gradient")
    assert [point["round"] for point in outcome["history"]] == [0, 10, 20]
    assert outcome["history"][-1]["accuracy"] > outcome["history"][0]["accuracy"] + 0.2
    tied = run(replace(SMALL, prox=10.0, rounds=1), METHODS[0], 0, tmp_path / "tied")
    free = run(replace(SMALL, rounds=1), METHODS[0], 0, tmp_path / "free")
    assert tied["model_sha256"] != free["model_sha256"]


def test_local_steps_are_a_part_of_an_epoch_or_several(tmp_path: Path) -> None:
    """40 samples a client are two mini-batches of at most 32."""
    task = replace(SMALL, partition="iid", rounds=2)
    models = {
        name: run(replace(task, **change), METHODS[0], 0, tmp_path / name)["model_sha256"]
        for name, change in {
            "one epoch": {"local_epochs": 1},
            "two steps": {"local_steps": 2},
            "one step": {"local_steps": 1},
            "two epochs": {"local_epochs": 2},
            "four steps": {"local_steps": 4, "local_epochs": 0},
        }.items()
    }
    assert models["two steps"] == models["one epoch"]
    assert models["four steps"] == models["two epochs"]
    assert models["one step"] != models["one epoch"]


def test_the_schedule_moves_the_rate_that_learns() -> None:
    gradients = Task(rounds=4, local_epochs=0, server_rate=2.0, rate=5.0, schedule="cosine")
    assert [gradients.in_round(n).server_rate for n in (1, 3)] == pytest.approx([2.0, 1.0])
    assert gradients.in_round(3).rate == 5.0
    epochs = replace(gradients, local_steps=3)
    assert [epochs.in_round(n).rate for n in (1, 3)] == pytest.approx([5.0, 2.5])
    assert epochs.in_round(3).server_rate == 2.0
    assert replace(epochs, schedule="constant").in_round(3).rate == 5.0


def test_a_cosine_shrinks_the_last_steps(tmp_path: Path) -> None:
    steps: dict[str, list[float]] = {}
    for schedule in ("constant", "cosine"):
        seen: list[Any] = []
        run(replace(SMALL, rounds=8, schedule=schedule), METHODS[0], 0, tmp_path / schedule, watch=models_into(seen))
        steps[schedule] = [float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(seen)]
    assert steps["cosine"][-1] < steps["constant"][-1] / 5


def test_tensors_of_the_whole_model_compete(tmp_path: Path) -> None:
    """One per cent of all values is sent, and not one per cent of each tensor."""
    method = Method("whole", "co3", "topk(0.01)", small="same", options={"decay": 1.0}, whole_model=True)
    run(replace(SMALL, rounds=1), method, 0, tmp_path, dump_frames=True)
    frame = perbit.loads(min(tmp_path.glob("frames/*up-0.pbit")).read_bytes())
    kept = {name: np.count_nonzero(values) / values.size for name, values in frame.items()}
    n_kept, n = sum(map(np.count_nonzero, frame.values())), sum(values.size for values in frame.values())
    assert n_kept == pytest.approx(0.01 * n, abs=1)
    assert max(kept.values()) > 0.05


class ViewingConv(torch.nn.Module):
    """Flattens with `view`, as many do: that needs contiguous memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(1, 3, 3), torch.nn.Linear(108, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x.reshape(-1, 1, 8, 8))
        return self.head(y.view(y.size(0), -1))


def test_own_models_keep_their_memory_format(tmp_path: Path) -> None:
    task = replace(SMALL, model="test_federated:ViewingConv", rounds=1)
    assert run(task, METHODS[0], 0, tmp_path)["done"] == 1


def test_the_memory_format_of_torch_does_not_show() -> None:
    plain = torch.nn.Conv2d(3, 4, 5)
    turned = torch.nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)
    tensors.put(turned, tensors.floats(plain))
    for name, values in tensors.floats(turned).items():
        assert values.flags.c_contiguous
        assert values.tobytes() == tensors.floats(plain)[name].tobytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 160, "partition": "iid"}, "single sample to client 0, 1, 2, 3, 4 …"),
        ({"batch": 1}, "batches of at least 2"),
    ],
)
def test_batch_norm_needs_two_samples(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    task = replace(SMALL, model="test_federated:BatchNormMLP", **change)
    with pytest.raises(SettingsError, match=said):
        run(task, Method("float32"), 0, tmp_path)
    assert not list(tmp_path.iterdir())


def test_clients_count_by_their_samples(tmp_path: Path) -> None:
    """One round without compression, worked out by hand: the mean of the local models, weighted by samples."""
    task = replace(SMALL, rounds=1)
    place = world.build(task, 1)
    before, after = place.first, []
    for client in range(task.clients):
        tensors.put(place.network, before)
        local.train(place.network, place.data, place.parts[client], task, fold(fold(fold(1, 1), 3), client))
        after.append({name: value.astype(np.float64) for name, value in tensors.floats(place.network).items()})
    sizes = [len(part) for part in place.parts]
    assert len(set(sizes)) > 1
    for weights, of in (("samples", sizes), ("equal", [1] * 4)):
        seen: list[Any] = []
        run(replace(task, weights=weights), Method("float32"), 1, tmp_path / weights, watch=models_into(seen))
        want = {name: np.average([model[name] for model in after], axis=0, weights=of) for name in before}
        np.testing.assert_allclose(seen[-1], np.concatenate([want[name].reshape(-1) for name in want]), atol=1e-6)


def test_a_budget_holds_for_every_message(tmp_path: Path) -> None:
    method = Method(
        "budget", "co3", "topk(?) | mwl2(2, 2) | rans", small="same", options={"decay": 1.0}, budget_bits=4000
    )
    run(SMALL, method, 0, tmp_path, dump_frames=True)
    sizes = [path.stat().st_size for path in tmp_path.glob("frames/*up-0.pbit")]
    assert len(sizes) == 16
    assert 0.9 * 500 <= min(sizes) <= max(sizes) <= 500


def test_divergence_is_an_outcome(tmp_path: Path) -> None:
    outcome = run(replace(SMALL, rate=1e12, rounds=6), METHODS[0], 0, tmp_path)
    assert outcome["diverged"]
    assert outcome["done"] < 6


def test_server_optimisers_leave_buffers_alone() -> None:
    mean, mask = np.array([1.0, -2.0, 4.0]), np.array([True, True, False])
    change, moments = step(Task(server_rate=0.5, server_momentum=0.5), mask, Moments(), mean)
    assert change.tolist() == [-0.5, 1.0, -4.0]
    change, _ = step(Task(server_rate=0.5, server_momentum=0.5), mask, moments, mean)
    assert change.tolist() == [-0.75, 1.5, -4.0]
    change, moments = step(Task(server="adam", server_rate=0.1), mask, Moments(), mean)
    assert np.allclose(change, [-0.1, 0.1, -4.0], atol=1e-3)
    assert moments.steps == 1


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"data": "digit"}, DataError, "did you mean digits"),
        ({"data": "./nowhere.svm"}, DataError, "there is no data set"),
        ({"model": "resnet21"}, ModelError, "did you mean resnet20"),
        ({"model": "ncf"}, ModelError, "needs users and items"),
        ({"partition": "natural"}, PerbitError, "no natural groups"),
        ({"clients": 1000, "partition": "iid"}, PerbitError, "too few"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    changed: Any, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said) as caught:
        run(replace(SMALL, **changed), TOPK, 0, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Task(rounds=0), "rounds"),
        (lambda: Task(per_round=11), "per_round"),
        (lambda: Task(server="lion"), "server"),  # type: ignore[arg-type]
        (lambda: Task(schedule="linear"), "schedule"),  # type: ignore[arg-type]
        (lambda: Task(local_steps=-1), "local_steps"),
        (lambda: Method("a", up="qsgd(7) | rans", whole_model=True), "whole_model"),
        (lambda: Method("a", up="topk(?)", budget_bits=4000, whole_model=True), "whole_model"),
        (lambda: Method("a", "mcn"), "protocol"),
        (lambda: Method("a", up="topk(0.1) | rans"), "up"),
        (lambda: Method("a", "co3", options={"gamma": 1.0}), "gamma"),
        (lambda: Method("a", "co3", options={"decay": "much"}), "decay"),
    ],
)
def test_settings_name_the_key(make: Any, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make()
    assert caught.value.key == key


def test_lines_are_whole_even_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines(tmp_path / "ledger.jsonl")
    lines.append([{"round": 1}])
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", _full_after(3))
        with pytest.raises(FileError, match="No space left"):
            lines.append([{"round": 2}])
    assert (tmp_path / "ledger.jsonl").read_bytes() == whole
    lines.append([{"round": 2}])
    assert [line["round"] for line in ledger.read(tmp_path / "ledger.jsonl")] == [1, 2]


def _full_after(n_bytes: int) -> Any:
    """Path.open for a disk that takes so many bytes."""
    really_open = Path.open

    def opened(self: Path, *arguments: Any) -> Any:
        file = really_open(self, *arguments, buffering=0)
        write = file.write

        class Full:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def write(self, data: bytes) -> None:
                write(data[:n_bytes])
                raise OSError(28, "No space left on device")

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return Full()

    return opened


@pytest.mark.parametrize("protocol", ["co3", "double_squeeze"])
def test_no_variance_below_zero_is_tested(protocol: str, tmp_path: Path) -> None:
    """A dark pixel's variance nears zero while what the coarse codec owes does not; below zero, batch norm would test to NaN."""
    task = replace(SMALL, model="test_federated:NormFirst", rounds=40)
    up, small = "topk(0.05) | qsgd(7) | rans", "uniform(2) | rans"
    coarse = Method("coarse", protocol, up, "raw" if protocol == "co3" else up, small, options={"decay": 1.0})
    lowest: list[float] = []

    def look(now: Progress, federation: Federation) -> None:
        lowest.append(float(federation.server.tensors["1.running_var"].min()))

    outcome = run(task, coarse, 0, tmp_path, watch=look)
    assert all(point["loss"] is not None for point in outcome["history"])
    assert min(lowest) < 0  # it did go there
