"""Pages in a real browser, at the widths of a phone and a desktop; run by `make pages`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import contrast, opened
from report_records import record, study

from isonomy.report import page
from isonomy.runs.record import Record

pytestmark = pytest.mark.slow


def front() -> Record:
    """A run that learnt a front of five models."""
    shares = [0.0, 0.25, 0.5, 0.75, 1.0]
    columns: dict[str, list[Any]] = {
        "split": ["test"] * 5,
        "client": [-1] * 5,
        "preference.0": shares,
        "preference.1": [1 - s for s in shares],
        "error": [0.3, 0.26, 0.23, 0.21, 0.2],
        "dp.sex": [0.0, 0.02, 0.05, 0.1, 0.2],
    }
    return replace(record("HetPFL", 0), front=columns)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    long = [record("A method with a rather long name of its own", 0), record("q-FFL", 0)]
    return {
        "study": page.write(study(), folder / "study.html"),
        "single": page.write([record()], folder / "single.html"),
        "long": page.write(long, folder / "long.html"),
        "front": page.write_front([front()], folder / "front.html", bounds={"dp": 0.06}),
    }


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["study", "single", "long", "front"])
def test_nothing_is_wider_than_the_page_and_nothing_fails(
    browser: Any, pages: dict[str, Path], name: str, width: int
):
    opened(browser, pages[name], width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    browser.execute_script(
        "document.querySelectorAll('.view').forEach(function (v) { v.hidden = false; });"
        "document.querySelectorAll('details').forEach(function (d) { d.open = true; });"
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_menu_shows_one_view(browser: Any, pages: dict[str, Path]):
    opened(browser, pages["study"], 1400)
    shown = (
        "return Array.from(document.querySelectorAll('#curves .view'))"
        ".map(function (v) { return v.offsetHeight > 0; })"
    )
    before = browser.execute_script(shown)
    assert before.index(True) == 0
    assert sum(before) == 1
    browser.execute_script(
        "var s = document.querySelector('#curves select'); s.value = '1';"
        "s.dispatchEvent(new Event('change'));"
    )
    after = browser.execute_script(shown)
    assert after.index(True) == 1
    assert sum(after) == 1


def test_a_mark_has_a_tooltip(browser: Any, pages: dict[str, Path]):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    opened(browser, pages["study"], 1400)
    mark = browser.find_element(By.CSS_SELECTOR, "#costs .view:not([hidden]) .area rect.bar")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(browser).move_to_element(mark).perform()
    tip = browser.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.is_displayed()
    assert "FedAvg" in tip.text


def test_a_slider_reads_out_the_preference(browser: Any, pages: dict[str, Path]):
    opened(browser, pages["front"], 390)
    said = "return document.querySelector('.slider output').textContent"
    assert "Preference 0.50, 0.50" in browser.execute_script(said)
    browser.execute_script(
        "var i = document.querySelector('.slider input'); i.value = '4';"
        "i.dispatchEvent(new Event('input'));"
    )
    text = browser.execute_script(said)
    assert "Preference 1.00, 0.00" in text
    assert "error 0.200, dp.sex 0.200" in text
    assert "dp.sex at most 0.06" in browser.execute_script("return document.body.textContent")


def test_text_can_be_read_in_a_dark_scheme(browser: Any, pages: dict[str, Path]):
    """The contrast of the text of charts with the page, by the formula of WCAG 2."""
    for scheme in ("light", "dark"):
        opened(browser, pages["study"], 1400, scheme)
        text, paper = browser.execute_script(
            "return [getComputedStyle(document.querySelector('.tick')).fill,"
            "getComputedStyle(document.body).backgroundColor]"
        )
        assert contrast(text, paper) > 4.5
