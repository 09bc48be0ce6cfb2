"""What to train, and how to send: plain values that a TOML file, a test or a program writes down."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from perbit.coding.families.formats import Raw
from perbit.coding.spec import codec
from perbit.errors import PerbitError, SpecError
from perbit.plan.budget import Budget
from perbit.plan.plan import Chooser, Plan
from perbit.plan.whole import has_share
from perbit.protocols import presets
from perbit.protocols.protocol import Protocol
from perbit.session.terms import check_sendable
from perbit.sim.imports import is_import_path


class SettingsError(PerbitError, ValueError):
    """A setting that makes no sense; `key` names it."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Task:
    """The training that all methods of a comparison share.

    local_epochs or local_steps > 0: clients train and send w - w_local (FedAvg; with prox > 0 FedProx); both 0: they send the
    gradient of one mini-batch. The server steps with what it decoded: rate 1 is FedAvg, the learning rate goes here for gradients.
    """

    data: str = "digits"  # this, the model and the next four may be the user's own: "module:name" (docs/own-data.md)
    model: str = "mlp"
    partition: str = "iid"
    loss: str = ""  # "": that of the data, cross-entropy
    metric: str = ""  # "": that of the data, accuracy
    train: str = ""  # local training; "": perbit's
    clients: int = 10
    per_round: int = 0  # clients drawn for each round; 0: all
    rounds: int = 20
    local_epochs: int = 1
    local_steps: int = 0  # so many mini-batches a round in place of whole epochs
    batch: int = 32
    optimiser: Literal["sgd", "adam"] = "sgd"  # the clients'
    rate: float = 0.1
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate, over the rounds; cosine falls to 0
    momentum: float = 0.0
    prox: float = 0.0
    clip: float = 0.0  # the largest norm of a mini-batch's gradient; 0: any
    weights: Literal["samples", "equal"] = "samples"  # how clients count after local epochs; gradients count alike
    server: Literal["sgd", "adam"] = "sgd"
    server_rate: float = 1.0
    server_momentum: float = 0.0
    evaluate_every: int = 1
    train_samples: int = 0  # the first so many; 0: all
    test_samples: int = 0
    test_share: float = 0.0  # above 0: so large a share of all samples, drawn by the seed, is the test part

    def __post_init__(self) -> None:
        for key in ("clients", "rounds", "batch", "evaluate_every"):
            _require(getattr(self, key) >= 1, key, f"must be at least 1, not {getattr(self, key)}")
        for key in ("per_round", "local_epochs", "local_steps", "train_samples", "test_samples", "prox", "clip"):
            _require(getattr(self, key) >= 0, key, f"cannot be negative, and is {getattr(self, key)}")
        _require(
            0 <= self.test_share < 1, "test_share", f"must be from 0 up to, not including, 1, not {self.test_share}"
        )
        for key in ("rate", "server_rate"):
            _require(getattr(self, key) > 0, key, f"must be above 0, not {getattr(self, key)}")
        for key in ("momentum", "server_momentum"):
            _require(
                0 <= getattr(self, key) < 1, key, f"must be from 0 up to, not including, 1, not {getattr(self, key)}"
            )
        for key in ("optimiser", "server"):
            _require(getattr(self, key) in ("sgd", "adam"), key, f'must be "sgd" or "adam", not {getattr(self, key)!r}')
        for key in ("loss", "metric", "train"):
            value = getattr(self, key)
            said = f'must be "module:function", e.g. "mine:{key}", not {value!r}'
            _require(not value or is_import_path(value), key, said)
        _require(not self.train or self.trains_locally, "train", "needs local_epochs or local_steps above 0")
        known = ("constant", "cosine")
        _require(self.schedule in known, "schedule", f'must be "constant" or "cosine", not {self.schedule!r}')
        _require(self.weights in ("samples", "equal"), "weights", f'must be "samples" or "equal", not {self.weights!r}')
        _require(
            self.per_round <= self.clients, "per_round", f"is {self.per_round}, but there are {self.clients} clients"
        )

    @property
    def trains_locally(self) -> bool:
        """Whether clients send what local training changed, and not a gradient."""
        return self.local_epochs > 0 or self.local_steps > 0

    def in_round(self, number: int) -> Task:
        """The task with the learning rate of this round; the first is 1.

        >>> [round(Task(rounds=3, rate=1, schedule="cosine").in_round(n).rate, 2) for n in (1, 2, 3)]
        [1.0, 0.75, 0.25]
        """
        if self.schedule == "constant":
            return self
        share = (1 + math.cos(math.pi * (number - 1) / self.rounds)) / 2
        key = "rate" if self.trains_locally else "server_rate"
        return replace(self, **{key: getattr(self, key) * share})

    @property
    def present(self) -> int:
        """How many clients take part in a round."""
        return self.per_round or self.clients


@dataclass(frozen=True)
class Method:
    """A protocol preset with the specs of both directions; `small` is for biases, norms and other small tensors.

    Without `up` or `down` that direction has the preset's own codecs. budget_bits: what every message up may take; the `?` in `up` is
    then fitted to each.
    """

    name: str
    protocol: str = "fedavg"
    up: str = ""  # "": the preset's own
    down: str = ""
    small: str = "auto"  # raw, or coded by a spec that is good for small tensors too (rd); "same": by any spec
    options: dict[str, Any] = field(default_factory=dict)  # the preset's own parameters
    budget_bits: int = 0
    whole_model: bool = False  # topk(ratio), up or down, keeps that share of the whole model, not of every tensor
    # specs up of some tensors (perbit.plan.rules); the first match wins
    rules: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        alone = "cannot be joined with budget_bits, whose topk(?) competes over the whole model anyway"
        _require(not (self.whole_model and self.budget_bits), "whole_model", alone)
        _require(isinstance(self.rules, dict), "rules", 'must be a table, e.g. { "size:1024..20000" = "fp16" }')
        for rule, spec in self.rules.items():
            _require(isinstance(spec, str), "rules", f"must have a spec for {rule!r}, not {spec!r}")
        for key in ("protocol", "up", "down", "small"):
            try:
                self._try(key)
            except PerbitError as error:
                said = str(error) if key == "protocol" else f"the spec {getattr(self, key)!r} cannot be used: {error}"
                raise SettingsError(said, key) from error
        try:
            self._uplink()
        except PerbitError as error:
            raise SettingsError(f"rules cannot be used: {error}", "rules") from error
        self._check_use()
        self.make()

    def _try(self, key: str) -> None:
        """Read one setting by itself, so that a complaint names its key."""
        if key == "protocol":
            presets.preset_of(self.protocol)
        elif key == "small":
            Plan.of("raw", small=self.small)
        elif key == "up" and self.budget_bits:
            Budget.of(self.up, n_bits=self.budget_bits)
        elif getattr(self, key):
            Plan.of(getattr(self, key))

    def _check_use(self) -> None:
        given = [spec for spec in (self.up, self.down, *self.rules.values()) if spec]
        if self.whole_model:
            competes = any(has_share(codec(spec)) for spec in given)
            _require(competes, "whole_model", f"needs a spec that begins with topk(ratio), and up is {self.up!r}")
        is_used = bool(self.rules) or any(not is_raw(spec) for spec in given)
        _require(
            self.small in ("auto", "raw") or is_used,
            "small",
            "is used nowhere: up and down are raw, or the preset's own",
        )

    @property
    def is_float32(self) -> bool:
        """Whether nothing is compressed on the way up: the yardstick of a comparison."""
        return not self.budget_bits and not self.rules and is_raw(self.up_text)

    @property
    def up_text(self) -> str:
        """The spec of the way up, the preset's own if none was given."""
        return self.up or self._default("up")

    @property
    def down_text(self) -> str:
        """The spec of the way down."""
        return self.down or self._default("down")

    def _default(self, direction: str) -> str:
        default = inspect.signature(presets.preset_of(self.protocol).make).parameters[direction].default
        return f"topk({self.options.get('ratio', 0.1)})" if default is None else str(default)

    def make(self) -> Protocol:
        """The protocol, which a session can run."""
        for key in self.options:
            known = presets.preset_options(presets.preset_of(self.protocol))
            _require(
                key != "folder",
                key,
                "is for servers that last; the runs of a comparison must be able to stop and go on",
            )
            _require(key in known, key, f"is no parameter of {self.protocol}; it has {', '.join(known) or 'none'}")
        down = self._plan(self.down) if self.down else None
        try:
            protocol = presets.protocol_of(self.protocol, self._uplink(), down, **self.options)
            check_sendable(protocol)
        except SpecError as error:
            raise SettingsError(str(error), next(iter(self.options), "protocol")) from error
        return protocol

    def _uplink(self) -> Chooser | None:
        if self.budget_bits:
            return Budget.of(self.up, self.rules, self.small, n_bits=self.budget_bits)
        return self._plan(self.up_text, self.rules) if self.up or self.rules else None

    def _plan(self, spec: str, rules: Mapping[str, str] = MappingProxyType({})) -> Plan:
        exact = is_raw(spec) and not rules  # what is not compressed is exact, small tensors too
        return Plan.of(spec, rules, "raw" if exact else self.small, whole_model=self.whole_model)


def is_raw(spec: str) -> bool:
    """Whether a spec leaves values as they are."""
    return "?" not in spec and codec(spec) == Raw()


def _require(holds: bool, key: str, said: str) -> None:
    if not holds:
        raise SettingsError(f"{key} {said}", key)


def with_defaults(known: Any, now: Any) -> Any:
    """Settings of an earlier version, which did not have all of today's: those have their defaults, and the order of today.

    >>> with_defaults({"rounds": 3}, {"rounds": 5, "test_share": 0.2})
    {'rounds': 3, 'test_share': 0.0}
    """
    if not (isinstance(known, dict) and isinstance(now, dict)):
        return known
    defaults = {one.name: one.default for kind in (Task, Method) for one in fields(kind)}
    added = {key: defaults[key] for key in now if key not in known and defaults.get(key, MISSING) is not MISSING}
    filled = {**known, **added}
    return {key: filled[key] for key in now if key in filled} | filled
