"""Asserts in helper modules explain themselves as those in tests do."""

import pytest

for helper in ("data_files", "flower_network", "nvflare_federation", "numeric_backends", "session_exchange"):
    pytest.register_assert_rewrite(helper)
