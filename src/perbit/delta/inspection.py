"""What a delta holds and where its bytes go, as plain data: `perbit inspect` shows it."""

from __future__ import annotations

import math
from typing import Any

from perbit.coding.bits import Piece
from perbit.delta.message import ABOUT, OTHERS, STEPS, opened
from perbit.frame import wire


def is_delta(frame: Piece, max_values: int | None = None) -> bool:
    """Whether a frame is a file of `perbit diff`."""
    header = wire.read_header(frame, max_values)
    kinds = {entry.name: entry.dtype for entry in header.entries}
    return header.is_message and kinds == dict.fromkeys((ABOUT, STEPS, OTHERS), "uint8")


def inspect(delta: Piece, **limits: Any) -> dict[str, Any]:
    """What a delta leads from and to, how each tensor is sent and, of those that are coded one by one, by which spec and in how many bytes.

    Args:
        limits: those of `perbit.inspect`.
    """
    outer = wire.inspect(delta, **limits)
    head, parts = opened(delta, **limits)
    others = wire.inspect(parts[OTHERS], **limits)["tensors"] if parts[OTHERS] else []
    coded = {tensor["name"]: tensor for tensor in others}
    tensors = [_tensor(coded.get(name), name, dtype, shape, how) for name, dtype, shape, how in head["tensors"]]
    n_values = sum(math.prod(tensor["shape"]) for tensor in tensors)
    return {
        "kind": "delta",
        **{key: head[key] for key in ("version", "base", "result", "exact")},
        **{key: outer[key] for key in ("n_bytes", "header_bytes", "checksum_bytes")},
        "n_values": n_values,
        "bits_per_value": 8 * outer["n_bytes"] / n_values if n_values else None,
        "parts": {tensor["name"]: tensor["n_bytes"] for tensor in outer["tensors"]},
        "tensors": tensors,
    }


def _tensor(coded: dict[str, Any] | None, name: str, dtype: str, shape: list[int], how: str) -> dict[str, Any]:
    own = {key: coded[key] for key in ("spec", "n_bytes", "sections")} if coded else {}
    return {"name": name, "dtype": dtype, "shape": shape, "how": how, **own}
