"""What settings of a method and a task do to the messages and the training: small tensors, rules, clipped gradients."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import perbit
from perbit import plugins
from perbit.files import FileError
from perbit.sim.compare import config
from perbit.sim.compare.config import ConfigError
from perbit.sim.federated import Method, Task, local, run, tensors, world
from perbit.sim.federated.settings import SettingsError

torch = pytest.importorskip("torch")

SMALL = Task(data="digits", model="mlp", clients=4, rounds=2, train_samples=160, test_samples=100)


def specs_of(folder: Path, direction: str) -> dict[str, str]:
    """What each tensor of floats got in the last message; the first one down is the model itself."""
    frame = sorted((folder / "frames").glob(f"*-{direction}-0.pbit"))[-1]
    return {tensor["name"]: tensor["spec"] for tensor in perbit.inspect(frame.read_bytes())["tensors"]}


def test_what_goes_down_raw_is_exact_also_where_small_tensors_are_compressed_up(tmp_path: Path) -> None:
    method = Method("coarse biases", "co3", "uniform(4) | rans", small="fp(5, 2) | rans")
    run(SMALL, method, 0, tmp_path, dump_frames=True)
    assert set(specs_of(tmp_path, "down").values()) == {"raw"}
    assert set(specs_of(tmp_path, "up").values()) == {"uniform(4) | rans", "fp(5, 2) | rans"}


def test_a_compressed_downlink_has_its_small_tensors_too(tmp_path: Path) -> None:
    method = Method("both ways", "double_squeeze", "uniform(4) | rans", "uniform(6) | rans", small="fp16")
    run(SMALL, method, 0, tmp_path, dump_frames=True)
    assert set(specs_of(tmp_path, "down").values()) == {"uniform(6) | rans", "fp16"}


def test_rules_give_some_tensors_another_spec_on_the_way_up(tmp_path: Path) -> None:
    rules = {"*.weight size:..1000": "uniform(8) | rans", "*.bias": "fp16"}
    run(SMALL, Method("ruled", "co3", "uniform(4) | rans", rules=rules), 0, tmp_path, dump_frames=True)
    assert specs_of(tmp_path, "up") == {
        "1.weight": "uniform(4) | rans",
        "1.bias": "fp16",
        "3.weight": "uniform(8) | rans",
        "3.bias": "fp16",
    }
    assert set(specs_of(tmp_path, "down").values()) == {"raw"}


def test_a_method_with_rules_is_no_yardstick() -> None:
    assert Method("plain").is_float32
    assert not Method("ruled", rules={"*": "fp16"}).is_float32


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ('{ "size:x" = "raw" }', "no range"),
        ('{ "*" = "topk" }', "give a ratio or k"),
        ('{ "*" = 3 }', "must have a spec"),
        ('"raw"', "must be a table"),
    ],
)
def test_rules_that_cannot_be_used_are_named_by_line_and_key(rules: str, said: str) -> None:
    text = f'[task]\ndata = "digits"\n[[methods]]\nname = "x"\nrules = {rules}\n'
    with pytest.raises(ConfigError, match=f"my.toml, line 5, key rules: .*{said}"):
        config.parse(text, "my.toml")


@pytest.mark.parametrize("down", ["raw", "raw()", " raw"])
def test_small_tensors_of_a_raw_direction_are_exact_however_raw_is_written(down: str) -> None:
    method = Method("x", "co3", "uniform(4) | rans", down, small="fp16")
    assert str(method.make().downlink.channel.plan.codec_for("bias", (3,))) == "raw"


def test_a_spec_for_small_tensors_that_nobody_uses_is_refused() -> None:
    with pytest.raises(SettingsError, match="small is used nowhere"):
        Method("x", small="fp16")


def test_other_rules_or_another_order_are_another_run(tmp_path: Path) -> None:
    first = {"1.weight": "fp16", "*": "uniform(8) | rans"}
    again = dict(reversed(first.items()))
    one, two = (run(SMALL, Method("x", rules=rules), 0, tmp_path / str(i)) for i, rules in enumerate((first, again)))
    assert one["bytes_up"] != two["bytes_up"]
    with pytest.raises(FileError, match="holds a finished run with other settings"):
        run(SMALL, Method("x", rules=first), 0, tmp_path / "1", resume=True)


def test_topk_in_a_rule_may_compete_over_the_whole_model() -> None:
    assert Method("x", rules={"*.weight": "topk(0.05)"}, whole_model=True).make()


def test_rules_and_a_budget_go_together(tmp_path: Path) -> None:
    method = Method("x", up="topk(?) | fp16", budget_bits=64_000, rules={"3.weight": "bf16"})
    run(SMALL, method, 0, tmp_path, dump_frames=True)
    specs = specs_of(tmp_path, "up")
    assert specs.pop("1.weight").startswith("topk(")
    assert specs == {"1.bias": "raw", "3.weight": "bf16", "3.bias": "raw"}
    sizes = [path.stat().st_size for path in (tmp_path / "frames").glob("*-up-0.pbit")]
    assert all(7500 <= size <= 8000 for size in sizes)


def test_a_share_of_the_whole_model_and_a_budget_do_not() -> None:
    with pytest.raises(SettingsError, match="whole_model cannot be joined with budget_bits"):
        Method("x", up="topk(?) | fp16", budget_bits=64_000, whole_model=True)


@pytest.mark.parametrize(
    ("small", "expected"), [("raw", "raw"), ("fp16", "fp16"), ("same", "topk(0.01) | qsgd(15) | rans")]
)
def test_what_batch_norm_gets(tmp_path: Path, small: str, expected: str) -> None:
    """Without a word a variance goes as it is; coded like the weights, it may fall below zero."""
    options = {} if small == "raw" else {"small": small}
    method = Method("x", "co3", "topk(0.01) | qsgd(15) | rans", **options)
    run(replace(SMALL, model="cnn", rounds=1), method, 0, tmp_path, dump_frames=True)
    specs = specs_of(tmp_path, "up")
    assert specs.pop("2.running_var") == specs.pop("2.weight") == expected
    assert specs["3.weight"] == "topk(0.01) | qsgd(15) | rans"


@pytest.mark.parametrize("key", ["up", "down"])
def test_same_is_a_word_for_small_tensors_only(key: str) -> None:
    with pytest.raises(SettingsError, match="the spec 'same' cannot be used") as raised:
        Method("x", **{key: "same"})
    assert raised.value.key == key


@pytest.mark.parametrize("name", plugins.offered("comparison"))
def test_comparisons_with_committed_results_say_what_small_tensors_get(name: str) -> None:
    """Their results were made with what the file says, whatever the default is."""
    text = resources.files("perbit_papers.comparisons").joinpath(f"{name}.toml").read_text("utf-8")
    methods = tomllib.loads(text)["methods"]
    assert all("small" in method for method in methods if "up" in method or "down" in method)


@pytest.mark.parametrize("local_steps", [1, 0])
def test_a_clipped_gradient_is_as_long_as_allowed(local_steps: int) -> None:
    """One step at rate 1 moves the model by the gradient itself."""
    task = replace(SMALL, local_steps=local_steps, local_epochs=0, rate=1.0, batch=16)
    lengths = {}
    for clip in (0.0, 1e-3, 1e6):
        made = world.build(task, 0)
        step = local.train if local_steps else local.gradient
        step(made.network, made.data, made.parts[0], replace(task, clip=clip), 7)
        found = tensors.floats(made.network) if local_steps else tensors.gradients(made.network, made.first)
        moved = [found[name] - made.first[name] * (local_steps > 0) for name in found]
        lengths[clip] = float(np.sqrt(sum((part.astype(np.float64) ** 2).sum() for part in moved)))
    assert lengths[0.0] == lengths[1e6] > 0.1
    assert lengths[1e-3] == pytest.approx(1e-3, rel=1e-2)


def test_clip_cannot_be_negative() -> None:
    with pytest.raises(SettingsError, match="clip cannot be negative"):
        replace(SMALL, clip=-1.0)
