"""`isonomy check` on an algorithm of the user's own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-algorithm.md"


@pytest.fixture
def own(place, monkeypatch):
    """The skeleton of the docs in a module of the working folder, and one with a fault."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (place / "mine_methods.py").write_text(code)
    monkeypatch.delitem(sys.modules, "mine_methods", raising=False)
    monkeypatch.delenv("ISONOMY_TRUST", raising=False)
    return "mine_methods:Skeleton"


def test_an_algorithm_of_ones_own(cli, refused, own):
    assert f"--trust {own}" in refused("check", own)
    out = cli("check", own, "--trust", "mine_methods", "--engines", "loop,batched").stdout
    assert "All 22 clauses hold." in out
    assert len(re.findall(r"^pass  batched \w", out, flags=re.MULTILINE)) == 9
    assert "Did you mean" in refused("check", own, "strengt=2.0", "--trust", "mine_methods")


def test_a_fault_is_named(cli, own):
    path = Path("mine_methods.py")
    text = path.read_text()
    path.write_text(text.replace("@dataclass(frozen=True)", "@dataclass", 1))
    out = cli("check", own, "--trust", own, "--engines", "loop", code=1).stdout
    assert "FAIL  -       declaration: Skeleton is not frozen" in out
    assert "clauses are broken" in out


def test_python_dash_m():
    found = subprocess.run(
        [sys.executable, "-m", "isonomy", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"isonomy \d+\.\d+\.\d+\S*\n", found.stdout)
