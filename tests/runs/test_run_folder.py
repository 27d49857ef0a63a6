"""A run never deletes or overwrites a file that a run did not write."""

import pytest

from isonomy.config.schema import parse
from isonomy.errors import RunError
from isonomy.federation import demo
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import run

SMALL = {
    "rounds": 2,
    "data": {"name": "synthetic", "clients": 3, "examples": 200},
    "model": {"name": "mlp", "hidden": [4]},
    "evaluate": {"every": 1, "bootstrap": 0},
    "excess": {"clusters": "none"},
}


def tree_of(folder):
    """Every file below a folder with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["clients", "model", "checkpoint", "notes.txt"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path, name, overwrite):
    place = tmp_path / name
    if "." in name:
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "north.csv").write_text("age,label\n1,0\n")
    before = tree_of(tmp_path)
    with pytest.raises(RunError) as error:
        run(parse(SMALL), tmp_path, overwrite=overwrite)
    assert name in str(error.value)
    assert "--to" in str(error.value)
    assert tree_of(tmp_path) == before


def test_the_current_folder_with_input_tables_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients").mkdir()
    (tmp_path / "clients" / "north.csv").write_text("age,label\n1,0\n")
    for place in (".", ""):
        with pytest.raises(RunError):
            run(parse(SMALL), place)
    assert list(tree_of(tmp_path)) == ["clients/north.csv"]


def test_a_users_own_config_toml_does_not_make_a_folder_a_run(tmp_path):
    (tmp_path / "config.toml").write_text('data = "tables"\n')
    assert not RunFolder(tmp_path).exists
    for overwrite in (False, True):
        with pytest.raises(RunError):
            run(parse(SMALL), tmp_path, overwrite=overwrite)
    assert (tmp_path / "config.toml").read_text() == 'data = "tables"\n'


def test_overwriting_a_run_keeps_what_the_run_did_not_write(tmp_path):
    run(parse(SMALL), tmp_path)
    first = set(tree_of(tmp_path))
    kept = ["notes.txt", "clients/north.csv", "model/mine.bin", "checkpoint/readme"]
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "clients" / "00000099.parquet").write_text("a run's file, left by a kill")
    run(parse({**SMALL, "rounds": 1}), tmp_path, overwrite=True)
    after = tree_of(tmp_path)
    assert all(after[name] == b"mine" for name in kept)
    assert "clients/00000099.parquet" not in after
    assert RunFolder(tmp_path).complete
    assert {name for name in after if "checkpoint" not in name} - set(kept) == {
        name for name in first if "checkpoint" not in name
    }


def test_removing_a_run_removes_all_of_it(tmp_path):
    run(parse(SMALL), tmp_path / "run")
    RunFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()


def test_a_start_that_was_killed_can_be_started_again(tmp_path):
    (tmp_path / ".config.toml.partial").write_text("rou")
    run(parse(SMALL), tmp_path)
    assert RunFolder(tmp_path).complete


def test_the_demo_replaces_only_a_demo(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError):
        demo.run(tmp_path, rounds=1, algorithm="fedavg", overwrite=True, say=lambda _: None)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
