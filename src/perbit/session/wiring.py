"""Which channels a session runs: taken from a protocol at the server, told to the clients as plain JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from perbit.bits import Piece
from perbit.budget import BudgetPlan
from perbit.channels import Channel, Direct, ErrorFeedback, Momentum, Shifted, Summed, Warmup
from perbit.codec import Codec, as_pipeline
from perbit.downlinks import Averaged, PerWorker, Shared
from perbit.errors import DecodeError, EncodeError, SpecError
from perbit.plan import Plan, PlanLike, as_plan
from perbit.presets import PRESETS
from perbit.protocol import Protocol
from perbit.spec import parse

DEFAULT_UP = Plan.of("topk(0.05) | uniform(4) | rans", small_below=256)  # small tensors raw: a variance stays positive
DEFAULT_DOWN = Plan.of("uniform(4) | rans", small_below=256)
DECAY = 0.5  # of the error memory: what was not sent is trained again from the same start, and must not add up
_PARTS = {part.__name__: part for part in (Direct, ErrorFeedback, Shifted, Summed, Momentum, Warmup, Plan, BudgetPlan)}
_MAX_DEPTH = 16


@dataclasses.dataclass(frozen=True)
class Wiring:
    """The channels of both directions, and what the server does with them."""

    up: Channel
    down: Channel
    carries_update: bool = False  # the downlink carries steps; the channel adds them up
    keeps_model: bool = True  # updates count from the server's exact model, not from what the client held
    draws: int | None = 1  # groups of clients whose frames are drawn alike; None: each client draws for itself

    @classmethod
    def of(cls, protocol: Protocol) -> Wiring:
        """The channels of a protocol. Every client has a memory of its own, so that nobody has anything to catch up on;
        clients in the same state share it, and their frame."""
        if protocol.carries == "ghost":
            raise SpecError("ghost lends the workers a model that no frame carries; it runs in simulations only")
        down, draws = _downlink(protocol)
        carries_update = protocol.carries == "update"
        return cls(protocol.uplink, down, carries_update, not carries_update or protocol.exact, draws)

    def to_json(self) -> bytes:
        """What a client must know."""
        return json.dumps({"up": _describe(self.up), "down": _describe(self.down)}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: Piece) -> Wiring:
        """The client's side: only the channels matter there."""
        try:
            content = json.loads(bytes(text))
            up, down = _build(content["up"]), _build(content["down"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(f"cannot read the description of the channels: {error}") from error
        if not (isinstance(up, Channel) and isinstance(down, Channel)):
            raise DecodeError("the description names no channels")
        return cls(up, down)


def federated(up: PlanLike = DEFAULT_UP, down: PlanLike = DEFAULT_DOWN) -> Protocol:
    """Local training by clients that come and go, under any strategy: the updates up, with error feedback that decays
    (unbiased codecs need none); the difference between the model and what the client holds down, as in MCM and EF21."""
    plan = as_plan(up)
    unbiased = all(as_pipeline(c).unbiased for c in (plan.default, *(c for _, c in plan.rules)))
    uplink = Direct(up) if unbiased else ErrorFeedback(Direct(up), DECAY)
    return Protocol.of("federated", uplink, Shifted(Direct(down)))


def protocol_of(
    protocol: Protocol | str | None = None, up: PlanLike | None = None, down: PlanLike | None = None
) -> Protocol:
    """A protocol, the name of a preset (with other codecs if given), or `federated` with these codecs.

    >>> protocol_of("mcm", up="qsgd(1) | rans").name, protocol_of(up="topk(0.01)").name
    ('mcm', 'federated')
    """
    if isinstance(protocol, Protocol):
        if up is not None or down is not None:
            raise SpecError("a protocol has its codecs already; give the name of a preset to choose others")
        return protocol
    if protocol is None:
        return federated(DEFAULT_UP if up is None else up, DEFAULT_DOWN if down is None else down)
    if protocol not in PRESETS:
        raise SpecError(f"there is no preset {protocol!r}; choose one of {', '.join(PRESETS)}")
    given = {name: plan for name, plan in (("up", up), ("down", down)) if plan is not None}
    return PRESETS[protocol].make(**given)


def _downlink(protocol: Protocol) -> tuple[Channel, int | None]:
    downlink = protocol.downlink
    if isinstance(downlink, Shared):
        return downlink.channel, downlink.groups
    if isinstance(downlink, PerWorker):
        return downlink.channel, None
    if isinstance(downlink, Averaged):  # an average saves a server N memories; here they are kept, so this is Rand-MCM
        return Shifted(Direct(downlink.plan), downlink.alpha), None
    raise SpecError(f"a session cannot run the downlink {type(downlink).__name__}; use Shared or PerWorker")


def _describe(part: Any) -> Any:
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, Codec):
        return {"codec": str(part)}
    if isinstance(part, tuple):
        return [_describe(item) for item in part]
    name = type(part).__name__
    if _PARTS.get(name) is not type(part):
        raise EncodeError(f"a session cannot tell clients about {name}; use the channels of perbit.channels")
    return {"is": name} | {field.name: _describe(getattr(part, field.name)) for field in dataclasses.fields(part)}


def _build(part: Any, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        raise DecodeError("the channels are nested too deep")
    if isinstance(part, list):
        return tuple(_build(item, depth + 1) for item in part)
    if not isinstance(part, dict):
        return part
    if "codec" in part:
        return parse(part["codec"])
    fields = {name: _build(item, depth + 1) for name, item in part.items() if name != "is"}
    return _PARTS[part["is"]](**fields)
