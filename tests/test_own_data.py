"""Data, partition, loss, metric and training of the user's own: what works, and that every mistake is one sentence."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit.cli import main
from perbit.sim import partition
from perbit.sim.data import DataError, Dataset, load
from perbit.sim.federated import run, world
from perbit.sim.federated.settings import Method, SettingsError, Task
from perbit.sim.imports import OwnCodeError
from perbit.sim.partition import PartitionError

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (np.eye(3)[Y] + 0.1 * RNG.normal(size=(60, 3))).astype(np.float32)
CLIENT = np.repeat(["ann", "bob", "eve"], 20)

CODE = """
import numpy as np, torch
X, Y, CLIENT = (np.load("arrays.npz")[name] for name in ("x", "y", "client"))
def arrays(): return (X[:48], Y[:48], CLIENT[:48]), (X[48:], Y[48:])
def as_dict(): return {"x": X, "y": Y}
def tensors(): return torch.utils.data.TensorDataset(torch.tensor(X[:48]), torch.tensor(Y[:48])), (torch.tensor(X[48:]), torch.tensor(Y[48:]))
def numbers(): return {"x": X, "y": X.sum(axis=1)}
def nothing(): return None
def broken(): return 1 / 0
def halves(split, clients, seed): return np.array_split(np.arange(len(split)), clients)
def too_few(split, clients, seed): return [[0]]
def outside(split, clients, seed): return [[10 ** 6] for _ in range(clients)]
def doubled(outputs, y): return 2 * torch.nn.functional.cross_entropy(outputs, y)
def many(outputs, y): return outputs
def minus_error(outputs, y): return -float((outputs - y).square().mean())
def no_number(outputs, y): return "good"
def steps(model, samples, task, seed):
    optimiser = torch.optim.SGD(model.parameters(), lr=task.rate)
    for x, y in torch.utils.data.DataLoader(samples, task.batch):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
def stumbles(model, samples, task, seed):
    raise ValueError("no such thing")
class Line(torch.nn.Linear):
    def __init__(self): super().__init__(3, 1)
    def forward(self, x): return super().forward(x)[:, 0]
class Half(torch.nn.Linear):
    def __init__(self): super().__init__(3, 3, dtype=torch.bfloat16)
    def forward(self, x): return super().forward(x.bfloat16()).float()
class Moody(torch.nn.Linear):
    def __init__(self): super().__init__(3, 3)
    def forward(self, x):
        if self.training: raise RuntimeError("not today")
        return super().forward(x)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, with a module `own_code`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    world._data.cache_clear()
    np.savez("arrays.npz", x=X, y=Y, client=CLIENT)
    Path("own_code.py").write_text(CODE)
    return tmp_path


def task(**changes: Any) -> Task:
    return Task(**{"data": "own_code:arrays", "model": "logistic", "clients": 3, "rounds": 2, "rate": 1.0, **changes})


def outcome(folder: str = "run", **changes: Any) -> dict[str, Any]:
    return run(task(**changes), Method("float32"), 0, Path(folder))


def write_csv(labels: Any = Y, extra: str = "", marks: Any = None) -> None:
    rows = [
        ",".join([*map(str, x), str(y), *([] if marks is None else [str(marks[i])])])
        for i, (x, y) in enumerate(zip(X, labels, strict=True))
    ]
    Path("mine.csv").write_text("\n".join([f"a,b,c,y{extra}", *rows]) + "\n")


# --- what works ------------------------------------------------------------------------------------------------------


def test_arrays_in_a_file_and_their_test_part() -> None:
    whole = load("./arrays.npz")
    assert (len(whole.train), len(whole.test), whole.n_classes) == (48, 12, 3)
    np.savez("both.npz", x=X, y=Y, x_test=X[:5], y_test=Y[:5])
    assert (len(load("both.npz").train), len(load("both.npz").test)) == (60, 5)


def test_a_table_names_its_classes_clients_and_test_rows() -> None:
    write_csv(np.array(["red", "blue", "green"])[Y], extra=",test", marks=(np.arange(60) < 6).astype(int))
    data = load("mine.csv")
    assert (data.train.x.shape, len(data.test), data.n_classes) == ((54, 3), 6, 3)
    assert data.test.y.tolist() == [2, 0, 1, 2, 0, 1]  # blue, green, red
    write_csv(extra=",client", marks=CLIENT)
    assert set(load("mine.csv").train.group) == {"ann", "bob", "eve"}  # type: ignore[arg-type]


def test_parquet_where_pyarrow_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "y": Y.tolist()}
    table = types.SimpleNamespace(to_pydict=lambda: columns)
    parquet = types.SimpleNamespace(read_table=lambda path: table)
    Path("mine.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", types.SimpleNamespace(parquet=parquet, ArrowException=OSError))
    assert load("mine.parquet").train.x.shape == (48, 2)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install pyarrow"):
        load("mine.parquet")


@pytest.mark.parametrize("function", ["arrays", "as_dict", "tensors"])
def test_a_function_returns_arrays_a_dict_or_torch_datasets(function: str) -> None:
    data = load(f"own_code:{function}")
    assert (len(data.train), len(data.test), data.n_classes) == (48, 12, 3)


def test_items_of_a_torch_dataset_are_fetched_when_they_are_trained_with() -> None:
    data = load("own_code:tensors").head(8)
    assert np.array_equal(data.train.x[np.array([3, 1])], X[[3, 1]])
    same = outcome(data="own_code:tensors"), outcome("other", data="own_code:arrays")
    assert same[0]["model_sha256"] == same[1]["model_sha256"]


def test_a_libsvm_file_needs_no_folder_before_its_name() -> None:
    Path("mine.svm").write_text("".join(f"{i % 2} 1:{i} 2:{-i}\n" for i in range(60)))
    assert load("mine.svm").info.input_shape == load("./mine.svm").info.input_shape == (2,)


def test_bytes_are_standardised_as_brightnesses() -> None:
    np.savez("bytes.npz", x=RNG.integers(256, size=(40, 1, 4, 4)).astype(np.uint8), y=Y[:40])
    data = load("bytes.npz")
    assert (data.info.kind, data.info.input_shape) == ("image", (1, 4, 4))
    assert abs(float(data.prepare(np.asarray(data.train.x)).mean())) < 1e-5


def test_symbols_with_a_target_each_are_text() -> None:
    text = RNG.integers(7, size=(20, 6))
    np.savez("text.npz", x=text[:, :-1], y=text[:, 1:])
    assert (load("text.npz").info.kind, load("text.npz").n_classes) == ("text", 7)


def test_clients_of_the_data_are_a_natural_partition() -> None:
    parts = partition.partition("natural", load("./arrays.npz").train)
    assert len(parts) == 3


def test_an_own_partition() -> None:
    parts = partition.partition("own_code:halves", load("own_code:arrays").train, 2)
    assert [len(part) for part in parts] == [24, 24]


def test_an_own_loss_is_minimised() -> None:
    doubled, plain = outcome(loss="own_code:doubled", rate=0.5), outcome("other")
    assert doubled["history"][-1]["loss"] == pytest.approx(2 * plain["history"][-1]["loss"], rel=1e-5)


def test_an_own_metric_and_numbers_as_targets() -> None:
    own = {"loss": "torch.nn.functional:mse_loss", "metric": "own_code:minus_error"}
    done = outcome(data="own_code:numbers", model="own_code:Line", rate=0.01, rounds=3, **own)
    scores = [point["accuracy"] for point in done["history"]]
    assert scores[-1] > scores[0] < 0


def test_own_training_that_does_what_ours_does_ends_at_the_same_model() -> None:
    ours, own = outcome(batch=64), outcome("other", batch=64, train="own_code:steps")
    assert own["history"][-1]["loss"] == pytest.approx(ours["history"][-1]["loss"], rel=1e-5)
    assert own["bytes_up"] == ours["bytes_up"]


# --- mistakes --------------------------------------------------------------------------------------------------------


def saved(name: str = "bad.npz", **arrays: Any) -> str:
    np.savez(name, **arrays)
    return name


MISTAKES: dict[str, tuple[Callable[[], str], str]] = {
    "no file": (lambda: "./nowhere.npz", "there is no file ./nowhere.npz"),
    "no y": (lambda: saved(x=X), "y is missing"),
    "another name": (lambda: saved(x=X, y=Y, labels=Y), "'labels' is none of them"),
    "half a test": (lambda: saved(x=X, y=Y, x_test=X), "both x_test and y_test"),
    "lengths": (lambda: saved(x=X, y=Y[:9]), "the lengths are x 60, y 9"),
    "shapes": (lambda: saved(x=X, y=Y, x_test=X[:, :2], y_test=Y), "shape (3,) for training and (2,) in the test"),
    "few": (lambda: saved(x=X[:3], y=Y[:3]), "too few"),
    "texts": (lambda: saved(x=np.array(["a"] * 9), y=Y[:9]), "x must be an array of numbers"),
    "pickled": (lambda: saved(x=np.array([[1], [1, 2]], object), y=Y[:2]), "cannot read bad.npz"),
    "no module": (lambda: "no_such_module:data", "cannot be imported: No module named"),
    "no function": (lambda: "own_code:nowhere", "has no attribute 'nowhere'"),
    "no callable": (lambda: "own_code:X", "is a ndarray, not a function"),
    "returns none": (lambda: "own_code:nothing", "it returned nothing"),
    "fails": (lambda: "own_code:broken", "failed: ZeroDivisionError: division by zero (own_code.py, line 9)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_data_is_one_sentence(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, said = MISTAKES[mistake]
    assert main(["train", "--data", make(), "--model", "logistic", "--rounds", "1"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("perbit-runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "must have a column y"),
        ("a,y\n1,2\nb,3\n", "column a must hold numbers, and row 3 has 'b'"),
        ("a,y\n1\n", "row 2 has 1 cells, and there are 2 columns"),
        ("a,y\n", "a line for each sample"),
        ("y\n1\n", "columns of numbers beside y"),
    ],
)
def test_a_mistake_in_a_table_is_one_sentence(text: str, said: str) -> None:
    Path("mine.csv").write_text(text)
    with pytest.raises(DataError) as error:
        load("mine.csv")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partition": "own_code:too_few"}, "must return a list of 3 lists of sample numbers, one for each client; it returned 1 of them"),
        ({"partition": "own_code:outside"}, "from 0 to 47, and client 0 gets 1000000"),
        ({"loss": "own_code:many"}, "must return a tensor with one number, not shape"),
        ({"loss": "own_code:stumbles"}, "loss own_code:stumbles failed: TypeError"),
        ({"train": "own_code:stumbles"}, "train own_code:stumbles failed: ValueError: no such thing (own_code.py, line 24)"),
        ({"data": "own_code:numbers"}, "are no classes, so name a loss of your own"),
        ({"data": "own_code:numbers", "loss": "torch.nn.functional:mse_loss"}, "name a metric of your own"),
        ({"model": "own_code:Moody"}, "the model own_code:Moody cannot be trained: RuntimeError: not today (own_code.py, line 34)"),
        ({"model": "own_code:Half"}, "weight is bfloat16, and comparisons train float32"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_code_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((OwnCodeError, PartitionError, SettingsError, DataError)) as error:
        world.build(task(**changes), 0)
    assert said in str(error.value)


def test_a_metric_is_tried_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data", "own_code:arrays", "--model", "logistic", "--clients", "2", "--metric", "own_code:no_number"]
    assert main(["train", *options]) == 2
    assert "metric own_code:no_number must return one number, not a str" in capsys.readouterr().err
    assert not Path("perbit-runs").exists()


@pytest.mark.parametrize("key", ["loss", "metric", "train"])
def test_own_functions_are_import_paths(key: str) -> None:
    with pytest.raises(SettingsError, match=f'{key} must be "module:function"'):
        task(**{key: "cross entropy"})


def test_own_training_needs_local_training() -> None:
    with pytest.raises(SettingsError, match="train needs local_epochs or local_steps above 0"):
        task(train="own_code:steps", local_epochs=0)


@pytest.mark.parametrize("key", ["x", "y"])
def test_nan_in_the_data_is_named_before_the_first_round(key: str) -> None:
    bad: dict[str, Any] = {"x": X.copy(), "y": Y.astype(np.float32)}
    bad[key][7] = np.nan
    own = {"loss": "torch.nn.functional:mse_loss", "metric": "own_code:minus_error", "model": "own_code:Line"}
    with pytest.raises(DataError, match=f"{key} of the train part holds NaN or infinity in 1 of 48 samples"):
        world.build(task(data=saved(**bad), **own), 0)


# --- perbit init -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["table", "images", "text"])
def test_what_init_writes_runs_with_and_without_its_own_code(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main(["init", kind]) == 0
    whole = (
        Path("compare.toml").read_text().replace("clients = 10", "clients = 5\ntrain_samples = 200\ntest_samples = 100")
    )
    Path("compare.toml").write_text("[[methods]]".join(whole.split("[[methods]]")[:3]))
    short = ["--rounds", "1", "--seeds", "0", "--processes", "1", "--no-report", "--json"]
    capsys.readouterr()
    assert main(["compare", "compare.toml", *short, "-o", "plain"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    text = Path("compare.toml").read_text()
    for key in ("loss", "metric", "train"):
        text = text.replace(f"# {key} =", f"{key} =")
    at = text.index("partition = ")
    Path("own.toml").write_text(text[:at] + 'partition = "mine:partition"\n' + text[text.index("\n", at) + 1 :])
    assert main(["compare", "own.toml", *short, "-o", "own"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs[0]["task"]["train"] == "mine:train"
    assert not any(r["diverged"] for r in runs)


def test_init_replaces_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("mine")
    assert main(["init"]) == 2
    assert "mine.py exists already" in capsys.readouterr().err
    assert not Path("compare.toml").exists()
    assert Path("mine.py").read_text() == "mine"
    assert main(["init", "--force"]) == 0


def test_a_data_set_is_taken_as_it_is() -> None:
    Path("whole.py").write_text("from perbit.sim.data import digits\n")
    assert isinstance(load("whole:digits"), Dataset)
