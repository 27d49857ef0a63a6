"""The documentation site in a real browser, from files, without a network; by `make pages`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from chromium import opened

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = ("index", "presets", "installation", "comparison", "tutorials/own-tables", "reference")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(to),
    ]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return to


@pytest.mark.parametrize("width", [390, 1200])
def test_pages_fit_and_the_search_works_without_a_network(
    browser: Any, site: Path, width: int
) -> None:
    from selenium.webdriver.common.by import By

    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    for name in PAGES:
        opened(browser, site / f"{name}.html", width)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, name
    opened(browser, site / "index.html", width)
    browser.execute_script("document.querySelector('#__search').click()")
    box = browser.find_element(By.CSS_SELECTOR, "input.md-search__input")
    found, end = [], time.monotonic() + 30
    while not found and time.monotonic() < end:
        time.sleep(0.5)
        if box.is_displayed() and not box.get_attribute("value"):
            box.send_keys("bounded group loss")
        found = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__item")
    assert found
    said = browser.find_element(By.CSS_SELECTOR, ".md-search-result__meta").text
    assert "matching documents" in said
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
