"""Numbers in the text of pages, against the generated tables and sentences.

The tables between marks are made from results/*.json; the text around them is written by hand. Here
every p-value of that text must be one of the data, and a difference written before it, as in
"(+.030, p = .0051)", must be the difference that it belongs to, rounded as it is written. Any other
number with two or more decimals must stand in a table of the section, rounded.
"""

import re
from pathlib import Path

import pytest

from isonomy.studies.results.pages import BLOCK

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = r"(?:\d+\.\d+|\.\d+|\d+)(?:e-?\d+)?"
CELL = re.compile(rf"(?P<difference>[+-]{NUMBER})(?: ± {NUMBER})?[^|±]{{0,60}}?p = (?P<p>{NUMBER})")
CLAIM = re.compile(
    rf"(?:(?<![\d.])(?<!and )(?<!of )(?P<difference>[+-]?{NUMBER}), )?"
    rf"\bp (?:=|<=|>=) (?P<ps>{NUMBER}(?:(?:, | and | to | or ){NUMBER})*)"
)
CODE = re.compile(r"`[^`\n]*`|^ {4}.*$", re.MULTILINE)


def parts(page):
    """The sections of a page by their headings, with an empty one for what is before the first."""
    first, *others = re.split(r"^## ", page, flags=re.MULTILINE)
    return {"": first, **{one.partition("\n")[0].strip(): one for one in others}}


def data(text):
    """The differences and p-values of the generated parts of a text."""
    blocks = [found["body"] for found in BLOCK.finditer(text)]
    return [
        (float(cell["difference"]), float(cell["p"]))
        for block in blocks
        for cell in CELL.finditer(block)
    ]


def rounded(value, like):
    """A number with as many significant digits as one is written with."""
    digits = like.partition("e")[0].lstrip("+-").replace(".", "").lstrip("0")
    return float(f"{value:.{max(len(digits), 1) - 1}e}")


def agrees(difference, written):
    """Whether a difference, rounded, is the written one; one without a sign is an amount."""
    places = len(written.partition(".")[2])
    value = difference if written[0] in "+-" else abs(difference)
    return abs(round(value, places) - float(written)) < 1e-9


def wrong(text, known):
    """The claims of a text that the data do not have, and how many claims it has."""
    prose = re.sub(r"\s+", " ", CODE.sub("", BLOCK.sub("", text)))
    out, count = [], 0
    for claim in CLAIM.finditer(prose):
        ps = re.findall(NUMBER, claim["ps"])
        for p in ps:
            count += 1
            found = [d for d, value in known if rounded(value, p) == float(p)]
            written = claim["difference"] if len(ps) == 1 else None
            if not found or (written and not any(agrees(d, written) for d in found)):
                out.append(prose[max(0, claim.start() - 60) : claim.end()])
    return out, count


DECIMAL = re.compile(r"(?<![\w.])\d*\.\d{2,}")
TESTED = re.compile(r"(?:[^\s(]*, )?\bp = [\d.e-]+(?:(?:, | and | to | or )[\d.e-]+)*")


def absent(text, *others):
    """The numbers in a text that no generated part of it, or of the others, has when rounded.

    Code and what stands with a p-value are left out.
    """
    blocks = [found["body"] for one in (text, *others) for found in BLOCK.finditer(one)]
    made = [float(number) for block in blocks for number in DECIMAL.findall(block)]
    prose = TESTED.sub("", re.sub(r"\s+", " ", CODE.sub("", BLOCK.sub("", text))))
    found = DECIMAL.findall(prose)
    places = {number: len(number.partition(".")[2]) for number in found}
    return [n for n, at in places.items() if float(n) not in {round(one, at) for one in made}]


def linked(section, sections):
    """A section and those of the page that its text links to."""
    anchors = set(re.findall(r"\(#([\w-]+)\)", BLOCK.sub("", section)))
    return [section, *(text for name, text in sections.items() if name in anchors)]


def test_the_text_of_presets_has_the_numbers_of_their_tables():
    sections = parts((DOCS / "presets.md").read_text(encoding="utf-8"))
    claims = 0
    for name, section in sections.items():
        known = [one for text in linked(section, sections) for one in data(text)]
        faults, count = wrong(section, known)
        assert not faults, f"presets.md, {name}: no table has these numbers: {faults}"
        claims += count
    assert claims >= 200


@pytest.mark.parametrize("page", sorted((DOCS / "algorithms").glob("*.md")), ids=lambda p: p.stem)
def test_the_text_of_a_methods_page_has_the_numbers_of_the_tables(page):
    text = page.read_text(encoding="utf-8")
    faults, _ = wrong(text, data(text) + data((DOCS / "presets.md").read_text(encoding="utf-8")))
    assert not faults, f"{page.name}: no table has these numbers: {faults}"


def anchor(heading):
    """A heading as links name it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_the_page_on_papers_has_the_numbers_of_the_presets_it_links_to():
    presets = parts((DOCS / "presets.md").read_text(encoding="utf-8"))
    sections = {anchor(name): text for name, text in presets.items()}
    papers = parts((DOCS / "papers.md").read_text(encoding="utf-8"))
    for name, text in papers.items():
        linked = re.findall(r"\(presets\.md#([\w-]+)\)", text)
        assert linked or not name, f"papers.md, {name}: no link to a preset"
        known = [one for link in linked for one in data(sections[link])]
        faults, _ = wrong(text, known)
        faults += absent(text, *(sections[link] for link in linked))
        assert not faults, f"papers.md, {name}: no table has these numbers: {faults}"
    assert sum(wrong(text, [])[1] for text in papers.values()) >= 50


TABLE = """<!-- results: some-preset -->
| method | accuracy |
| --- | --- |
| A | +0.0297 ± 0.0037; p = 0.0051 |
| B | -0.104 ± 0.025; p = 0.019 |
<!-- end of results -->
"""


@pytest.mark.parametrize("page", sorted((DOCS / "algorithms").glob("*.md")), ids=lambda p: p.stem)
def test_no_number_of_a_methods_results_is_typed_by_hand(page):
    results = parts(page.read_text(encoding="utf-8"))["Results"]
    assert not absent(results), "show the rows that have these numbers, or leave them out"


def test_no_number_of_the_presets_is_typed_by_hand():
    sections = parts((DOCS / "presets.md").read_text(encoding="utf-8"))
    for name, section in sections.items():
        assert not absent(*linked(section, sections)), f"{name}: show the rows, or leave them out"


def test_a_typed_number_is_found():
    table = "<!-- lead: x -->\nA has 0.853, B 0.8 (p = 0.04).\n<!-- end of lead -->\n"
    assert absent(table + "A has .85, and with `gamma = 0.123` as much (+.31, p = .044).") == []
    assert absent(table + "A has .86.") == [".86"]
    assert absent("A has .85.") == [".85"]
    assert absent("A has .85.", table) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("A is ahead (+.030, p = .0051), B behind (.104, p = .019).", 0),
        ("The two differ (p = .0051 and .019).", 0),
        ("A is ahead (+.030, p = .0052).", 1),  # another p-value
        ("A is ahead (+.031, p = .0051).", 1),  # another difference
        ("B is ahead (+.104, p = .019).", 1),  # another sign
        ("The two differ (p = .0051 and .02).", 0),  # rounded further
        ("The two differ (p = .0051 and .03).", 1),
    ],
)
def test_a_number_that_no_table_has_is_found(text, faults):
    assert len(wrong(text + "\n" + TABLE, data(TABLE))[0]) == faults
