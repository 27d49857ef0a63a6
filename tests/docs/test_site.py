"""The site: every public name is in the reference, and a build without warnings or other hosts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isonomy

ROOT = Path(__file__).parents[2]
ELSEWHERE = re.compile(r'(?:src|href)="(https?:)?//[^"]+"')


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference.md").read_text()
    named = set(re.findall(r"^::: isonomy(?:\.api_data)?\.(\w+)$", page, flags=re.MULTILINE))
    assert named >= set(isonomy.__all__) - {"__version__"}


def test_pictures_are_small_and_load_nothing():
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
    assert len(pictures) >= 6
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    for picture in pictures:
        assert picture.stat().st_size < 40_000, picture.name
        assert not ELSEWHERE.search(picture.read_text())
        assert f"pictures/{picture.name}" in pages + (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors; links and anchors are checked by the build."""
    to = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(to)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return to


@pytest.mark.slow
def test_nothing_is_loaded_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text)
        outside = [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
        assert not [tag for tag in outside if 'rel="canonical"' not in tag], page.name


@pytest.mark.slow
def test_every_method_and_public_name_is_on_the_site(site):
    from isonomy.algorithms import registry

    for name in registry():
        assert (site / "algorithms" / f"{name}.html").exists()
    reference = (site / "reference.html").read_text()
    assert all(f"{name}</span>" in reference for name in ("make_config", "compare", "Record"))
    index = (site / "search" / "search_index.js").read_text()
    assert "bounded group loss" in index
