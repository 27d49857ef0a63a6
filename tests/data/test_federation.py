"""Federations: what is refused, and clients picked out or merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from isonomy.core.examples import Attribute
from isonomy.data.federation import Federation, build
from isonomy.errors import DataError

SEX = Attribute("sex", ("f", "m"))


def small(**changes: Any) -> Federation:
    """Three clients; x is the row number, y its parity, the group whether it is a multiple of 3."""
    rows = torch.arange(12)
    given: dict[str, Any] = {
        "x": rows.unsqueeze(-1).float(),
        "y": rows % 2,
        "groups": (rows % 3 == 0).long().unsqueeze(-1),
        "classes": 2,
        "attributes": (SEX,),
        "source": "small",
    }
    given |= changes
    parts = {
        "train": [torch.tensor([4, 0]), torch.tensor([7]), torch.tensor([9, 10, 11])],
        "validation": [torch.tensor([1]), torch.tensor([]), torch.tensor([2])],
        "test": [torch.tensor([3]), torch.tensor([5, 6]), torch.tensor([8])],
    }
    x, y, groups = given.pop("x"), given.pop("y"), given.pop("groups")
    return build(x, y, groups, parts, **given)  # type: ignore[arg-type]


def test_build_orders_rows_by_client_and_split() -> None:
    made = small()
    assert made.x.flatten().tolist() == [4, 0, 1, 3, 7, 5, 6, 9, 10, 11, 2, 8]
    assert made.ranges.tolist() == [
        [[0, 2], [2, 3], [3, 4]],
        [[4, 5], [5, 5], [5, 7]],
        [[7, 10], [10, 11], [11, 12]],
    ]
    assert made.y.tolist() == [int(v) % 2 for v in made.x.flatten()]
    assert made.groups.flatten().tolist() == [int(v) % 3 == 0 for v in made.x.flatten()]
    assert len(made) == 3
    assert made.sizes().tolist() == [2, 1, 3]
    assert made.sizes("validation").tolist() == [1, 0, 1]
    assert [made.size(k, "test") for k in range(3)] == [1, 2, 1]
    assert made.x[made.rows(2, "train")].flatten().tolist() == [9, 10, 11]
    assert made.x.dtype == torch.float32


def test_build_without_validation_or_test() -> None:
    rows = torch.arange(4)
    made = build(
        rows.unsqueeze(-1), rows % 2, torch.zeros(4, 0), {"train": [rows[:1], rows[1:]]}, classes=2
    )
    assert made.ranges.tolist() == [[[0, 1], [1, 1], [1, 1]], [[1, 4], [4, 4], [4, 4]]]


def test_names() -> None:
    assert small().name(1) == "client 1"
    assert small(names=("a", "b", "c")).name(1) == "b"


def test_only() -> None:
    made = small(names=("a", "b", "c"), clusters=(0, 1, 1)).only([2, 0])
    assert made.names == ("c", "a")
    assert made.clusters == (1, 0)
    assert made.sizes().tolist() == [3, 2]
    assert made.x[made.rows(0, "train")].flatten().tolist() == [9, 10, 11]
    assert made.x[made.rows(1, "test")].flatten().tolist() == [3]
    assert small().only([1]).names == ("client 1",)


def test_merged() -> None:
    made = small().merged([5, 2, 5])  # cluster 2 holds client 1, cluster 5 clients 0 and 2
    assert len(made) == 2
    assert made.x[made.rows(0, "train")].flatten().tolist() == [7]
    assert made.x[made.rows(1, "train")].flatten().tolist() == [4, 0, 9, 10, 11]
    assert made.x[made.rows(1, "validation")].flatten().tolist() == [1, 2]
    assert made.x[made.rows(1, "test")].flatten().tolist() == [3, 8]
    assert made.sizes("validation").tolist() == [0, 2]
    assert made.y.tolist() == [int(v) % 2 for v in made.x.flatten()]
    assert (made.classes, made.attributes, made.source) == (2, (SEX,), "small")


def test_merged_after_only_holds_just_those_clients() -> None:
    made = small().only([2, 0]).merged([0, 0])
    assert made.sizes().tolist() == [5]
    assert made.x[made.rows(0, "train")].flatten().tolist() == [9, 10, 11, 4, 0]


# --- what is refused ------------------------------------------------------------------------------


def test_no_training_examples() -> None:
    made = small(names=("a", "b", "c"))
    ranges = made.ranges.clone()
    ranges[1, 0, 1] = ranges[1, 0, 0]
    with pytest.raises(DataError, match=r"'small': no training examples at b; give"):
        replace(made, ranges=ranges)


def test_features_that_are_not_finite() -> None:
    made = small()
    for bad in (float("nan"), float("inf")):
        x = made.x.clone()
        x[6, 0] = bad
        with pytest.raises(DataError, match="row 6 contains a feature that is not finite"):
            replace(made, x=x)


def test_rows_that_do_not_match() -> None:
    made = small()
    with pytest.raises(DataError, match="x has 12 rows, y 11"):
        replace(made, y=made.y[:-1])
    with pytest.raises(DataError, match=r"groups \(12, 1\); give one label and 0 group"):
        replace(made, attributes=())


def test_labels_out_of_range() -> None:
    made = small()
    with pytest.raises(DataError, match="label 1 with 1 classes; number the classes from 0"):
        replace(made, classes=1)


def test_labels_below_zero() -> None:
    made = small()
    with pytest.raises(DataError, match="label"):
        replace(made, y=made.y - 1)


@pytest.mark.parametrize("shift", [1, -1])
def test_groups_out_of_range(shift: int) -> None:
    made = small()
    with pytest.raises(DataError, match="group"):
        replace(made, groups=made.groups + shift)


def test_regression_takes_any_target() -> None:
    made = replace(small(), classes=0, y=torch.linspace(-5, 5, 12))
    assert made.y.dtype == torch.float32
