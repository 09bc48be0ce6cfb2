"""Frames: arrays and models as self-describing bytes (docs/format.md is the norm)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from perbit import arrays
from perbit.bits import Piece, Reader, Writer, varint
from perbit.codec import Codec, FloatCodec, Pipeline, Rest, Shape, as_pipeline, size
from perbit.errors import DecodeError, EncodeError, LimitError, NonFiniteError
from perbit.families.formats import Raw
from perbit.families.general import unzstd, zstd_size
from perbit.kernels import K
from perbit.kernels.api import F32
from perbit.plan import CodecLike, PlanLike, as_plan, codec
from perbit.randomness import fold, key_from_seed
from perbit.wirespec import MAX_BYTES as MAX_SPEC_BYTES
from perbit.wirespec import read_spec, read_specs, write_spec

MAGIC = b"pbit"
VERSION = 1
_MESSAGE, _STATEFUL, _PACKED_DIRECTORY = 1, 2, 4
MAX_DIMENSIONS = 32
DIGEST_BYTES = 8
MAX_DIRECTORY = 1 << 23  # a directory may be compressed, so its size and its parts are bounded by themselves
MAX_TENSORS = 1 << 16
MAX_NAME = 1024
DEFAULT_MAX_VALUES = 1 << 27  # what a frame may claim when the caller sets no limit ...
DEFAULT_VALUES_PER_BYTE = 4096  # ... or this many values for each of its bytes, if that is more


@dataclass(frozen=True)
class Entry:
    """One tensor of a frame: what the header says about it."""

    name: str
    dtype: str
    shape: Shape
    codec: Pipeline


@dataclass(frozen=True)
class Header:
    """Everything before the payload."""

    entries: tuple[Entry, ...]
    is_message: bool
    sequence: int | None
    digest: bytes | None
    n_bytes: int


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
    entry = Entry("", array.dtype.name, array.shape, as_pipeline(codec(spec)))
    out = Writer()
    out.raw(MAGIC + bytes([VERSION, 0]) + _tensor_head(entry) + write_spec(entry.codec))
    _encode_payload(array, entry, name, out, key_from_seed(seed))
    return _sealed(out)


def dumps(
    tensors: Mapping[str, Any],
    plan: PlanLike,
    *,
    seed: int | None = None,
    sequence: int | None = None,
    digest: bytes | None = None,
) -> bytes:
    """Encode all tensors of a model as one message. `plan` is a Plan, or one spec for every tensor of floats.

    >>> import numpy as np, perbit
    >>> frame = perbit.dumps({"w": np.ones((8, 8), np.float32), "steps": np.array(3)}, "uniform(4) | rans")
    >>> {name: value.dtype.name for name, value in perbit.loads(frame).items()}
    {'w': 'float32', 'steps': 'int64'}
    """
    named = {name: arrays.as_numpy(x) for name, x in tensors.items()}
    codecs = as_plan(plan).codecs(named, seed)
    entries = [Entry(name, a.dtype.name, a.shape, as_pipeline(codecs[name])) for name, a in named.items()]
    out = Writer()
    _write_message_head(entries, sequence, digest, out)
    key = key_from_seed(seed)
    for index, (entry, array) in enumerate(zip(entries, named.values(), strict=True)):
        _encode_payload(array, entry, entry.name, out, fold(key, index))
    return _sealed(out)


def _tensor_head(entry: Entry) -> bytes:
    dimensions = b"".join(map(varint, entry.shape))
    return bytes([arrays.DTYPES.index(entry.dtype)]) + varint(len(entry.shape)) + dimensions


def _write_message_head(entries: list[Entry], sequence: int | None, digest: bytes | None, out: Writer) -> None:
    if (sequence is None) != (digest is None) or (digest is not None and len(digest) != DIGEST_BYTES):
        raise EncodeError(f"a stateful frame has a sequence number and a digest of {DIGEST_BYTES} bytes, or neither")
    directory = _directory(entries)
    packed = zstandard.ZstdCompressor(level=19, write_content_size=True).compress(directory)
    flags = _MESSAGE | (_STATEFUL if sequence is not None else 0)
    if len(packed) < len(directory):
        flags, directory = flags | _PACKED_DIRECTORY, packed
    out.raw(MAGIC + bytes([VERSION, flags]))
    if sequence is not None and digest is not None:
        out.varint(sequence)
        out.raw(digest)
    out.section(directory)


def _directory(entries: list[Entry]) -> bytes:
    """The distinct specs, then name, dtype, shape and spec number of each tensor."""
    specs = list(dict.fromkeys(write_spec(entry.codec) for entry in entries))
    number = {spec: index for index, spec in enumerate(specs)}
    _check_directory(entries, specs)
    out = Writer()
    out.varint(len(specs))
    for spec in specs:
        out.raw(spec)
    out.varint(len(entries))
    for entry in entries:
        out.section(entry.name.encode())
        out.raw(_tensor_head(entry) + varint(number[write_spec(entry.codec)]))
    return out.join()


def _check_directory(entries: list[Entry], specs: list[bytes]) -> None:
    """Write nothing that no reader accepts."""
    if len(entries) > MAX_TENSORS:
        raise EncodeError(f"a message holds at most {MAX_TENSORS} tensors, got {len(entries)}; send several messages")
    if sum(map(len, specs)) > MAX_SPEC_BYTES:
        raise EncodeError(f"the {len(specs)} different specs need more than {MAX_SPEC_BYTES} bytes; use fewer")
    for entry in entries:
        if len(entry.name.encode()) > MAX_NAME:
            raise EncodeError(f"a tensor's name has at most {MAX_NAME} bytes, got {entry.name[:50]!r}...")


def _encode_payload(array: NDArray[Any], entry: Entry, name: str | None, out: Writer, key: int) -> None:
    stages = entry.codec.stages
    if isinstance(stages[0], Raw):  # raw keeps every dtype exactly
        arrays.check_finite(array, name)
        Rest(stages[1:]).encode_bytes(arrays.native_bytes(array), out)
        return
    finds_nonfinite = isinstance(stages[0], FloatCodec) and stages[0].finds_nonfinite
    try:
        entry.codec.rest.encode_floats(arrays.to_floats(array, name, scan=not finds_nonfinite), out, key)
    except NonFiniteError:
        raise arrays.nonfinite(array, name) from None


def _sealed(out: Writer) -> bytes:
    checksum = 0
    for piece in out.pieces:
        checksum = K.crc32c(piece, checksum)
    out.raw(checksum.to_bytes(4, "little"))
    return out.join()


# --- reading ---------------------------------------------------------------------------------------------------------


def decode(frame: Piece, *, max_values: int | None = None, expect_shape: Shape | None = None) -> NDArray[Any]:
    """Decode a frame of one array. A server should say what it expects: `expect_shape`, or at least `max_values`."""
    src, header = _open(frame, max_values)
    entry = _only(header)
    if expect_shape is not None and entry.shape != tuple(expect_shape):
        raise DecodeError(f"expected shape {tuple(expect_shape)}, the frame holds {entry.shape}")
    with _decoding():
        value = _decode_payload(src, entry)
        src.end()
    return value


def loads(
    frame: Piece, *, max_values: int | None = None, expect: Mapping[str, Shape] | None = None
) -> dict[str, NDArray[Any]]:
    """Decode a message; `expect` maps every name to its shape and refuses anything else."""
    src, header = _open(frame, max_values)
    _check_message(header)
    if expect is not None:
        _check_expected(header, expect)
    with _decoding():
        values = {entry.name: _decode_payload(src, entry) for entry in header.entries}
        src.end()
    return values


def decode_add(frame: Piece, out: Any, weight: float = 1.0) -> None:
    """Add `weight` times the decoded values to `out`: an array, or a dict of arrays for a message.

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
    src, header = _open(frame, sum(target.size for target in targets.values()))
    if header.is_message != isinstance(out, Mapping):
        raise DecodeError(f"the frame holds {'a message' if header.is_message else 'one array'}; pass a matching `out`")
    if missing := [entry.name for entry in header.entries if entry.name not in targets]:
        raise DecodeError(f"`out` has no tensor {missing[0]!r}")
    for entry in header.entries:
        if targets[entry.name].shape != entry.shape:
            raise DecodeError(f"`out` has shape {targets[entry.name].shape}, the frame holds {entry.shape}")
    with _decoding():
        for entry in header.entries:
            _add_payload(src, entry, targets[entry.name].reshape(-1), weight)
        src.end()


def inspect(frame: Piece, *, max_values: int | None = None) -> dict[str, Any]:
    """What a frame holds, as plain data: spec, shape, bytes, bits per value, and the bytes of every section.

    >>> import numpy as np, perbit
    >>> info = perbit.inspect(perbit.encode(np.zeros((2, 3), np.float32), "fp16"))
    >>> info["spec"], info["shape"], info["sections"]
    ('fp16', [2, 3], [{'name': 'values', 'n_bytes': 12}])
    """
    src, header = _open(frame, max_values)
    tensors = []
    with _decoding():
        for entry in header.entries:
            before, src.sections = src.position, []
            _decode_payload(src, entry)
            tensors.append(_describe(entry, src.position - before, src.sections))
        src.end()
    n_values = sum(size(entry.shape) for entry in header.entries)
    common: dict[str, Any] = {
        "n_bytes": len(frame),
        "n_values": n_values,
        "bits_per_value": 8 * len(frame) / n_values if n_values else None,
        "header_bytes": header.n_bytes,
        "checksum_bytes": 4,
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
    return _open(frame, max_values)[1]


def _open(frame: Piece, max_values: int | None) -> tuple[Reader, Header]:
    if not isinstance(frame, bytes | bytearray | memoryview):
        raise DecodeError(f"a frame is bytes, got {type(frame).__name__}")
    try:
        view = memoryview(frame).cast("B")
    except (TypeError, ValueError) as error:
        raise DecodeError(f"a frame is contiguous bytes: {error}") from None
    if len(view) < len(MAGIC) + 2 + 4 or view[:4] != MAGIC:
        raise DecodeError(f"not a perbit frame: it must start with {MAGIC!r} and have at least 10 bytes")
    if view[4] != VERSION:
        raise DecodeError(f"frame version {view[4]} is not known; this perbit reads version {VERSION}")
    if K.crc32c(view[:-4]) != int.from_bytes(view[-4:], "little"):
        raise DecodeError("the checksum does not match: the frame is damaged or truncated")
    src = Reader(view[:-4])
    src.take(5, "magic")
    with _decoding():
        header = _read_header(src)
    limit = max(DEFAULT_MAX_VALUES, DEFAULT_VALUES_PER_BYTE * len(view)) if max_values is None else max_values
    claimed = sum(size(entry.shape) for entry in header.entries)
    if claimed > limit:
        raise LimitError(
            f"the frame claims {claimed} values, above the limit of {limit}; pass max_values={claimed} to allow it"
        )
    return src, header


def _read_header(src: Reader) -> Header:
    flags = src.byte("flags")
    if flags & ~(_MESSAGE | _STATEFUL | _PACKED_DIRECTORY) or (not flags & _MESSAGE and flags):
        raise DecodeError(f"unknown flags {flags:#x}")
    if not flags & _MESSAGE:
        dtype, shape = _read_tensor_head(src)
        entry = _checked_entry("", dtype, shape, read_spec(src))
        return Header((entry,), False, None, None, src.position)
    sequence = src.varint("sequence number") if flags & _STATEFUL else None
    digest = bytes(src.take(DIGEST_BYTES, "digest")) if flags & _STATEFUL else None
    directory: Piece = src.take(src.varint("length of the directory"), "directory")
    if flags & _PACKED_DIRECTORY:
        directory = _unpack_directory(directory)
    return Header(_read_directory(Reader(directory)), True, sequence, digest, src.position)


def _unpack_directory(packed: Piece) -> bytes:
    claimed = zstd_size(packed)
    if claimed > MAX_DIRECTORY:
        raise DecodeError(f"the directory claims {claimed} bytes, at most {MAX_DIRECTORY} are allowed")
    return unzstd(packed)


def _read_directory(src: Reader) -> tuple[Entry, ...]:
    specs = read_specs(src, src.varint("number of specs", MAX_SPEC_BYTES))
    entries: dict[str, Entry] = {}
    for _ in range(src.varint("number of tensors", MAX_TENSORS)):
        try:
            name = bytes(src.take(src.varint("length of a name", MAX_NAME), "name")).decode()
        except UnicodeDecodeError:
            raise DecodeError("a tensor's name is not UTF-8") from None
        dtype, shape = _read_tensor_head(src)
        index = src.varint("spec number")
        if index >= len(specs):
            raise DecodeError(f"tensor {name!r} names spec {index} of {len(specs)}")
        if name in entries:
            raise DecodeError(f"tensor {name!r} appears twice")
        entries[name] = _checked_entry(name, dtype, shape, specs[index])
    src.end()
    return tuple(entries.values())


def _read_tensor_head(src: Reader) -> tuple[str, Shape]:
    code = src.byte("dtype")
    if code >= len(arrays.DTYPES):
        raise DecodeError(f"unknown dtype number {code}")
    n_dimensions = src.varint("number of dimensions", MAX_DIMENSIONS)
    shape = tuple(src.varint("dimension", (1 << 48) - 1) for _ in range(n_dimensions))
    return arrays.DTYPES[code], shape


def _checked_entry(name: str, dtype: str, shape: Shape, spec: Codec) -> Entry:
    pipeline = as_pipeline(spec)
    if dtype not in arrays.FLOATS and not isinstance(pipeline.stages[0], Raw):
        raise DecodeError(f"{dtype} values can only be raw, the frame says {pipeline}")
    return Entry(name, dtype, shape, pipeline)


def _decode_payload(src: Reader, entry: Entry) -> NDArray[Any]:
    stages = entry.codec.stages
    if isinstance(stages[0], Raw):
        data = Rest(stages[1:]).decode_bytes(src, size(entry.shape) * arrays.item_size(entry.dtype))
        return arrays.from_native(data, entry.dtype, entry.shape)
    return arrays.from_float32(entry.codec.rest.decode_floats(src, entry.shape), entry.dtype)


def _add_payload(src: Reader, entry: Entry, out: F32, weight: float) -> None:
    if entry.dtype == "float32":
        entry.codec.rest.decode_add(src, entry.shape, out, weight)
    elif entry.dtype in arrays.FLOATS:
        K.axpy(out, arrays.to_floats(_decode_payload(src, entry), entry.name).flat, weight)
    else:
        raise DecodeError(f"cannot add {entry.dtype} values to floats")


def _check_target(name: str, target: Any) -> None:
    good = isinstance(target, np.ndarray) and target.dtype == np.float32 and target.flags.c_contiguous
    if not (good and target.flags.writeable):
        raise EncodeError(f"`out`{f'[{name!r}]' if name else ''} must be a writeable, contiguous float32 array")


def _only(header: Header) -> Entry:
    if header.is_message:
        raise DecodeError(f"the frame is a message of {len(header.entries)} tensors; use perbit.loads")
    return header.entries[0]


def _check_message(header: Header) -> None:
    if not header.is_message:
        raise DecodeError("the frame holds one array; use perbit.decode")


def _check_expected(header: Header, expect: Mapping[str, Shape]) -> None:
    found = {entry.name: entry.shape for entry in header.entries}
    for name in expect.keys() | found.keys():
        if name not in found:
            raise DecodeError(f"the message lacks tensor {name!r}")
        if name not in expect:
            raise DecodeError(f"the message holds {name!r}, which was not expected")
        if tuple(expect[name]) != found[name]:
            raise DecodeError(f"tensor {name!r}: expected shape {tuple(expect[name])}, got {found[name]}")


@contextmanager
def _decoding() -> Iterator[None]:
    """Whatever a decoder stumbles over is the frame's fault, and said so; numbers may overflow without a warning."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DecodeError:
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise DecodeError(f"malformed frame: {error}") from error
