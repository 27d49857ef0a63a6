"""FEMNIST: handwritten digits and letters, one client per writer; 28 by 28 grey pixels.

Caldas et al. (2018), "LEAF: a benchmark for federated settings", from NIST's Special Database 19
(Cohen et al., 2017). In all 805,263 characters of 3,550 writers in 62 classes: the digits, then
capital, then small letters.

LEAF does not host prepared files: its scripts download those of NIST and write JSON. This loader
reads that: the folder given by `path`, otherwise `femnist` in the data folder. With LEAF's split
into training and test examples (`-t sample`), its test examples are used; otherwise each client's
examples are divided by `fractions`. `clients = 100` draws 100 writers. Pixels are as in LEAF: in
[0, 1], dark ink on white. All images need 2.5 GB as float32, and minutes to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from isonomy.core.options import Option
from isonomy.data import images
from isonomy.data.dataset import Dataset, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.leaf_files import (
    NATURAL,
    Array,
    Examples,
    concatenate,
    locate,
    natural,
    read_leaf,
)
from isonomy.data.partition import FRACTIONS
from isonomy.errors import DataError

LABELS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_HOW = (
    "clone https://github.com/TalwalkarLab/leaf, run './preprocess.sh -s niid --sf 1.0 -k 0 -t "
    "sample' in its folder data/femnist (--sf 0.05 for a twentieth), and set the option path to "
    "its folder data/femnist/data, or copy the folders train and test from there to {}"
)


def load(request: Request) -> Federation:
    """Find and read LEAF's files, and split the examples."""
    home = fetch.folder() / "femnist"
    named = request.options["path"]
    files = locate(Path(named).expanduser() if named else home, _HOW.format(home))
    train = parse(files["train"])
    test = parse(files["test"]) if "test" in files else None
    users, parts = natural(
        train,
        test,
        request.clients,
        request.partition_options["minimum"],
        request.options["fractions"],
        request.seed,
    )
    held = concatenate(users, train, test)
    return images.compose(
        torch.from_numpy(held.x),
        torch.from_numpy(held.y),
        torch.zeros(len(held.y), 0, dtype=torch.int64),
        parts,
        names=tuple(users),
        labels=LABELS,
        source=DATASET.source,
        origin="the folder given" if named else fetch.CACHE,
    )


def parse(paths: Sequence[Path]) -> dict[str, Examples]:
    """Read the images of every writer as bytes [n, 1, 28, 28], and their classes."""
    users = read_leaf(paths, _bytes)
    for user, (_, y) in users.items():
        if not np.isin(y, np.arange(len(LABELS))).all():
            raise DataError(
                f"FEMNIST's user '{user}' has a label that is not a class from 0 to "
                f"{len(LABELS) - 1}; give the files that LEAF makes for femnist."
            )
    return {user: Examples(x, y.astype(np.int64)) for user, (x, y) in users.items()}


def _bytes(x: Array) -> Array:
    """Convert grey levels, which LEAF divided by 255, back to bytes to save memory."""
    if x.ndim == 2 and x.shape[1] == 28 * 28 and x.dtype.kind == "f":
        levels: Array = np.rint(x * 255)
        if x.min() >= 0 and x.max() <= 1 and np.abs(levels - x * 255).max() < 1e-3:
            out: Array = levels.astype(np.uint8).reshape(-1, 1, 28, 28)
            return out
    raise DataError(
        "the images are not lists of 784 grey levels from 0 to 1, as FEMNIST's are; give the files "
        "that LEAF makes for femnist."
    )


DATASET = Dataset(
    name="femnist",
    description="handwritten digits and letters, one client per writer (LEAF's files)",
    source="FEMNIST (Caldas et al., LEAF, 2018; NIST Special Database 19)",
    licence="NIST: public domain in the US",
    load=load,
    options={
        "fractions": Option(
            FRACTIONS,
            "shares of a client's examples for train, validation and test; only the first two if "
            "LEAF made test examples",
        ),
        "path": Option("", "the folder of LEAF's files: with train and test, or with all_data"),
    },
    protected=(),
    clients=3_550,
    partition={"name": "natural"},
    partitions={"natural": NATURAL},
)
