"""The tutorials, followed word for word in a folder that holds only the tutorial's tables."""

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from console import Page, Step, _change, differs, follow

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.fixture
def place(tmp_path):
    shutil.copytree(TUTORIALS / "clinics", tmp_path / "clinics")
    return tmp_path


def test_the_tables_are_what_their_script_writes(tmp_path):
    import runpy

    made = runpy.run_path(str(TUTORIALS / "clinics.py"))
    for name in made["ROWS"]:
        assert (TUTORIALS / "clinics" / f"{name}.csv").read_text() == made["table"](name)


def test_five_minutes_with_two_tables(place):
    follow(Page(TUTORIALS / "own-tables.md"), place)
    assert (place / "runs/decision/decision.html").exists()
    assert (place / "runs/clinics-compare/report.html").exists()


@pytest.mark.slow
def test_researchers(place):
    follow(Page(TUTORIALS / "researchers.md"), place)


def test_every_tutorial_has_a_test():
    """federation.md is followed by tests/federation/test_tutorial.py."""
    assert {page.name for page in TUTORIALS.glob("*.md")} == {
        "own-tables.md",
        "researchers.md",
        "federation.md",
    }


# --- the comparison itself -----------------------------------------------------------------------


def test_equal_output_passes_and_numbers_may_differ_a_little():
    assert not differs("accuracy 0.76\nrows 1,080\n", "accuracy  0.77\n\nrows 1,090\n")
    assert not differs("a\n...\nc 1\n", "a\nb\nb\nc 1\n")
    assert not differs("...\nlast\n", "first\nlast\n")


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("accuracy 0.76\n", "accuracy 0.70\n"),
        ("accuracy 0.76\n", "loss 0.76\n"),
        ("a\nb\n", "a\n"),
        ("a\n", "a\nb\n"),
        ("a\n...\nc\n", "a\nb\n"),
        ("a\n...\nc\n", "a\nc\nd\n"),
        ("met (0.04)\n", "not met (0.04)\n"),
    ],
)
def test_other_output_is_found(page, printed):
    assert differs(page, printed)


def test_a_change_of_a_file(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("one\ntwo\nthree\n")
    _change(file, "-one\n+1\n-three\n")
    assert file.read_text() == "1\ntwo\n"
    with pytest.raises(AssertionError, match="no line four"):
        _change(file, "-four\n")


def test_a_command_over_two_lines():
    page = TUTORIALS / "own-tables.md"
    found = [step for step in Page(page).steps if "decide" in step.text and step.kind == "command"]
    assert isinstance(found[0], Step)
    assert re.search(r"0.15\" +--require", found[0].text)
