"""The examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import isonomy

MODULES = [
    found.name
    for found in pkgutil.walk_packages(isonomy.__path__, "isonomy.")
    if not found.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_right(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = [
        name
        for name in MODULES
        if any(test.examples for test in finder.find(importlib.import_module(name)))
    ]
    assert len(with_examples) >= 20
