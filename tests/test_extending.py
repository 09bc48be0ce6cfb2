"""The codec of docs/extending.md works as written, found through an entry point, and obeys the laws."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import perbit
from perbit.coding import registry
from perbit.testing import laws

TEXT = (Path(__file__).parent.parent / "docs/extending.md").read_text()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The documented class, offered by another package's entry point."""
    namespace: dict[str, Any] = {"__name__": "builtins"}  # dataclasses look the module up
    exec(re.findall(r"```python\n(.*?)```", TEXT, re.S)[0], namespace)
    entry = SimpleNamespace(load=lambda: namespace["Ternary"])
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == "perbit.codecs" else [])
    registry._load_offered.cache_clear()
    yield namespace["Ternary"]
    registry._by_name.pop("ternary_share", None)
    registry._load_offered.cache_clear()


def test_a_codec_from_an_entry_point_travels_by_name(offered: Any) -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    frame = perbit.encode(x, "topk(0.1) | ternary_share(0.3) | rans")
    assert b"ternary_share" in frame
    assert set(np.abs(perbit.decode(frame)).tolist()) == {0.0, float(np.abs(x).max())}
    del registry._by_name["ternary_share"]
    with pytest.raises(perbit.DecodeError, match="install the package that offers it"):
        perbit.decode(frame)


@pytest.mark.parametrize("law", laws(), ids=lambda law: law.__name__)
def test_the_documented_codec_obeys_the_laws(offered: Any, law: Any) -> None:
    for spec in offered.examples:
        law(spec)


def test_entry_points_are_read_from_the_documented_group() -> None:
    assert '[project.entry-points."perbit.codecs"]' in TEXT
    assert EntryPoint("raw", "perbit.coding.families.formats:Raw", "perbit.codecs").load().name == "raw"
