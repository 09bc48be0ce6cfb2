"""Every law over every example of every registered codec."""

from __future__ import annotations

import pytest

from perbit import testing


@pytest.mark.parametrize("law", testing.laws(), ids=lambda law: law.__name__)
@pytest.mark.parametrize("spec", testing.specs())
def test_law(spec: str, law: testing.Law) -> None:
    law(spec)
