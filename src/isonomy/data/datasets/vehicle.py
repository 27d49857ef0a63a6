"""VEHICLE: which of two kinds of vehicle drives past, heard and felt by 23 sensors.

Duarte and Hu (2004), "Vehicle classification in distributed sensor networks", as prepared by the
authors of Ditto (Li et al., 2021, https://github.com/litian96/ditto): a client for each sensor,
100 features of its microphone and geophone, labels -1 (class 0) and +1 (class 1).

Only the authors' training split is public as a plain file: 1,860 rows, 7 to 534 a client. So each
client's rows are split here by `fractions`, and the numbers are not those of the paper's tables,
whose test rows are others. `path` may also name a folder with the authors' folders `train` and
`test`; then its test rows test, and `fractions` only divides the rest into train and validation.

Features are left as they are: the authors centred and scaled them at each client, by the mean and
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
    """Every client's rows, labels 0 and 1, of files in LEAF's form."""
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
    """What is true of the authors' training split."""
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
    """Find the files, read, split."""
    files, origin = _find(request)
    train = parse(files["train"])
    test = parse(files["test"]) if "test" in files else None
    return replace(federate(train, test, request), origin=origin)


def _find(request: Request) -> tuple[dict[Split, list[Path]], str]:
    """The files given, those in the data folder, or the one fetched; and where they came from."""
    if request.options["path"]:
        path = Path(request.options["path"]).expanduser()
        files: dict[Split, list[Path]] = leaf_files(path) if path.is_dir() else {"train": [path]}
        if not files:
            raise DataError(
                f"{path} holds no JSON file; put mytrain.json of {DATASET.source} there, or leave "
                "the option 'path' out to have it fetched."
            )
        return files, "the files given"
    folder = fetch.folder() / "vehicle"
    files = leaf_files(folder) if folder.is_dir() else {}
    if files:
        return files, fetch.CACHE
    got = fetch.fetch(*FILES, progress=request.progress)
    return {"train": [got[0].path]}, got[0].source


def federate(train: Users, test: Users | None, request: Request) -> Federation:
    """A client for each user, in the order of the file."""
    if request.clients not in (0, len(train)):
        raise DataError(
            f"VEHICLE's clients are its {len(train)} sensors, not {request.clients}; leave the "
            "number of clients out."
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
    notes = ["Features were centred and scaled at each client by its authors, test rows included."]
    if test is None:
        notes.append(
            "Only the authors' training split is public: every client's rows of it are split "
            "again, so results are not those of the paper's test rows."
        )
    wrong = [fact for fact in _facts(train) if not fact.holds]
    if wrong:
        notes.append(
            f"These are not the authors' training rows: {wrong[0].found:,} {wrong[0].what} where "
            f"theirs have {wrong[0].right:,}."
        )
    return tuple(notes)


DATASET = Dataset(
    name="vehicle",
    description="two kinds of vehicle told apart by 23 sensors, each a client (Ditto)",
    source="VEHICLE (Duarte and Hu, 2004), as prepared for Ditto (github.com/litian96/ditto)",
    licence="MIT, as the repository it comes from",
    load=load,
    options={
        "fractions": Option(FRACTIONS, "shares of a client's rows to train, validate and test"),
        "path": Option("", "mytrain.json, or a folder with it or with folders train and test"),
    },
    protected=(),
    clients=23,
    partition={"name": "natural"},
    partitions={"natural": Partition("natural", "a client for each sensor", counts=True)},
    files=FILES,
    facts=facts,
)
