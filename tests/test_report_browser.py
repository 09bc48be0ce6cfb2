"""The report in a real browser: it draws itself without complaint, and hover, legend, switches, sliders and headings do something.

Slow, and needs Chromium with chromedriver (Debian: apt-get install chromium chromium-driver); without them these tests fail and say so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perbit.cli import main
from test_report import CHARTS, CONFIG

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import screenshots

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    (folder / "small.toml").write_text(CONFIG)
    assert main(["compare", str(folder / "small.toml"), "-o", str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with screenshots.browser() as window:
        yield window


@pytest.fixture
def window(opened: Any, page: Path) -> Any:
    screenshots.show(opened, page, 1160, 900)
    return opened


def points(window: Any, chart: str) -> int:
    return int(window.execute_script(f'return document.querySelectorAll("#{chart} .scatterlayer .point").length'))


def text(window: Any, selector: str) -> str:
    return str(window.execute_script("return document.querySelector(arguments[0]).textContent", selector))


def click(window: Any, selector: str) -> None:
    window.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_all_charts_are_drawn_without_complaint(window: Any) -> None:
    drawn = "return [...document.querySelectorAll('.js-plotly-plot')].map((place) => place.dataset.chart)"
    assert window.execute_script(drawn) == CHARTS
    assert window.execute_script("return [...document.querySelectorAll('.still')].every((p) => !p.offsetHeight)")
    assert window.get_log("browser") == []


def test_hover_tells_the_method_and_its_bytes(window: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    marks = window.find_elements("css selector", "#frontier .scatterlayer .trace:last-child .point")
    window.execute_script("arguments[0].scrollIntoView({block: 'center'})", marks[0])
    ActionChains(window).move_to_element(marks[0]).pause(1).perform()
    said = text(window, "#frontier .hoverlayer")
    assert "4 bits <i>" in said
    assert "MB up" in said
    assert "up and down" not in said
    assert "fewer than float32" in said


def test_the_legend_hides_a_method_everywhere(window: Any) -> None:
    charts = ("frontier", "reach", "layers", "clients")
    before = {chart: points(window, chart) for chart in charts}
    click(window, '.chip[data-method="float32"]')
    assert all(points(window, chart) < before[chart] for chart in charts)
    assert window.execute_script('return document.querySelector("tr.faded").dataset.method') == "float32"
    click(window, '.chip[data-method="float32"]')
    assert {chart: points(window, chart) for chart in charts} == before


def test_switches_change_axes(window: Any) -> None:
    axis = "#frontier .xtitle"
    assert text(window, axis).startswith("MB up, all clients (log")
    click(window, '[data-set="way"][data-to="total"]')
    assert "up and down" in text(window, axis)
    click(window, '[data-set="frontierX"][data-to="linear"]')
    assert "log" not in text(window, axis)
    click(window, '[data-set="frontierY"][data-to="linear"]')
    assert text(window, "#frontier .ytitle") == "test accuracy, %"
    click(window, '[data-set="trainingY"][data-to="loss"]')
    assert text(window, "#training .ytitle").startswith("test loss")
    assert window.get_log("browser") == []


def test_sliders_move_charts(window: Any) -> None:
    move = (
        "const s = document.getElementById(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('input'))"
    )
    window.execute_script(move, "speed", 0)
    assert "0.1 Mbit/s" in text(window, "#time .xtitle")
    click(window, '[data-set="link"][data-to="3"]')
    assert "1000 Mbit/s" in text(window, "#time .xtitle")
    shown = "return JSON.stringify(document.querySelector('#reach .live').data.map((trace) => trace.x))"
    window.execute_script(move, "target", 0)
    low = window.execute_script(shown)
    window.execute_script(move, "target", 200)
    assert window.execute_script(shown) != low


def test_a_drag_zooms(window: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    before = window.execute_script("return document.querySelector('#training .live')._fullLayout.yaxis.range")
    area = window.find_element("css selector", "#training .nsewdrag")
    window.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
    ActionChains(window).move_to_element_with_offset(area, -60, -60).click_and_hold().move_by_offset(
        120, 90
    ).release().perform()
    assert window.execute_script("return document.querySelector('#training .live')._fullLayout.yaxis.range") != before


def test_headings_sort_the_table(window: Any) -> None:
    first = "#table tbody tr:first-child td"
    click(window, "#table th:nth-child(3) button")  # MB up
    assert text(window, first) == "4 bits <i>"
    click(window, "#table th:nth-child(3) button")
    assert text(window, first) == "float32"


def test_buttons_copy(window: Any) -> None:
    click(window, "button.copy")
    assert text(window, "button.copy") in ("copied", "copy")  # the text is back after a second
    asked = "return document.querySelectorAll('button.copy').length"
    assert window.execute_script(asked) == 1 + 2 * 3 + 1


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1160, True)])
def test_it_fits_a_phone_and_the_dark(opened: Any, page: Path, width: int, dark: bool) -> None:
    screenshots.show(opened, page, width, 900, dark)
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    back = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(14, 18, 25)") == dark
    assert opened.get_log("browser") == []


def test_on_paper_and_without_scripts_pictures_stand_in(opened: Any, page: Path) -> None:
    screenshots.show(opened, page, 1160, 900)
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    still = "return [...document.querySelectorAll('figure.still')].filter((p) => p.offsetHeight > 100).length"
    live = "return [...document.querySelectorAll('.live')].filter((p) => p.offsetHeight).length"
    assert opened.execute_script(still) == 9
    assert opened.execute_script(live) == 0
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(page.as_uri())
        assert opened.execute_script(still) == 9
        assert opened.execute_script(live) == 0
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
