"""tools/paths.py counts the functions that run, and nothing else."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "paths.py"
PACKAGE = {
    "first.py": """
        from second import Doubled

        def run():
            return [double(x) for x in range(3)] + [Doubled(3).value]

        double = lambda x: 2 * x

        def never():
            pass
    """,
    "second.py": """
        class Doubled:
            def __init__(self, x):
                self.x = x

            @property
            def value(self):
                return 2 * self.x
    """,
}


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paths_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_count_once_and_what_runs_at_import_does_not(tool: ModuleType, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(re.sub(r"(?m)^ {8}", "", text))
    sys.path.insert(0, str(package))
    recorder = tool.Recorder(package)
    try:
        with recorder:
            import first  # type: ignore[import-not-found]

            first.run()
            recorder.again()
            first.double(1)
    finally:
        sys.path.remove(str(package))
        sys.modules.pop("first", None)
        sys.modules.pop("second", None)
    lambda_, init, value = ("first.py", "<lambda>"), ("second.py", "Doubled.__init__"), ("second.py", "Doubled.value")
    assert recorder.before == {("first.py", "run"), lambda_, init, value}
    assert recorder.now == {lambda_}


def test_the_table_has_a_row_for_each_use() -> None:
    printed = subprocess.run([sys.executable, str(TOOL), "--list"], capture_output=True, text=True, check=True).stdout
    rows = re.findall(
        r"(?m)^(one \w+(?: round)?) +(\d+) files +(\d+) functions +(\d+) files +(\d+) functions$", printed
    )
    assert [name for name, *_ in rows] == ["one tensor", "one session round", "one compare round"]
    for _, *counts in rows:
        first_files, first_functions, files, functions = map(int, counts)
        assert 0 < files <= first_files < first_functions
        assert files < functions <= first_functions
    whole = re.search(r"(?m)^perbit compare: (\d+) files +(\d+) pieces of code$", printed)
    assert whole is not None
    assert int(rows[-1][2]) < int(whole[2])
    assert int(rows[-1][1]) < int(whole[1])
    assert "families/sparse.py" in printed
    assert "TopK.select" in printed
