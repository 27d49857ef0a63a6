"""The messages on the page on troubleshooting are what one sees."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.errors import ConfigError
from isonomy.federation.flower import processes

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^- `(.*)`$", PAGE, flags=re.MULTILINE)
TINY = """
rounds = 1
data = { name = "synthetic", examples = 300 }
excess = { clusters = "none" }
"""
NET = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self, inputs, outputs):
        norm = torch.nn.BatchNorm1d(8)
        super().__init__(torch.nn.Linear(inputs, 8), norm, torch.nn.Linear(8, outputs))
"""
TRIALS = {
    "there is no file": "run mine.toml",
    "mine.toml: unknown key": "run mine.toml lr=0.05",
    "unknown algorithm": "run mine.toml algorithm=fedavgg",
    "model 'nets:Net' is not part": "run mine.toml model=nets:Net",
    "model 'nets:Net' has BatchNorm1d": "run mine.toml model=nets:Net --trust nets",
    "'runs/one' holds": "run mine.toml --to runs/one --no-report",
    "there is no run in": "resume runs/none",
    "no requirement": "decide mine.toml",
    "demographic_parity: unknown": "decide mine.toml --require demographic_parity(age)<=0.1",
}


def message(start: str) -> str:
    (found,) = [one for one in MESSAGES if one.startswith(start)]
    return found


@pytest.mark.parametrize("start", TRIALS)
def test_a_message_is_what_one_sees(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if start != "there is no file":
        (tmp_path / "mine.toml").write_text(TINY)
    (tmp_path / "nets.py").write_text(NET)
    words = TRIALS[start].split()
    if start == "'runs/one' holds":
        assert CliRunner().invoke(app, words).exit_code == 0
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr.strip().splitlines()[-1] == f"Error: {message(start)}"


def test_a_system_without_unix_sockets(monkeypatch):
    monkeypatch.delattr(processes.os, "killpg")
    monkeypatch.setattr(processes.sys, "platform", "win32")
    with pytest.raises(ConfigError) as error:
        processes.need_local_sockets("isonomy serve")
    assert str(error.value) == message("isonomy serve needs")


def test_every_message_on_the_page_is_produced():
    assert len(MESSAGES) == len(TRIALS) + 1
