"""Every algorithm has a page, and all pages follow one template."""

import re
from pathlib import Path

import pytest

from isonomy import algorithms
from isonomy.studies.results.pages import BLOCK

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


NUMBER = re.compile(r"(?<![\w.])\d*\.\d{2,}")
TESTED = re.compile(r"(?:[^\s(]*, )?\bp = [\d.e-]+(?:(?:, | and | to | or )[\d.e-]+)*")


def absent(results):
    """The numbers in the text of a page's results that none of its generated parts has, rounded.

    Code and what stands with a p-value are left out: `test_prose_numbers` has the latter.
    """
    made = [float(n) for block in BLOCK.finditer(results) for n in NUMBER.findall(block["body"])]
    text = re.sub(r"`[^`\n]*`|^ {4}.*$", "", BLOCK.sub("", results), flags=re.MULTILINE)
    found = NUMBER.findall(TESTED.sub("", re.sub(r"\s+", " ", text)))
    places = {number: len(number.partition(".")[2]) for number in found}
    return [n for n, at in places.items() if float(n) not in {round(one, at) for one in made}]


@pytest.mark.parametrize("name", algorithms.registry())
def test_no_number_of_the_results_is_typed_by_hand(name):
    text = (PAGES / f"{name}.md").read_text()
    results = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    assert not absent(results), "show the rows that have these numbers, or leave them out"


def test_a_number_that_no_table_has_is_found():
    table = "<!-- lead: x -->\nA has 0.853, B 0.8 (p = 0.04).\n<!-- end of lead -->\n"
    assert absent(table + "A has .85, and with `gamma = 0.123` as much (+.31, p = .044).") == []
    assert absent(table + "A has .86.") == [".86"]
