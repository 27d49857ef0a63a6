from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from isonomy.cli import app

TINY = """
rounds = 2
data = { name = "synthetic", examples = 300 }
model = { name = "mlp", hidden = [4] }
local = { batch = 64 }
evaluate = { every = 1, bootstrap = 0 }
excess = { clusters = "none" }
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder that holds a config of a run that takes no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Run the command line in this process; checks the exit code."""

    def call(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, list(arguments), prog_name="isonomy")
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def refused(cli: Callable[..., Any]) -> Callable[..., str]:
    """Run what has to fail with one sentence; returns the sentence."""

    def call(*arguments: str) -> str:
        result = cli(*arguments, code=2)
        assert "Traceback" not in result.output
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("Error: ")
        assert lines[0].rstrip().endswith((".", "?", ".)")), lines[0]
        return str(lines[0])

    return call
