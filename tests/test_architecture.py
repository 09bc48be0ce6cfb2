"""The arrows of the design: the core needs numpy, zstandard and the kernels; everything heavy lives in the leaves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perbit

PACKAGE = Path(perbit.__file__).parent
HEAVY = {
    "torch", "flwr", "nvflare", "matplotlib", "rich", "sklearn", "scipy", "constriction", "ml_dtypes", "safetensors", "hypothesis", "pytest",
}  # fmt: skip
LEAVES = {
    "cli",
    "commands",
    "bench",
    "demo",
    "testing",
    "report",
    "sim",
    "engines",
}  # may be heavy; no core module imports them
FOUNDATION = {"numpy", "zstandard", "perbit"}

# Which of perbit's own modules a layer of the core may import, lowest first: each may import those above its line.
LAYERS = [
    {"errors"},
    {"bits", "kernels", "files"},
    {"randomness", "parallel", "gennorm"},
    {"values"},
    {"codec"},
    {"registry"},
    {"spec"},
    {"families", "listing"},
    {"arrays", "rules", "wirespec", "template", "theory", "deepreduce"},
    {"plan", "header"},
    {"payload"},
    {"wire"},
    {"allocation", "channels"},
    {"budget", "downlinks"},
    {"protocol"},
    {"presets"},
    {"session"},
]


def modules() -> dict[str, Path]:
    """Every module of the package by its part: perbit/families/sparse.py belongs to `families`."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
    }


def part(module: str) -> str:
    return module.split(".")[0]


def imports(path: Path) -> Iterator[str]:
    """What a module imports when it is loaded, as dotted names; imports inside functions and for type checkers do not count."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; say from perbit"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


CORE = {name: path for name, path in modules().items() if part(name) not in LEAVES}


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_numpy_zstandard_and_itself_only(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(CORE[module])}
    assert roots <= FOUNDATION | sys.stdlib_module_names


@pytest.mark.parametrize("module", CORE)
def test_the_core_does_not_import_the_leaves(module: str) -> None:
    own = {name.split(".")[1] for name in imports(CORE[module]) if name.startswith("perbit.")}
    assert not own & LEAVES


def test_layers_import_downwards() -> None:
    level = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    assert {part(module) for module in CORE} == set(level)
    upwards = [
        f"{module} imports {name}"
        for module, path in CORE.items()
        if part(module) in level
        for name in imports(path)
        if name.startswith("perbit.") and level.get(name.split(".")[1], len(LAYERS)) > level[part(module)]
    ]
    assert not upwards


def test_importing_perbit_loads_nothing_heavy() -> None:
    code = "import sys, perbit; perbit.codecs(); print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "numpy" in loaded
    assert not loaded & HEAVY


def test_the_command_line_loads_nothing_heavy_to_start() -> None:
    code = "import sys, perbit.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & HEAVY
