"""Everything the author of a codec needs, in one place (docs/extending.md has an example).

A codec fills one of the roles (`FloatCodec`, `Quantizer`, `SymbolCoder`, `ByteCoder`, `PositionCodec`), is a frozen dataclass, and is made
known by `register` or by the entry point `perbit.codecs`. `perbit.testing.laws` says whether it keeps its promises.
"""

from perbit.coding.bits import Piece, Reader, Writer, bytes_of
from perbit.coding.codec import (
    ByteCoder,
    Codec,
    FloatCodec,
    Pipeline,
    PositionCodec,
    Quantizer,
    Rest,
    SymbolCoder,
    as_pipeline,
    checked_finite,
)
from perbit.coding.cost import Cost
from perbit.coding.registry import register
from perbit.coding.values import Dequantizer, Floats, Prior, Quantized, Shape, size, symbol_dtype
from perbit.errors import DecodeError, EncodeError, SpecError
from perbit.kernels import K
from perbit.randomness import fold

__all__ = [
    "ByteCoder", "Codec", "Cost", "DecodeError", "Dequantizer", "EncodeError", "FloatCodec", "Floats", "K", "Piece",
    "Pipeline", "PositionCodec", "Prior", "Quantized", "Quantizer", "Reader", "Rest", "Shape", "SpecError",
    "SymbolCoder", "Writer", "as_pipeline", "bytes_of", "checked_finite", "fold", "register", "size", "symbol_dtype",
]  # fmt: skip
