"""The partition "paper": tables as prepared by the public code of FedFB and HetPFL.

Zeng et al., "Improving Fairness via Federated Learning" (2021), and Ye and Tang, "HetPFL" (IJCAI
2025), who reused it, both for ADULT, COMPAS and BANK:

- numbers scaled to [0, 1] by the smallest and the largest value, then one indicator per value of
  each categorical column, then the number of the group z, which is a feature;
- fixed clients, drawn with a fixed seed; the first nine tenths of a client's list are training
  rows, the rest validation rows; test rows are assigned to clients by the same rule.

It has faults, which are kept so that the papers' numbers can be reproduced: the scale is computed
from all rows including test rows (in ADULT the test rows have a separate scale), z is a feature,
and at ADULT's first client the validation rows are not a random sample. The other partitions of
these data sets have none of these faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.core.examples import Attribute, Split
from isonomy.data import public_tables
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation, build
from isonomy.data.partition import Integers, Partition
from isonomy.data.public_tables import Table
from isonomy.errors import ConfigError, DataError

Reals = NDArray[np.float64]
Levels = Mapping[str, Sequence[str]]

NOTE = (
    "Features, splits and clients are those of the public code of FedFB and HetPFL, including its "
    "faults: {fault}, and the group is a feature. The default partition has none of these; the "
    "seed has no effect."
)
POOLED = "numbers are scaled by all rows including test rows"


def partition(meaning: str) -> Partition:
    """Return the partition "paper" of a data set."""
    return Partition("paper", f"{meaning}, as in FedFB's and HetPFL's code", counts=True)


def wanted(
    request: Request, dataset: Dataset, clients: int, free: Sequence[str] = ("path",)
) -> bool:
    """Whether "paper" is requested; raises ConfigError for options that the papers fix.

    The options in `free` may be set.
    """
    if request.partition.name != "paper":
        return False
    name = dataset.name
    if request.clients not in (0, clients):
        raise ConfigError(
            f"partition 'paper' of '{name}' has {clients} clients, not {request.clients}; remove "
            f"the number of clients, or use another partition."
        )
    for option, value in request.options.items():
        if option not in free and value != dataset.options[option].default:
            raise ConfigError(
                f"partition 'paper' of '{name}' is fixed; remove '{option}', or use another "
                "partition."
            )
    return True


def in_order(what: str, values: Reals, right: int) -> None:
    """Raise DataError if rows are not in the published order, which the papers' clients need.

    `right` is the sum of row number times value.
    """
    if int(np.arange(len(values)) @ values.astype(np.int64)) != right:
        raise DataError(
            f"the rows of this {what} are not in the published order, which partition 'paper' "
            "needs; remove the option 'path', or use another partition."
        )


def min_max(values: Reals) -> Reals:
    """Scale to [0, 1] by the smallest and the largest value.

    >>> min_max(np.array([2.0, 6.0, 3.0])).tolist()
    [0.0, 1.0, 0.25]
    """
    out: Reals = (values - values.min()) / (values.max() - values.min())
    return out


def levels(table: Table, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the sorted values of columns of text, without missing values."""
    return {name: sorted(set(public_tables.words(table, name)) - {None}) for name in names}


def indicators(values: NDArray[np.object_], known: Sequence[str]) -> Reals:
    """Return one column per known value, 1 where a row has it; other rows are all zero.

    >>> indicators(np.array(["b", None, "a"], dtype=object), ["a", "b"]).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return np.stack([values == value for value in known], 1).astype(np.float64)


def encode(
    table: Table, numbers: Sequence[str], known: Levels, z: Integers
) -> tuple[Reals, tuple[str, ...]]:
    """Return features [n, d] and their names: scaled numbers, indicators, z."""
    columns = [min_max(public_tables.numbers(table, name))[:, None] for name in numbers]
    columns += [indicators(public_tables.words(table, name), known[name]) for name in known]
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
    """Return the preprocessing that does with new rows what `encode` does with these.

    `z` gives what columns add to the number of the group. A missing category counts as `gone`.
    """
    from isonomy.data.tables import preprocessing as tables
    from isonomy.data.tables.readings import Reading

    columns = {n: public_tables.numbers(table, n) for n in numbers}
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
    """Return the splits of clients' row numbers; the last tenth of training rows validates."""
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
    """Build the federation, with a note on the origin of these choices."""
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
