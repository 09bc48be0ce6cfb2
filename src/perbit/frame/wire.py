"""Frames: arrays and models as self-describing bytes (docs/format.md is the norm)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from perbit.coding import arrays
from perbit.coding.afar import Afar
from perbit.coding.agreed import Agreed, AgreedLike
from perbit.coding.bits import Piece, Reader, Writer
from perbit.coding.codec import Codec, as_pipeline
from perbit.coding.cost import Budget, expected_values
from perbit.coding.families.formats import Raw
from perbit.coding.spec import CodecLike, codec
from perbit.coding.values import Known, Shape, size
from perbit.errors import DecodeError, EncodeError, LimitError
from perbit.frame import payload
from perbit.frame.header import MAGIC, VERSION, Entry, Header, read, write_array, write_message
from perbit.frame.seal import SEAL_BYTES, seal, unsealed
from perbit.randomness import fold, key_from_seed

T = TypeVar("T")

# --- writing ---------------------------------------------------------------------------------------------------------


def encode(x: Any, spec: CodecLike, *, seed: int | None = None, name: str | None = None) -> bytes:
    """Encode one array as a self-describing frame. `seed` fixes every random choice; `name` appears in errors.

    >>> import numpy as np, perbit
    >>> x = np.linspace(-1, 1, 1000, dtype=np.float32)
    >>> frame = perbit.encode(x, "qsgd(15, bucket=512) | rans", seed=0)
    >>> len(frame) < 1000, perbit.decode(frame).shape
    (True, (1000,))
    """
    array = arrays.as_numpy(x)
    entry = Entry("", arrays.dtype_name(array.dtype), array.shape, as_pipeline(codec(spec)))
    return write_one(entry, array, seed=seed, name=name)


def write_one(entry: Entry, array: NDArray[Any] | Afar, *, seed: int | None = None, name: str | None = None) -> bytes:
    """A frame of one array."""
    out = Writer()
    write_array(entry, out)
    payload.write(array, entry, name, out, key_from_seed(seed))
    return seal(out)


def write(
    tensors: Mapping[str, NDArray[Any]],
    codecs: Mapping[str, Codec],
    *,
    seed: int | None = None,
    sequence: int | None = None,
    digest: bytes | None = None,
) -> bytes:
    """A message of arrays, each with its codec; `perbit.dumps` chooses these by a plan."""
    entries = [
        Entry(name, arrays.dtype_name(a.dtype), a.shape, as_pipeline(codecs[name])) for name, a in tensors.items()
    ]
    return write_entries(entries, list(tensors.values()), seed=seed, sequence=sequence, digest=digest)


def write_entries(
    entries: Sequence[Entry],
    values: Sequence[NDArray[Any] | Afar],
    *,
    seed: int | None = None,
    sequence: int | None = None,
    digest: bytes | None = None,
    known: Sequence[Known] | None = None,
) -> bytes:
    """A message of arrays, each with its entry of the directory, and perhaps with what is known of it."""
    out = Writer()
    write_message(list(entries), sequence, digest, out)
    key = key_from_seed(seed)
    for index, (entry, array, each) in enumerate(zip(entries, values, known or [Known()] * len(entries), strict=True)):
        payload.write(array, entry, entry.name, out, fold(key, index), known=each)
    return seal(out)


def write_raw(
    tensors: Mapping[str, NDArray[Any]], *, sequence: int | None = None, digest: bytes | None = None
) -> bytes:
    """A message of arrays as they are, every dtype and every bit kept."""
    return write(tensors, dict.fromkeys(tensors, Raw()), sequence=sequence, digest=digest)


# --- reading ---------------------------------------------------------------------------------------------------------


def decode(
    frame: Piece,
    *,
    expect_shape: Shape | None = None,
    codecs: AgreedLike | None = None,
    max_values: int | None = None,
    max_memory: int | None = None,
    max_operations: int | None = None,
) -> NDArray[Any]:
    """Decode a frame of one array. A server should say what it expects: `expect_shape` and `codecs`, or at least `max_values`.

    Args:
        frame: the bytes.
        expect_shape: any other shape is a DecodeError.
        codecs: a spec, several, or `Plan.agreed`: a frame coded in another form is a DecodeError. Parameters may differ.
        max_values, max_memory, max_operations: a frame that needs more is a LimitError, before the work is done. Memory is in bytes, an operation
            takes about a nanosecond; without them limits follow from the length of the frame and the values expected (perbit.coding.cost).

    >>> import numpy as np, perbit
    >>> frame = perbit.encode(np.ones(1000, np.float32), "qsgd(15) | rans", seed=0)
    >>> perbit.decode(frame, codecs="topk(0.1) | fp16")
    Traceback (most recent call last):
    perbit.errors.DecodeError: the frame is coded by qsgd | rans, agreed were topk(positions=golomb) | fp16
    >>> perbit.decode(frame, max_values=10)
    Traceback (most recent call last):
    perbit.errors.LimitError: the frame claims 1000 values, above the limit of 10; pass max_values=1000 to allow it
    """
    return read_one(
        payload.read, frame, expect_shape,
        codecs=codecs, max_values=max_values, max_memory=max_memory, max_operations=max_operations,
    )  # fmt: skip


def read_one(
    read_tensor: Callable[[Reader, Entry], T], frame: Piece, expect_shape: Shape | None = None, **limits: Any
) -> T:
    """What `decode` does, with a tensor as `read_tensor` makes it; `limits` are those of `open_frame`."""
    expected = None if expect_shape is None else expected_values([expect_shape])
    src, header = open_frame(frame, expected=expected, **limits)
    entry = _only(header)
    if expect_shape is not None and entry.shape != tuple(expect_shape):
        raise DecodeError(f"expected shape {tuple(expect_shape)}, the frame holds {entry.shape}")
    with payload.decoding():
        value = read_tensor(src, entry)
        src.end()
    return value


def loads(
    frame: Piece,
    *,
    expect: Mapping[str, Shape] | None = None,
    codecs: AgreedLike | None = None,
    max_values: int | None = None,
    max_memory: int | None = None,
    max_operations: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Decode a message; `expect` maps every name to its shape and refuses anything else. The other arguments are those of `decode`."""
    return read_all(
        payload.read, frame, expect,
        codecs=codecs, max_values=max_values, max_memory=max_memory, max_operations=max_operations,
    )  # fmt: skip


def read_all(
    read_tensor: Callable[[Reader, Entry], T], frame: Piece, expect: Mapping[str, Shape] | None = None, **limits: Any
) -> dict[str, T]:
    """What `loads` does, with tensors as `read_tensor` makes them; `limits` are those of `open_frame`."""
    expected = None if expect is None else expected_values(expect.values())
    src, header = open_frame(frame, expected=expected, **limits)
    check_message(header)
    if expect is not None:
        check_expected(header, expect)
    with payload.decoding():
        values = {entry.name: read_tensor(src, entry) for entry in header.entries}
        src.end()
    return values


def decode_add(frame: Piece, out: Any, weight: float = 1.0, *, codecs: AgreedLike | None = None) -> None:
    """Add `weight` times the decoded values to `out`: an array, or a dict of arrays for a message. `codecs` is that of `decode`.

    Sparse frames touch only the entries they hold. The whole frame is checked against `out` before anything is added,
    but a frame that turns out malformed half-way may have been added in part; keep a copy if frames are not trusted.

    >>> import numpy as np, perbit
    >>> total = np.zeros(4, np.float32)
    >>> perbit.decode_add(perbit.encode(np.array([1, 0, 0, 8], np.float32), "topk(k=1)"), total, weight=0.5)
    >>> total
    array([0., 0., 0., 4.], dtype=float32)
    """
    targets = dict(out) if isinstance(out, Mapping) else {"": out}
    for name, target in targets.items():
        _check_target(name, target)
    expected = expected_values(target.shape for target in targets.values())
    src, header = open_frame(frame, None, expected=expected, codecs=codecs)
    if header.is_message != isinstance(out, Mapping):
        raise DecodeError(f"the frame holds {'a message' if header.is_message else 'one array'}; pass a matching `out`")
    if missing := [entry.name for entry in header.entries if entry.name not in targets]:
        raise DecodeError(f"`out` has no tensor {missing[0]!r}")
    for entry in header.entries:
        if targets[entry.name].shape != entry.shape:
            raise DecodeError(f"`out` has shape {targets[entry.name].shape}, the frame holds {entry.shape}")
    with payload.decoding():
        for entry in header.entries:
            payload.add(src, entry, targets[entry.name].reshape(-1), weight)
        src.end()


def inspect(
    frame: Piece,
    *,
    max_values: int | None = None,
    max_memory: int | None = None,
    max_operations: int | None = None,
) -> dict[str, Any]:
    """What a frame holds, as plain data: spec, shape, bytes, bits per value, and the bytes of every section.

    The frame is decoded, within the limits of `decode`.

    >>> import numpy as np, perbit
    >>> info = perbit.inspect(perbit.encode(np.zeros((2, 3), np.float32), "fp16"))
    >>> info["spec"], info["shape"], info["sections"]
    ('fp16', [2, 3], [{'name': 'values', 'n_bytes': 12}])
    """
    src, header = open_frame(frame, max_values, max_memory=max_memory, max_operations=max_operations)
    tensors = []
    with payload.decoding():
        for entry in header.entries:
            before, src.sections = src.position, []
            payload.read_stored(src, entry)
            tensors.append(_describe(entry, src.position - before, src.sections))
        src.end()
    n_values = sum(size(entry.shape) for entry in header.entries)
    common: dict[str, Any] = {
        "n_bytes": len(frame),
        "n_values": n_values,
        "bits_per_value": 8 * len(frame) / n_values if n_values else None,
        "header_bytes": header.n_bytes,
        "checksum_bytes": SEAL_BYTES,
    }
    if header.sequence is not None and header.digest is not None:
        common |= {"sequence": header.sequence, "digest": header.digest.hex()}
    if header.is_message:
        return {"kind": "message", **common, "tensors": tensors}
    tensor = {key: value for key, value in tensors[0].items() if key not in ("name", "n_bytes", "bits_per_value")}
    return {"kind": "array", **tensor, **common}


def _describe(entry: Entry, n_bytes: int, sections: list[tuple[str, int]]) -> dict[str, Any]:
    merged: dict[str, int] = {}
    for name, length in sections:
        merged[name] = merged.get(name, 0) + length
    n = size(entry.shape)
    return {
        "name": entry.name,
        "spec": str(entry.codec),
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "n_bytes": n_bytes,
        "bits_per_value": 8 * n_bytes / n if n else None,
        "sections": [{"name": name, "n_bytes": length} for name, length in merged.items()],
    }


def read_header(frame: Piece, max_values: int | None = None) -> Header:
    """Check a frame's seal and read its header, without decoding any value."""
    view = _bytes_of(frame)
    return _unsealed(view, max_values, Budget.of_frame(len(view), max_values or 0))[1]


def open_frame(
    frame: Piece,
    max_values: int | None = None,
    *,
    expected: int | None = None,
    max_memory: int | None = None,
    max_operations: int | None = None,
    codecs: AgreedLike | None = None,
) -> tuple[Reader, Header]:
    """A frame whose seal is good and whose claims are within the limits: its header, and a reader that stands at the payload."""
    view, values = _bytes_of(frame), expected if expected is not None else max_values or 0
    budget = Budget.of_frame(len(view), values, max_memory, max_operations)
    src, header = _unsealed(view, max_values, budget)
    if codecs is not None:
        check_codecs(header, codecs)
    payload.check_results(header.entries, budget)
    return src, header


def _bytes_of(frame: Piece) -> memoryview:
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise DecodeError(f"a frame is bytes, got {type(frame).__name__}")
    try:
        return memoryview(frame).cast("B")
    except (TypeError, ValueError) as error:
        raise DecodeError(f"a frame is contiguous bytes: {error}") from None


def _unsealed(view: memoryview, max_values: int | None, budget: Budget) -> tuple[Reader, Header]:
    if len(view) < len(MAGIC) + 2 + SEAL_BYTES or view[:4] != MAGIC:
        raise DecodeError(f"not a perbit frame: it must start with {MAGIC!r} and have at least 10 bytes")
    if view[4] != VERSION:
        raise DecodeError(f"frame version {view[4]} is not known; this perbit reads version {VERSION}")
    src = Reader(unsealed(view), budget)
    src.take(5, "magic")
    with payload.decoding():
        header = read(src)
    claimed = sum(size(entry.shape) for entry in header.entries)
    if max_values is not None and claimed > max_values:
        raise LimitError(
            f"the frame claims {claimed} values, above the limit of {max_values}; pass max_values={claimed} to allow it"
        )
    return src, header


def check_codecs(header: Header, codecs: AgreedLike) -> None:
    """Refuse codecs that were not agreed on."""
    agreed = Agreed.of(codecs)
    for entry in {id(entry.codec): entry for entry in header.entries}.values():
        agreed.check(entry.codec, f"tensor {entry.name!r}" if header.is_message else "the frame")


def _check_target(name: str, target: Any) -> None:
    if isinstance(target, Afar):
        return
    flags = target.flags if isinstance(target, np.ndarray) and target.dtype == np.float32 else None
    if flags is None or not (flags.c_contiguous and flags.aligned and flags.writeable):
        where, hint = f"[{name!r}]" if name else "", "; for tensors there is perbit.torch.decode_add"
        raise EncodeError(
            f"`out`{where} must be a writeable, aligned, contiguous float32 array{hint * hasattr(target, 'detach')}"
        )


def _only(header: Header) -> Entry:
    if header.is_message:
        raise DecodeError(f"the frame is a message of {len(header.entries)} tensors; use perbit.loads")
    return header.entries[0]


def check_message(header: Header) -> None:
    """Refuse a frame of one array."""
    if not header.is_message:
        raise DecodeError("the frame holds one array; use perbit.decode")


def check_expected(header: Header, expect: Mapping[str, Shape]) -> None:
    """Refuse a message whose tensors are not those."""
    found = {entry.name: entry.shape for entry in header.entries}
    for name in expect.keys() | found.keys():
        if name not in found:
            raise DecodeError(f"the message lacks tensor {name!r}")
        if name not in expect:
            raise DecodeError(f"the message holds {name!r}, which was not expected")
        if tuple(expect[name]) != found[name]:
            raise DecodeError(f"tensor {name!r}: expected shape {tuple(expect[name])}, got {found[name]}")
