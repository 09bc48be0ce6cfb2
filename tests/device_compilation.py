"""Compiles every device kernel for GPUs that are not here, and prints what came: `python tests/device_compilation.py`, without TRITON_INTERPRET.

A kernel's signature is the one that the callers in perbit.torch.device give it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from perbit.torch.device.kernels import adding, pack, quantize, reductions, select

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
BINARY = {"cuda": "cubin", "hip": "hsaco"}
ASSEMBLER = {"cuda": "ptx", "hip": "amdgcn"}
HALVES = {"low_key": "i32", "high_key": "i32"}
# For each kernel the types of its arguments, and its constants; symbols come as bytes and as words of 16 bits.
CASES: dict[Any, list[tuple[dict[str, str], dict[str, Any]]]] = {
    reductions.scan_parts: [({"x_ptr": "*fp32", "parts_ptr": "*i32", "n": "i32"}, {"SIZE": 4096})],
    reductions.moment_parts: [({"x_ptr": "*fp32", "parts_ptr": "*fp64", "n": "i32", "steps": "i32"}, {"ROWS": 2})],
    reductions.norm_parts: [
        (
            {"x_ptr": "*fp32", "parts_ptr": "*fp64", "n": "i32", "bucket": "i32", "blocks": "i32", "n_rows": "i32", "steps": "i32"},
            {"LARGEST": largest, "ROWS": 8},
        )
        for largest in (False, True)
    ],
    select.digit_counts: [
        ({"x_ptr": "*fp32", "counts_ptr": "*i32", "n": "i32", "prefix": "i32"}, {"shift": shift, "SIZE": 2048})
        for shift in (24, 0)
    ],
    select.reaching_counts: [({"x_ptr": "*fp32", "counts_ptr": "*i32", "n": "i32", "threshold": "i32"}, {"SIZE": 2048})],
    select.collect: [
        (
            {
                "x_ptr": "*fp32", "before_ptr": "*i32", "positions_ptr": "*i32", "values_ptr": "*fp32", "n": "i32", "threshold": "i32",
                "n_ties": "i32",
            },
            {"SIZE": 2048},
        )
    ],
    quantize.uniform: [
        (
            {"x_ptr": "*fp32", "out_ptr": symbols, "n": "i32", "scale": "fp32", "offset": "fp32", "top": "i32"} | HALVES,
            {"RANDOM": is_random, "SIZE": 1024},
        )
        for symbols in ("*u8", "*i16")
        for is_random in (False, True)
    ],
    quantize.levels_random: [
        (
            {"x_ptr": "*fp32", "scales_ptr": "*fp32", "out_ptr": symbols, "n": "i32", "within": "i32", "bucket": "i32", "levels": "i32"}
            | HALVES,
            {"SIZE": 1024},
        )
        for symbols in ("*u8", "*i16")
    ],
    quantize.codebook: [
        (
            {"x_ptr": "*fp32", "thresholds_ptr": "*fp32", "out_ptr": symbols, "n": "i32", "n_thresholds": "i32"},
            {"STEPS": steps, "SIZE": 1024},
        )
        for symbols, steps in (("*u8", 1), ("*u8", 8), ("*i16", 12))
    ],
    pack.pack: [
        (
            {"symbols_ptr": "*u8" if bits <= 8 else "*i16", "out_ptr": "*u8", "n": "i32", "n_bytes": "i32"},
            {"BITS": bits, "SIZE": 1024},
        )
        for bits in (1, 5, 12)
    ],
    adding.axpy: [({"out_ptr": "*fp32", "values_ptr": "*fp32", "n": "i32", "weight": "fp32"}, {"SIZE": 1024})],
    adding.scatter_add: [
        ({"out_ptr": "*fp32", "positions_ptr": "*i32", "values_ptr": "*fp32", "n": "i32", "weight": "fp32"}, {"SIZE": 1024})
    ],
    adding.add_symbols: [
        (
            {
                "out_ptr": "*fp32", "symbols_ptr": symbols, "table_ptr": "*fp32", "norms_ptr": "*fp32", "n": "i32", "weight": "fp32",
                "within": "i32", "bucket": "i32",
            },
            {"HAS_NORMS": has_norms, "SIZE": 1024},
        )
        for symbols in ("*u8", "*i16")
        for has_norms in (False, True)
    ],
    adding.feedback_add: [
        ({"g_ptr": "*fp32", "memory_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "gamma": "fp32"}, {"SIZE": 1024})
    ],
}  # fmt: skip
HELPERS = {"uniform24", "folded", "magnitudes", "clipped_floor"}  # called by kernels, and compiled with them


def compiled(target: GPUTarget) -> Iterator[dict[str, Any]]:
    """What became of every case, with any whole numbers and with ones: the bytes of its binary, and its text in the device's language."""
    for kernel, cases in CASES.items():
        for types, constants in cases:
            for fixed in (constants, constants | ones(kernel, types)):
                signature = types | dict.fromkeys(fixed, "constexpr")
                source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, fixed)
                made = triton.compile(source, target=target, options={"enable_fp_fusion": False})
                text = made.asm[ASSEMBLER[target.backend]]
                yield {"kernel": kernel.__name__, "n_bytes": len(made.asm[BINARY[target.backend]]), "text": text}


def ones(kernel: Any, types: dict[str, str]) -> dict[str, int]:
    """The whole numbers that Triton makes a constant of where a caller gives 1."""
    free = {parameter.name for parameter in kernel.params if not parameter.do_not_specialize}
    return {name: 1 for name, kind in types.items() if kind == "i32" and name in free}


def without_case() -> set[str]:
    """Kernels of the package that are not compiled here."""
    modules = [adding, pack, quantize, reductions, select]
    found = {name: f for module in modules for name, f in vars(module).items() if isinstance(f, JITFunction)}
    return set(found) - {kernel.__name__ for kernel in CASES} - HELPERS


if __name__ == "__main__":
    json.dump({"missing": sorted(without_case()), "made": list(compiled(TARGETS[sys.argv[1]]))}, sys.stdout)
