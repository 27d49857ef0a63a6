"""The README's commands and its Python lines, run as they stand there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.config.schema import parse
from isonomy.data import load
from isonomy.errors import FetchError

README = (Path(__file__).parents[2] / "README.md").read_text()
OWN = README.index("## Your own data\n")  # its commands: test_own_tables.py
OTHERS = README[:OWN] + README[README.index("\n## ", OWN + 1) :]
REAL = OTHERS.index("## A real federation\n")  # its command: test_real_federation.py
OTHERS = OTHERS[:REAL] + OTHERS[OTHERS.index("\n## ", REAL + 1) :]
COMMANDS = re.findall(r"^    (isonomy .*?)\s*(?:#.*)?$", OTHERS, flags=re.MULTILINE)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_commands_for_every_verb():
    verbs = {command.split()[1] for command in COMMANDS}
    known = "decide ls show run compare sweep resume report front export reproduce"
    assert verbs == set(known.split())


def test_the_commands(tmp_path, monkeypatch):
    """In the README's order and one folder, with generated data and few rounds to be quick."""
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


def test_the_config_is_valid():
    import tomllib

    (text,) = blocks("toml")
    config = parse(tomllib.loads(text))
    assert config.algorithm.options == {"mu": 0.1}
    assert config.data.options == {"protected": ["sex", "race"]}


def test_links_lead_somewhere():
    root = Path(__file__).parents[2]
    for page in (root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
