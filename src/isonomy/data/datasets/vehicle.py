"""VEHICLE: which of two types of vehicle passes? Recorded by 23 sensors.

Duarte and Hu (2004), "Vehicle classification in distributed sensor networks", as prepared by the
authors of Ditto (Li et al., 2021, https://github.com/litian96/ditto): one client per sensor,
100 features of its microphone and geophone, labels -1 (class 0) and +1 (class 1).

The authors' training split is downloaded: 1,860 rows, 7 to 534 per client. Each client's rows are
split here by `fractions`, and results differ from the paper's tables, which use other test rows.
These are in the same repository (data/vehicle/data/test/mytest.json), but were not available to
check their content when this loader was written: with `path` naming a folder with the authors'
folders `train` and `test` they are used, and `fractions` only divides the others into train and
validation.

Features are not changed: the authors centred and scaled them at each client, by the mean and
standard deviation of all its rows, test rows included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from isonomy.core.examples import Split
from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation, build
from isonomy.data.leaf_files import Examples, concatenate, leaf_files, natural, read_leaf
from isonomy.data.partition import FRACTIONS, Partition
from isonomy.errors import DataError

Users = Mapping[str, Examples]

_TRAIN = fetch.File(
    "mytrain.json",
    "a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc",
    3_879_378,
    (
        fetch.Url(
            "https://raw.githubusercontent.com/litian96/ditto/"
            "602f571de561f7796104860108dfa91182bfbcd8/data/vehicle/data/train/mytrain.json"
        ),
    ),
)
FILES = ((_TRAIN,),)
FEATURES = 100
LABELS = ("-1", "+1")


def parse(paths: Sequence[Path]) -> dict[str, Examples]:
    """Read every client's rows, with labels 0 and 1, from files in LEAF's format."""
    users = read_leaf(paths)
    for user, (x, y) in users.items():
        if x.ndim != 2 or x.shape[1] != FEATURES or x.dtype.kind != "f":
            raise DataError(
                f"VEHICLE's client '{user}' has examples of shape {list(x.shape[1:])}, not of "
                f"{FEATURES} numbers; give the file that Ditto's authors made."
            )
        if not np.isin(y, (-1, 1)).all():
            wrong = y[~np.isin(y, (-1, 1))][0]
            raise DataError(
                f"VEHICLE's client '{user}' has the label {wrong:g}; labels are -1 and 1, so give "
                "the file that Ditto's authors made."
            )
    return {user: Examples(x, (y > 0).astype(np.int64)) for user, (x, y) in users.items()}


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the authors' training split."""
    return _facts(parse(paths))


def _facts(users: Users) -> list[Fact]:
    sizes = [len(each.y) for each in users.values()]
    return [
        Fact("clients", len(sizes), 23),
        Fact("rows", sum(sizes), 1_860),
        Fact("rows with +1", sum(int(each.y.sum()) for each in users.values()), 1_023),
        Fact("rows at the smallest client", min(sizes), 7),
        Fact("rows at the largest client", max(sizes), 534),
    ]


def load(request: Request) -> Federation:
    """Find and read the files, and split the rows."""
    files, origin = _find(request)
    train = parse(files["train"])
    test = parse(files["test"]) if "test" in files else None
    return replace(federate(train, test, request), origin=origin)


def _find(request: Request) -> tuple[dict[Split, list[Path]], str]:
    """Return the given, cached or downloaded files, and their origin."""
    if request.options["path"]:
        path = Path(request.options["path"]).expanduser()
        files: dict[Split, list[Path]] = leaf_files(path) if path.is_dir() else {"train": [path]}
        if not files:
            raise DataError(
                f"{path} contains no JSON file; put mytrain.json of {DATASET.source} there, or "
                "remove the option 'path' to download it."
            )
        return files, "the files given"
    folder = fetch.folder() / "vehicle"
    files = leaf_files(folder) if folder.is_dir() else {}
    if files:
        return files, fetch.CACHE
    got = fetch.fetch(*FILES, progress=request.progress)
    return {"train": [got[0].path]}, got[0].source


def federate(train: Users, test: Users | None, request: Request) -> Federation:
    """Build one client per user, in the order of the file."""
    if request.clients not in (0, len(train)):
        raise DataError(
            f"VEHICLE's clients are its {len(train)} sensors, not {request.clients}; remove the "
            "number of clients."
        )
    users, parts = natural(train, test, 0, 1, request.options["fractions"], request.seed)
    x, y = concatenate(users, train, test)
    return build(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.zeros(len(y), 0, dtype=torch.int64),
        parts,
        classes=2,
        names=tuple(users),
        labels=LABELS,
        features=tuple(f"x{i}" for i in range(FEATURES)),
        source=DATASET.source,
        notes=_notes(train, test),
    )


def _notes(train: Users, test: Users | None) -> tuple[str, ...]:
    notes = ["Features were centred and scaled at each client by the authors, including test rows."]
    if test is None:
        notes.append(
            "The authors' training split is split again at every client, so results differ from "
            "those on the paper's test rows, which data.path can read."
        )
    wrong = [fact for fact in _facts(train) if not fact.holds]
    if wrong:
        notes.append(
            f"These are not the authors' training rows: {wrong[0].found:,} {wrong[0].what} instead "
            f"of {wrong[0].right:,}."
        )
    return tuple(notes)


DATASET = Dataset(
    name="vehicle",
    description="two types of vehicle recorded by 23 sensors, each sensor a client (Ditto)",
    source="VEHICLE (Duarte and Hu, 2004), as prepared for Ditto (github.com/litian96/ditto)",
    licence="MIT, as the repository it comes from",
    load=load,
    options={
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "mytrain.json, or a folder with it or with folders train and test"),
    },
    protected=(),
    clients=23,
    partition={"name": "natural"},
    partitions={"natural": Partition("natural", "one client per sensor", counts=True)},
    files=FILES,
    facts=facts,
)
