import doctest
import importlib

import numpy as np
import pytest
import torch

from isonomy.data.partition import Categories
from isonomy.data.table import encode, protect, read_csv
from isonomy.errors import ConfigError, DataError

SEX = Categories(np.array([0, 1, 1, 0]), ("Female", "Male"))
RACE = Categories(np.array([2, 0, 1, 1]), ("Black", "Other", "White"))


def test_encode_standardises_by_the_training_rows():
    age = np.array([10.0, 20.0, 30.0, 100.0])
    x, names = encode({"age": age, "sex": SEX, "same": np.ones(4)}, torch.tensor([0, 1, 2]))
    assert names == ("age", "sex=Female", "sex=Male", "same")
    scale = np.sqrt(200 / 3)
    expected = [[-10 / scale, 1, 0, 0], [0, 0, 1, 0], [10 / scale, 0, 1, 0], [80 / scale, 1, 0, 0]]
    torch.testing.assert_close(x, torch.tensor(expected, dtype=torch.float32))


def test_protect():
    columns = {"sex": SEX, "race": RACE, "age": np.zeros(4)}
    groups, attributes, used = protect(columns, ["sex", "sex*race"])
    assert groups.tolist() == [[0, 2], [1, 3], [1, 4], [0, 1]]
    assert [a.name for a in attributes] == ["sex", "sex*race"]
    assert attributes[1].levels[3:] == ("Male & Black", "Male & Other", "Male & White")
    assert used == {"sex", "race"}
    groups, attributes, used = protect(columns, [])
    assert groups.shape == (4, 0)
    assert attributes == ()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["sexx"], "Did you mean 'sex'"),
        (["age"], "unknown column of categories 'age'"),
        (["sex*age"], "unknown column of categories 'age'"),
        (["sex", "sex"], "every attribute once"),
    ],
)
def test_protect_refuses(wanted, words):
    with pytest.raises(ConfigError, match=words):
        protect({"sex": SEX, "race": RACE, "age": np.zeros(4)}, wanted)


def test_read_csv_joins_files(tmp_path):
    (tmp_path / "a").write_text("1, x\n2, y\n")
    (tmp_path / "b").write_text("n,c\n3,y \n4, ?\n\n")
    columns = read_csv("it", [tmp_path / "a", tmp_path / "b"], ("n", "c"), ("n",), [0, 1])
    assert columns["n"].tolist() == [1, 2, 3, 4]
    assert columns["c"].levels == ("?", "x", "y")
    assert columns["c"].codes.tolist() == [1, 2, 2, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,x\n2\n", "cannot read a as it"),
        ("1,x\nu,y\n", "cannot read a as it"),
        ("1,x\n,y\n", "row 2 has no number for n"),
        ("1,x\nnan,y\n", "row 2 has no number for n"),
        ("", "cannot read a as it"),
    ],
)
def test_read_csv_refuses(tmp_path, text, words):
    (tmp_path / "a").write_text(text)
    with pytest.raises(DataError, match=words) as error:
        read_csv("it", [tmp_path / "a"], ("n", "c"), ("n",), [0])
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize("name", ["partition", "table", "options", "datasets", "datasets.linear"])
def test_examples_in_docstrings(name):
    result = doctest.testmod(importlib.import_module(f"isonomy.data.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
