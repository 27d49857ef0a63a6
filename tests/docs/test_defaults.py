"""The page on defaults has a row for every algorithm, and explains each failure."""

import re
from pathlib import Path

from isonomy import algorithms

PAGE = (Path(__file__).parents[2] / "docs" / "defaults.md").read_text()


def test_every_algorithm_is_in_the_table():
    rows = dict(re.findall(r"^\| (\w+) \|(.*)\|$", PAGE, flags=re.MULTILINE))
    assert set(rows) - {"algorithm"} == set(algorithms.registry())
    assert "not run" not in PAGE


def test_every_failure_is_explained():
    failed = re.findall(r"^\| (\w+) \|.*\*\*(?:below|refused|diverged)\*\*", PAGE, re.MULTILINE)
    assert "Not explained yet" not in PAGE
    for name in failed:
        assert f"**{name}** fails on" in PAGE


def test_what_is_recommended_is_stated():
    for name, kind in algorithms.registry().items():
        if kind().recommended_work():
            assert f"{name} {kind().recommended_work()}" in PAGE


def test_no_other_method_fails():
    """FedLF on BANK is below the constant in accuracy, and above it in balanced accuracy."""
    assert re.findall(r"^\*\*(\w+)\*\* fails on (.+?)\. ", PAGE, re.MULTILINE) == [
        ("fedlf", "bank")
    ]
    assert len(re.findall(r"\*\*(?:below|refused|diverged)\*\* \|", PAGE)) == 1
