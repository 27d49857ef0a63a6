"""Every "prevented" of the threat model names a test, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "threat-model.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
NAMES = re.compile(r"`([\w/]*?)(?:(test_\w+)\.py)?(?:::)?(test_\w+)?`")


def functions() -> dict[str, set[str]]:
    """The names of all test functions, by file."""
    out = {}
    for path in TESTS.rglob("test_*.py"):
        body = ast.walk(ast.parse(path.read_text()))
        out[path.stem] = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return out


def named(row: str) -> list[tuple[str, str]]:
    """The tests that a row names: file and function, either may be empty."""
    return [(file, test) for _, file, test in NAMES.findall(row) if file or test]


def test_every_prevented_attack_names_a_test() -> None:
    prevented = [row for row in ROWS if "| prevented" in row]
    assert len(prevented) >= 25
    assert [row for row in prevented if not named(row)] == []


def test_the_tests_that_are_named_exist() -> None:
    known = functions()
    every = set().union(*known.values())
    found = [one for row in ROWS for one in named(row)]
    assert len(found) >= 30
    for file, test in found:
        assert not file or file in known, file
        assert not test or test in (known[file] if file else every), (file, test)
