"""The same tables give the same federation, and a run does not go on with others."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from isonomy.cli import app
from isonomy.config.schema import parse
from isonomy.data.tables import Roles, own
from isonomy.data.tables.federate import fingerprint
from isonomy.runs.training import Listener, Stopped, run

from .conftest import RUN
from .making import folder, people, same, text, write

A, B = people(60), people(45, seed=1)
ROLES = Roles(
    label="ill", protected=("sex", "age"), bins={"age": 3}, impute="median", rare=2, positive="0"
)


def test_the_same_seed_gives_the_same_federation(tmp_path):
    place = str(folder(tmp_path, {"a.csv": A, "b.parquet": B}))
    one, again, other = (own(place, ROLES, seed=seed) for seed in (1, 1, 2))
    same(one, again)
    assert fingerprint(one) == fingerprint(again) != fingerprint(other)
    assert one.ranges.tolist() == other.ranges.tolist()  # other rows, as many


def test_another_process_gives_the_same_federation(tmp_path):
    """With other hashes of texts, so that no order of a set shows."""
    place = str(folder(tmp_path, {"a.csv": A, "b.parquet": B}))
    script = (
        "import sys\n"
        "from isonomy.data.tables import Roles, own\n"
        "from isonomy.data.tables.federate import fingerprint\n"
        f"print(fingerprint(own(sys.argv[1], {ROLES!r}, seed=7)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, place],
        env=os.environ | {"PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == fingerprint(own(place, ROLES, seed=7))


def older(table):
    return {("Age" if name == "age" else name): values for name, values in table.items()}


@pytest.mark.parametrize(
    "changed",
    [
        {"a.csv": A | {"age": [A["age"][0] + 1, *A["age"][1:]]}, "b.csv": B},
        {"a.csv": A | {"ill": [1 - A["ill"][0], *A["ill"][1:]]}, "b.csv": B},
        {"a.csv": A | {"sex": [{"F": "M", "M": "F"}[A["sex"][0]], *A["sex"][1:]]}, "b.csv": B},
        {"a.csv": {name: values[:-1] for name, values in A.items()}, "b.csv": B},
        {"a.csv": A, "b.csv": B, "c.csv": A},
        {"a.csv": A, "c.csv": B},
        {"a.csv": older(A), "b.csv": older(B)},
    ],
    ids=["feature", "label", "group", "a row less", "a client more", "a client's name", "a name"],
)
def test_a_fingerprint_tells_tables_apart(tmp_path, changed):
    roles = Roles(label="ill", protected=("sex",))
    one = own(str(folder(tmp_path / "one", {"a.csv": A, "b.csv": B})), roles)
    other = own(str(folder(tmp_path / "other", changed)), roles)
    assert fingerprint(one) != fingerprint(other)


def test_what_does_not_matter_is_in_no_fingerprint(tmp_path):
    """Another kind of file, other line ends, another place: the same examples."""
    roles = Roles(label="ill", protected=("sex",))
    forms = {
        "csv": {"a.csv": A, "b.csv": B},
        "parquet": {"a.parquet": A, "b.parquet": B},
        "packed": {"a.csv.gz": A, "b.csv.gz": B},
        "lines": {"a.csv": text(A, ";").replace("\n", "\r\n"), "b.tsv": text(B, "\t")},
    }
    found = {fingerprint(own(str(folder(tmp_path / n, f)), roles)) for n, f in forms.items()}
    assert len(found) == 1


# --- resuming ------------------------------------------------------------------------------------


class StopAfter(Listener):
    """Sends this process a signal after a round, as a person would."""

    def round(self, done, rounds, metrics):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def stopped(place):
    """A run of four rounds on own tables that was stopped after two."""
    folder(place / "tables", {"a.csv": A, "b.csv": B})
    data = {"path": str(place / "tables"), "label": "ill", "protected": ["sex"]}
    config = parse(RUN | {"rounds": 4, "data": data})
    run(config, place / "whole")
    with pytest.raises(Stopped):
        run(config, place / "out", listeners=[StopAfter()])
    return place


def resumed(code):
    done = CliRunner().invoke(app, ["resume", "out", "--no-report"], prog_name="isonomy")
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.stderr


def test_a_run_goes_on_with_the_tables_it_began_with(stopped):
    assert resumed(0) == ""
    for name in ("summary.json", "rounds.jsonl", "model/model.safetensors"):
        assert (stopped / "out" / name).read_bytes() == (stopped / "whole" / name).read_bytes()


def test_a_run_goes_on_with_tables_that_were_only_written_again(stopped):
    for name, table in {"a": A, "b": B}.items():
        (stopped / "tables" / f"{name}.csv").unlink()
        write(stopped / "tables" / f"{name}.parquet", table)
    assert resumed(0) == ""


@pytest.mark.parametrize("kind", ["a value", "a row", "a client"])
def test_a_run_does_not_go_on_with_other_tables(stopped, kind):
    before = {p: p.read_bytes() for p in (stopped / "out").rglob("*") if p.is_file()}
    if kind == "a value":
        changed = {"a.csv": A | {"score": [9.9, *A["score"][1:]]}}
    elif kind == "a row":
        changed = {"b.csv": {name: values[1:] for name, values in B.items()}}
    else:
        changed = {"c.csv": A}
    folder(stopped / "tables", changed)
    said = resumed(2).splitlines()
    assert len(said) == 1
    assert said[0].startswith("Error: the tables at '")
    assert "are not those that" in said[0]
    assert "--overwrite" in said[0]
    assert {p: p.read_bytes() for p in (stopped / "out").rglob("*") if p.is_file()} == before


def test_a_run_whose_tables_are_gone_says_so(stopped):
    for path in (stopped / "tables").iterdir():
        path.unlink()
    said = resumed(2)
    assert "there is no table in the folder" in said
    (stopped / "tables").rmdir()
    assert "there is no file or folder" in resumed(2)


def test_the_kept_config_names_the_whole_path(stopped, monkeypatch):
    """So that a run can be resumed from anywhere."""
    monkeypatch.chdir(stopped / "out")
    done = CliRunner().invoke(app, ["resume", str(stopped / "out"), "--no-report"])
    assert done.exit_code == 0, done.output
    summary = json.loads((stopped / "out" / "summary.json").read_text())
    assert summary["metrics"]
