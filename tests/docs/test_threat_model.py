"""Every test that the threat model names exists, in the file that it names."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parents[2]
PAGE = (HERE / "docs" / "threat-model.md").read_text()


def defined(path: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))


def test_named_tests_exist() -> None:
    attacks = HERE / "tests" / "attacks"
    everywhere = {name for path in attacks.glob("test_*.py") for name in defined(path)}
    named = re.findall(r"`((?:[\w/]*test_\w+\.py)?(?:::)?(?:test_\w+)?)`", PAGE)
    assert len(named) > 30
    for text in filter(None, named):
        file, _, test = text.rpartition("::") if "::" in text else ("", "", text)
        if test.endswith(".py"):
            file, test = test, ""
        path = HERE / file if file.startswith("tests/") else attacks / file
        assert path.exists(), text
        if test:
            assert test in (defined(path) if file else everywhere), text


def test_every_prevented_attack_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.search(r"\| (prevented|limited)\b", line)]
    assert len(rows) > 25
    for row in rows:
        assert "test_" in row, row
