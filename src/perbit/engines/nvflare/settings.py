"""What a job says about perbit. NVFlare writes the arguments of a filter as JSON and builds the filter from that again, at the server.

So whatever `ServerOutput` is given must be JSON: specs and dicts are, and objects of perbit become a text that is read here again.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perbit.channels.packing import from_text, to_text
from perbit.coding.codec import Codec
from perbit.coding.families.formats import Raw
from perbit.coding.spec import codec
from perbit.errors import SpecError
from perbit.plan import Budget, Chooser, Plan, PlanLike
from perbit.protocols.presets import preset_of, protocol_of
from perbit.protocols.protocol import Protocol
from perbit.session.terms import TYPES

_WRITTEN = '{"about":'  # how the text of an object begins, and no spec and no name does


def as_json(given: Any) -> Any:
    """An argument as JSON can hold it."""
    if isinstance(given, Chooser | Protocol):
        return to_text(given)
    if isinstance(given, Codec):
        return str(given)
    if isinstance(given, Mapping):
        return {name: as_json(value) for name, value in given.items()}
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    return [as_json(value) for value in given] if is_list else given


def protocol_from(
    protocol: str | None, up: Any, down: Any, rules: Any = None, small: str | None = None, options: Any = None
) -> Protocol:
    """The protocol that a job describes; see `ServerOutput` for the arguments."""
    chosen = _read(protocol)
    ways = {"up": _read(up), "down": _read(down)}
    if rules is not None or small is not None:
        if isinstance(chosen, Protocol):
            raise SpecError("a protocol has its codecs already; rules and small go with the name of a preset")
        ways = {way: _with_exceptions(chosen, way, given, rules, small) for way, given in ways.items()}
    return protocol_of(chosen, **ways, **{name: _read(value) for name, value in (options or {}).items()})


def folder_of(folder: str | None, fl_ctx: Any) -> Path | None:
    """Where the server of this job keeps its session: "run" is the folder of the run."""
    if folder is None:
        return None
    job = str(fl_ctx.get_job_id())
    return Path(fl_ctx.get_workspace().get_run_dir(job)) / "perbit-server" if folder == "run" else Path(folder) / job


def key_from(variable: str | None) -> bytes | None:
    """The secret in an environment variable, as hex."""
    if variable is None:
        return None
    try:
        return bytes.fromhex(os.environ[variable])
    except KeyError:
        raise SpecError(f"the environment variable {variable} with the key is not set") from None
    except ValueError:
        raise SpecError(f"the environment variable {variable} does not hold a key in hex") from None


def _read(given: Any) -> Any:
    """What `as_json` wrote; a dict has the arguments of `Plan.of`, or of `Budget.of`."""
    if isinstance(given, str) and given.startswith(_WRITTEN):
        return from_text(given, (Protocol, *TYPES))
    if not isinstance(given, Mapping):
        return given
    try:
        return Budget.of(**given) if "n_bits" in given else Plan.of(**given)
    except TypeError as error:
        raise SpecError(f"cannot read {dict(given)} as a plan: {error}") from error


def _with_exceptions(preset: str | None, way: str, given: Any, rules: Any, small: str | None) -> PlanLike | None:
    """The codec of one direction, the preset's own if none is given, with these exceptions. What goes raw has none."""
    preset = "federated" if preset is None else preset
    spec = inspect.signature(preset_of(preset).make).parameters[way].default if given is None else given
    if isinstance(spec, Chooser):
        raise SpecError(f"{way} is a plan with exceptions of its own; write rules and small there, or give a spec")
    if spec is None:
        raise SpecError(f"rules and small are exceptions to a codec; {preset} names none for {way}, so give a spec")
    return given if codec(spec) == Raw() else Plan.of(spec, rules or (), "auto" if small is None else small)
