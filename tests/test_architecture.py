"""The arrows of the design: the core needs numpy, zstandard and the kernels; everything heavy lives in the leaves."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import perbit

PACKAGE = Path(perbit.__file__).parent
HEAVY = {
    "torch", "triton", "torchft", "flwr", "nvflare", "transformers",
    "matplotlib", "rich", "sklearn", "scipy", "constriction", "ml_dtypes", "safetensors", "hypothesis", "pytest",
}  # fmt: skip
FOUNDATION = {"numpy", "zstandard", "perbit"} | {
    "ml_dtypes",
    "safetensors",
}  # the last two where they are installed, when asked for

# The rooms of the house, lowest first: a module imports from its own room or from rooms further up in this list.
LAYERS = [
    {"errors", "_moved", "plugins", "extras", "printing"},
    {"kernels", "files", "dtypes"},
    {"randomness", "parallel", "gennorm", "theory"},
    {"coding"},
    {"frame"},
    {"plan"},
    {"channels", "delta"},
    {"protocols"},
    {"session"},
    {"extend", "testing"},
    {"torch"},
    {"sim", "engines", "outer", "report"},
    {"commands"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
LIGHT = LEVEL["session"]  # up to here numpy, zstandard and the kernels are enough
MODULES = {
    ".".join(("perbit", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(path: Path) -> Iterator[str]:
    """Everything a module imports, inside functions too; only what is for type checkers does not count."""
    tree = ast.parse(path.read_text())
    hidden = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(part) for node in hidden for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in skipped:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in skipped:
            assert node.level == 0, f"{path} imports relatively; say from perbit"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: str) -> set[str]:
    """The modules of perbit that a module imports; a name from a module counts as the module."""
    found = {name if name in MODULES else name.rpartition(".")[0] for name in imports(MODULES[module])}
    return {name for name in found if name in MODULES and name != "perbit"}


def room(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if name != "perbit"])
def test_a_module_imports_from_its_own_room_or_from_those_below(module: str) -> None:
    assert {name for name in own_imports(module) if LEVEL[room(name)] > LEVEL[room(module)]} == set()
    if LEVEL[room(module)] <= LIGHT:
        assert {name.split(".")[0] for name in imports(MODULES[module])} <= FOUNDATION | sys.stdlib_module_names


def test_perbit_does_without_the_papers() -> None:
    """They are found by entry point; only the table of old names may say where something went."""
    assert {name for name, path in MODULES.items() if "perbit_papers" in path.read_text()} == {"perbit._moved"}


def test_there_are_no_cycles() -> None:
    graph = {module: own_imports(module) for module in MODULES if module != "perbit"}
    for module in graph:  # a package's front room is loaded with every module in it, and may import them all
        graph[module] -= {name for name in graph[module] if module.startswith(f"{name}.")}
    with_no_loop = TopologicalSorter(graph)
    with_no_loop.prepare()  # raises CycleError, which names the modules


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
