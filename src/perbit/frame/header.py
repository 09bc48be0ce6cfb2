"""The header of a frame: what stands between the magic and the payload (docs/format.md is the norm)."""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

from perbit.coding import arrays
from perbit.coding.bits import Piece, Reader, Writer, varint
from perbit.coding.codec import Codec, Pipeline, as_pipeline
from perbit.coding.cost import TO_NAME
from perbit.coding.families.formats import Raw
from perbit.coding.families.general import unzstd, zstd_size
from perbit.coding.values import Shape
from perbit.errors import DecodeError, EncodeError
from perbit.frame.wirespec import MAX_BYTES as MAX_SPEC_BYTES
from perbit.frame.wirespec import read_spec, read_specs, write_spec

MAGIC = b"pbit"
VERSION = 1
_MESSAGE, STATEFUL, _PACKED_DIRECTORY = 1, 2, 4
MAX_DIMENSIONS = 32
DIGEST_BYTES = 8
MAX_DIRECTORY = 1 << 23  # a directory may be compressed, so its size and its parts are bounded by themselves
MAX_TENSORS = 1 << 16
MAX_NAME = 1024


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


def _tensor_head(entry: Entry) -> bytes:
    dimensions = b"".join(map(varint, entry.shape))
    return bytes([arrays.DTYPES.index(entry.dtype)]) + varint(len(entry.shape)) + dimensions


def write_array(entry: Entry, out: Writer) -> None:
    """The head of a frame that holds one array."""
    out.raw(MAGIC + bytes([VERSION, 0]) + _tensor_head(entry) + write_spec(entry.codec))


def write_message(entries: list[Entry], sequence: int | None, digest: bytes | None, out: Writer) -> None:
    """The head of a frame that holds named tensors."""
    if (sequence is None) != (digest is None) or (digest is not None and len(digest) != DIGEST_BYTES):
        raise EncodeError(f"a stateful frame has a sequence number and a digest of {DIGEST_BYTES} bytes, or neither")
    directory = _directory(entries)
    packed = zstandard.ZstdCompressor(level=19, write_content_size=True).compress(directory)
    flags = _MESSAGE | (STATEFUL if sequence is not None else 0)
    if len(packed) < len(directory):
        flags, directory = flags | _PACKED_DIRECTORY, packed
    out.raw(MAGIC + bytes([VERSION, flags]))
    if sequence is not None and digest is not None:
        out.varint(sequence)
        out.raw(digest)
    out.section(directory)


def stateful_head(head: bytes) -> bytes:
    """Magic, version and flags of a plain message, as they are in one with a sequence number and a digest."""
    return head[:-1] + bytes([head[-1] | STATEFUL])


def _directory(entries: list[Entry]) -> bytes:
    """The distinct specs, then name, dtype, shape and spec number of each tensor."""
    # By identity: codecs that are equal may differ in bytes, as 1 and 1.0 do.
    written: dict[tuple[int, ...], bytes] = {}
    keys = [tuple(map(id, entry.codec.stages)) for entry in entries]
    for key, entry in zip(keys, entries, strict=True):
        if key not in written:
            written[key] = write_spec(entry.codec)
    specs = list(dict.fromkeys(written.values()))
    number = {spec: index for index, spec in enumerate(specs)}
    _check_directory(entries, specs)
    out = Writer()
    out.varint(len(specs))
    for spec in specs:
        out.raw(spec)
    out.varint(len(entries))
    for key, entry in zip(keys, entries, strict=True):
        out.section(entry.name.encode())
        out.raw(_tensor_head(entry) + varint(number[written[key]]))
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


def read(src: Reader) -> Header:
    """The header, from the flags on; the reader then stands at the payload."""
    flags = src.byte("flags")
    if flags & ~(_MESSAGE | STATEFUL | _PACKED_DIRECTORY) or (not flags & _MESSAGE and flags):
        raise DecodeError(f"unknown flags {flags:#x}")
    if not flags & _MESSAGE:
        dtype, shape = _read_tensor_head(src)
        entry = _checked_entry("", dtype, shape, read_spec(src))
        return Header((entry,), False, None, None, src.position)
    sequence = src.varint("sequence number") if flags & STATEFUL else None
    digest = bytes(src.take(DIGEST_BYTES, "digest")) if flags & STATEFUL else None
    directory: Piece = src.take(src.varint("length of the directory"), "directory")
    if flags & _PACKED_DIRECTORY:
        directory = _unpack_directory(directory)
    return Header(_read_directory(Reader(directory, src.budget)), True, sequence, digest, src.position)


def _unpack_directory(packed: Piece) -> bytes:
    claimed = zstd_size(packed)
    if claimed > MAX_DIRECTORY:
        raise DecodeError(f"the directory claims {claimed} bytes, at most {MAX_DIRECTORY} are allowed")
    return unzstd(packed)


def _read_directory(src: Reader) -> tuple[Entry, ...]:
    specs = read_specs(src, src.varint("number of specs", MAX_SPEC_BYTES))
    entries: dict[str, Entry] = {}
    for _ in range(src.varint("number of tensors", MAX_TENSORS)):
        src.spend(TO_NAME)
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
