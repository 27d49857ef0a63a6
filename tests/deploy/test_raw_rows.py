"""Rows as a data set publishes them become the features that the data set's federation has.

The preprocessing that goes with a model reads the published file itself: another order of columns,
columns that nobody needs, codes, marks for missing values. What it makes of all rows is compared,
as a set of rows, with the federation's own, which was made another way (by the data set's code).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_files import files, raw

from isonomy.data import load
from isonomy.data.datasets import adult, german
from isonomy.data.preparation import of
from isonomy.deploy.rows import features


def as_set(x: np.ndarray) -> list[bytes]:
    return sorted(row.tobytes() for row in np.ascontiguousarray(x))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("german", {}),
    ("german", {"options": {"protected": ("age",)}}),
    ("german", {"options": {"keep_protected": True}}),
    ("compas", {"options": {"rows": "all"}}),
    ("compas", {"options": {"rows": "all", "keep_protected": True, "charge": True}}),
    ("compas", {"partition": {"name": "paper"}}),
    ("bank", {}),
    ("bank", {"partition": {"name": "paper"}}),
    ("bank_additional", {}),
    ("credit_card", {}),
    ("adult", {}),
    ("adult", {"options": {"protected": ("race",), "keep_protected": True}}),
]
LONG: list[tuple[str, dict[str, Any]]] = [
    ("celeba_attributes", {}),
    ("celeba_attributes", {"options": {"keep_protected": True}}),
]


def check(name: str, asked: dict[str, Any], to: Path) -> None:
    path = raw(name, to)
    federation = load(name, **asked)
    assert federation.preprocessing is not None
    how = of(federation.preprocessing)
    got = features(path, how, federation.x.shape[1:]).x.numpy()
    assert got.shape == federation.x.shape
    assert as_set(got) == as_set(federation.x.numpy())


@pytest.mark.parametrize(("name", "asked"), CASES, ids=str)
def test_published_rows(name: str, asked: dict[str, Any], tmp_path: Path) -> None:
    check(name, asked, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "asked"), LONG, ids=str)
def test_published_rows_of_large_files(name: str, asked: dict[str, Any], tmp_path: Path) -> None:
    check(name, asked, tmp_path)


def test_adult_as_in_the_papers_reads_training_rows(tmp_path: Path) -> None:
    """There test rows are scaled separately; new rows are scaled like training rows."""
    path = raw("adult", tmp_path)
    federation = load("adult", partition={"name": "paper"})
    assert federation.preprocessing is not None
    got = features(path, of(federation.preprocessing), federation.x.shape[1:]).x.numpy()
    rows = [
        federation.x[federation.rows(k, split)]
        for k in range(len(federation))
        for split in ("train", "validation")
    ]
    assert as_set(got[: adult.TRAINING]) == as_set(torch.cat(rows).numpy())


def test_prepared_rows_stay_as_they_are(tmp_path: Path) -> None:
    """A table with decoded values and without missing values gives the same features."""
    files("german")
    federation = load("german")
    assert federation.preprocessing is not None
    how = of(federation.preprocessing)
    table = german.parse(files("german"))
    got = features(table, how, federation.x.shape[1:]).x.numpy()
    assert as_set(got) == as_set(federation.x.numpy())
    file = raw("german", tmp_path)
    assert torch.equal(features(file, how, (66,)).x, torch.from_numpy(got))


def test_notes_on_unknown_values_and_unused_columns(tmp_path: Path) -> None:
    """COMPAS' published file has two columns twice, and many that the model does not use."""
    path = raw("compas", tmp_path)
    federation = load("compas")
    assert federation.preprocessing is not None
    how, inputs = of(federation.preprocessing), federation.x.shape[1:]
    found = features(path, how, inputs)
    assert found.notes == (
        "the model does not use columns id, name, first, last, compas_screening_date, sex, dob, "
        "age_cat and 39 more.",
    )
    rows = {
        "age": [30, None, 40],
        "juv_fel_count": [0, 0, 0],
        "juv_misd_count": [0, 0, 0],
        "juv_other_count": [0, 0, 0],
        "priors_count": [1, 2, 3],
        "c_charge_degree": ["F", "M", "Z"],
    }
    found = features(rows, how, inputs)
    missing, unknown = found.notes
    for part in ("'age'", "1 value", "missing", "row 2", "filled with"):
        assert part in missing
    for part in ("'c_charge_degree'", "1 value", "unknown", "'Z' in row 3", "'other'"):
        assert part in unknown
    assert found.x[2, -3:].tolist() == [0, 0, 1]


def test_a_few_rows_are_read_like_many() -> None:
    """Categories are known from training: "true" and "01" alone look like other types."""
    from isonomy.data.tables import preprocessing as tables

    category = tables.Category(name="code", levels=("01", "2", "true", "x"))
    how = tables.Preprocessing(
        table=tables.Schema(label=tables.Label(name="y")), encoders=(category,)
    )
    for word, at in {"01": 0, "2": 1, "2.0": 1, "true": 2, "x": 3, "3": 4, "": 4}.items():
        for rows in ({"code": [word]}, {"code": [word, "x"]}):
            row = features(rows, how, (5,)).x[0]
            assert row.tolist() == [float(k == at) for k in range(5)], word
    assert features({"code": [2]}, how, (5,)).x[0, 1] == 1


def test_published_images() -> None:
    """Bytes become what the federation has, to the bit, however pixels are scaled."""
    from isonomy.data.images import parse_idx, subset

    found = parse_idx(files("fashion_mnist"))
    some = found.pixels[subset(found, 700, 0)]
    for options in ({}, {"normalise": True}, {"pixelwise": True}):
        federation = load("fashion_mnist", options={"examples": 700, **options})
        assert federation.preprocessing is not None
        how = of(federation.preprocessing)
        for shaped in (some, some[:, 0], np.moveaxis(some, 1, -1)):
            got = features(shaped, how, federation.x.shape[1:]).x.numpy()
            assert as_set(got) == as_set(federation.x.numpy())
        already = features(federation.x.numpy(), how, federation.x.shape[1:])
        assert torch.equal(already.x, federation.x)


def test_published_texts() -> None:
    from isonomy.data.datasets import snippets

    files("snippets")
    federation = load("snippets", options={"words": 200})
    assert federation.preprocessing is not None
    how = of(federation.preprocessing)
    parsed = snippets.parse(files("snippets"))
    texts = [t for t, r in zip(parsed.texts, parsed.ratings, strict=True) if r != 0]
    got = features({"text": texts}, how, federation.x.shape[1:]).x.numpy()
    assert set(as_set(federation.x.numpy())) <= set(as_set(got))
