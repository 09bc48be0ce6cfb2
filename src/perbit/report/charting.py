"""The script that draws the page's charts: plotly.js, as the package plotly brings it, packed so that the page stays small."""

from __future__ import annotations

import gzip
from base64 import b64encode
from importlib import resources

from perbit.report.style import MissingExtraError, plotting


def packed() -> str:
    """plotly.js, compressed, as text that a page can hold. The page unpacks it; nothing is fetched."""
    check()
    script = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    return b64encode(gzip.compress(script, 9, mtime=0)).decode()


def check() -> None:
    """Say how to get what the report is drawn with, if it is not there: better before the training than after it."""
    plotting()
    try:
        import plotly  # noqa: F401
    except ImportError:
        said = "the report needs plotly: pip install perbit[report], or go without it (--no-report)"
        raise MissingExtraError(said) from None
