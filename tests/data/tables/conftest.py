import subprocess
import sys

import pytest
import tomli_w
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.cli.shell import one_line
from isonomy.data import load
from isonomy.errors import IsonomyError

from .making import folder

RUN = {
    "rounds": 1,
    "model": "logistic",
    "local": {"batch": 0},
    "evaluate": {"bootstrap": 0},
    "excess": {"clusters": "none"},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def write_config(place):
    """Write a config of a run on own tables."""

    def call(**data):
        run = RUN | {"data": {"path": "tables", **data}}
        (place / "mine.toml").write_text(tomli_w.dumps(run))
        return "mine.toml"

    return call


def listing(place):
    return sorted(str(p.relative_to(place)) for p in place.rglob("*"))


@pytest.fixture
def refused(place, write_config):
    """What has to fail with one sentence, from Python and from the command line alike.

    `files` go to the folder tables; other arguments are keys of data. Returns the sentence.
    """

    def call(files, *, real=False, **data):
        folder(place / "tables", files)
        config = write_config(**data)
        before = listing(place)
        options = {"path": "tables"} | data
        keys = {key: options.pop(key) for key in ("clients", "partition") if key in options}
        with pytest.raises(IsonomyError) as raised:
            load("tables", options=options, **keys)
        if real:
            done = subprocess.run(
                [sys.executable, "-m", "isonomy.cli", "run", config],
                capture_output=True,
                text=True,
                check=False,
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            done = CliRunner().invoke(app, ["run", config], prog_name="isonomy")
            code, out, err = done.exit_code, done.stdout, done.stderr
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        lines = err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("Error: ")
        assert listing(place) == before  # no run folder, nothing half-written
        said = one_line(str(raised.value))
        sentence = lines[0].removeprefix("Error: ").replace(f"{place}/", "")
        assert sentence == said
        assert said.endswith((".", "?"))
        return said

    return call


@pytest.fixture
def trained(place, write_config):
    """What has to train, by the command line; returns what it printed on the error stream."""

    def call(files, **data):
        folder(place / "tables", files)
        config = write_config(**data)
        done = CliRunner().invoke(
            app, ["run", config, "--to", "out", "--overwrite", "--no-report"], prog_name="isonomy"
        )
        assert done.exit_code == 0, done.output
        assert (place / "out" / "summary.json").exists()
        assert (place / "out" / "model" / "preprocessing.json").exists()
        return done.stderr

    return call
