"""Guesses for surveys, codes, twins of the label, stray files and true/false labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isonomy.data.tables.files import find
from isonomy.data.tables.guess import Guess, guess
from isonomy.data.tables.guess_columns import client_rank
from isonomy.data.tables.guess_twins import accuracy, auc
from isonomy.data.tables.sample import look_at
from isonomy.errors import ConfigError

ROWS = 400


def census(seed: int) -> dict[str, list]:
    """Rows with the columns of the American Community Survey."""
    rng = np.random.default_rng(seed)
    return {
        "AGEP": rng.integers(18, 90, ROWS).tolist(),
        "RAC1P": rng.integers(1, 10, ROWS).tolist(),
        "SEX": rng.integers(1, 3, ROWS).tolist(),
        "OCCP": rng.choice([10, 800, 4220, 9130], ROWS).tolist(),
        "POBP": rng.integers(1, 60, ROWS).tolist(),
        "WKHP": rng.integers(5, 60, ROWS).tolist(),
        "PINCP": (rng.random(ROWS) > 0.6).tolist(),
    }


def guessed(folder: Path, tables: dict[str, dict[str, list]]) -> Guess:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    return guess(look_at(folder))


def test_columns_of_the_census(tmp_path: Path) -> None:
    made = guessed(tmp_path, {f"s{k}": census(k) for k in range(3)})
    assert (made.label, made.positive) == ("PINCP", "True")
    assert set(made.classes) == {"True", "False"}
    assert made.protected == ("SEX", "RAC1P", "AGEP")
    assert set(made.categorical) == {"OCCP", "POBP"}
    assert "SEX is 1 = male, 2 = female" in made.why["protected"]
    assert "9 = two or more races" in made.why["protected"]
    assert any("POBP" in doubt for doubt in made.doubts)


def test_recoded_values_are_not_given_the_surveys_meanings(tmp_path: Path) -> None:
    table = census(0)
    table["RAC1P"] = [1 + value % 2 for value in table["RAC1P"]]
    made = guessed(tmp_path, {"a": table, "b": census(1) | {"RAC1P": table["RAC1P"]}})
    assert "RAC1P" in made.protected
    assert "White" not in made.why["protected"]


@pytest.mark.parametrize(
    ("values", "name", "coded"),
    [
        ([1110, 1121, 1131, 1140, 1210, 1220], "household_position", True),
        ([111, 112, 114, 125, 126, 138], "household_size", True),
        ([1110, 1121, 1131, 1140, 1210, 1220], "anything", True),
        (list(range(1990, 2010)), "built", False),  # no gaps
        ([10000 * i for i in range(10, 60)], "limit", False),  # no gaps in their unit
        ([1, 2, 5, 9], "rooms", False),  # few digits
    ],
)
def test_numbers_that_are_codes(tmp_path: Path, values: list[int], name: str, coded: bool) -> None:
    rng = np.random.default_rng(0)
    tables = {}
    for k in "ab":
        tables[k] = {
            name: rng.choice(values, ROWS).tolist(),
            "x": rng.normal(size=ROWS).tolist(),
            "label": rng.integers(0, 2, ROWS).tolist(),
        }
    assert (name in guessed(tmp_path, tables).categorical) is coded


def test_twins_of_the_label_are_named_with_their_figure(tmp_path: Path) -> None:
    tables = {}
    for k in range(2):
        rng = np.random.default_rng(k)
        y = rng.integers(0, 2, ROWS)
        tables[f"c{k}"] = {
            "days_after": (y + rng.normal(0, 0.15, ROWS)).tolist(),
            "discharge": [f"{'d' if v else 'a'}{rng.integers(4)}" for v in y],
            "honest": (y + rng.normal(0, 1.0, ROWS)).tolist(),
            "died": np.where(y == 1, "yes", "no").tolist(),
        }
    made = guessed(tmp_path, tables)
    assert made.label == "died"
    assert set(made.twins) == {"days_after", "discharge"}
    assert made.twins["discharge"] == "AUC 1.000"
    assert any("'days_after' alone predicts 'died'" in doubt for doubt in made.doubts)


def test_a_rare_label_has_no_twins_by_chance(tmp_path: Path) -> None:
    tables = {}
    for k in range(2):
        rng = np.random.default_rng(k)
        tables[f"c{k}"] = {
            "code": [f"v{i}" for i in rng.integers(0, 100, ROWS)],
            "x": rng.normal(size=ROWS).tolist(),
            "died": np.where(rng.random(ROWS) < 0.03, "yes", "no").tolist(),
        }
    assert guessed(tmp_path, tables).twins == {}


def test_auc_and_accuracy_against_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    score, y = rng.integers(0, 6, 300).astype(float), rng.integers(0, 2, 300)
    assert auc(score, y) == pytest.approx(metrics.roc_auc_score(y, score))
    classes = rng.integers(0, 4, 400)
    assert accuracy(classes.astype(float), classes) == 1.0
    assert accuracy(rng.permutation(classes).astype(float), classes) < 0.5


def test_files_that_look_different_are_excluded(tmp_path: Path) -> None:
    tables = {f"s{k}": census(k) for k in range(6)}
    odd = {"code": ["10", "20"], "meaning": ["a", "b"]}
    made = guessed(tmp_path, tables | {"codes": odd, "lists": odd})
    assert made.exclude == ("codes.parquet", "lists.parquet")
    assert made.label == "PINCP"
    assert any(doubt.startswith("2 of 8 files look different") for doubt in made.doubts)
    assert len(find(tmp_path, made.exclude)[0]) == 6
    with pytest.raises(ConfigError, match=r"'code\.parquet'.*Did you mean 'codes\.parquet'"):
        find(tmp_path, ("code.parquet",))


def test_a_tier_may_be_the_client() -> None:
    assert client_rank("tier") > 0
    assert client_rank("frontier") == 0
