"""The README's Python lines, and the guide's list of commands, run as they stand there.

The README's commands for own tables: test_own_tables.py; `make quickstart`: tests/studies.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.data import load
from isonomy.errors import FetchError

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()
COMMANDS = re.findall(r"^    (isonomy .*?)\s*(?:#.*)?$", GUIDE, flags=re.MULTILINE)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_commands_for_every_verb():
    verbs = {command.split()[1] for command in COMMANDS}
    known = "decide ls show run compare sweep resume report front export reproduce"
    assert verbs == set(known.split())


def test_the_commands(tmp_path, monkeypatch):
    """In the guide's order and one folder, with generated data and few rounds to be quick."""
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        if words[0] in ("run", "compare", "sweep"):
            words = [w for w in words if not w.startswith("rounds=")]
            words += ["data=synthetic", "rounds=2", "excess.steps=5", "front.rays=50"]
        if "algorithm=hetpfl" in words:
            words += ["algorithm.fusion_steps=5"]
        if words[0] == "decide":  # generated data have another attribute
            words = [w for w in words if w not in ("--budget", "2m")]
            words = [w.replace("(sex)", "") for w in words]
            words += ["data=synthetic", "rounds=2", "--trials", "1", "--methods", "fedavg"]
        done = CliRunner().invoke(app, words)
        fine = (0, 3) if words[0] == "decide" else (0,)  # a no is an answer too
        assert done.exit_code in fine, f"{command}: {done.output}"


def test_the_python_lines(tmp_path):
    try:
        load("adult")
    except FetchError as error:
        pytest.skip(str(error))
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accuracy, gap = map(float, done.stdout.splitlines()[0].split())
    assert 0.8 < accuracy < 0.9
    assert 0.05 < gap < 0.4
    assert "fedavg" in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_the_readme_is_short_and_links_every_method():
    from isonomy.algorithms import registry

    assert len(README.splitlines()) <= 73
    opening = README.split("\n\n")[1]
    assert len(re.findall(r"\.(?:\s|$)", opening)) == 3
    assert all(f"(docs/algorithms/{name}.md)" in README for name in registry())


def test_every_command_of_the_readme_is_tested():
    """Indented commands: own tables (test_own_tables.py), and targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    for line in re.findall(r"^    (\S.*)$", README.split("```python")[0], flags=re.MULTILINE):
        program, verb = line.split()[:2]
        assert program in ("make", "isonomy")
        if program == "make":
            assert f"\n{verb}: .venv/" in makefile


def test_the_picture_is_drawn_from_a_decision():
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", README)
    assert "demographic_parity" in (ROOT / picture).read_text()


def test_links_lead_somewhere():
    """Also links to pages that the site makes; `make docs` checks anchors."""
    made = {ROOT / "docs" / "algorithms" / "index.md", ROOT / "docs" / "commands.md"}
    pages = (ROOT / "docs").rglob("*.md")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *pages):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            found = (page.parent / target).resolve()
            assert found.exists() or found in made, f"{page.name}: {target}"
