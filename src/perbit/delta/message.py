"""A delta is an ordinary message of three tensors of bytes: what it leads from and to, the steps of exact tensors, a message with all others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perbit import dtypes
from perbit.coding import arrays
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.codec import Codec
from perbit.coding.families.formats import Raw
from perbit.coding.spec import codec
from perbit.delta import steps
from perbit.delta.digest import digest
from perbit.errors import DecodeError, EncodeError
from perbit.frame import payload, wire
from perbit.plan.plan import PlanLike, as_plan

Tensors = dict[str, NDArray[Any]]
How = Literal["same", "steps", "added", "whole"]
VERSION = 1
ABOUT, STEPS, OTHERS = "delta", "steps", "others"
PACKED: Codec = codec("raw | zstd")
ALONE = 1 << 16  # tensors with fewer values are coded together
SPARE_VALUES = 1 << 24  # a delta may bring so many values more than its base has, unless the caller allows more


class DeltaError(DecodeError):
    """A delta that does not belong to this model, or did not lead where it should."""


def diff(
    old: Mapping[str, Any], new: Mapping[str, Any], plan: PlanLike | None = None, *, seed: int | None = None
) -> bytes:
    """What leads from old to new.

    Args:
        old, new: tensors by name, arrays or torch tensors.
        plan: None: bit for bit. A spec or plan: the differences of float tensors are coded by it; what it leaves raw stays exact.
        seed: fixes every random choice.
    """
    before, after = _named(old), _named(new)
    codecs = {} if plan is None else _lossy(before, after, plan, seed)
    how = {name: "added" if name in codecs else _exactly(before.get(name), x) for name, x in after.items()}
    others = {name: _difference(name, before[name], after[name]) for name in codecs}
    others |= {name: _bits(x) for name, x in after.items() if how[name] == "whole"}
    parts = {
        STEPS: _write_steps(before, after, [name for name in after if how[name] == "steps"]),
        OTHERS: wire.write(others, {name: codecs.get(name, PACKED) for name in others}, seed=seed) if others else b"",
    }
    head: dict[str, Any] = {
        "version": VERSION,
        "base": digest(before),
        "exact": not codecs,
        "tensors": [[name, x.dtype.name, list(x.shape), how[name]] for name, x in after.items()],
    }
    head["result"] = digest(_rebuilt(before, head, parts, None) if codecs else after)
    tensors = {ABOUT: json.dumps(head, ensure_ascii=False).encode(), **parts}
    return wire.write(
        {name: np.frombuffer(data, np.uint8) for name, data in tensors.items()},
        {ABOUT: PACKED, STEPS: Raw(), OTHERS: Raw()},
    )


def apply(old: Mapping[str, Any], delta: Piece, *, max_values: int | None = None) -> Tensors:
    """The new model; DeltaError if the delta was made for another one, or if what came out is not what was meant.

    Args:
        old: the model that the delta was made for.
        delta: what `diff` gave.
        max_values: refuse deltas that lead to more values than this; by default 16 million more than the old model has.
    """
    before = _named(old)
    head, parts = opened(delta)
    if digest(before) != head["base"]:
        raise DeltaError("the delta was made for another model: the digest of the base differs")
    try:
        with payload.decoding():
            made = _rebuilt(before, head, parts, max_values)
    except DecodeError:
        raise
    except (TypeError, KeyError, EncodeError) as error:
        raise DeltaError(f"the delta is malformed: {error}") from error
    if digest(made) != head["result"]:
        raise DeltaError("the delta did not lead to the model it was made for: the digest of the result differs")
    return made


def about(delta: Piece) -> dict[str, Any]:
    """What a delta says of itself: `base` and `result` (SHA-256), `exact`, and `tensors`: name, dtype, shape and how each is sent."""
    return opened(delta)[0]


# --- what to do with each tensor -------------------------------------------------------------------------------------


def _named(tensors: Mapping[str, Any]) -> Tensors:
    return {name: arrays.as_numpy(x) for name, x in tensors.items()}


def _exactly(before: NDArray[Any] | None, after: NDArray[Any]) -> How:
    if before is None or before.dtype != after.dtype or before.shape != after.shape:
        return "whole"
    if np.array_equal(_bits(before), _bits(after)):
        return "same"
    return "steps" if after.dtype.name in steps.EXPONENTS else "whole"


def _lossy(before: Tensors, after: Tensors, plan: PlanLike, seed: int | None) -> dict[str, Codec]:
    """The codecs of all differences that are not to be exact."""
    changed = {
        name: _difference(name, before[name], x)
        for name, x in after.items()
        if x.dtype.name in arrays.FLOATS and _exactly(before.get(name), x) not in ("whole", "same")
    }
    chosen = as_plan(plan).codecs(changed, seed)
    return {name: found for name, found in chosen.items() if found != Raw()}


def _difference(name: str, before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    for array in (before, after):
        arrays.check_finite(array, name)
    return np.asarray(after.astype(np.float32) - before.astype(np.float32))


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The values as whole numbers, which may be anything."""
    size = array.dtype.itemsize
    return (
        np.ascontiguousarray(array).view(np.dtype(f"u{size}")).reshape(array.shape)
        if size > 1
        else array.view(np.uint8)
    )


# --- and back --------------------------------------------------------------------------------------------------------


def opened(delta: Piece, **limits: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The head of a delta and its other parts; `limits` are those of `perbit.loads`."""
    parts = {name: x.tobytes() for name, x in wire.loads(delta, **limits).items()}
    try:
        head = json.loads(parts.pop(ABOUT))
        is_known = head["version"] == VERSION
        names = {name for name, dtype, shape, _ in head["tensors"] if dtype in arrays.DTYPES and _is_shape(shape)}
        texts = [head["base"], head["result"], *names]
        is_sound = {STEPS, OTHERS} == set(parts) and len(names) == len(head["tensors"]) and "exact" in head
        is_sound &= all(isinstance(text, str) for text in texts)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DeltaError("this is no delta; `perbit diff` makes one") from None
    if not is_known:
        raise DeltaError(f"a delta of version {head['version']}; this perbit reads version {VERSION}")
    if not is_sound:
        raise DeltaError("the delta is malformed")
    return head, parts


def _is_shape(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(n, int) and n >= 0 for n in found)


def _rebuilt(before: Tensors, head: Mapping[str, Any], parts: Mapping[str, bytes], max_values: int | None) -> Tensors:
    stepped = [name for name, _, _, how in head["tensors"] if how == "steps"]
    found: Tensors = _read_steps(before, stepped, parts[STEPS])
    limit = sum(x.size for x in before.values()) + SPARE_VALUES if max_values is None else max_values
    others = wire.loads(parts[OTHERS], max_values=limit) if parts[OTHERS] else {}
    for name, dtype, shape, how in head["tensors"]:
        if how == "same":
            found[name] = before[name]
        elif how == "added":
            found[name] = arrays.from_float32(before[name].astype(np.float32) + others[name], dtype)
        elif how == "whole":
            found[name] = others[name].view(dtypes.named(dtype)).reshape(shape)
        elif how != "steps":
            raise DeltaError(f"the delta is malformed: tensor {name!r} is sent as {how!r}")
    return {name: found[name] for name, *_ in head["tensors"]}


# --- steps -----------------------------------------------------------------------------------------------------------


def _write_steps(before: Tensors, after: Tensors, names: Sequence[str]) -> bytes:
    out = Writer()
    for dtype, pool in _pools(before, names):
        old, new = (np.concatenate([_bits(of[name]).reshape(-1) for name in pool]) for of in (before, after))
        for at in range(0, len(old), steps.PIECE):
            steps.write(old[at : at + steps.PIECE], new[at : at + steps.PIECE], dtype, out)
    return out.join()


def _read_steps(before: Tensors, names: Sequence[str], data: bytes) -> Tensors:
    src, found = Reader(data), {}
    for dtype, pool in _pools(before, names):
        old = np.concatenate([_bits(before[name]).reshape(-1) for name in pool])
        pieces = [steps.read(old[at : at + steps.PIECE], dtype, src) for at in range(0, len(old), steps.PIECE)]
        ends = np.cumsum([before[name].size for name in pool])[:-1]
        for name, bits in zip(pool, np.split(np.concatenate(pieces), ends), strict=True):
            found[name] = bits.view(before[name].dtype).reshape(before[name].shape)
    src.end()
    return found


def _pools(tensors: Tensors, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Tensors that are coded together: each large one alone, then all small ones of a dtype."""
    small: dict[str, list[str]] = {}
    for name in names:
        dtype = tensors[name].dtype.name
        if dtype not in steps.EXPONENTS:
            raise DeltaError(f"the delta is malformed: tensor {name!r} is {dtype}")
        if tensors[name].size >= ALONE:
            yield dtype, [name]
        else:
            small.setdefault(dtype, []).append(name)
    yield from small.items()
