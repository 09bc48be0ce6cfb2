"""`pip wheel .` makes one file that installs into a new environment, without a compiler or make, and works there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENCODE = """
import sys, numpy, perbit
from perbit import kernels
x = numpy.random.default_rng(0).normal(size=5000).astype("f4")
frame = perbit.encode(x, "topk(0.01) | qsgd(15) | rans", seed=0)
assert perbit.decode(frame).shape == x.shape and "portable" in kernels.available()
heavy = {"torch", "scipy", "sklearn", "matplotlib", "flwr", "ray", "pandas", "rich", "safetensors", "ml_dtypes"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
print(perbit.__file__)
"""
WITHOUT_EXTRAS = {
    ("compare", "demo"): "sim",
    ("train",): "sim",
    ("tune", "--budget-mb", "1"): "sim",
    ("compare", "demo", "--ray", "auto"): "ray",
    ("encode", "x.safetensors", "raw"): "files",
    ("fit", "x.npy", "--plot", "x.png"): "report",
}
ENGINES = {
    "engines.flower": "flower",
    "engines.nvflare": "nvflare",
    "engines.ddp": "torch",
    "engines.fsdp": "torch",
    "torch": "torch",
    "engines.grace": "torch",
    "outer": "torch",
}


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Without what this environment brings along."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, env=clean, timeout=1800)


def sources(folder: Path) -> Path:
    """A copy of what is under version control: nothing that was built before helps."""
    files = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith(("results/", "tests/", "docs/", "papers/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a new environment in which nothing but the wheel was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    made = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder / "dist", ".", cwd=sources(folder / "source"))  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (folder / "dist").iterdir()
    minor = sys.version_info.minor
    tag = "cp312-abi3" if minor >= 12 else f"cp3{minor}-cp3{minor}"
    assert re.fullmatch(rf"perbit-[\d.]+-{tag}-\w+\.whl", wheel.name)
    venv.create(folder / "venv", with_pip=True)
    there = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = run(there, "-m", "pip", "install", wheel, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return there


@pytest.mark.slow
def test_a_wheel_encodes_in_a_new_environment_and_nothing_heavy_is_there(python: Path, tmp_path: Path) -> None:
    done = run(python, "-c", ENCODE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(python.parent.parent)
    listed = run(python, "-m", "pip", "list", "--format", "freeze", cwd=tmp_path).stdout
    assert {line.partition("==")[0] for line in listed.split()} <= {"perbit", "numpy", "zstandard", "pip", "setuptools"}


@pytest.mark.slow
def test_what_a_command_lacks_is_named_as_an_extra(python: Path, tmp_path: Path) -> None:
    assert run(python, "-c", "import numpy; numpy.save('x.npy', numpy.arange(9000.0))", cwd=tmp_path).returncode == 0
    (tmp_path / "x.safetensors").write_bytes(b"")
    for words, extra in WITHOUT_EXTRAS.items():
        done = run(python, "-m", "perbit.cli", *words, cwd=tmp_path)
        assert done.returncode == 2, words
        assert f"perbit[{extra}]" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    for room, extra in ENGINES.items():
        done = run(python, "-c", f"import perbit.{room}", cwd=tmp_path)
        assert f"perbit[{extra}]" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.slow
def test_what_needs_no_extra_works_without(python: Path, tmp_path: Path) -> None:
    assert run(python, "-c", "import numpy; numpy.save('x.npy', numpy.arange(9000.0))", cwd=tmp_path).returncode == 0
    for words in (
        ("encode", "x.npy", "rd(bits=1)", "-o", "x.pbit"),
        ("inspect", "x.pbit"),
        ("decode", "x.pbit", "-o", "y.npy"),
        ("diff", "x.npy", "y.npy", "-o", "d.pbit"),
        ("apply", "x.npy", "d.pbit", "-o", "z.npy"),
        ("plan", "x.npy", "fp16"),
        ("budget", "x.npy", "rd(?)", "--bits", "20000"),
        ("codecs", "topk"),
        ("init", "table"),
        ("--help",),
    ):
        done = run(python, "-m", "perbit.cli", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_wheels_are_declared_for_all_versions_and_systems() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    minors = (11, 12, 13, 14)
    assert project["tool"]["cibuildwheel"]["build"] == [f"cp3{minor}-*" for minor in minors]
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in minors} <= set(
        project["project"]["classifiers"]
    )
    assert project["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    for system in ("ubuntu-24.04,", "ubuntu-24.04-arm", "macos-15,", "macos-15-intel", "windows-2022"):
        assert system in workflow


def test_kernels_speak_no_compilers_own_words_but_in_two_files() -> None:
    own = re.compile(r"__attribute__|__builtin_|#pragma GCC|\[\[gnu::|PyBytes_AS_STRING|__int128")
    found = {path.name for path in (ROOT / "kernels").glob("*.[ch]pp") if own.search(path.read_text())}
    assert found == {"compilers.hpp", "cpu.hpp"}
