"""What to train, and how to send: plain values that a TOML file, a test or a program writes down."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from perbit import presets
from perbit.budget import BudgetPlan
from perbit.errors import PerbitError
from perbit.families.formats import Raw
from perbit.families.whole import has_share
from perbit.plan import Plan, codec
from perbit.protocol import Protocol


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

    data: str = "digits"
    model: str = "mlp"
    partition: str = "iid"
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

    def __post_init__(self) -> None:
        for key in ("clients", "rounds", "batch", "evaluate_every"):
            _require(getattr(self, key) >= 1, key, f"must be at least 1, not {getattr(self, key)}")
        for key in ("per_round", "local_epochs", "local_steps", "train_samples", "test_samples", "prox", "clip"):
            _require(getattr(self, key) >= 0, key, f"cannot be negative, and is {getattr(self, key)}")
        for key in ("rate", "server_rate"):
            _require(getattr(self, key) > 0, key, f"must be above 0, not {getattr(self, key)}")
        for key in ("momentum", "server_momentum"):
            _require(
                0 <= getattr(self, key) < 1, key, f"must be from 0 up to, not including, 1, not {getattr(self, key)}"
            )
        for key in ("optimiser", "server"):
            _require(getattr(self, key) in ("sgd", "adam"), key, f'must be "sgd" or "adam", not {getattr(self, key)!r}')
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

    budget_bits: what every message up may take; the `?` in `up` is then fitted to each.
    """

    name: str
    protocol: str = "fedavg"
    up: str = "raw"
    down: str = "raw"
    small: str = ""  # "": the same spec as for everything else
    options: dict[str, Any] = field(default_factory=dict)  # the preset's own parameters
    budget_bits: int = 0
    whole_model: bool = False  # topk(ratio), up or down, keeps that share of the whole model, not of every tensor
    rules: dict[str, str] = field(default_factory=dict)  # specs up of some tensors (perbit.rules); the first match wins

    def __post_init__(self) -> None:
        for key in ("whole_model", "rules"):
            _require(not (getattr(self, key) and self.budget_bits), key, "cannot be joined with budget_bits")
        _require(isinstance(self.rules, dict), "rules", 'must be a table, e.g. { "size:1024..20000" = "fp16" }')
        for rule, spec in self.rules.items():
            _require(isinstance(spec, str), "rules", f"must have a spec for {rule!r}, not {spec!r}")
        for key in ("up", "down", "small"):
            try:
                self._plan(getattr(self, key) or "raw", self.budget_bits if key == "up" else 0)
            except PerbitError as error:
                raise SettingsError(f"the spec {getattr(self, key)!r} cannot be used: {error}", key) from error
        try:
            self._uplink()
        except PerbitError as error:
            raise SettingsError(f"rules cannot be used: {error}", "rules") from error
        if self.whole_model:
            competes = any(has_share(codec(spec)) for spec in (self.up, self.down, *self.rules.values()))
            _require(competes, "whole_model", f"needs a spec that begins with topk(ratio), and up is {self.up!r}")
        is_used = not (_is_raw(self.up) and _is_raw(self.down)) or self.rules
        _require(not self.small or bool(is_used), "small", "is used nowhere: up and down are raw")
        self.make()

    @property
    def is_float32(self) -> bool:
        """Whether nothing is compressed on the way up: the yardstick of a comparison."""
        return _is_raw(self.up) and not self.rules

    def make(self) -> Protocol:
        """The protocol."""
        preset = presets.PRESETS.get(self.protocol)
        if preset is None:
            close = difflib.get_close_matches(self.protocol, presets.PRESETS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(presets.PRESETS)}"
            raise SettingsError(f"there is no protocol {self.protocol!r}; {hint}", "protocol")
        known = dict(list(inspect.signature(preset.make).parameters.items())[2:])
        for key, value in self.options.items():
            _require(key in known, key, f"is no parameter of {self.protocol}; it has {', '.join(known) or 'none'}")
            is_right = isinstance(value, str) == isinstance(known[key].default, str)
            _require(is_right, key, f"cannot be {value!r}; {self.protocol} takes {known[key].default!r} without it")
        return preset.make(up=self._uplink(), down=self._plan(self.down), **self.options)

    def _uplink(self) -> Plan:
        return self._plan(self.up, self.budget_bits, self.rules)

    def _plan(self, spec: str, budget_bits: int = 0, rules: Mapping[str, str] = MappingProxyType({})) -> Plan:
        if budget_bits:
            return BudgetPlan.of(spec, n_bits=budget_bits, small=self.small or None)
        if not self.small or (_is_raw(spec) and not rules):  # what is not compressed is exact, small tensors too
            return Plan.of(spec, rules, small_below=0, flat_is_small=False, whole_model=self.whole_model)
        return Plan.of(spec, rules, small=self.small, whole_model=self.whole_model)


def _is_raw(spec: str) -> bool:
    return "?" not in spec and codec(spec) == Raw()


def _require(holds: bool, key: str, said: str) -> None:
    if not holds:
        raise SettingsError(f"{key} {said}", key)
