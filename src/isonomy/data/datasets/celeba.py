"""CELEBA: is the person in the picture smiling? One client per celebrity; colour pictures.

Caldas et al. (2018), "LEAF: a benchmark for federated settings", from Liu et al. (2015), "Deep
learning face attributes in the wild". In all 200,288 pictures of 9,343 celebrities with five or
more each. The protected attribute is CelebA's `Male`; any other of its 40 can be used.

The authors of CelebA do not allow others to host the pictures, so this loader reads the output of
LEAF's scripts: the folder given by `path`, otherwise `celeba` in the data folder, with LEAF's JSON
files and, in `raw`, `list_attr_celeba.txt` and the pictures in `img_align_celeba`. As in LEAF,
pictures are resized to 84 by 84 (with bicubic interpolation here), so faces become a little
broader, and divided by 255. All pictures would need 17 GB as float32: draw clients
(`clients = 500`) or use a smaller `side`. Pictures are read with Pillow (the extra `images`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import Attribute
from isonomy.core.options import Option
from isonomy.data import images
from isonomy.data.dataset import Dataset, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.leaf_files import NATURAL, concatenate, locate, natural, read_leaf
from isonomy.data.partition import FRACTIONS, Integers
from isonomy.errors import ConfigError, DataError, missing_extra, unknown

LABEL = "Smiling"
_HOW = (
    "clone https://github.com/TalwalkarLab/leaf, put identity_CelebA.txt, list_attr_celeba.txt and "
    "the pictures img_align_celeba from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html into its "
    "folder data/celeba/data/raw, run './preprocess.sh -s niid --sf 1.0 -k 5 -t sample' in "
    "data/celeba, and set the option path to data/celeba/data, or copy the folders train, test and "
    "raw from there to {}"
)


def load(request: Request) -> Federation:
    """Find LEAF's files, draw the clients and read their pictures."""
    home = fetch.folder() / "celeba"
    named = request.options["path"]
    files = locate(Path(named).expanduser() if named else home, _HOW.format(home))
    raw = _raw(files["train"][0].parent)
    train = read_leaf(files["train"])
    test = read_leaf(files["test"]) if "test" in files else None
    users, parts = natural(
        train,
        test,
        request.clients,
        request.partition_options["minimum"],
        request.options["fractions"],
        request.seed,
    )
    held = concatenate(users, train, test)
    if held.x.dtype.kind != "U":
        raise DataError(
            "the examples are not names of pictures, as CelebA's are; give the files that LEAF "
            "makes for celeba."
        )
    names = held.x.tolist()
    known = attributes(raw / "list_attr_celeba.txt", names, (LABEL, *_columns(request)))
    if not np.array_equal(held.y, known[LABEL]):
        raise DataError(
            f"LEAF's labels are not CelebA's '{LABEL}'; run LEAF's preprocess.sh unchanged."
        )
    groups, protected = _groups(known, request.options["protected"], len(names))
    return images.compose(
        torch.from_numpy(pictures(raw / "img_align_celeba", names, request.options["side"])),
        torch.from_numpy(held.y.astype(np.int64)),
        groups,
        parts,
        names=tuple(users),
        labels=(f"not {LABEL}", LABEL),
        attributes=protected,
        source=DATASET.source,
        origin="the folder given" if named else fetch.CACHE,
    )


def _raw(folder: Path) -> Path:
    """Return the folder of CelebA's own files: that of LEAF's files or its parent."""
    return folder / "raw" if (folder / "raw").is_dir() else folder.parent / "raw"


def _columns(request: Request) -> list[str]:
    """Return the attributes that the protected attributes or intersections consist of."""
    wanted = request.options["protected"]
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"protected is {list(wanted)}; name every attribute once.")
    return [part.strip() for one in wanted for part in one.split("*")]


def _groups(
    known: Mapping[str, Integers], wanted: Sequence[str], rows: int
) -> tuple[Tensor, tuple[Attribute, ...]]:
    """Return group codes [n, A] and attributes; in intersections the last part varies fastest."""
    groups, named = np.zeros((rows, len(wanted)), dtype=np.int64), []
    for a, attribute in enumerate(wanted):
        levels = [""]
        for part in (part.strip() for part in attribute.split("*")):
            groups[:, a] = 2 * groups[:, a] + known[part]
            levels = [
                f"{level} & {answer}" if level else answer
                for level in levels
                for answer in (f"not {part}", part)
            ]
        named.append(Attribute(attribute, tuple(levels)))
    return torch.from_numpy(groups), tuple(named)


def attributes(path: Path, names: Sequence[str], wanted: Sequence[str]) -> dict[str, Integers]:
    """Return CelebA's attributes of some pictures; -1 in the file becomes 0."""
    try:
        with path.open(encoding="utf-8") as stream:
            stream.readline()  # the number of pictures
            columns = stream.readline().split()
            lines = {line.split(None, 1)[0]: line.split()[1:] for line in stream if line.strip()}
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"cannot read {path} ({why}); put CelebA's list_attr_celeba.txt there."
        ) from error
    for name in wanted:
        if name not in columns:
            raise ConfigError(unknown("attribute of CelebA", name, columns))
    codes = np.zeros((len(names), len(columns)), dtype=np.int64)
    for row, name in enumerate(names):
        values = lines.get(name)
        if values is None or len(values) != len(columns) or not set(values) <= {"-1", "1"}:
            raise DataError(
                f"{path} does not have {len(columns)} attributes of -1 or 1 for the picture "
                f"{name}; get a complete copy of it."
            )
        codes[row] = [value == "1" for value in values]
    return {name: codes[:, columns.index(name)] for name in wanted}


def pictures(folder: Path, names: Sequence[str], side: int) -> images.Pixels:
    """Read the pictures as bytes [n, 3, side, side]."""
    if side < 1:
        raise ConfigError(f"data set 'celeba': side is {side}; set it to 1 or more pixels.")
    pillow = _pillow()
    out = np.empty((len(names), 3, side, side), dtype=np.uint8)
    for row, name in enumerate(names):
        try:
            with pillow.open(folder / name) as opened:
                small = opened.convert("RGB").resize((side, side), pillow.Resampling.BICUBIC)
        except (OSError, SyntaxError) as error:
            raise DataError(
                f"cannot read the picture {folder / name} ({error}); put CelebA's aligned and "
                "cropped pictures there."
            ) from error
        out[row] = np.asarray(small).transpose(2, 0, 1)
    return out


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(missing_extra("data set 'celeba'", "Pillow", "images")) from error


DATASET = Dataset(
    name="celeba",
    description="faces, smiling or not, one client per celebrity (LEAF's files)",
    source="CelebA (Liu et al., 2015), as divided among clients by LEAF (Caldas et al., 2018)",
    licence="non-commercial research only",
    load=load,
    options={
        "protected": Option(
            ("Male",), "protected attributes: CelebA's, or intersections such as 'Male*Young'"
        ),
        "side": Option(84, "height and width of the pictures in pixels; LEAF's are 84"),
        "fractions": Option(
            FRACTIONS,
            "shares of a client's examples for train, validation and test; only the first two if "
            "LEAF made test examples",
        ),
        "path": Option("", "the folder of LEAF's files, with train and test or all_data, and raw"),
    },
    protected=("Male",),
    clients=9_343,
    partition={"name": "natural"},
    partitions={"natural": NATURAL},
)
