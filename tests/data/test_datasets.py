import re

import pytest

from isonomy.data import DATASETS, load
from isonomy.data.partition import plan
from isonomy.errors import ConfigError


@pytest.mark.parametrize("name", DATASETS)
def test_entries_are_complete(name):
    entry = DATASETS[name]
    assert entry.name == name
    assert re.fullmatch("[a-z0-9_]+", name)
    assert entry.description
    assert entry.source
    assert entry.licence
    assert entry.clients >= 1
    assert all(option.meaning for option in entry.options.values())
    plan(entry.partition, entry.partitions)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "adlut"}, "Did you mean 'adult'"),
        ({"name": "adult", "options": {"protectd": ["sex"]}}, "Did you mean 'protected'"),
        ({"name": "adult", "options": {"keep_protected": 1}}, "give true or false"),
        ({"name": "adult", "options": {"protected": [1]}}, "give a list of strings"),
        ({"name": "adult", "options": {"fractions": ["a"]}}, "give a list of numbers"),
        ({"name": "adult", "options": {"path": 3}}, "give a string"),
        ({"name": "linear", "options": {"d": 2.5}}, "give a whole number"),
        ({"name": "adult", "seed": -1}, "seed is -1"),
        ({"name": "adult", "partition": "unevn"}, "Did you mean 'uneven'"),
    ],
)
def test_bad_requests(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load(**arguments)
