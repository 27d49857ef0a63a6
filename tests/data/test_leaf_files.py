"""LEAF's JSON form, on small files written as LEAF's scripts write them."""

import json

import numpy as np
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data.leaf_files import Examples, concatenate, leaf_files, locate, natural, read_leaf
from isonomy.errors import ConfigError, DataError, FetchError

NAN = float("nan")


def content(**users):
    """`content(ann=3)`: Ann with three examples; told apart by their numbers."""
    data = {
        user: {"x": [[i / 8, float(len(user))] for i in range(n)], "y": [i % 2 for i in range(n)]}
        for user, n in users.items()
    }
    return {"users": list(users), "num_samples": list(users.values()), "user_data": data}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_users_of_several_files_in_order(tmp_path):
    one = write(tmp_path / "all_data_0.json", content(bob=2, ann=3))
    two = write(tmp_path / "all_data_1.json", content(cy=1))
    users = read_leaf([one, two])
    assert list(users) == ["bob", "ann", "cy"]
    assert users["ann"].x.tolist() == [[0, 3], [0.125, 3], [0.25, 3]]
    assert users["ann"].y.tolist() == [0, 1, 0]
    assert users["ann"].x.dtype == np.float32


def test_names_nested_labels_and_what_leaf_leaves_behind(tmp_path):
    value = content(ann=2)
    value["user_data"]["ann"] = {"x": ["1.jpg", "2.jpg"], "y": [[1], [-1]]}
    value["user_data"]["dropped"] = {"x": [], "y": []}
    value["hierarchies"] = ["class_1"]
    (ann,) = read_leaf([write(tmp_path / "a.json", value)]).values()
    assert ann.x.tolist() == ["1.jpg", "2.jpg"]
    assert ann.y.tolist() == [1, -1]


def test_converted_while_read(tmp_path):
    path = write(tmp_path / "a.json", content(ann=3))
    (ann,) = read_leaf([path], lambda x: (x * 8).astype(np.uint8)).values()
    assert ann.x.dtype == np.uint8
    assert ann.x[:, 0].tolist() == [0, 1, 2]


def changed(change):
    value = content(ann=2, bob=1)
    change(value)
    return value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (json.dumps(content(ann=2))[:-30], "not a complete JSON file"),
        ("", "not a complete JSON file"),
        ("[" * 100_000, "not a complete JSON file"),
        ("[1]", "not a JSON object"),
        (changed(lambda v: v.pop("users")), "it has no 'users'"),
        (changed(lambda v: v.pop("user_data")), "it has no 'user_data'"),
        (changed(lambda v: v.update(users=[])), "'users' is empty"),
        (changed(lambda v: v.update(users=[1, 2])), "other than names"),
        (changed(lambda v: v.update(users=["ann", "ann"])), "'ann' is listed twice"),
        (changed(lambda v: v.update(num_samples=[2])), "one number per user"),
        (changed(lambda v: v.update(num_samples=[3, 1])), "'ann' has 2 examples, not 3"),
        (changed(lambda v: v["user_data"].pop("bob")), "'bob' is listed but has no entry"),
        (changed(lambda v: v.update(users=["ann"], num_samples=[2])), "contains 'bob', who is not"),
        (changed(lambda v: v["user_data"].update(ann=3)), "'ann' has no lists 'x' and 'y'"),
        (changed(lambda v: v["user_data"]["ann"]["y"].pop()), "2 examples and 1 labels"),
        (changed(lambda v: v["user_data"].update(bob={"x": [], "y": []})), "has no examples"),
        (changed(lambda v: v["user_data"]["ann"]["x"][0].pop()), "not an array of numbers"),
        (changed(lambda v: v["user_data"]["ann"].update(y=["one", 2])), "not an array of numbers"),
        (changed(lambda v: v["user_data"]["ann"].update(x=[[1.0], [NAN]])), "not finite"),
        (changed(lambda v: v["user_data"]["ann"].update(y=[[1, 2], [3, 4]])), "several numbers"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path, value, words):
    path = write(tmp_path / "a.json", value)
    with pytest.raises(DataError, match=words) as error:
        read_leaf([path])
    text = str(error.value)
    assert "a.json" in text
    assert text.endswith(".")
    assert "\n" not in text


def test_a_user_twice(tmp_path):
    paths = [write(tmp_path / f"{i}.json", content(ann=2)) for i in range(2)]
    with pytest.raises(DataError, match="user 'ann' is also in an earlier file"):
        read_leaf(paths)
    with pytest.raises(DataError, match="check the path"):
        read_leaf([tmp_path / "nothing.json"])


def test_finding_files(tmp_path):
    assert leaf_files(tmp_path) == {}
    with pytest.raises(FetchError, match=r"contains no files made by LEAF: do this\."):
        locate(tmp_path, "do this")
    whole = write(tmp_path / "data" / "all_data" / "b.json", content(ann=2))
    assert locate(tmp_path, "") == {"train": [whole]}
    train = write(tmp_path / "data" / "train" / "b.json", content(ann=2))
    with pytest.raises(DataError, match="in 'train' but none in 'test'"):
        locate(tmp_path, "")
    test = write(tmp_path / "data" / "test" / "b.json", content(ann=2))
    assert locate(tmp_path / "data", "") == {"train": [train], "test": [test]}
    loose = write(tmp_path / "loose" / "z.json", content(ann=2))
    assert leaf_files(tmp_path / "loose") == {"train": [loose]}


def held(**sizes):
    return {
        user: Examples(np.full((n, 1), i, dtype=np.float32), np.arange(n) % 2.0)
        for i, (user, n) in enumerate(sizes.items())
    }


def test_natural_clients_with_leafs_own_test_examples():
    train, test = held(a=10, b=4, c=1), held(a=3, b=2, c=1)
    users, parts = natural(train, test, 0, 1, (0.7, 0.1, 0.2), 0)
    assert users == ["a", "b", "c"]
    assert [len(p) for p in parts["test"]] == [3, 2, 1]
    assert [len(p) for p in parts["train"]] == [9, 3, 1]
    assert [len(p) for p in parts["validation"]] == [1, 1, 0]
    both = concatenate(users, train, test)
    assert both.x[:, 0].tolist() == [0] * 13 + [1] * 6 + [2] * 2
    assert parts["test"][1].tolist() == [17, 18]
    everything = torch.cat([p for name in SPLITS for p in parts[name]])
    assert torch.equal(everything.sort().values, torch.arange(21))


def test_natural_clients_split_here():
    train = held(a=10, b=20)
    users, parts = natural(train, None, 0, 1, (0.5, 0.2, 0.3), 0)
    assert [len(p) for p in parts["train"]] == [5, 10]
    assert [len(p) for p in parts["validation"]] == [2, 4]
    assert [len(p) for p in parts["test"]] == [3, 6]
    assert parts["train"][1].min() >= 10
    assert concatenate(users, train, None).y.shape == (30,)


def test_clients_are_drawn():
    train = held(**{f"u{i}": 2 + i for i in range(30)})
    draws = [natural(train, None, 8, 5, (0.5, 0.2, 0.3), seed)[0] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) == 8
    assert draws[0] == sorted(draws[0], key=lambda user: int(user[1:]))
    assert min(len(train[user].y) for draw in draws for user in draw) >= 5


@pytest.mark.parametrize(
    ("test", "clients", "minimum", "fractions", "kind", "words"),
    [
        (None, 4, 1, (0.7, 0.1, 0.2), DataError, "3 users have 1 or more"),
        (None, 0, 99, (0.7, 0.1, 0.2), DataError, "0 users have 99 or more training"),
        (
            held(a=1),
            0,
            1,
            (0.7, 0.1, 0.2),
            DataError,
            "'b' has only training or only test examples",
        ),
        (None, 0, 1, (0.7, 0.7, 0.2), ConfigError, "add up to 1"),
        (held(a=1, b=1, c=1), 0, 1, (0.0, 0.0, 1.0), ConfigError, "above 0"),
        (held(a=1, b=1, c=1), 0, 1, (0.5,), ConfigError, "add up to 1"),
        (held(a=1, b=1, c=1), 0, 1, (0.7, 0.7, 0.2), ConfigError, "add up to 1"),
        (held(a=1, b=1, c=1), 0, 1, (0.7, NAN, 0.2), ConfigError, "add up to 1"),
    ],
)
def test_refused(test, clients, minimum, fractions, kind, words):
    with pytest.raises(kind, match=words):
        natural(held(a=10, b=4, c=1), test, clients, minimum, fractions, 0)
