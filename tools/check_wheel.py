"""Whether the installed perbit is whole: every golden frame decodes exactly under each kernel back end, and is written again byte for byte.

    python tools/check_wheel.py tests/golden

Needs perbit, ml_dtypes and hypothesis, and of a checkout only the folder of golden frames.
.github/workflows/wheels.yml runs it on every system with the wheel that was built there.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import perbit
from perbit import kernels

# Their bytes belong to zlib, libzstd and LAPACK, or to a search for the best trade: only what they decode to is fixed.
FOREIGN = ("deflate", "zstd", "lowrank", "rd(")


def golden(folder: Path) -> ModuleType:
    """tests/golden/make.py, which knows the cases."""
    spec = importlib.util.spec_from_file_location("golden_frames", folder / "make.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def wrong(make: Any, case: Any, entry: dict[str, Any]) -> str:
    """What is wrong with a frame; nothing, if all is well."""
    frame = case.frame_path.read_bytes()
    tensors = make.decode(frame)
    if (
        make.describe(tensors) != entry["tensors"]
        or hashlib.sha256(make.values_of(tensors)).hexdigest() != entry["sha256"]
    ):
        return "decodes to other values"
    fixed = case.source != "message" and not any(name in case.what for name in FOREIGN)
    return "is written with other bytes" if fixed and case.encode() != frame else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path, help="the folder tests/golden")
    make = golden(parser.parse_args().golden)
    index, cases = make.read_index(), make.cases()
    failed = []
    for name in kernels.available():
        with kernels.using(name):
            found = {case.name: wrong(make, case, index[case.name]) for case in cases}
        failed += [f"{name}: {case} {said}" for case, said in found.items() if said]
    print(
        "\n".join(failed)
        or f"perbit {perbit.__version__}: {len(cases)} golden frames with {', '.join(kernels.available())}"
    )
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
