"""Asserts in helper modules explain themselves as those in tests do; no test depends on the machine's speed."""

import pytest
from hypothesis import settings

for helper in ("data_files", "flower_network", "nvflare_federation", "numeric_backends", "session_exchange"):
    pytest.register_assert_rewrite(helper)

settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")
