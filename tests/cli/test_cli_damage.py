"""What the machine or a damaged file does to a command: one sentence, exit code 2."""

import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isonomy

SMALL = {
    "data": {"name": "synthetic", "examples": 80},
    "rounds": 1,
    "model": "logistic",
    "excess": {"clusters": "none"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    isonomy.run(isonomy.make_config(**SMALL), folder)
    return folder


def refused(result, *words: str) -> None:
    """One sentence on standard error, with these words."""
    assert result.exit_code == 2, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert "unexpected" not in last
    for word in words:
        assert word in last


@pytest.mark.parametrize("verb", ["report", "show", "resume"])
@pytest.mark.parametrize("name", ["summary.json", "clients.parquet", "rounds.jsonl"])
def test_a_damaged_file_of_a_run_is_named(whole, tmp_path, cli, name, verb):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(b"garbage\n")
    refused(cli(verb, str(tmp_path / "run"), code=2), name, "--overwrite")


def test_a_number_of_a_hundred_bits(cli, tmp_path):
    words = ["run", "quickstart", "local.steps=1000000000000000000000000000000"]
    refused(cli(*words, "--to", str(tmp_path / "run"), code=2), "local.steps", "31 digits")


def test_a_name_that_is_too_long_for_the_file_system(cli, tmp_path):
    words = ["report", str(tmp_path / "nothing"), "--out", str(tmp_path / ("x" * 300))]
    refused(cli(*words, code=2))
    long = tmp_path / ("x" * 300)
    refused(
        cli("run", "quickstart", "data=synthetic", "rounds=1", "--to", str(long), code=2), "--to"
    )


def test_memory_that_is_not_there(cli, tmp_path):
    words = ["data=synthetic", "rounds=1", "model=mlp", "model.hidden=[1000000,100000000]"]
    refused(
        cli("run", "quickstart", *words, "--to", str(tmp_path / "run"), code=2), "memory ran out"
    )


def test_a_parquet_file_without_columns(cli, tmp_path):
    pq.write_table(pa.table({}), tmp_path / "empty.parquet")
    refused(cli("init", str(tmp_path / "empty.parquet"), code=2), "no columns")


def test_a_folder_that_must_not_be_written(cli, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0:  # may write everywhere but here
        locked = Path("/sys/locked")
        if sys.platform != "linux":
            pytest.skip("root may write everywhere")
    words = ["data=synthetic", "rounds=1", "model=logistic"]
    refused(cli("run", "quickstart", *words, "--to", str(locked / "run"), code=2), "locked")


def test_cells_of_a_csv_file_are_not_formulas():
    from isonomy.report.tables import Cell, Column, Table

    made = Table("t", (Column("method", "method", text=True),), ((Cell("=HYPERLINK(A1)"),),), ())
    assert made.csv() == "method\n'=HYPERLINK(A1)\n"


def test_a_federations_own_files_are_not_runs(whole, tmp_path):
    """Flower keeps a config.toml of its own below the folder of a served run."""
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "flower").mkdir()
    (tmp_path / "run" / "flower" / "config.toml").write_text("[superlink]\n")
    assert len(isonomy.load(tmp_path / "run")) == 1
