"""Reductions, quantizers, selection, packing and checksums in numpy (see kernels/README.md)."""

from perbit.kernels.reference.bloom import bloom_build, bloom_query, bloom_resolve
from perbit.kernels.reference.checksum import crc32c
from perbit.kernels.reference.counted import counted_decode, counted_encode
from perbit.kernels.reference.eliasfano import eliasfano_decode, eliasfano_encode
from perbit.kernels.reference.gaps import gaps_decode, gaps_encode
from perbit.kernels.reference.hadamard import hadamard
from perbit.kernels.reference.half import from_half, to_half
from perbit.kernels.reference.levels import levels_decode, levels_decode_table, levels_encode
from perbit.kernels.reference.packing import golomb_decode, golomb_encode, pack, unpack
from perbit.kernels.reference.patterns import match_patterns
from perbit.kernels.reference.products import (
    add_pairs,
    axpy_pairs,
    mix_planes,
    multiply_pairs,
    split_planes,
    there_and_back,
)
from perbit.kernels.reference.quantizers import (
    axpy_buckets,
    axpy_table,
    dequantize,
    dequantize_buckets,
    feedback_add,
    feedback_update,
    lowfloat,
    quantize_codebook,
    quantize_codebook_random,
    quantize_levels_random,
    quantize_uniform,
    quantize_uniform_random,
)
from perbit.kernels.reference.reductions import bucket_norms, moments, scan
from perbit.kernels.reference.selection import axpy, scatter_add, select_above, top_k
from perbit.kernels.reference.trellis import trellis_encode, trellis_signs
from perbit.kernels.reference.trellis_fit import scalar_cost, trellis_fit

__all__ = [
    "add_pairs",
    "axpy",
    "axpy_buckets",
    "axpy_pairs",
    "axpy_table",
    "bloom_build",
    "bloom_query",
    "bloom_resolve",
    "bucket_norms",
    "counted_decode",
    "counted_encode",
    "crc32c",
    "dequantize",
    "dequantize_buckets",
    "eliasfano_decode",
    "eliasfano_encode",
    "feedback_add",
    "feedback_update",
    "from_half",
    "gaps_decode",
    "gaps_encode",
    "golomb_decode",
    "golomb_encode",
    "hadamard",
    "levels_decode",
    "levels_decode_table",
    "levels_encode",
    "lowfloat",
    "match_patterns",
    "mix_planes",
    "moments",
    "multiply_pairs",
    "pack",
    "quantize_codebook",
    "quantize_codebook_random",
    "quantize_levels_random",
    "quantize_uniform",
    "quantize_uniform_random",
    "scalar_cost",
    "scan",
    "scatter_add",
    "select_above",
    "split_planes",
    "there_and_back",
    "to_half",
    "top_k",
    "trellis_encode",
    "trellis_fit",
    "trellis_signs",
    "unpack",
]
