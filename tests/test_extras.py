"""Whoever lacks a package is told which extra brings it: in every command, and in every engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from perbit.extras import EXTRAS

ROOT = Path(__file__).parent.parent
WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = ["perbit", *{arguments!r}]
from perbit.cli import main
raise SystemExit(main())
"""


def without(missing: list[str], *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = WITHOUT.format(missing=missing, arguments=arguments)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize(
    ("missing", "arguments", "said"),
    [
        ("torch", ["compare", "demo"], "perbit[sim]"),
        ("torch", ["train"], "perbit[sim]"),
        ("torch", ["tune", "--budget-mb", "1"], "perbit[sim]"),
        ("ray", ["compare", "demo", "--ray", "auto"], "perbit[ray]"),
        ("threadpoolctl", ["train", "--rounds", "1"], "perbit[sim]"),
        ("sklearn", ["train", "--rounds", "1"], "perbit[sim]"),
        ("matplotlib", ["fit", "x.npy", "--plot", "x.png"], "perbit[report]"),
        ("safetensors", ["encode", "x.safetensors", "raw"], "perbit[files]"),
    ],
)
def test_a_command_without_its_package_names_the_extra(
    missing: str, arguments: list[str], said: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=5000))
    (tmp_path / "x.safetensors").write_bytes(b"")
    done = without([missing], *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert said in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("room", "missing", "extra"),
    [
        ("engines.flower", "flwr", "flower"),
        ("engines.ddp", "torch", "torch"),
        ("engines.fsdp", "torch", "torch"),
        ("engines.nvflare", "nvflare", "nvflare"),
        ("engines.grace", "torch", "torch"),
        ("torch", "torch", "torch"),
        ("outer", "torch", "torch"),
        ("outer.elastic", "torchft", "torchft"),
    ],
)
def test_an_engine_without_its_package_names_the_extra(room: str, missing: str, extra: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import perbit.{room}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f'perbit.{room} needs the package {missing}: pip install "perbit[{extra}]"' in done.stderr.splitlines()[-1]


def test_the_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"sklearn": "scikit-learn"}
    for package, extra in EXTRAS.items():
        assert any(wanted.startswith(names.get(package, package)) for wanted in project[extra]), package


def test_the_table_of_extras_is_that_of_the_project() -> None:
    """docs/install.md names every extra with all that it brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {extra: sorted({re.split(r"[\[><=;]", wanted)[0] for wanted in project[extra]}) for extra in project}
    table = re.findall(
        r"^\| `([\w-]+)` \| .+ \| (.+) \|$", (ROOT / "docs" / "install.md").read_text(), flags=re.MULTILINE
    )
    written = {extra: sorted(packages.split(", ")) for extra, packages in table if extra != "dev"}
    assert {*written, "dev"} == set(brought)
    assert written == {extra: packages for extra, packages in brought.items() if extra != "dev"}


def test_perbit_itself_is_light() -> None:
    """numpy, zstandard and the kernels: no framework, and nothing of an extra."""
    code = f"import sys, perbit; print(*({set(EXTRAS)!r} | {{'pandas', 'hypothesis'}}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
