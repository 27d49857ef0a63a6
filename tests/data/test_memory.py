"""Data from memory: every kind gives the run of the equivalent files, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import isonomy
from isonomy.data import memory
from isonomy.errors import ConfigError, DataError, IsonomyError, RunError
from isonomy.runs.folder import RunFolder

ROLES = {"label": "ill", "protected": ["sex"], "positive": "yes"}
COMMON = {
    "model": "linear",
    "rounds": 3,
    "evaluate": {"every": 1, "bootstrap": 0},
    "front": {"rays": 0},
    "excess": "none",
}


def hospitals(rows=300):
    draw = np.random.default_rng(5)
    age = draw.integers(20, 80, rows).astype(float)
    age[draw.random(rows) < 0.1] = np.nan
    sex, ward = draw.choice(["f", "m"], rows), draw.choice(["icu", "er", "gp"], rows)
    ill = np.where(np.nan_to_num(age, nan=50) + 15 * (sex == "m") > 55, "yes", "no")
    return pandas.DataFrame(
        {
            "age": age,
            "smokes": draw.random(rows) < 0.4,
            "ward": pandas.Categorical(ward),
            "sex": sex,
            "ill": ill,
            "site": draw.choice(["north", "south", "west"], rows),
        }
    )


def config(seed=0, **data):
    return isonomy.make_config(data=data or "adult", seed=seed, **COMMON)


def same(a, b):
    """Whether two runs are equal in every number that they measured."""
    return all(  # as text, because nan differs from itself
        repr(getattr(a, name)) == repr(getattr(b, name))
        for name in ("rounds", "clients", "metrics")
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The tables as a file, and as one file per client; and their runs with two seeds."""
    folder, frame = tmp_path_factory.mktemp("tables"), hospitals()
    one, each = folder / "all.csv", folder / "each"
    frame.to_csv(one, index=False)
    each.mkdir()
    for name, part in frame.groupby("site"):
        part.drop(columns="site").to_csv(each / f"{name}.csv", index=False)
    runs = [isonomy.run(config(seed, path=str(one), client="site", **ROLES)) for seed in (0, 3)]
    assert same(runs[0], isonomy.run(config(path=str(each), **ROLES)))
    assert not same(*runs)
    return one, runs


def kinds():
    frame = hospitals()
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    parts = {name: part.drop(columns="site") for name, part in frame.groupby("site")}
    return {
        "pandas": (frame, True),
        "pandas with an index and objects": (
            frame.astype({"ill": object}).set_index(frame.age),
            True,
        ),
        "polars": (polars.from_pandas(frame), True),
        "polars, lazy": (polars.from_pandas(frame).lazy(), True),
        "arrow": (arrow, True),
        "arrow in batches": (pa.Table.from_batches(arrow.to_batches(max_chunksize=37)), True),
        "arrow's reader": (arrow.to_reader(), True),
        "dict of pandas": (dict(reversed(parts.items())), False),
        "dict of polars": ({name: polars.from_pandas(part) for name, part in parts.items()}, False),
        "dict of arrow": (
            {n: pa.Table.from_pandas(part, preserve_index=False) for n, part in parts.items()},
            False,
        ),
    }


@pytest.mark.parametrize("kind", kinds())
def test_frames_give_the_run_of_the_files(kind, files):
    data, whole = kinds()[kind]
    given = isonomy.federation(data, client="site" if whole else None, **ROLES)
    assert same(isonomy.run(config(), data=given), files[1][0])


def test_seeds_split_the_rows_as_they_do_files(files):
    given = isonomy.federation(hospitals(), client="site", **ROLES)
    records = isonomy.compare(config(), algorithms=["fedavg"], seeds=[0, 3], data=given)
    assert all(same(a, b) for a, b in zip(records, files[1], strict=True))


def test_hugging_face_data_sets(files):
    datasets = pytest.importorskip("datasets")
    frame = hospitals()
    given = datasets.Dataset.from_pandas(frame, preserve_index=False)
    assert same(
        isonomy.run(config(), data=isonomy.federation(given, client="site", **ROLES)), files[1][0]
    )
    each = {
        name: datasets.Dataset.from_pandas(part.drop(columns="site"), preserve_index=False)
        for name, part in frame.groupby("site")
    }
    assert same(isonomy.run(config(), data=isonomy.federation(each, **ROLES)), files[1][0])
    coded = given.class_encode_column("ill")
    again = isonomy.federation(coded, client="site", **ROLES)
    assert same(isonomy.run(config(), data=again), files[1][0])
    split = datasets.DatasetDict(train=given.select(range(200)), test=given.select(range(200, 300)))
    made = isonomy.federation(split, client="site", **ROLES).federation()
    assert int(made.sizes("train").sum()) == 200
    assert int(made.sizes("test").sum()) == 100


def test_partitioners_of_flwr_datasets(files):
    pytest.importorskip("datasets")
    natural = pytest.importorskip("flwr_datasets.partitioner").NaturalIdPartitioner
    from datasets import Dataset as HuggingFace

    partitioner = natural(partition_by="site")
    with pytest.raises(DataError, match=r"set partitioner\.dataset first"):
        isonomy.federation(natural(partition_by="site"), **ROLES)
    partitioner.dataset = HuggingFace.from_pandas(hospitals(), preserve_index=False)
    given = isonomy.federation(partitioner, drop=["site"], **ROLES)
    assert list(given.tables) == ["north", "south", "west"]
    assert same(isonomy.run(config(), data=given), files[1][0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files of datasets
def test_a_federated_dataset_of_flwr_datasets(tmp_path):
    federated = pytest.importorskip("flwr_datasets").FederatedDataset
    path = tmp_path / "all.csv"
    hospitals().to_csv(path, index=False)
    files = {"train": str(path), "test": str(path)}
    options = {"data_files": files, "cache_dir": str(tmp_path / "cache")}
    one = federated(dataset="csv", partitioners={"train": 3}, **options)
    assert list(isonomy.federation(one, **ROLES).tables) == ["0", "1", "2"]
    both = federated(dataset="csv", partitioners={"train": 3, "test": 3}, **options)
    made = isonomy.federation(both, **ROLES).federation()
    assert made.sizes("train").tolist() == made.sizes("test").tolist() == [100, 100, 100]


class Examples(Dataset):
    """A data set that is read one example at a time."""

    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, i):
        return tuple(column[i] for column in self.columns)


def test_tensors_and_torch_data_sets_give_the_run_of_unscaled_files(tmp_path):
    draw = np.random.default_rng(2)
    x = draw.normal(size=(240, 3)).astype(np.float32)
    y, sex = (x[:, 0] > 0).astype(np.int64), draw.integers(0, 2, 240)
    site = np.array(["b", "a", "c"])[draw.integers(0, 3, 240)]
    columns = {f"x{j}": x[:, j] for j in range(3)} | {"y": y, "sex": sex, "site": site}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = {"path": str(tmp_path / "t.parquet"), "client": "site", "label": "y"}
    made = config(7, protected=["sex"], scale="none", **data)
    right = isonomy.run(made.model_copy(update={"data": made.data.model_copy(update={"seed": 0})}))

    tensors = isonomy.Federation.from_tensors(torch.from_numpy(x), y, site, protected={"sex": sex})
    assert same(isonomy.run(config(seed=7), data=tensors), right)
    at = {name: np.flatnonzero(site == name) for name in "cab"}
    fast = {n: TensorDataset(*map(torch.from_numpy, (x[i], y[i], sex[i]))) for n, i in at.items()}
    slow = {n: Examples(x[i], y[i], sex[i]) for n, i in at.items()}
    for one in (fast, slow):
        given = isonomy.federation(one, protected=["sex"])
        assert same(isonomy.run(config(seed=7), data=given), right)
    halves = {n: {"train": d, "test": d} for n, d in fast.items()}
    given = isonomy.federation(halves, protected=["sex"])
    assert (
        given.sizes("train").tolist() == given.sizes("test").tolist() == [len(at[n]) for n in "abc"]
    )


def test_a_partition_divides_one_frame_as_it_divides_a_file(files):
    path, _ = files
    partition = {"name": "dirichlet", "beta": 1.0}
    roles = {**ROLES, "drop": ["site"]}
    given = isonomy.federation(hospitals(), partition=partition, clients=4, **roles)
    made = isonomy.run(config(1), data=given)
    assert same(
        made, isonomy.run(config(1, path=str(path), partition=partition, clients=4, **roles))
    )
    assert len(set(made.clients["name"])) == 4


def test_all_studies_give_the_results_of_the_file(files, tmp_path):
    given = isonomy.federation(hospitals(), client="site", **ROLES)
    there = {"data": given}
    read = config(path=str(files[0]), client="site", **ROLES)
    swept, of_file = (
        isonomy.sweep(made, {"local.lr": [0.1, 0.2]}, algorithms=["fedavg"], **more)
        for made, more in ((config(), there), (read, {}))
    )
    assert [one.config["local"]["lr"] for one in swept] == [0.1, 0.2]
    assert {one.config["data"]["digest"] for one in swept} == {given.digest}
    assert all(same(a, b) for a, b in zip(swept, of_file, strict=True))
    tuned, of_file = (
        isonomy.tune(made, ["fedavg"], trials=2, **more).trials
        for made, more in ((config(), there), (read, {}))
    )
    assert len(tuned) == 2
    assert [one.plain() for one in tuned] == [one.plain() for one in of_file]
    asked = {"require": ["accuracy >= 0.5"], "trials": 1, "methods": ["fedavg"]}
    decision, of_file = (
        isonomy.decide(made, tmp_path / name, **asked, **more)
        for made, name, more in ((config(), "memory", there), (read, "file", {}))
    )
    assert decision.outcome == "met"
    assert decision.answers == of_file.answers
    one, two = (made.model / "model.safetensors" for made in (decision, of_file))
    assert one.read_bytes() == two.read_bytes()
    one, two = (json.loads((made.model / "card.json").read_text()) for made in (decision, of_file))
    assert {name for name in one if one[name] != two[name]} == {"data", "seal"}  # where it is from


@pytest.mark.slow
def test_processes_get_the_data(tmp_path):
    given = isonomy.federation(hospitals(), client="site", **ROLES)
    options = {"algorithms": ["fedavg", "local"], "data": given}
    alone = isonomy.compare(config(), tmp_path / "1", **options)
    for made in (given, given.federation(0)):
        options["data"] = made
        many = isonomy.compare(config(), tmp_path / str(id(made)), jobs=2, **options)
        assert all(same(a, b) for a, b in zip(alone, many, strict=True))


class Stop(isonomy.Listener):
    def round(self, done, rounds, metrics):
        if done == 2:
            raise KeyboardInterrupt


def test_a_run_is_resumed_with_the_same_data_only(tmp_path):
    given = isonomy.federation(hospitals(), client="site", **ROLES)
    made = isonomy.make_config(data="adult", checkpoint={"every": 1}, **COMMON)
    whole = isonomy.run(made, tmp_path / "whole", data=given)
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(made, tmp_path / "part", data=given, listeners=[Stop()])
    assert RunFolder(tmp_path / "part").config().data.options["digest"] == given.digest

    other = hospitals()
    other.loc[17, "ill"] = "no" if other.loc[17, "ill"] == "yes" else "yes"
    wrong = isonomy.federation(other, client="site", **ROLES)
    with pytest.raises(RunError, match=r"not those that '.*part' began with \(digest"):
        isonomy.resume(tmp_path / "part", data=wrong)
    here = "import isonomy, sys; isonomy.resume(sys.argv[1])"
    alone = subprocess.run(
        [sys.executable, "-c", here, str(tmp_path / "part")], capture_output=True, text=True
    )
    assert "the run uses data from memory (digest" in alone.stderr
    same_again = isonomy.federation(polars.from_pandas(hospitals()), client="site", **ROLES)
    resumed = isonomy.resume(tmp_path / "part", data=same_again)
    assert same(resumed, whole)
    for name in ("rounds.jsonl", "clients.parquet", "model/model.safetensors"):
        one, two = tmp_path / "whole" / name, tmp_path / "part" / name
        assert one.read_bytes() == two.read_bytes()
    folder = tmp_path / "compared"
    isonomy.compare(made, folder, algorithms=["fedavg"], data=given)
    with pytest.raises(RunError, match="holds a run with other data"):
        isonomy.compare(made, folder, algorithms=["fedavg"], data=wrong)
    synthetic = isonomy.make_config(data="synthetic", **COMMON)
    isonomy.run(synthetic, tmp_path / "named")
    with pytest.raises(RunError, match="a run on 'synthetic' and not on data from memory"):
        isonomy.resume(tmp_path / "named", data=given)


def test_a_model_of_frames_predicts_rows(tmp_path):
    given = isonomy.federation(hospitals(), client="site", **ROLES)
    isonomy.run(config(), tmp_path / "run", data=given)
    isonomy.export(tmp_path / "run", tmp_path / "model")
    rows = hospitals(20).drop(columns=["ill", "site"])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    found = isonomy.load_model(tmp_path / "model").predict(str(tmp_path / "rows.csv"))
    assert len(found) == 20


def test_the_digest_is_of_the_content(files):
    frame = hospitals()
    digest = isonomy.federation(frame, client="site", **ROLES).digest
    read = pa.csv.read_csv(files[0])
    assert isonomy.federation(read, client="site", **ROLES).digest == digest
    assert isonomy.federation(frame.iloc[::-1], client="site", **ROLES).digest != digest
    frame.loc[3, "age"] = 21.5
    assert isonomy.federation(frame, client="site", **ROLES).digest != digest


def test_data_are_forgotten_with_their_last_user():
    digest = isonomy.federation(hospitals(40), client="site", **ROLES).digest
    with pytest.raises(DataError, match="which this process does not have"):
        memory.find(digest)


def changed(**columns):
    return hospitals(60).assign(**columns)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: isonomy.federation(hospitals(), label="il"),
            "the table has no column 'il'|name the column",
        ),
        (lambda: isonomy.federation(hospitals(), label="il", client="site"), "Did you mean 'ill'"),
        (lambda: isonomy.federation(hospitals(), label="ill", client="sit"), "Did you mean 'site'"),
        (lambda: isonomy.federation(hospitals(), label="ill"), "name the column that identifies"),
        (lambda: isonomy.federation(hospitals(), client="site"), "set data.label"),
        (
            lambda: isonomy.federation(hospitals(), label="ill", client="site", protcted="sex"),
            "Did you mean 'protected'",
        ),
        (lambda: isonomy.federation([[1, 2]], label="a"), "data is a list, which is not a table"),
        (lambda: isonomy.federation({}, label="a"), "the dict of tables is empty"),
        (lambda: isonomy.federation({"a": [1, 2]}, label="a"), "a list at 'a' instead of a table"),
        (lambda: isonomy.federation({1: hospitals(), "1": hospitals()}, label="ill"), "same name"),
        (
            lambda: isonomy.federation({"a": hospitals()}, label="ill", client="site"),
            "remove client",
        ),
        (
            lambda: isonomy.federation({"a": hospitals()}, label="ill", partition="iid"),
            "remove partition",
        ),
        (lambda: isonomy.federation(hospitals(0), label="ill", client="site"), "has no rows"),
        (lambda: isonomy.federation(pandas.DataFrame(), label="ill"), "has no columns"),
        (
            lambda: isonomy.federation(
                hospitals().rename(columns={"age": "sex"}), label="ill", client="site"
            ),
            "two columns called 'sex'",
        ),
        (
            lambda: isonomy.federation(pandas.concat({"a": hospitals()}, axis=1), label="ill"),
            "columns of several levels",
        ),
        (
            lambda: isonomy.federation(changed(age=[{"a": 1}, 3] * 30), label="ill", client="site"),
            "column 'age' of data contains a dict",
        ),
        (
            lambda: isonomy.federation(hospitals()["age"], label="age"),
            "is a pandas.*Series, which is not a table",
        ),
        (lambda: isonomy.federation({"a": TensorDataset(torch.zeros(4, 2))}), "has 1 parts"),
        (
            lambda: isonomy.federation({"a": TensorDataset(torch.zeros(4, 2))}, label="y"),
            "is for tables",
        ),
        (
            lambda: isonomy.Federation.from_tensors(np.zeros(4), [0, 1, 0, 1], [0] * 4),
            "one row of features",
        ),
        (
            lambda: isonomy.Federation.from_tensors(np.zeros((4, 1)), [0, 1], [0] * 4),
            "one label per row",
        ),
        (
            lambda: isonomy.Federation.from_tensors(np.zeros((2, 1)), [0, 1], [0]),
            "clients has the shape",
        ),
        (
            lambda: isonomy.Federation.from_tensors(np.zeros((2, 1)), [0, 0], [0, 0]),
            "nothing to learn",
        ),
        (
            lambda: isonomy.Federation.from_tensors(
                np.zeros((2, 1)), [0, 1], [0, 0], splits=["a", "b"]
            ),
            "write train",
        ),
        (lambda: isonomy.run(config(), data=hospitals()), "make it a federation first"),
        (lambda: isonomy.make_config(data=hospitals()), "a DataFrame, which a config cannot hold"),
        (
            lambda: isonomy.make_config(data={"path": hospitals(), "label": "ill"}),
            "a config cannot hold",
        ),
        (lambda: isonomy.run(config(name="memory")), "is for data in Python"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(make, words):
    with pytest.raises(IsonomyError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_mixed_columns_are_read_as_from_a_file(tmp_path):
    frame = changed(ward=["icu", 3, 2.5, None] * 15)
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = isonomy.federation(frame, client="site", **ROLES).federation()
    data = {"path": str(tmp_path / "t.csv"), "client": "site", **ROLES}
    assert same(
        isonomy.run(config(), data=isonomy.federation(frame, client="site", **ROLES)),
        isonomy.run(config(**data)),
    )
    assert any("2.5" in name for name in given.features) or "ward" in str(given.features)


def test_tensors_are_used_as_they_are():
    given = isonomy.Federation.from_tensors(np.eye(6), [0, 1] * 3, [0, 0, 0, 1, 1, 1])
    table = memory.register(given)
    with pytest.raises(
        ConfigError, match=r"data\.scale is set, but the data in memory are tensors"
    ):
        isonomy.run(config(**table, scale="none"))


def test_the_function_and_the_package_share_a_name():
    import isonomy.federation.organiser  # binds isonomy.federation to the package

    assert isonomy.federation.organiser
    assert len(isonomy.federation(hospitals(), client="site", **ROLES).federation()) == 3
