import json

import numpy as np
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import vehicle
from isonomy.data.download import fetch
from isonomy.errors import DataError, FetchError


def content(sizes, seed=0, features=100):
    rng = np.random.default_rng(seed)
    users = [f"f_{k:05d}" for k in range(len(sizes))]
    data = {
        user: {
            "x": rng.standard_normal((n, features)).tolist(),
            "y": [[1.0] if i % 2 else [-1.0] for i in range(n)],
        }
        for user, n in zip(users, sizes, strict=True)
    }
    return {"users": users, "num_samples": list(sizes), "user_data": data}


def write(path, what):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what))
    return path


def test_a_client_for_each_user_and_every_row_once(tmp_path):
    what = content([7, 40, 12])
    federation = load("vehicle", options={"path": str(write(tmp_path / "some.json", what))})
    assert federation.names == ("f_00000", "f_00001", "f_00002")
    assert (federation.classes, federation.labels) == (2, ("-1", "+1"))
    assert [federation.sizes(split).tolist() for split in SPLITS] == [
        [5, 28, 9],
        [1, 4, 1],
        [1, 8, 2],
    ]
    for k, user in enumerate(what["users"]):
        first = federation.rows(k, "train").start
        rows = slice(first, federation.rows(k, "test").stop)
        x = np.array(what["user_data"][user]["x"], dtype=np.float32)
        y = np.array(what["user_data"][user]["y"])[:, 0] > 0
        found = {(row.tobytes(), int(label)) for row, label in zip(x, y, strict=True)}
        pairs = zip(federation.x[rows].numpy(), federation.y[rows].tolist(), strict=True)
        assert {(row.tobytes(), label) for row, label in pairs} == found
        assert rows.stop - rows.start == len(found)
    assert "training split" in federation.notes[1]
    assert "3 clients instead of 23" in federation.notes[2]


def test_with_the_authors_test_rows_only_the_rest_is_divided(tmp_path):
    write(tmp_path / "train" / "mytrain.json", content([10, 20], seed=1))
    tests = content([4, 6], seed=2)
    tests["users"].reverse()
    tests["num_samples"].reverse()
    write(tmp_path / "test" / "mytest.json", tests)
    options = {"path": str(tmp_path), "fractions": [0.4, 0.1, 0.5]}
    federation = load("vehicle", options=options)
    assert [federation.sizes(split).tolist() for split in SPLITS] == [[8, 16], [2, 4], [4, 6]]
    x = torch.tensor(tests["user_data"]["f_00000"]["x"])
    assert torch.equal(federation.x[federation.rows(0, "test")], x)
    assert not any("training split is public" in note for note in federation.notes)
    (tmp_path / "test" / "mytest.json").write_text(json.dumps(content([4], seed=2)))
    with pytest.raises(DataError, match="'f_00001' has only training or only test examples"):
        load("vehicle", options=options)


def test_where_it_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    monkeypatch.setattr("isonomy.data.download.fetch._receive", refuse)
    with pytest.raises(FetchError) as error:
        load("vehicle")
    assert "litian96/ditto" in str(error.value)
    assert str(tmp_path) in str(error.value)
    write(tmp_path / "mytrain.json", content([8]))  # there the file has to be the right one
    with pytest.raises(DataError, match="damaged or a different file"):
        load("vehicle")
    write(tmp_path / "vehicle" / "mytrain.json", content([8, 9]))
    federation = load("vehicle")
    assert len(federation) == 2
    assert federation.origin == "the local cache"
    with pytest.raises(DataError, match="contains no JSON file"):
        load("vehicle", options={"path": str(write(tmp_path / "a" / "b.txt", 1).parent)})


def refuse(*args):
    raise fetch._FailedError("no connection")


def test_other_files_and_numbers_are_refused(tmp_path):
    path = write(tmp_path / "some.json", content([8, 9]))
    with pytest.raises(DataError, match="its 2 sensors, not 5; remove the number"):
        load("vehicle", clients=5, options={"path": str(path)})
    assert len(load("vehicle", clients=2, options={"path": str(path)})) == 2
    write(path, content([8], features=99))
    with pytest.raises(DataError, match=r"shape \[99\], not of 100 numbers"):
        load("vehicle", options={"path": str(path)})
    what = content([8])
    what["user_data"]["f_00000"]["y"][3] = [2.0]
    write(path, what)
    with pytest.raises(DataError, match="has the label 2; labels are -1 and 1"):
        load("vehicle", options={"path": str(path)})
    with pytest.raises(DataError, match="check the path"):
        load("vehicle", options={"path": str(tmp_path / "nothing.json")})


@pytest.fixture(scope="session")
def files():
    try:
        return [file.path for file in fetch.fetch(*vehicle.FILES)]
    except FetchError as error:
        pytest.skip(f"VEHICLE is neither cached nor available here: {error}")


def test_facts(files):
    check_facts("VEHICLE", vehicle.facts(files))
    federation = load("vehicle", options={"path": str(files[0])})
    assert federation.x.shape == (1_860, 100)
    assert int(federation.sizes().min()) == 5
    assert len(federation.notes) == 2
