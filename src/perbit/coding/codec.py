"""The codec algebra: what a codec is, and how codecs compose.

A spec is a pipeline of stages. Values pass through as **floats**, then **symbols**, then **bytes**; each stage says what it takes and what it gives:

    topk(0.01) | qsgd(15) | rans
    floats → floats   → symbols → coded

The roles are the abstract classes below; every codec is a final, frozen dataclass that fills one of them.
A stage codes its own part (positions, norms) as sections of the frame and leaves the rest to the `Rest` of the pipeline.
"""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from perbit import parallel
from perbit.coding.bits import Piece, Reader, Writer, bytes_of
from perbit.coding.cost import Cost
from perbit.coding.values import Dequantizer, Floats, Prior, Quantized, Shape, size, symbol_dtype
from perbit.errors import DecodeError, SpecError
from perbit.kernels import CHUNK, K
from perbit.kernels.api import F32, U32, Symbols
from perbit.randomness import fold

_LARGE = 1 << 16  # symbols from which an array is worth a place on the shelf
_TABLES = Cost(1 << 20, 20_000)  # of a quantizer and of a coder, however few values they have
Kind = Literal["floats", "symbols", "bytes", "coded", "positions"]


class Codec(ABC):
    """Anything a spec can name. Compare, hash and print like the values they are; compose with `|`."""

    name: ClassVar[str]
    wire_id: ClassVar[int] = 0  # 0: no number of its own, the name travels as text
    takes: ClassVar[Kind]
    gives: ClassVar[Kind]
    codes_small: ClassVar[bool] = False  # good for small tensors too, which otherwise go as they are
    examples: ClassVar[tuple[str, ...]] = ()  # specs that exercise it: for the laws, the golden frames and the docs

    @property
    def unbiased(self) -> bool:
        """Whether the expected decoded value is the input."""
        return False

    def omega(self, n: int) -> float:
        """ω with E|C(x) - x|² ≤ ω|x|² for n values; infinity where nothing is promised."""
        return math.inf

    def __or__(self, other: Codec) -> Pipeline:
        return Pipeline((*stages_of(self), *stages_of(other)))

    def __str__(self) -> str:
        return format_codec(self)


class FloatCodec(Codec):
    """Takes floats: sparsifiers, number formats, quantizers."""

    takes = "floats"
    works_afar: ClassVar[bool] = (
        False  # `encode` asks its values for answers, and does without reading all of them itself
    )
    finds_nonfinite: ClassVar[bool] = False  # `encode` raises NonFiniteError itself: nobody need scan for NaN before

    @abstractmethod
    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None: ...

    @abstractmethod
    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32: ...

    def cost(self, shape: Shape) -> Cost:
        """What decoding such an array takes in this stage at most, its result included and the stages after it not.

        It is paid before `decode` is called. What depends on numbers in the frame is paid there, by `src.spend`, when they are read.
        """
        return Cost(24 * size(shape), 32 * size(shape))

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        """Add weight times the decoded values to the flat array `out`."""
        K.axpy(out, self.decode(src, shape, rest).reshape(-1), weight)

    def growth(self, n: int) -> float:
        """A bound on E|C(x)|² / |x|²."""
        omega = self.omega(n)
        return 1 + omega if self.unbiased else (1 + math.sqrt(omega)) ** 2

    def passes_on(self, n: int) -> int:
        """How many of n values the next stage sees."""
        return n


class Quantizer(FloatCodec):
    """Floats to symbols. Subclasses say how; chunks, coding and accumulation are done here."""

    gives = "symbols"

    @abstractmethod
    def quantize(self, values: Floats, key: int) -> Quantized: ...

    @abstractmethod
    def dequantizer(self, src: Reader, n: int) -> Dequantizer: ...

    def held(self, values: Floats) -> Quantizer:
        """The same quantizer with the distribution of these values for good; itself if it fits none."""
        return self

    def cost(self, shape: Shape) -> Cost:
        """Values, perhaps a norm for each, and tables; what the coder of the symbols takes comes to it."""
        return Cost(8 * size(shape) + _TABLES.memory, 4 * size(shape) + _TABLES.operations)

    def encode(self, values: Floats, rest: Rest, out: Writer, key: int) -> None:
        coded = self.quantize(values, key)
        for _, side in coded.sides:
            out.section(side)

        kept: dict[int, Symbols] = {}

        def work(piece: tuple[int, int]) -> tuple[Piece, ...]:
            lo, hi = piece
            dtype = symbol_dtype(coded.alphabet)
            if values.echo is None:
                symbols = parallel.scratch(hi - lo, dtype)
            else:
                symbols = kept[lo] = _lasting(hi - lo, dtype)
            coded.fill(lo, hi, symbols)
            return rest.encode_symbols(symbols, coded.alphabet, coded.prior)

        for stream in parallel.run(work, parallel.chunks(values.n)):
            out.section(*stream)
        if values.echo is not None:
            values.echo.add = self._adding(coded, values.n, kept)

    def _adding(self, coded: Quantized, n: int, kept: dict[int, Symbols]) -> Callable[[F32, float], None]:
        """Adds what these symbols mean, without coding them to bytes and back."""
        sides = Writer()
        for _, side in coded.sides:
            sides.section(side)
        known = self.dequantizer(Reader(sides.join()), n)

        def add(out: F32, weight: float) -> None:
            for lo, symbols in kept.items():
                known.add(symbols, lo, out[lo : lo + symbols.size], weight)

        return add

    def decode(self, src: Reader, shape: Shape, rest: Rest) -> F32:
        out = np.empty(size(shape), np.float32)

        def fill(lo: int, hi: int, stream: Piece, known: Dequantizer) -> None:
            rest.decode_values(stream, known, lo, out[lo:hi])

        self._decode_chunks(src, out.size, rest, fill)
        return out.reshape(shape)

    def decode_add(self, src: Reader, shape: Shape, rest: Rest, out: F32, weight: float) -> None:
        def add(lo: int, hi: int, stream: Piece, known: Dequantizer) -> None:
            symbols = parallel.scratch(hi - lo, symbol_dtype(known.alphabet))
            rest.decode_symbols(stream, known, symbols)
            known.add(symbols, lo, out[lo:hi], weight)

        self._decode_chunks(src, out.size, rest, add)

    def decode_symbols(self, src: Reader, n: int, rest: Rest) -> Iterator[tuple[int, Symbols, Dequantizer]]:
        """The symbols of one chunk after another, with its first place and what they mean; good until the next chunk."""
        src.spend(rest.symbols_cost(n))
        known = self.dequantizer(src, n)
        for lo, hi, stream in [(lo, hi, src.section("symbols")) for lo, hi in parallel.chunks(n)]:
            symbols = parallel.scratch(hi - lo, symbol_dtype(known.alphabet))
            rest.decode_symbols(stream, known, symbols)
            yield lo, symbols, known

    def _decode_chunks(
        self, src: Reader, n: int, rest: Rest, consume: Callable[[int, int, Piece, Dequantizer], None]
    ) -> None:
        src.spend(rest.symbols_cost(n))
        known = self.dequantizer(src, n)
        streams = [(lo, hi, src.section("symbols")) for lo, hi in parallel.chunks(n)]

        for _ in parallel.run(lambda piece: consume(*piece, known), streams):
            pass


def _lasting(n: int, dtype: type[np.generic]) -> Symbols:
    """An array that may last until a frame is delivered."""
    symbols: Symbols = parallel.shelf().array(n, dtype) if n >= _LARGE else np.empty(n, dtype)
    return symbols


class SymbolCoder(Codec):
    """Symbols of one chunk to bytes."""

    takes = "symbols"

    @abstractmethod
    def encode(self, symbols: Symbols, alphabet: int, prior: Prior | None) -> tuple[Piece, ...]:
        """The stream, in as many pieces as it was made."""

    @abstractmethod
    def decode(self, data: Piece, alphabet: int, prior: Prior | None, out: Symbols) -> None: ...

    def decode_table(self, data: Piece, table: F32, prior: Prior | None, out: F32) -> None:
        """Decode straight to table[symbol]."""
        symbols = parallel.scratch(out.size, symbol_dtype(len(table)))
        self.decode(data, len(table), prior, symbols)
        K.dequantize(symbols, table, out)

    def cost(self, n: int) -> Cost:
        """What decoding n symbols takes at most, of which a chunk is held at a time."""
        return Cost(8 * min(n, CHUNK) + _TABLES.memory, 8 * n + _TABLES.operations)

    def coded_size(self, n: int, alphabet: int) -> int:
        """Exact bytes of n symbols, for coders that give `bytes`."""
        raise TypeError(f"{self.name} has no fixed size")


class ByteCoder(Codec):
    """Bytes to fewer bytes; the decoder knows how many to expect."""

    takes = "bytes"
    gives = "coded"

    @abstractmethod
    def encode(self, data: Piece) -> Piece: ...

    @abstractmethod
    def decode(self, data: Piece, n_bytes: int) -> Piece: ...

    def cost(self, n_bytes: int) -> Cost:
        """What decoding to n bytes takes at most."""
        return Cost(2 * n_bytes, 4 * n_bytes)


class PositionCodec(Codec):
    """A set of positions, ascending and below n, to bytes."""

    takes = "positions"
    gives = "coded"

    @abstractmethod
    def encode(self, positions: U32, n: int) -> bytes: ...

    @abstractmethod
    def decode(self, data: Piece, n: int, count: int) -> U32: ...

    def cost(self, data: Piece, n: int, count: int) -> Cost:
        """What decoding `count` positions below n from these bytes takes at most."""
        return Cost(32 * count + 2 * n, 64 * count + 4 * n)

    def n_bytes(self, positions: U32, n: int) -> int:
        """How many bytes `encode` gives; by formula where there is one."""
        return len(self.encode(positions, n))

    def transmit(self, positions: U32, n: int, key: int) -> tuple[bytes, U32]:
        """The bytes, and the positions whose values must follow. Lossless coders find what they were given."""
        return self.encode(positions, n), positions

    @property
    def exact(self) -> bool:
        """Whether every position is found again, each with its own value."""
        return True

    def found(self, k: int, n: int) -> int:
        """How many positions at most the decoder finds for k of n."""
        return k

    def omega(self, n: int) -> float:
        """What stands in for the ω of a sparsifier whose positions are not found exactly."""
        return 0.0


_FIX: dict[tuple[str, str], str] = {
    ("floats", "symbols"): "put a quantizer between them, e.g. {first} | qsgd(15) | {second}",
    ("floats", "bytes"): "put a number format between them, e.g. {first} | fp16 | {second}",
    ("symbols", "floats"): "quantize last: {second} | {first}",
    ("symbols", "bytes"): "pack the symbols first, e.g. {first} | pack | {second}",
    ("bytes", "floats"): "{first} turns floats into bytes; let it follow {second}: {second} | {first}",
    ("bytes", "symbols"): "{first} already gives bytes; drop one of the two, or use zstd or deflate",
}


@dataclass(frozen=True)
class Pipeline(Codec):
    """Stages in a row, each fitting the one before.

    >>> import perbit
    >>> perbit.codec("topk(0.01) | qsgd(15) | rans") == perbit.codec("topk(0.01)") | perbit.codec("qsgd(15) | rans")
    True
    """

    stages: tuple[Codec, ...]
    name = "pipeline"
    takes = "floats"
    gives = "coded"

    def __post_init__(self) -> None:
        for first, second in zip(self.stages, self.stages[1:], strict=False):
            if first.gives != second.takes:
                raise SpecError(_misfit(first, second))

    @cached_property
    def rest(self) -> Rest:
        return Rest(self.stages)

    @property
    def unbiased(self) -> bool:
        return all(stage.unbiased for stage in self.stages if isinstance(stage, FloatCodec))

    def omega(self, n: int) -> float:
        """Errors of unbiased stages add up; a biased stage may push in the direction of the error before it."""
        total, growth = 0.0, 1.0  # of all stages so far: E|y - x|² ≤ total·|x|² and E|y|² ≤ growth·|x|²
        for stage in self.stages:
            if not isinstance(stage, FloatCodec):
                break
            added = stage.omega(n) * growth
            total = total + added if stage.unbiased else (math.sqrt(total) + math.sqrt(added)) ** 2
            growth *= stage.growth(n)
            n = stage.passes_on(n)
        return total


def _misfit(first: Codec, second: Codec) -> str:
    if second.takes == "positions" or first.takes == "positions":
        alone = second if second.takes == "positions" else first
        return f"{alone.name} codes positions, it is no stage of its own; give it to a sparsifier: topk(0.01, positions={alone.name})"
    if (first.takes, first.gives) == (second.takes, second.gives):
        return f"{first.name} and {second.name} both turn {first.takes} into {first.gives}; leave one of them out"
    if first.gives == "coded":
        return f"nothing can follow {first.name}: it gives finished bytes; drop {second.name}"
    problem = f"{first.name} gives {first.gives} but {second.name} takes {second.takes}"
    fix = _FIX.get((first.gives, second.takes), "").format(first=first, second=second)
    return f"{problem}; {fix}" if fix else problem


def stages_of(codec: Codec) -> tuple[Codec, ...]:
    """The stages of a codec: its own if it is a pipeline, itself if not."""
    return codec.stages if isinstance(codec, Pipeline) else (codec,)


def as_pipeline(codec: Codec) -> Pipeline:
    """A codec as a pipeline that starts with floats."""
    pipeline = codec if isinstance(codec, Pipeline) else Pipeline((codec,))
    first = pipeline.stages[0]
    if first.takes == "positions":
        raise SpecError(_misfit(first, first))
    if first.takes != "floats":
        example = {"symbols": "qsgd(15)", "bytes": "fp16"}[first.takes]
        raise SpecError(
            f"{first.name} takes {first.takes}, but a tensor is floats; put a stage before it: {example} | {pipeline}"
        )
    return pipeline


@dataclass(frozen=True)
class Rest:
    """The stages still to come. A pipeline that stops early ends plainly: floats as raw, symbols packed, bytes as they are."""

    stages: tuple[Codec, ...]
    packing: ClassVar[SymbolCoder]  # how symbols end that no stage codes; the entropy coders provide it

    @property
    def head(self) -> Codec | None:
        return self.stages[0] if self.stages else None

    @cached_property
    def tail(self) -> Rest:
        return Rest(self.stages[1:])

    def encode_floats(self, values: Floats, out: Writer, key: int) -> None:
        if isinstance(self.head, FloatCodec):
            self.head.encode(values, self.tail, out, fold(key, 1))
        else:
            self.encode_bytes(bytes_of(values.flat), out)

    def decode_floats(self, src: Reader, shape: Shape) -> F32:
        if isinstance(self.head, FloatCodec):
            src.spend(self.head.cost(shape))
            return self.head.decode(src, shape, self.tail)
        src.spend(Cost(4 * size(shape), size(shape)))
        data = self.decode_bytes(src, 4 * size(shape))
        return checked_finite(np.frombuffer(data, "<f4").astype(np.float32)).reshape(shape)

    def decode_add(self, src: Reader, shape: Shape, out: F32, weight: float) -> None:
        if isinstance(self.head, FloatCodec):
            src.spend(self.head.cost(shape))
            self.head.decode_add(src, shape, self.tail, out, weight)
        else:
            K.axpy(out, self.decode_floats(src, shape).reshape(-1), weight)

    def encode_symbols(self, symbols: Symbols, alphabet: int, prior: Prior | None) -> tuple[Piece, ...]:
        pieces = self._symbol_coder.encode(symbols, alphabet, prior)
        return (self.tail.shrink(b"".join(pieces)),) if self.tail.stages else pieces

    def decode_values(self, data: Piece, known: Dequantizer, start: int, out: F32) -> None:
        """Values start, start+1, … from the stream of one chunk."""
        if known.norms is None:
            self._symbol_coder.decode_table(self._grown(data, known, out.size), known.table, known.prior, out)
            return
        symbols = parallel.scratch(out.size, symbol_dtype(known.alphabet))
        self.decode_symbols(data, known, symbols)
        K.dequantize_buckets(symbols, known.table, known.norms, known.bucket, start, out)

    def decode_symbols(self, data: Piece, known: Dequantizer, out: Symbols) -> None:
        """The symbols themselves of the stream of one chunk."""
        self._symbol_coder.decode(self._grown(data, known, out.size), known.alphabet, known.prior, out)

    def _grown(self, data: Piece, known: Dequantizer, n: int) -> Piece:
        return self.tail.grow(data, self._symbol_coder.coded_size(n, known.alphabet)) if self.tail.stages else data

    @property
    def _symbol_coder(self) -> SymbolCoder:
        return self.head if isinstance(self.head, SymbolCoder) else self.packing

    def encode_bytes(self, data: Piece, out: Writer) -> None:
        out.section(self.shrink(data))

    def symbols_cost(self, n: int) -> Cost:
        """What decoding n symbols takes."""
        cost, coder = self._symbol_coder.cost(n), self.tail.head
        return cost + coder.cost(4 * n) if isinstance(coder, ByteCoder) else cost

    def decode_bytes(self, src: Reader, n_bytes: int) -> Piece:
        if isinstance(self.head, ByteCoder):
            src.spend(self.head.cost(n_bytes))
        return self.grow(src.section("values"), n_bytes)

    def shrink(self, data: Piece) -> Piece:
        return self.head.encode(data) if isinstance(self.head, ByteCoder) else data

    def grow(self, data: Piece, n_bytes: int) -> Piece:
        grown = self.head.decode(data, n_bytes) if isinstance(self.head, ByteCoder) else data
        if len(grown) != n_bytes:
            raise DecodeError(f"expected {n_bytes} bytes, got {len(grown)}")
        return grown


def checked_finite(values: F32) -> F32:
    """No frame holds NaN or infinity: the encoder refuses them, so one that does was forged, and would poison a sum."""
    if K.scan(values)[2]:
        raise DecodeError("the frame holds NaN or infinite values")
    return values


def replace(codec: Codec, **changes: object) -> Codec:
    """A copy of a codec with other parameters."""
    return dataclasses.replace(codec, **changes)  # type: ignore[type-var]


# --- codecs as text -------------------------------------------------------------------------------------------------


@cache
def parameters(cls: type[Codec]) -> tuple[dataclasses.Field[Any], ...]:
    """The parameters of a codec class, in the order of the text."""
    return dataclasses.fields(cls)  # type: ignore[arg-type]


def format_codec(codec: Codec) -> str:
    """The text of a codec: parameters at their default are left out, leading ones come without a name."""
    if isinstance(codec, Pipeline):
        return " | ".join(map(format_codec, codec.stages))
    shown, plain = [], True
    for field in parameters(type(codec)):
        value = getattr(codec, field.name)
        if field.default is not dataclasses.MISSING and same_parameter(value, field.default):
            plain = False
            continue
        shown.append(format_value(value) if plain else f"{field.name}={format_value(value)}")
    return f"{codec.name}({', '.join(shown)})" if shown else codec.name


def format_value(value: Any) -> str:
    if isinstance(value, Codec):
        return format_codec(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str) else repr(value)


def same_parameter(a: Any, b: Any) -> bool:
    """Equal in value and type: 1, 1.0 and True are three different parameters."""
    return type(a) is type(b) and bool(a == b)
