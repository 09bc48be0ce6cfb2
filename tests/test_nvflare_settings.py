"""NVFlare: what a job says about perbit, in Python and as the JSON that NVFlare writes and reads."""

from __future__ import annotations

import inspect
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perbit import Budget, Plan, SpecError, codec, presets
from perbit.protocols.protocol import Protocol

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.private.json_configer import JsonConfigurator

from nvflare_federation import Federation, frame_of, model, step_by, task_of
from perbit.engines.nvflare import ServerOutput

PAGE = (Path(__file__).parent.parent / "docs" / "engines-nvflare.md").read_text()
UP, DOWN = "topk(0.01) | qsgd(7) | rans", "uniform(4) | rans"


def protocol(chosen: ServerOutput) -> Protocol:
    return chosen._session().protocol


def plan_up(chosen: ServerOutput) -> Any:
    return protocol(chosen).uplink.inner.plan


def through_a_job(chosen: ServerOutput, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ServerOutput:
    """The filter that NVFlare builds at the server from the job it wrote."""
    monkeypatch.chdir(folder)
    Path("client.py").write_text("")
    recipe = NumpyFedAvgRecipe(name="job", model=[0.0], min_clients=1, num_rounds=1, train_script="client.py")
    recipe.add_server_output_filter(chosen, tasks=["train"])
    recipe.export(str(folder / "jobs"))
    return built_from(next((folder / "jobs").rglob("config_fed_server.json")))


def built_from(written: Path) -> ServerOutput:
    """What NVFlare makes of a configuration; it would replace the names of its variables in braces."""
    reader = JsonConfigurator(str(written), [], [], sys_vars={"about": "nothing", "SITE": "server"})
    reader.configure()
    built = reader.build_component(reader.config_data["task_data_filters"][0]["filters"][0])
    assert isinstance(built, ServerOutput)
    return built


# --- from Python through a job to the server ------------------------------------------------------------------------------


PLAN = Plan.of("topk(0.01) | fp16", rules=[("embed*", "topk(0.001)"), ("*var", "raw")], small="fp16", whole_model=True)
OBJECTS: dict[str, dict[str, Any]] = {
    "specs": {"protocol": "mcm", "up": UP, "down": DOWN, "options": {"alpha_up": 0.25, "catch_up": "replay"}},
    "rules": {"up": UP, "rules": {"embed*": "fp16", "dims:4": "uniform(4)"}, "small": "same", "first": "fp16"},
    "pairs": {"up": UP, "rules": {"embed*": codec("fp16"), "*": codec("uniform(4)")}.items()},
    "codecs": {"up": codec(UP), "down": codec(DOWN)},
    "plan": {"up": PLAN, "down": Plan.of(DOWN, small=None)},
    "budget": {"up": Budget.of("topk(?) | fp16", {"embed*": "raw"}, n_bits=80_000)},
    "dicts": {"up": {"default": UP, "rules": {"a*": "raw"}}, "down": {"spec": "topk(?) | fp16", "n_bits": 80_000}},
    "protocol": {"protocol": presets.predicted_both_ways(up=PLAN, alpha=0.02)},
    "limits": {"population": 100, "max_clients": 20, "absent": "ignored", "seed": 7},
}


@pytest.mark.parametrize("given", OBJECTS.values(), ids=OBJECTS)
def test_a_job_carries_everything_that_was_chosen(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ServerOutput(**given)
    built = through_a_job(chosen, tmp_path, monkeypatch)
    assert protocol(built) == protocol(chosen)
    for limit in ("population", "max_clients", "absent", "seed"):
        assert getattr(built, limit) == getattr(chosen, limit) == given.get(limit, getattr(ServerOutput(), limit))


def test_objects_mean_what_they_mean_without_nvflare() -> None:
    assert protocol(ServerOutput(up=PLAN, down=DOWN)) == presets.federated(up=PLAN, down=DOWN)
    assert protocol(ServerOutput(**OBJECTS["protocol"])) == OBJECTS["protocol"]["protocol"]
    assert protocol(ServerOutput(up=codec(UP))) == presets.federated(up=UP)
    assert plan_up(ServerOutput(**OBJECTS["budget"])) == OBJECTS["budget"]["up"]
    assert plan_up(ServerOutput(up={"spec": "topk(?) | fp16", "n_bits": 800})) == Budget.of(
        "topk(?) | fp16", n_bits=800
    )
    assert protocol(ServerOutput("mcm", options={"alpha_up": 0.25})) == presets.mcm(alpha_up=0.25)
    assert protocol(ServerOutput(first="fp16")) == presets.federated(first="fp16")


def test_what_is_written_is_plain_json() -> None:
    for given in OBJECTS.values():
        chosen = ServerOutput(**given)
        written = {name: getattr(chosen, name) for name in given}
        assert json.loads(json.dumps(written)).keys() == given.keys()


def test_the_configuration_in_the_docs_is_read(tmp_path: Path) -> None:
    written = tmp_path / "config_fed_server.json"
    config = json.loads(PAGE.split("```json\n", 1)[1].split("```", 1)[0])
    written.write_text(json.dumps({"task_data_filters": [{"tasks": ["train"], "filters": [config]}]}))
    plan = plan_up(built_from(written))
    assert [str(plan.codec_for(name, (64,))) for name in ("bn.running_var", "bn.bias")] == ["raw", "uniform(8) | rans"]


def test_the_docs_name_every_argument() -> None:
    table = PAGE.split("### ServerOutput", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `([^|]+)` \|", table, flags=re.MULTILINE)
    assert [name for row in rows for name in row.split("`, `")] == list(inspect.signature(ServerOutput).parameters)


# --- rules and small, as text -----------------------------------------------------------------------------------------------


def test_rules_and_small_say_what_a_plan_says_for_both_directions() -> None:
    rules = {"embed*": "fp16", "*running_var": "raw"}
    chosen = protocol(ServerOutput(up=UP, down=DOWN, rules=rules, small="uniform(8)"))
    plans = (Plan.of(spec, rules, "uniform(8)") for spec in (UP, DOWN))
    assert chosen == presets.federated(*plans)
    assert protocol(ServerOutput(up=UP, down=DOWN, small="same")) == presets.federated(
        Plan.of(UP, small=None), Plan.of(DOWN, small=None)
    )
    assert protocol(ServerOutput(up=UP, down=DOWN, rules={}, small=None)) == presets.federated(
        Plan.of(UP), Plan.of(DOWN)
    )


def test_rules_are_exceptions_to_the_codecs_of_the_preset_where_none_are_given() -> None:
    assert plan_up(ServerOutput("mcm", rules={"a*": "fp16"})) == Plan.of(presets.QUANTIZE, {"a*": "fp16"})


def test_a_direction_that_goes_raw_has_no_exceptions() -> None:
    """A sparse rule on a raw downlink would cut the model, for nothing brings back what is left out."""
    chosen = protocol(ServerOutput("diana", rules={"embed*": "topk(0.001)"}))
    assert chosen.downlink == presets.diana().downlink
    assert protocol(ServerOutput("diana", up=UP, down="raw", small="same")).downlink == presets.diana().downlink


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"up": PLAN, "rules": {"a*": "raw"}}, "up is a plan with exceptions of its own"),
        ({"down": {"default": DOWN}, "up": UP, "small": "raw"}, "down is a plan with exceptions of its own"),
        ({"protocol": presets.mcm(), "rules": {"a*": "raw"}}, "rules and small go with the name of a preset"),
        ({"protocol": presets.mcm(), "up": UP}, "has its codecs already"),
        ({"protocol": "fedavg_topk_ef", "small": "same"}, "fedavg_topk_ef names none for up"),
        ({"protocol": "mcm", "first": "fp16"}, "first is no parameter of mcm"),
        ({"options": {"alpha": 1}}, "alpha is no parameter"),
        ({"up": {"defualt": UP}}, "cannot read .* as a plan"),
        ({"rules": {"a": "topq(0.1)"}}, "topq"),
        ({"rules": "embed* fp16"}, "rules are a dict"),
        ({"protocol": "ghost"}, "simulations only"),
        ({"max_clients": 0}, "max_clients=0"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_the_job_is_written(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ServerOutput(**given)


# --- the other choices of a session -------------------------------------------------------------------------------------------


def test_the_first_model_may_go_in_half_the_bytes(tmp_path: Path) -> None:
    sizes = {}
    for first in (None, "fp16"):
        federation = Federation(tmp_path / str(first), 1, first=first)
        message = federation.down("site-0", task_of({"w": np.full((300, 50), 0.1, np.float32)}))
        sizes[first] = len(frame_of(message))
        assert abs(federation.arrived("site-0", message)["w"] - 0.1).max() < 1e-4
    assert sizes["fp16"] - 300 * 50 * 2 < 1000 < sizes[None] - 300 * 50 * 2


def test_more_clients_than_the_limit_are_forgotten_and_come_back_with_a_full_model(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, max_clients=2)
    for value in (0.1, 0.2):
        for name in federation.clients:
            federation.exchange(name, task_of(model(value)), step_by(1.0))
    assert len(federation.side.session.state.clients) == 2
    assert len(frame_of(federation.down("site-0", task_of(model(0.3))))) > 40 * 50 * 4
    assert len(frame_of(federation.down("site-2", task_of(model(0.3))))) < 40 * 50 * 4 / 10


@pytest.mark.parametrize(("absent", "population", "expected"), [("ignored", None, 1), ("predicted", 4, 0.5)])
def test_absent_clients_count_as_the_job_says(
    tmp_path: Path, absent: str, population: int | None, expected: float
) -> None:
    """DIANA's memories: of four clients two have said "up by 1"; then only one of them comes, and says so again."""
    options = {"alpha": 1.0}
    federation = Federation(
        tmp_path, 2, protocol="diana", up="raw", options=options, absent=absent, population=population
    )
    step = {"w": np.ones((40, 50), np.float32)}
    for round_, present in enumerate((["site-0", "site-1"], ["site-0"])):
        task = task_of({"w": np.full((40, 50), round_, np.float32)})
        got = [federation.exchange(name, task, lambda x: {"w": x["w"] + step["w"]}) for name in present]
    assert np.abs(got[0]["w"] - 1 - expected).max() < 1e-6


def test_of_two_filters_in_one_job_the_first_chooses_and_the_second_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation, other = Federation(tmp_path, 1), ServerOutput("mcm")
    with caplog.at_level(logging.WARNING):
        other.handle_event(EventType.START_RUN, federation.server.engine.context())
    assert "the first one chooses for all tasks" in caplog.text
    assert federation.side.session.protocol.name == "federated"
    assert other.traffic is federation.traffic
