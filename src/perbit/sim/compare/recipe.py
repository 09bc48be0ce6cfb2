"""A method to copy: complete, as TOML for a comparison and as Python for Flower and for DDP."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from perbit.protocols import presets
from perbit.sim.compare.config import Comparison
from perbit.sim.compare.links import LINKS
from perbit.sim.federated.settings import Method, Task, is_raw

_WITHOUT_MEMORY = ("fedavg", "sgd", "qsgd")


def keys(method: Method) -> dict[str, Any]:
    """What a [[methods]] table says of a method, but its name: all that is not a default, and what small tensors get."""
    plain = [field for field in fields(Method) if field.name not in ("name", "options")]
    always = ("protocol", "small")
    said = {field.name: getattr(method, field.name) for field in plain}
    defaults: dict[str, Any] = {field.name: {} if field.name == "rules" else field.default for field in plain}
    chosen = {key: value for key, value in said.items() if key in always or value != defaults[key]}
    return chosen | method.options


def toml(method: Method) -> str:
    """The [[methods]] table; reading it gives this very method."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in {"name": method.name, **keys(method)}.items()]
    return "\n".join(["[[methods]]", *lines])


def comparison_toml(comparison: Comparison) -> str:
    """The whole comparison; reading it gives this very one."""
    head = [f"title = {_toml_value(comparison.title)}", f"seeds = {_toml_value(list(comparison.seeds))}"]
    defaults = Task()
    given = {field.name: getattr(comparison.task, field.name) for field in fields(Task)}
    changed = {key: value for key, value in given.items() if value != getattr(defaults, key)}
    task = ["[task]", *(f"{key} = {_toml_value(value)}" for key, value in changed.items())]
    links = [
        "\n".join(["[[links]]", *(f"{key} = {_toml_value(value)}" for key, value in asdict(link).items())])
        for link in (comparison.links if comparison.links != LINKS else ())
    ]
    return "\n\n".join(["\n".join(head), "\n".join(task), *map(toml, comparison.methods), *links]) + "\n"


def flower(method: Method) -> str:
    """Python that gives Flower this method, at the server and at its clients."""
    down = "" if not method.down else f", {_chooser(method, method.down, {})}"
    up = _chooser(method, method.up_text if method.rules or method.up else "", method.rules)
    between = f", {up}{down}" if down or up != "None" else ""
    options = "".join(f", {key}={value!r}" for key, value in method.options.items())
    return "\n".join(
        [
            "from perbit import Budget, Plan, presets",
            "from perbit.engines.flower import CompressedGrid, perbit_mod",
            "",
            f"protocol = presets.protocol_of({method.protocol!r}{between}{options})",
            "# the client:  app = ClientApp(mods=[perbit_mod()])",
            '# the server:  with CompressedGrid(grid, protocol=protocol, absent="ignored") as grid: strategy.start(grid=grid, ...)',
        ]
    )


def ddp(method: Method) -> str:
    """Python that gives DDP the codecs and the error feedback of this method; or why it cannot have them."""
    feedback = _feedback(method)
    if feedback is None:
        return f"# DDP has error feedback, and no server for the memories of {method.protocol}."
    if method.budget_bits or method.whole_model:
        what = "a budget for each message" if method.budget_bits else "one threshold for the whole model"
        return f"# DDP sends gradients bucket by bucket, so it cannot have {what}."
    return "\n".join(
        [
            "from perbit import Plan",
            "from perbit.engines import ddp",
            "",
            f"plan = {_chooser(method, method.up_text, method.rules)}",
            f"state = ddp.State(plan, model, error_feedback={feedback!r})",
            "model.register_comm_hook(state, ddp.hook)  # model: DistributedDataParallel(module)",
        ]
    )


def everything(method: Method) -> dict[str, str]:
    """All three, by name."""
    return {"TOML": toml(method), "Flower": flower(method), "DDP": ddp(method)}


def _feedback(method: Method) -> float | bool | None:
    """The weight of the error memory up; False without one, None for memories of another kind."""
    if method.protocol in _WITHOUT_MEMORY:
        return False
    known = presets.preset_options(presets.preset_of(method.protocol))
    is_plain = method.protocol in ("co3", "double_squeeze", "fedavg_topk_ef", "federated")
    if not is_plain:
        return None
    decay = method.options.get("decay", known.get("decay"))
    return True if decay is None else float(decay)


def _chooser(method: Method, spec: str, rules: dict[str, str]) -> str:
    """The plan or budget of one direction, as `Method` makes it."""
    if not spec:
        return "None"
    named = f", {rules!r}" if rules else ""
    is_exact = is_raw(spec) and not rules
    small = "" if is_exact or method.small == "auto" else f", small={method.small!r}"
    if method.budget_bits and "?" in spec:
        return f"Budget.of({spec!r}{named}{small}, n_bits={method.budget_bits})"
    whole = ", whole_model=True" if method.whole_model else ""
    return f"Plan.of({spec!r}{named}{small}{whole})"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(
            f"{json.dumps(key, ensure_ascii=False)} = {_toml_value(item)}" for key, item in value.items()
        )
        return f"{{ {inside} }}" if inside else "{}"
    return json.dumps(value, ensure_ascii=False)
