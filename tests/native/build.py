"""Builds of the kernels for tests, under sanitizers.

The module is perbit._native once more, with AddressSanitizer and UndefinedBehaviorSanitizer; `environment()` makes any Python process
load it in place of the fast one. Objects lie in build/sanitized and are made anew when a source has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
ROOT = NATIVE.parent.parent
KERNELS = ROOT / "kernels"
BUILT = ROOT / "build" / "sanitized"
BINDINGS = ("module", "bind_entropy", "bind_numeric", "bind_positions", "bind_sparse", "bind_rd", "bind_trellis")
AVX2 = ("-mavx2", "-mbmi", "-mbmi2", "-mpopcnt", "-mlzcnt", "-msse4.2")
PLAIN = (
    "-std=c++20",
    "-g1",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-omit-frame-pointer",
    f"-I{KERNELS}",
)
CHECKS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# In the place of perbit._native before perbit looks for it.
PRELOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("perbit._native", {module!r})
sys.modules["perbit._native"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["perbit._native"])
"""


def compiled(source: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """The object file of a source, from an earlier build if nothing has changed since."""
    key = hashlib.sha256(" ".join((compiler, *flags)).encode())
    for path in (source, *sorted(KERNELS.glob("*.hpp"))):
        key.update(path.read_bytes())
    target = BUILT / f"{source.stem}-{key.hexdigest()[:16]}.o"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        _run([compiler, *flags, "-c", str(source), "-o", str(partial)])
        partial.replace(target)
    return target


def linked(name: str, objects: list[Path], compiler: str, flags: tuple[str, ...]) -> Path:
    """A program or module made of objects; its name tells which."""
    key = hashlib.sha256(" ".join([*flags, *(path.name for path in objects)]).encode()).hexdigest()[:16]
    target = BUILT / f"{Path(name).stem}-{key}{Path(name).suffix}"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        _run([compiler, *flags, *map(str, objects), "-o", str(partial)])
        partial.replace(target)
    return target


def kernel_sources() -> dict[Path, tuple[str, ...]]:
    """Both back ends, and what each needs beside the usual flags."""
    return {KERNELS / "portable.cpp": (), KERNELS / "avx2.cpp": AVX2}


def module() -> Path:
    """perbit._native under sanitizers."""
    import nanobind  # type: ignore[import-not-found,unused-ignore]

    python = f"-I{sysconfig.get_path('include')}"
    include = (
        f"-I{nanobind.include_dir()}",
        f"-I{Path(nanobind.source_dir()).parent / 'ext/robin_map/include'}",
        python,
    )
    own = (*PLAIN, *CHECKS, "-fvisibility=hidden", "-DPERBIT_HAVE_AVX2=1", *include)
    theirs = (*PLAIN, "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG", "-DNB_COMPACT_ASSERTIONS", *include)
    sources = {path: (*own, *extra) for path, extra in kernel_sources().items()}
    sources |= {KERNELS / f"{name}.cpp": own for name in BINDINGS}
    sources |= {Path(nanobind.source_dir()) / "nb_combined.cpp": theirs}
    objects = _all_compiled(sources, "g++")
    return linked(f"_native{sysconfig.get_config_var('EXT_SUFFIX')}", objects, "g++", (*CHECKS, "-shared"))


def program(*names: str, compiler: str = "g++", checks: tuple[str, ...] = CHECKS, extra: tuple[str, ...] = ()) -> Path:
    """A C++ program of sources of this folder with both back ends in it."""
    flags = (*PLAIN, *checks, "-DPERBIT_HAVE_AVX2=1", *extra)
    sources = {path: (*flags, *special) for path, special in kernel_sources().items()}
    sources |= {NATIVE / f"{name}.cpp": flags for name in names}
    return linked(f"{names[-1]}.{compiler}", _all_compiled(sources, compiler), compiler, (*checks, *extra))


def environment() -> dict[str, str]:
    """What a Python process needs to load the module; its children inherit it."""
    folder = BUILT / "site"
    folder.mkdir(parents=True, exist_ok=True)
    text = PRELOAD.format(module=str(module()))
    if not (folder / "sitecustomize.py").exists() or (folder / "sitecustomize.py").read_text() != text:
        (folder / "sitecustomize.py").write_text(text)
    libraries = [_output(["g++", f"-print-file-name=lib{name}.so"]) for name in ("asan", "ubsan", "stdc++")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # so that Python's own objects are guarded too
    }


def fuzzer() -> Path | None:
    """The coverage-guided fuzzer, or None where there is no clang."""
    if shutil.which("clang++") is None:
        return None
    return program("decoders", compiler="clang++", extra=("-fsanitize=fuzzer",))


def replay(quick: bool = False) -> Path:
    """The decoders of the fuzzer, fed from files. `quick` compiles in seconds, for it is part of every test run, and looks for less."""
    if quick:
        return program("decoders", "replay", checks=("-fsanitize=address",), extra=("-O0", "-g0"))
    return program("decoders", "replay")


def alone(name: str, avx2: bool) -> Path:
    """A C++ program of this folder that includes the kernels of one back end itself."""
    flags = (*PLAIN, *CHECKS, *(("-DPERBIT_AVX2", *AVX2) if avx2 else ()))
    return linked(f"{name}.g++", _all_compiled({NATIVE / f"{name}.cpp": flags}, "g++"), "g++", CHECKS)


def _all_compiled(sources: dict[Path, tuple[str, ...]], compiler: str) -> list[Path]:
    BUILT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda item: compiled(item[0], compiler, item[1]), sources.items()))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
