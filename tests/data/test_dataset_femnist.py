"""On small files in LEAF's form: its 3,550 writers are available only by running LEAF's scripts."""

import json

import numpy as np
import pytest
import torch

from isonomy.data import load
from isonomy.data.datasets import femnist
from isonomy.errors import DataError, FetchError


def leaf(seed, **writers):
    """As LEAF's data_to_json.py writes it: grey levels divided by 255, 784 of them an image."""
    rng = np.random.default_rng(seed)
    data = {
        name: {
            "x": (rng.integers(0, 256, (count, 784)) / 255).tolist(),
            "y": rng.integers(0, 62, count).tolist(),
        }
        for name, count in writers.items()
    }
    return {"users": list(data), "num_samples": list(writers.values()), "user_data": data}


@pytest.fixture
def folder(tmp_path):
    """Two files of training and of test examples, users in another order in each."""
    for part, files in {
        "train": ({"f0001_41": 12, "f0002_07": 7}, {"f0003_11": 30}),
        "test": ({"f0002_07": 2, "f0001_41": 3}, {"f0003_11": 4}),
    }.items():
        (tmp_path / part).mkdir()
        for i, writers in enumerate(files):
            path = tmp_path / part / f"all_data_{i}_niid_0_keep_0_{part}_9.json"
            path.write_text(json.dumps(leaf(i + len(part), **writers)))
    return tmp_path


def test_writers_are_clients_and_their_test_examples_stay_apart(folder):
    made = load("femnist", options={"path": str(folder)})
    assert made.names == ("f0001_41", "f0002_07", "f0003_11")
    assert made.x.shape == (58, 1, 28, 28)
    assert made.classes == 62
    assert made.labels[10] == "A"
    assert made.labels[61] == "z"
    assert made.sizes("test").tolist() == [3, 2, 4]
    both = made.sizes("train") + made.sizes("validation")
    assert both.tolist() == [12, 7, 30]
    assert made.sizes("validation").tolist() == [2, 1, 4]  # an eighth, rounded
    written = json.loads((folder / "test" / "all_data_0_niid_0_keep_0_test_9.json").read_text())
    mine = written["user_data"]["f0002_07"]
    rows = made.rows(1, "test")
    torch.testing.assert_close(made.x[rows].reshape(2, 784), torch.tensor(mine["x"]))
    assert made.y[rows].tolist() == mine["y"]


def test_without_leafs_division(tmp_path):
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "all_data_0.json").write_text(json.dumps(leaf(0, a=20, b=10)))
    made = load("femnist", options={"path": str(tmp_path), "fractions": [0.5, 0.2, 0.3]})
    assert made.sizes("train").tolist() == [10, 5]
    assert made.sizes("test").tolist() == [6, 3]


def test_some_writers(folder):
    made = load("femnist", clients=2, seed=1, options={"path": str(folder)})
    assert len(made) == 2
    large = load("femnist", partition={"name": "natural", "minimum": 10}, options={
        "path": str(folder)})  # fmt: skip
    assert large.names == ("f0001_41", "f0003_11")
    with pytest.raises(DataError, match="3 users have 1 or more training examples, too few for 4"):
        load("femnist", clients=4, options={"path": str(folder)})


def test_found_in_the_data_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "home"))
    (tmp_path / "home" / "femnist" / "data").mkdir(parents=True)
    for part in ("train", "test"):
        (folder / part).rename(tmp_path / "home" / "femnist" / "data" / part)
    assert len(load("femnist")) == 3


def test_what_to_do_without_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    with pytest.raises(FetchError, match=r"https://github\.com/TalwalkarLab/leaf") as error:
        load("femnist")
    text = str(error.value)
    assert "./preprocess.sh -s niid --sf 1.0 -k 0 -t sample" in text
    assert str(tmp_path / "femnist") in text
    assert text.endswith(".")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda u: u["y"].__setitem__(0, 62), "'a' has a label that is not a class from 0 to 61"),
        (lambda u: u["y"].__setitem__(0, 1.5), "not a class from 0 to 61"),
        (lambda u: u["x"][0].__setitem__(0, 7.0), "784 grey levels from 0 to 1"),
        (lambda u: u["x"][0].__setitem__(0, 0.5001), "784 grey levels"),
        (lambda u: [row.pop() for row in u["x"]], "784 grey levels"),
        (lambda u: u["x"][0].pop(), "not an array of numbers"),
    ],
)
def test_other_files(tmp_path, change, words):
    value = leaf(0, a=3)
    change(value["user_data"]["a"])
    (tmp_path / "all.json").write_text(json.dumps(value))
    with pytest.raises(DataError, match=words) as error:
        femnist.parse([tmp_path / "all.json"])
    assert "\n" not in str(error.value)


def test_every_grey_level_survives(tmp_path):
    value = leaf(0, a=1)
    value["user_data"]["a"]["x"] = [[(i % 256) / 255 for i in range(784)]]
    (tmp_path / "all.json").write_text(json.dumps(value))
    (examples,) = femnist.parse([tmp_path / "all.json"]).values()
    assert examples.x.dtype == np.uint8
    assert examples.x.flatten().tolist() == [i % 256 for i in range(784)]
