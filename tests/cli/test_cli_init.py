"""`isonomy init`: its configs run, its doubts are printed, and nothing is overwritten."""

import os
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isonomy import api
from isonomy.cli.init import relative
from isonomy.data.datasets import DATASETS
from isonomy.runs.build import build


def people(rows: int, seed: int, **more) -> dict[str, list]:
    """A table with a relation between glucose, age and the label."""
    rng = np.random.default_rng(seed)
    age, glucose = rng.integers(18, 95, rows), rng.normal(6, 1.2, rows).round(2)
    risk = 0.04 * (age - 55) + 1.5 * (glucose - 6) + rng.normal(size=rows)
    table = {
        "sex": rng.choice(["f", "m"], rows).tolist(),
        "age": age.tolist(),
        "glucose": glucose.tolist(),
        "ward": rng.integers(1, 6, rows).tolist(),
        "died": np.where(risk > 0.3, "yes", "no").tolist(),
    }
    return table | {name: make(rng, rows) for name, make in more.items()}


def as_csv(path: Path, table: dict[str, list], delimiter: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        delimiter.join(table),
        *(delimiter.join(map(str, r)) for r in zip(*table.values(), strict=True)),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def hospitals(place: Path) -> Path:
    for k, name in enumerate(["ulm", "kiel", "bonn"]):
        as_csv(place / "hospitals" / f"{name}.csv", people(120, k))
    return place / "hospitals"


def test_a_folder_of_tables(place, cli, hospitals):
    done = cli("init", "hospitals")
    assert done.stderr == ""
    assert "3 tables in hospitals: 360 rows, 5 columns." in done.stdout
    assert "3 clients, 360 rows" in done.stdout
    assert "isonomy data describe hospitals.toml" in done.stdout
    assert "isonomy compare hospitals.toml" in done.stdout
    values = tomllib.loads((place / "hospitals.toml").read_text())
    assert values["data"] == {
        "path": "hospitals",
        "label": "died",
        "positive": "yes",
        "protected": ["sex", "age"],
        "bins": {"age": [30, 60]},
        "categorical": ["ward"],
    }
    methods = [m.label for m in api.methods("hospitals.toml")]
    assert methods == [
        "FedAvg",
        "Local",
        "FMTL (Ditto)",
        "FedEBA+",
        "FedFB",
        "EquiFL",
        "HetPFL",
    ]


def test_every_guess_has_its_reason(place, cli, hospitals):
    cli("init", "hospitals")
    lines = (place / "hospitals.toml").read_text().splitlines()
    for key in ("label", "positive", "protected", "bins", "categorical"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} ="))
        before = lines[:at]
        while not before[-1].startswith("# guess: "):
            assert before.pop().startswith("#   ")
    assert all(len(line) <= 100 for line in lines)


def test_what_was_written_learns_something(place, cli, hospitals):
    cli("init", "hospitals")
    cli("run", "hospitals.toml", "rounds=10", "excess.clusters=none", "--to", "out")
    (record,) = api.load("out")
    assert record.metrics["accuracy"] > 0.7
    assert "group.sex.demographic_parity" in record.metrics
    assert "group.age.demographic_parity" in record.metrics


def test_one_table_with_a_client_column(place, cli):
    bank = lambda rng, rows: rng.choice(["a", "b", "c", "d"], rows).tolist()  # noqa: E731
    as_csv(place / "loans.csv", people(400, 0, bank=bank), ";")
    done = cli("init", "loans.csv")
    assert "4 clients, 400 rows" in done.stdout
    data = tomllib.loads((place / "loans.toml").read_text())["data"]
    assert (data["path"], data["client"]) == ("loans.csv", "bank")
    assert build(api.make_config("loans.toml")).federation.names == ("a", "b", "c", "d")


def test_one_table_without_clients_is_distributed(place, cli):
    as_csv(place / "all.csv", people(400, 0))
    done = cli("init", "all.csv")
    assert "8 clients" in done.stdout
    data = tomllib.loads((place / "all.toml").read_text())["data"]
    assert (data["clients"], data["partition"]) == (8, {"name": "iid"})
    assert len(build(api.make_config("all.toml")).federation) == 8


def test_parquet_and_many_clients(place, cli):
    for k in range(60):
        (place / "in").mkdir(exist_ok=True)
        pq.write_table(pa.table(people(30, k)), place / "in" / f"c{k}.parquet")
    done = cli("init", "in")
    assert "60 clients, 1,800 rows" in done.stdout
    config = api.make_config("in.toml")
    assert (config.cohort.size, config.rounds) == (10, 50)


def test_a_split_column_is_used(place, cli):
    parts = lambda rng, rows: rng.choice(["train", "test"], rows, p=[0.8, 0.2]).tolist()  # noqa: E731
    for k in range(3):
        as_csv(place / "in" / f"c{k}.csv", people(100, k, part=parts))
    cli("init", "in")
    setting = build(api.make_config("in.toml"))
    assert setting.config.data.options["split"] == "part"
    assert int(setting.federation.sizes("validation").sum()) == 0


def test_a_regression(place, cli):
    def charges(rng, rows):
        return (1e4 + 3e3 * rng.normal(size=rows)).round(2).tolist()

    for k in range(3):
        table = people(200, k)
        del table["died"]
        as_csv(
            place / "in" / f"c{k}.csv", table | {"charges": charges(np.random.default_rng(k), 200)}
        )
    cli("init", "in")
    config = api.make_config("in.toml")
    assert (config.data.options["label"], config.model.name) == ("charges", "linear")
    cli("run", "in.toml", "--to", "out")
    (record,) = api.load("out")
    assert record.metrics["loss"] < 2e7  # their variance is 9e6, their mean square 1e8


def test_no_label_is_found(place, cli, refused):
    rows = {"a": (np.arange(90) * 0.1).tolist(), "b": (np.arange(90) ** 2 * 0.3).tolist()}
    for k in range(2):
        as_csv(place / "in" / f"c{k}.csv", rows)
    done = cli("init", "in")
    assert "LABEL" in done.stdout
    assert "Wrote in.toml; it needs a label" in done.stdout
    text = (place / "in.toml").read_text()
    assert 'label = "LABEL"' in text
    assert "'LABEL'" in refused("run", "in.toml")
    fixed = text.replace('"LABEL"', '"b"')
    (place / "in.toml").write_text(fixed)
    cli("run", "in.toml", "rounds=1", "model=linear", "local.lr=1e-6", "--to", "out")


def test_a_problem_of_the_tables_is_reported(place, cli):
    """A column that only the user can fix: the config is written, and the problem is printed."""
    bank = lambda rng, rows: rng.choice(["a", "b", "c"], rows).tolist()  # noqa: E731
    table = people(200, 0, bank=bank)
    table["bank"][7] = ""
    as_csv(place / "all.csv", table)
    done = cli("init", "all.csv")
    assert "Please check:" in done.stdout
    assert "'bank'" in done.stdout
    assert "cannot run yet: " in done.stdout
    assert "row 8" in done.stdout
    assert (place / "all.toml").exists()


def test_odd_names_are_valid_toml(place, cli):
    odd = {
        'he said "no"': lambda rng, rows: rng.normal(size=rows).tolist(),
        "back\\slash": lambda rng, rows: rng.integers(0, 5, rows).tolist(),
        "Größe [cm] # 1": lambda rng, rows: rng.integers(1, 5, rows).tolist(),
        "ward 'x' code": lambda rng, rows: rng.integers(1, 5, rows).tolist(),
    }
    for k in range(2):
        table = people(80, k, **odd)
        table["Alter (Jahre)"] = table.pop("age")
        (place / "my tables").mkdir(exist_ok=True)
        pq.write_table(pa.table(table), place / "my tables" / f"c {k}.parquet")
    done = cli("init", "my tables")
    assert "isonomy compare 'my tables.toml'" in done.stdout
    options = api.make_config("my tables.toml").data.options
    assert options["categorical"] == ["ward", "ward 'x' code"]
    assert options["bins"] == {"Alter (Jahre)": [30, 60]}
    features = build(api.make_config("my tables.toml")).federation.features
    assert 'he said "no"' in features


def test_windows_files(place, cli):
    table = people(60, 0)
    table["insurance"] = ["städtisch", "privat"] * 30
    for k in range(2):
        path = as_csv(place / "in" / f"c{k}.csv", table, ";")
        path.write_bytes(path.read_text().encode("cp1252"))
    done = cli("init", "in")
    assert "cp1252" in done.stdout
    config = api.make_config("in.toml")
    assert config.data.options["encoding"] == "cp1252"
    assert "insurance=städtisch" in build(config).federation.features


def test_tables_too_large_to_read_twice(place, cli, hospitals, monkeypatch):
    monkeypatch.setattr("isonomy.cli.init.MAX_CHECKED", 100)
    done = cli("init", "hospitals")
    assert "only a sample of the tables was read" in done.stdout
    assert len(build(api.make_config("hospitals.toml")).federation) == 3
    as_csv(hospitals / "kiel.csv", people(60, 3, lab=lambda rng, rows: [1.5] * rows))
    done = cli("init", "hospitals", "--overwrite")
    assert "lab (" in done.stdout
    assert "its columns agree" in done.stdout


# --- where it is written -------------------------------------------------------------------------


def test_nothing_is_overwritten_unless_asked(place, cli, refused, hospitals):
    (place / "hospitals.toml").write_text("rounds = 3\n")
    sentence = refused("init", "hospitals")
    assert "'hospitals.toml'" in sentence
    assert "--overwrite" in sentence
    assert (place / "hospitals.toml").read_text() == "rounds = 3\n"
    cli("init", "hospitals", "--overwrite")
    assert api.make_config("hospitals.toml").data.options["label"] == "died"


def test_the_path_is_relative_to_the_config(place, cli, hospitals, monkeypatch):
    cli("init", "hospitals", "--to", "configs/first/study.toml")
    path = place / "configs" / "first" / "study.toml"
    assert tomllib.loads(path.read_text())["data"]["path"] == "../../hospitals"
    monkeypatch.chdir("/")
    assert len(build(api.make_config(path)).federation) == 3


def test_the_folder_itself_can_be_named_by_a_dot(place, cli, hospitals, monkeypatch):
    monkeypatch.chdir(hospitals)
    cli("init", ".")
    assert tomllib.loads(Path("hospitals.toml").read_text())["data"]["path"] == "."
    assert len(build(api.make_config("hospitals.toml")).federation) == 3


def test_links_are_followed_only_where_they_have_to_be(place):
    (place / "far" / "data").mkdir(parents=True)
    (place / "near").mkdir()
    (place / "near" / "data").symlink_to(place / "far" / "data")
    assert relative(place / "near" / "data", place / "near") == "data"
    (place / "link").symlink_to(place / "far" / "data", target_is_directory=True)
    path = relative(place / "near", place / "link")
    assert (place / "link" / path).resolve() == place / "near"
    assert os.path.isdir(place / "link" / path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["init"], ["PATH", "isonomy init --help"]),
        (["init", "absent"], ["'absent'"]),
        (["init", "empty"], ["empty"]),
        (["init", "notes.md"], ["'notes.md'"]),
        (["init", "bare"], ["bare"]),
        (["init", "blank.csv"], ["blank.csv"]),
        (["init", "twice.csv"], ["'a'"]),
        (["init", "ragged.csv"], ["ragged.csv"]),
        (["init", "broken.parquet"], ["broken.parquet"]),
        (["init", "fine.csv", "--to", "fine.csv", "--overwrite"], ["--to fine.csv", ".toml"]),
        (["init", "fine.csv", "--to", "fine.csv/in.toml"], ["cannot be written"]),
    ],
)
def test_what_cannot_be_read_or_written_is_refused(place, refused, arguments, words):
    (place / "empty").mkdir()
    (place / "notes.md").write_text("hello")
    (place / "bare").write_text("a,b\n1,2\n")
    (place / "blank.csv").write_text("")
    (place / "twice.csv").write_text("a,a\n1,2\n")
    (place / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (place / "broken.parquet").write_text("PAR1 this is none")
    as_csv(place / "fine.csv", people(100, 0))
    before = sorted(path.name for path in place.iterdir())
    sentence = refused(*arguments)
    for word in words:
        assert word in sentence
    assert sorted(path.name for path in place.iterdir()) == before


def test_every_guessed_key_is_an_option(place, cli, hospitals):
    cli("init", "hospitals")
    keys = tomllib.loads((place / "hospitals.toml").read_text())["data"]
    assert set(keys) <= {*DATASETS["tables"].options, "clients", "partition"}


def test_tables_given_for_a_config_lead_to_init(place, refused, hospitals):
    assert "`isonomy init hospitals`" in refused("compare", "hospitals")
    assert "`isonomy init hospitals/ulm.csv`" in refused("run", "hospitals/ulm.csv")


def test_requirements_are_written_as_comments(place, cli, hospitals):
    cli("init", "hospitals")
    text = (place / "hospitals.toml").read_text()
    assert "decide" not in tomllib.loads(text)
    lines = text.splitlines()
    at = lines.index("# [decide]")
    opened = tomllib.loads("\n".join(line[2:] for line in lines[at:]))["decide"]
    assert opened["maximise"] == "accuracy"
    parity, worst = opened["require"]
    assert parity == "demographic_parity(sex) <= 0.1"
    values = [row.rsplit(",", 1)[1] for file in hospitals.iterdir() for row in _rows(file)]
    most = max(values.count("yes"), values.count("no")) / len(values)
    assert worst == f"worst_client_accuracy >= {int(100 * most - 10) / 100:g}"


def _rows(file: Path) -> list[str]:
    return file.read_text().splitlines()[1:]


def test_the_next_commands_end_with_decide_and_odd_names_can_be_copied(place, cli):
    """The names of columns have brackets and quotes, and values differ only in spelling."""
    rng = np.random.default_rng(0)
    lines = ["Hospital,Sex (m/v),x,outcome"]
    for _ in range(400):
        where = rng.choice(["North", "north ", "South"])
        x = rng.normal()
        label = int(rng.random() < 1 / (1 + np.exp(-2 * x)))
        lines.append(f"{where},{rng.choice(['m', 'v'])},{x:.3f},{label}")
    (place / "odd.csv").write_text("\n".join(lines) + "\n")
    result = cli("init", "odd.csv")
    assert "'Hospital' has values that differ only in case or in spaces" in result.output
    command = result.output.strip().splitlines()[-1].strip()
    words = shlex.split(command)
    assert words[:3] == ["isonomy", "decide", "odd.toml"]
    assert words[4] == "demographic_parity(Sex (m/v)) <= 0.1"
    more = ("--trials", "1", "--methods", "fedavg", "--to", "out")
    decided = cli(*words[1:], *more, code=3)  # 80 test rows are too few
    assert "could show demographic_parity(Sex (m/v)) <= 0.1" in decided.output


def test_stray_files_are_excluded_and_the_config_runs(place, cli, hospitals):
    (hospitals / "codes.csv").write_text("code,meaning\n1,a\n2,b\n")
    done = cli("init", "hospitals")
    assert "1 of 4 files look different from the others and are excluded: codes.csv" in done.stdout
    assert tomllib.loads((place / "hospitals.toml").read_text())["data"]["exclude"] == ["codes.csv"]
    assert len(build(api.make_config("hospitals.toml")).federation) == 3
