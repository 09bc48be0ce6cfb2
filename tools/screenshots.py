"""Screenshots of a report for the docs: light, dark and on a phone. Needs Chromium and chromedriver (Debian: chromium, chromium-driver).

perbit compare demo && python tools/screenshots.py perbit-runs/demo/report.html
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from shutil import which
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
QUIET = (
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "hide-scrollbars",
)
VIEWS = {"report-light": (1160, 1500, False), "report-dark": (1160, 1500, True), "report-phone": (390, 1500, False)}
SECONDS = 600.0  # until a page must have drawn itself, on a busy machine too
COLOURS = 256  # of a picture in the docs


class NoBrowserError(Exception):
    """Chromium is not here."""


@contextmanager
def browser(scripts: bool = True) -> Iterator[Any]:
    """A headless Chromium with an empty profile, which writes down what pages complain about."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    chromium, driver = which("chromium") or which("google-chrome"), which("chromedriver")
    if not chromium or not driver:
        raise NoBrowserError("no Chromium with chromedriver found; on Debian: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in ("headless", "no-sandbox", *QUIET, f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if not scripts:
            options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
        window = webdriver.Chrome(options=options, service=Service(driver))
        window.set_script_timeout(SECONDS)
        window.set_page_load_timeout(SECONDS)
        try:
            yield window
        finally:
            window.quit()


def show(window: Any, page: Path, width: int, height: int, dark: bool = False) -> None:
    """Open a page in a window of this size, and wait until it has drawn itself."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    window.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": width < 600})
    theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": theme})
    window.get(page.resolve().as_uri())
    end = time.monotonic() + SECONDS
    while not window.execute_script("return document.documentElement.dataset.ready"):
        if time.monotonic() > end:
            raise TimeoutError(f"{page} has not drawn itself within {SECONDS:g} seconds")
        time.sleep(0.1)


def shrunk(png: bytes) -> bytes:
    """The same picture with few colours, which is far smaller."""
    from PIL import Image

    picture, out = Image.open(BytesIO(png)).convert("RGB"), BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="a report.html")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    try:
        with browser() as window:
            for name, (width, height, dark) in VIEWS.items():
                show(window, options.page, width, height, dark)
                path = options.output / f"{name}.png"
                path.write_bytes(shrunk(window.get_screenshot_as_png()))
                print(f"{path}: {path.stat().st_size // 1000} kB")
    except NoBrowserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
