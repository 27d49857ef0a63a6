"""Every algorithm has a page, and all pages follow one template."""

import re
from pathlib import Path

import pytest

from isonomy import algorithms

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"
TEMPLATE = (
    "When to use it",
    "Update rule",
    "Options",
    "Details",
    "What it reveals",
    "Differences from the paper",
    "Results",
    "Limits",
)
OPTIONAL = {"Details", "Differences from the paper"}


def headings(text: str) -> list[str]:
    """The headings of the second level, without those in code."""
    return re.findall(r"^## (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def test_there_is_a_page_for_every_algorithm():
    assert {page.stem for page in PAGES.glob("*.md")} == set(algorithms.registry())


@pytest.mark.parametrize("name", algorithms.registry())
def test_a_page_follows_the_template(name):
    text = (PAGES / f"{name}.md").read_text()
    found = headings(text)
    assert found == [heading for heading in TEMPLATE if heading in found]
    assert set(TEMPLATE) - OPTIONAL <= set(found)
    title, opening = text.split("\n## ")[0].split("\n", 1)
    assert title.startswith("# ")
    assert opening.strip(), "one sentence: the paper, or what it is"


@pytest.mark.parametrize("name", algorithms.registry())
def test_no_section_is_empty(name):
    sections = re.split(r"^## .+$", (PAGES / f"{name}.md").read_text(), flags=re.MULTILINE)[1:]
    assert all(section.strip() for section in sections)


@pytest.mark.parametrize("name", algorithms.registry())
def test_the_results_have_the_methods_row_of_the_leaderboard(name):
    text = (PAGES / f"{name}.md").read_text()
    results = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    assert re.search(rf"^<!-- leaderboard: {name}( against=\w+)? -->$", results, re.MULTILINE)
