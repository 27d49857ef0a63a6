"""The partition "paper": tables as the public code of FedFB and HetPFL prepares them.

Zeng et al., "Improving Fairness via Federated Learning" (2021), and Ye and Tang, "HetPFL" (IJCAI
2025), who took it over, both for ADULT, COMPAS and BANK:

- numbers scaled to [0, 1] by smallest and largest value, then an indicator for each value of each
  column of categories, then the group's number z, which is a feature;
- fixed clients, drawn with a fixed seed; the first nine tenths of a client's list train, the rest
  validates; test rows are given to clients by the same rule.

It has faults, kept so that the papers' numbers can be reproduced: the scale is that of all rows,
test rows included (in ADULT the test rows have a scale of their own), z is a feature, and at
ADULT's first client the validation rows are no sample of the training rows. The data sets' other
partitions do none of this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import Attribute, Split
from isonomy.data import published
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation, build
from isonomy.data.partition import Integers, Partition
from isonomy.data.published import Table
from isonomy.errors import ConfigError, DataError

Reals = NDArray[np.float64]
Levels = Mapping[str, Sequence[str]]

NOTE = (
    "Features, splits and clients are those of FedFB's and HetPFL's public code, faults included: "
    "{fault}, and the group is a feature. The data set's own default does otherwise; the seed "
    "changes nothing."
)
POOLED = "numbers are scaled by all rows, test rows too"


def partition(meaning: str) -> Partition:
    """The entry of "paper" among a data set's partitions."""
    return Partition("paper", f"{meaning}, as in FedFB's and HetPFL's code", counts=True)


def wanted(
    request: Request, dataset: Dataset, clients: int, free: Sequence[str] = ("path",)
) -> bool:
    """Whether "paper" is asked for; refuses whatever would change what the papers fixed.

    The options in `free` change none of it.
    """
    if request.partition.name != "paper":
        return False
    name = dataset.name
    if request.clients not in (0, clients):
        raise ConfigError(
            f"partition 'paper' of '{name}' has {clients} clients, not {request.clients}; leave "
            f"the number out, or take another partition."
        )
    for option, value in request.options.items():
        if option not in free and value != dataset.options[option].default:
            raise ConfigError(
                f"partition 'paper' of '{name}' is fixed; leave out '{option}', or take another "
                "partition."
            )
    return True


def in_order(what: str, values: Reals, right: int) -> None:
    """Refuse rows in another order than published: the papers' clients are row numbers.

    `right` is the sum of row number times value.
    """
    if int(np.arange(len(values)) @ values.astype(np.int64)) != right:
        raise DataError(
            f"the rows of this {what} are in another order than published, and partition 'paper' "
            "goes by it; leave the option 'path' out, or take another partition."
        )


def min_max(values: Reals) -> Reals:
    """Scaled to [0, 1] by the smallest and the largest.

    >>> min_max(np.array([2.0, 6.0, 3.0])).tolist()
    [0.0, 1.0, 0.25]
    """
    out: Reals = (values - values.min()) / (values.max() - values.min())
    return out


def levels(table: Table, names: Sequence[str]) -> dict[str, list[str]]:
    """The values of columns of words, sorted; a missing one is no value."""
    return {name: sorted(set(table[name].unique().drop_null().to_pylist())) for name in names}


def indicators(values: NDArray[np.object_], known: Sequence[str]) -> Reals:
    """A column for each known value, 1 where a row has it; a row with none of them is all zero.

    >>> indicators(np.array(["b", None, "a"], dtype=object), ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return np.stack([values == value for value in known], 1).astype(np.float64)


def encode(
    table: Table, numbers: Sequence[str], known: Levels, z: Integers
) -> tuple[Reals, tuple[str, ...]]:
    """Features [n, d] and their names: numbers, indicators, z; numbers scaled by these rows."""
    columns = [min_max(published.numbers(table, name))[:, None] for name in numbers]
    columns += [indicators(published.words(table, name), known[name]) for name in known]
    names = [*numbers, *(f"{name}={level}" for name in known for level in known[name]), "z"]
    return np.concatenate([*columns, z[:, None]], 1), tuple(names)


def prepared(
    table: Table,
    numbers: Sequence[str],
    known: Levels,
    z: Mapping[str, Any],
    label: tuple[str, tuple[str, ...]],
    *,
    gone: str | None = None,
    readings: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What `encode` does with these rows, for new ones: as a preprocessing's plain values.

    `z` says of columns what they add to the group's number. A missing category counts as `gone`.
    """
    from isonomy.data.tables import preprocessing as tables
    from isonomy.data.tables.readings import Reading

    columns = {n: published.numbers(table, n) for n in numbers}
    scales = {n: (float(v.min()), float(v.max())) for n, v in columns.items()}
    made = tables.Preprocessing(
        table=tables.Schema(
            label=tables.Label(name=label[0], classes=label[1]),
            features={**dict.fromkeys(numbers, "number"), **dict.fromkeys(known, "category")},
            missing=("",),
        ),
        encoders=(
            *(
                tables.Number(name=n, fill=None, shift=low, scale=high - low)
                for n, (low, high) in scales.items()
            ),
            *(
                tables.Category(
                    name=n,
                    levels=tuple(words),
                    other=False,
                    gone=gone if gone in words else None,
                )
                for n, words in known.items()
            ),
            tables.Sum(name="z", shares=tuple(tables.Share(column=n, **z[n]) for n in z)),
        ),
        readings=tuple(Reading(**dict(one)) for one in readings),
    )
    return made.model_dump(mode="json")


def cut(train: Sequence[Integers], test: Sequence[Integers]) -> dict[Split, list[torch.Tensor]]:
    """Clients' lists of row numbers as splits: the last tenth of a training list validates."""
    keep = [int(0.9 * len(mine)) for mine in train]
    return {
        "train": [torch.from_numpy(mine[:n]) for mine, n in zip(train, keep, strict=True)],
        "validation": [torch.from_numpy(mine[n:]) for mine, n in zip(train, keep, strict=True)],
        "test": [torch.from_numpy(mine) for mine in test],
    }


def federation(
    x: Reals,
    y: Integers,
    z: Integers,
    parts: dict[Split, list[torch.Tensor]],
    *,
    attribute: Attribute,
    labels: tuple[str, str],
    features: tuple[str, ...],
    source: str,
    preprocessing: Mapping[str, Any],
    fault: str = POOLED,
) -> Federation:
    """The federation, with a note that says whose choices these are."""
    made = build(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(z)[:, None],
        parts,
        classes=2,
        attributes=(attribute,),
        names=tuple(f"client {k}" for k in range(len(parts["train"]))),
        labels=labels,
        features=features,
        source=source,
        notes=(NOTE.format(fault=fault),),
    )
    return replace(made, preprocessing=preprocessing)
