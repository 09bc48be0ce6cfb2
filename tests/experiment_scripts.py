"""Scripts of the repository as modules, for tests of what is in them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def script(path: str) -> ModuleType:
    """A script of experiments."""
    spec = importlib.util.spec_from_file_location("experiment_" + Path(path).stem, EXPERIMENTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
