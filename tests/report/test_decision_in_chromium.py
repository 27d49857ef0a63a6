"""The page of a decision in a real browser; run by `make pages`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chromium import contrast, opened

import isonomy

pytestmark = pytest.mark.slow
WIDTHS = (390, 1200)


def decided(folder: Path, clients: int, model: dict[str, Any], **asked: Any) -> Path:
    """The page of a decision on generated data."""
    config = isonomy.make_config(
        data={"name": "synthetic", "clients": clients},
        model={"name": "logistic", **model},
        rounds=4,
        local={"epochs": 1, "batch": 64, "lr": 0.5},
    )
    return isonomy.decide(config, folder, trials=1, **asked).folder / "decision.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A yes with many clients and a front, a proved no, and a no by losses."""
    folder = tmp_path_factory.mktemp("decisions")
    many = ["fedavg", "local", "hetpfl", "fedfb"]
    return {
        "yes": decided(
            folder / "yes",
            35,
            {"loss": "cross_entropy"},
            require=["accuracy >= 0.55"],
            methods=many,
        ),
        "impossible": decided(
            folder / "impossible",
            4,
            {},
            require=["demographic_parity <= 0.001", "accuracy >= 0.999"],
            methods=["fedavg", "fedfb"],
        ),
        "losses": decided(
            folder / "losses",
            4,
            {},
            require=["worst_group_loss <= 0.05"],
            methods=["fedavg", "pffl"],
        ),
    }


def text_of(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def scroll_width(browser: Any) -> int:
    return int(browser.execute_script("return document.documentElement.scrollWidth"))


@pytest.mark.parametrize("name", ["yes", "impossible", "losses"])
def test_it_opens_offline_and_asks_for_nothing(
    browser: Any,
    pages: dict[str, Path],
    name: str,
) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    browser.get_log("performance")  # of earlier pages
    opened(browser, pages[name], 1200)
    said = "Decision: yes" if name == "yes" else "Decision: no"
    assert said in text_of(browser)
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert pages[name].as_uri() in asked  # the log does record requests
    assert [url for url in asked if not url.startswith(("data:", pages[name].as_uri()))] == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_it_is_small(pages: dict[str, Path]) -> None:
    assert max(path.stat().st_size for path in pages.values()) < 2_000_000


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["yes", "impossible", "losses"])
def test_nothing_is_wider_than_the_page(
    browser: Any,
    pages: dict[str, Path],
    name: str,
    width: int,
) -> None:
    opened(browser, pages[name], width)
    assert scroll_width(browser) <= width
    browser.execute_script(
        "document.querySelectorAll('details').forEach(function (d) { d.open = true; });"
    )
    assert scroll_width(browser) <= width


def test_all_clients_are_behind_a_line_that_opens(
    browser: Any,
    pages: dict[str, Path],
) -> None:
    from selenium.webdriver.common.by import By

    opened(browser, pages["yes"], 390)
    summary = browser.find_element(By.CSS_SELECTOR, "details summary")
    table = browser.find_element(By.CSS_SELECTOR, "details table")
    assert "All 35 clients" in summary.text
    assert not table.is_displayed()
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", summary)
    summary.click()
    assert table.is_displayed()
    summary.click()
    assert not table.is_displayed()


def test_a_wide_table_scrolls_in_itself_by_keyboard(
    browser: Any,
    pages: dict[str, Path],
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(browser, pages["yes"], 390)
    boxes = browser.find_elements(By.CSS_SELECTOR, ".scroll")
    inside = "return arguments[0].scrollWidth - arguments[0].clientWidth"
    wide = [box for box in boxes if browser.execute_script(inside, box) > 20]
    assert wide
    browser.execute_script("arguments[0].focus()", wide[0])
    wide[0].send_keys(Keys.ARROW_RIGHT * 4)
    browser.execute_async_script("setTimeout(arguments[0], 400)")  # scrolling is smooth
    assert browser.execute_script("return arguments[0].scrollLeft", wide[0]) > 0


def test_points_say_what_they_are(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["yes"], 1200)
    titles = browser.execute_script(
        "return Array.from(document.querySelectorAll('svg title')).map(t => t.textContent)"
    )
    assert any("FedAvg" in title for title in titles)
    assert any("HetPFL" in title for title in titles)


def test_a_proof_and_trade_offs_are_on_the_page(
    browser: Any,
    pages: dict[str, Path],
) -> None:
    opened(browser, pages["impossible"], 1200)
    text = text_of(browser)
    assert "What is proved" in text
    assert "No predictions at all, whatever the model" in text
    assert "The nearest trade-offs" in text
    opened(browser, pages["losses"], 1200)
    assert "No linear model meets worst_group_loss(z) <= 0.05" in text_of(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(
    browser: Any,
    pages: dict[str, Path],
    scheme: str,
) -> None:
    """The contrast with the background, by the formula of WCAG 2."""
    for name in ("yes", "impossible"):
        opened(browser, pages[name], 1200, scheme)
        colours = browser.execute_script(
            "var c = function (q, k) { return getComputedStyle(document.querySelector(q))[k]; };"
            "return {paper: c('body', 'backgroundColor'), text: c('body', 'color'),"
            "soft: c('th', 'color'), chart: c('svg text', 'fill')}"
        )
        for part in ("text", "soft", "chart"):
            assert contrast(colours[part], colours["paper"]) > 4.5, (name, part)
        dark = contrast(colours["paper"], "rgb(0, 0, 0)") < contrast(
            colours["paper"], "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")
