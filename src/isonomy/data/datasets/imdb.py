"""IMDB: is a film review favourable? 50,000 reviews, half of them favourable.

Maas et al. (2011), "Learning word vectors for sentiment analysis",
https://ai.stanford.edu/~amaas/data/sentiment. All reviews are pooled, assigned to clients and
then split at each client, so the official split is not used. `size = "10k"` is a published subset
of 10,000, half of them favourable, that downloads faster; its garbled accented letters are
repaired, after which each of its reviews is one of the 50,000.

Our choices: HTML tags (nearly all `<br />`) and repeated spaces are removed; reviews are sorted
alphabetically, so that the archive and other files with the same reviews give the same clients.
422 reviews are duplicates and are kept. The features are TF-IDF of the `words` words that occur in
most training reviews, fitted from counts that clients report (see `isonomy.data.text`), or, with
`features = "sentences"`, the vectors of a pretrained encoder (see `isonomy.data.sentences`).

With `partition = "length"` the clients form clusters by the length of their reviews, shortest
first: `shares` of the clients each, all clients of equal size, rows assigned at random within a
cluster. It replaces text of two domains (FOCUS has reviews of films and of businesses). These
clusters differ in length and what correlates with it, not in the language of a domain.
"""

from __future__ import annotations

import csv
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core import parquet
from isonomy.core.examples import SPLITS, Split
from isonomy.core.options import Option
from isonomy.data import text_features
from isonomy.data.dataset import Dataset, Fact, Request, check_facts
from isonomy.data.download import fetch
from isonomy.data.download.archives import DAMAGE
from isonomy.data.federation import Federation, build
from isonomy.data.partition import (
    FRACTIONS,
    PARTITIONS,
    Integers,
    Partition,
    Rows,
    allocate,
    generator,
)
from isonomy.data.partition import split as deal
from isonomy.errors import ConfigError, DataError, unknown

_ARCHIVE = fetch.File(
    "aclImdb_v1.tar.gz",
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
    84_125_825,
    (fetch.Url("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"),),
)
_TABLE = fetch.File(
    "imdb.parquet",
    "52f1080cbb7cd42d377a8b07451dd3262a1725b6eef9192b5ca5017cd2dadc50",
    42_680_192,
    (fetch.Package("mlutilities-udea", "0.0.13", "mlutilities/datasets/data/imdb.parquet"),),
)
_SUBSET = fetch.File(
    "IMDB-Dataset-10K.csv.gz",
    "a80205d80445445dcb60010afcf0f0831d82c6087ae1d63a5213c40563494299",
    5_303_462,
    (fetch.Package("mlba", "2.0.5", "mlba/csvFiles/IMDB-Dataset-10K.csv.gz"),),
)
SIZES = {"50k": ((_ARCHIVE,), (_TABLE,)), "10k": ((_SUBSET,),)}
LABELS = ("negative", "positive")

_TAG = re.compile(r"</?(?:br|p|hr|i|b|em|u|strong)\s*/?>", re.IGNORECASE)
_FOLDER = re.compile(r"(?:^|/)(?:train|test)/(pos|neg)/[^/]+\.txt$")


@dataclass(frozen=True, eq=False)
class Reviews:
    """Cleaned texts in alphabetical order, and their labels."""

    texts: tuple[str, ...]
    labels: Integers


def parse(paths: Sequence[Path]) -> Reviews:
    """Read the reviews of a table (Parquet or CSV) or of the official archive."""
    found = [pair for path in paths for pair in _read(path)]
    pairs = sorted((_clean(review), label) for review, label in found)
    labels = np.array([label for _, label in pairs], dtype=np.int64)
    return Reviews(tuple(review for review, _ in pairs), labels)


def _clean(review: str) -> str:
    return without_tags(_repair(review))


def without_tags(review: str) -> str:
    """Remove HTML tags and repeated spaces from a review.

    >>> without_tags("Good.<br /><br />Very  good.")
    'Good. Very good.'
    """
    return " ".join(_TAG.sub(" ", review).split())


def _repair(review: str) -> str:
    """Repair UTF-8 that was decoded as Mac Roman, as in the published subset.

    >>> _repair("clich√©"), _repair("cliché")
    ('cliché', 'cliché')
    """
    if review.isascii():
        return review
    try:
        return review.encode("mac_roman").decode("utf-8")
    except UnicodeError:
        return review


def _read(path: Path) -> Iterator[tuple[str, int]]:
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return _archived(path)
    return _tabled(path)


def _archived(path: Path) -> Iterator[tuple[str, int]]:
    """Read the labelled reviews of the archive: aclImdb/train/pos/0_9.txt and so on."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                at = _FOLDER.search(member.name)
                stream = archive.extractfile(member) if at else None
                if at and stream:
                    yield stream.read().decode("utf-8"), int(at[1] == "pos")
    except DAMAGE as error:
        raise _unreadable(path, error) from error


def _tabled(path: Path) -> Iterator[tuple[str, int]]:
    """Read the reviews of a table, in the columns `review` and `sentiment`."""
    from isonomy.data.tables.csv_files import read_texts

    wanted = ("review", "sentiment")
    try:
        table = parquet.read_frame(path) if path.suffix == ".parquet" else read_texts(path)
        columns = [table[name].listed() for name in wanted]
    except (*DAMAGE, KeyError, csv.Error, DataError) as error:
        raise _unreadable(path, error) from error
    for row, (review, sentiment) in enumerate(zip(*columns, strict=True)):
        if not isinstance(review, str) or sentiment not in LABELS:
            raise DataError(
                f"row {row + 1} of {path.name} has no review, or a sentiment that is not "
                "'positive' or 'negative'; get a complete copy."
            )
        yield review, LABELS.index(sentiment)


def _unreadable(path: Path, error: Exception) -> DataError:
    said = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return DataError(
        f"cannot read {path} as IMDb reviews ({said}); give aclImdb_v1.tar.gz, or a Parquet or "
        "CSV file with columns review and sentiment."
    )


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of all 50,000 reviews."""
    return _facts(parse(paths), "50k")


def _facts(reviews: Reviews, size: str) -> list[Fact]:
    rows, distinct = {"50k": (50_000, 49_578), "10k": (10_000, 9_983)}[size]
    return [
        Fact("rows", len(reviews.texts), rows),
        Fact("favourable reviews", int(reviews.labels.sum()), rows // 2),
        Fact("different reviews", len(set(reviews.texts)), distinct),
    ]


def load(request: Request) -> Federation:
    """Download, check, partition and split the texts, and compute their features."""
    options = request.options
    if options["size"] not in SIZES:
        raise ConfigError(unknown("size of data set 'imdb'", options["size"], SIZES))
    if options["path"]:
        reviews, origin = parse([Path(options["path"]).expanduser()]), "the file given"
    else:
        files = fetch.fetch(*SIZES[options["size"]], progress=request.progress)
        reviews, origin = parse([file.path for file in files]), files[0].source
    check_facts("IMDb", _facts(reviews, options["size"]))
    made = federate(reviews, request)
    return replace(made, origin=text_features.joined(origin, made.origin))


def federate(reviews: Reviews, request: Request) -> Federation:
    """Build the federation of parsed reviews."""
    parts, names, clusters = _share_out(reviews, request)
    made = text_features.compute(reviews.texts, parts, request, column="review", what="reviews")
    federation = build(
        made.x,
        torch.from_numpy(reviews.labels),
        torch.zeros(len(reviews.texts), 0, dtype=torch.int64),
        parts,
        classes=2,
        names=names,
        labels=LABELS,
        features=made.names,
        clusters=clusters,
        source=DATASET.source,
        notes=(
            made.note,
            "Some reviews occur twice, possibly at different clients or in different splits.",
        ),
    )
    return replace(federation, preprocessing=made.preprocessing, origin=made.origin)


def _share_out(
    reviews: Reviews, request: Request
) -> tuple[dict[Split, list[Tensor]], tuple[str, ...], tuple[int, ...] | None]:
    fractions = request.options["fractions"]
    if request.partition.name != "length":
        rows = Rows(reviews.labels)
        how, clients = request.partition_options, request.clients
        return *allocate(rows, request.partition, how, clients, request.seed, fractions), None
    lengths = np.array([len(review) for review in reviews.texts])
    shares = request.partition_options["shares"]
    members, clusters = by_length(lengths, request.clients, request.seed, shares)
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    for k, mine in enumerate(members):
        pieces = deal(mine, reviews.labels, None, fractions, (request.seed, k))
        for name in SPLITS:
            parts[name].append(pieces[name])
    return parts, tuple(f"client {k}" for k in range(request.clients)), clusters


def by_length(
    lengths: NDArray[np.int64], clients: int, seed: int, shares: Sequence[float]
) -> tuple[list[Tensor], tuple[int, ...]]:
    """Return each client's rows and cluster; the first cluster has the shortest reviews.

    The rows of a cluster do not depend on the seed, but their assignment to its clients does.

    >>> members, clusters = by_length(np.array([5, 1, 9, 3, 7, 8]), 3, 0, (0.7, 0.3))
    >>> sorted(torch.cat(members[:2]).tolist()), members[2].tolist(), clusters
    ([0, 1, 3, 4], [2, 5], (0, 0, 1))
    """
    if len(shares) < 2 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(
            f"partition 'length': shares are {list(shares)}; give two or more numbers above 0 that "
            "add up to 1, such as [0.7, 0.3]."
        )
    if clients > len(lengths):
        raise DataError(
            f"partition 'length': {clients} clients and {len(lengths)} reviews; use fewer clients."
        )
    ends = np.floor(np.cumsum(shares) * clients + 0.5 + 1e-9).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    if counts.min() < 1:
        raise ConfigError(
            f"partition 'length': shares {list(shares)} of {clients} clients leave a cluster "
            "without clients; use more clients or other shares."
        )
    rng = generator("length", seed)
    order = np.argsort(lengths, kind="stable")
    members: list[Tensor] = []
    at = len(lengths) * np.concatenate([[0], ends]) // clients
    for count, start, stop in zip(counts, at[:-1], at[1:], strict=True):
        mixed = rng.permutation(order[start:stop])
        members += [torch.from_numpy(np.sort(piece)) for piece in np.array_split(mixed, count)]
    return members, tuple(np.repeat(np.arange(len(shares)), counts).tolist())


DATASET = Dataset(
    name="imdb",
    description="50,000 film reviews; is one favourable?",
    source="IMDb reviews (Maas et al., 2011)",
    licence="not stated by its authors, who ask to be cited",
    load=load,
    options={
        "size": Option("50k", "number of reviews: '50k' for all, or '10k' for a published subset"),
        **text_features.options("reviews"),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "a copy of the complete data set to read instead of downloading it"),
    },
    protected=(),
    clients=10,
    partition={"name": "dirichlet"},
    partitions={
        **{name: each for name, each in PARTITIONS.items() if name != "column"},
        "length": Partition(
            "length",
            "clusters of clients by the length of their reviews, shortest first",
            {"shares": Option((0.7, 0.3), "each cluster's share of the clients, and of the rows")},
        ),
    },
    files=SIZES["50k"],
    facts=facts,
)
