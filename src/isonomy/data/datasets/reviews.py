"""REVIEWS: is a review of a film or of food favourable? 15,000 whole reviews of two domains.

`films` are the published subset of 10,000 reviews of data set `imdb` (Maas et al., 2011), half of
them favourable. `foods` are 5,000 reviews of food from Amazon (McAuley and Leskovec, 2013, "From
amateurs to connoisseurs", https://snap.stanford.edu/data/web-FineFoods.html) that the R package
modeldata distributes as `small_fine_foods`: its training and test rows, 3,258 of them with five
stars. The sources mean different things by favourable: a film has 7 to 10 of 10 stars (and 1 to 4
otherwise), a food has five of five stars (and one to four otherwise).

With `partition = "domains"` each client has reviews of one domain, and the domains are the known
clusters: seven clients have films and three have food, 1,429 and 1,667 reviews each. It is the
nearest public form of the text experiment of FOCUS, which has reviews of businesses (Yelp) at seven
clients and of films at three.

Our choices: HTML tags and repeated spaces are removed; the reviews of a domain are sorted
alphabetically, assigned to its clients at random and split at each client. Reviews of one product
can be at several clients and in several splits, and some reviews occur twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from isonomy.core.options import Option
from isonomy.data import domains as by_domain
from isonomy.data import r_files, text_features
from isonomy.data.dataset import Dataset, Fact, Request, check_facts
from isonomy.data.datasets import imdb
from isonomy.data.download import fetch
from isonomy.data.download.archives import DAMAGE
from isonomy.data.federation import Federation, build
from isonomy.data.partition import FRACTIONS, PARTITIONS, Integers
from isonomy.errors import DataError

_SAVED = fetch.File(
    "small_fine_foods.RData",
    "a81bb399fa0713b1c17dc92f3ef3431f8b16278a8023a6f0564d37716e055ed3",
    608_955,
    (
        fetch.Url(
            "https://raw.githubusercontent.com/tidymodels/modeldata/"
            "a025b892f3f16cb96f77f9a20aa48bf09785f3e8/data/small_fine_foods.RData"
        ),
    ),
)
_INSTALLED = "usr/lib/R/site-library/modeldata/data"
_INDEX = fetch.File(
    "modeldata-Rdata.rdx",
    "c23e1be60f2730fb526ce158a307e154c91a953169fcb8e73350c4e032e14538",
    780,
    (fetch.DebianPackage("r-cran-modeldata", f"{_INSTALLED}/Rdata.rdx", size=4_253_384),),
)
_DATABASE = fetch.File(
    "modeldata-Rdata.rdb",
    "2ecef5e8da0f782ae4e3f65d928fe769702accffd8981cc358a3097f6736f58f",
    4_140_200,
    (fetch.DebianPackage("r-cran-modeldata", f"{_INSTALLED}/Rdata.rdb", size=4_253_384),),
)
(_FILMS,) = imdb.SIZES["10k"][0]
LABELS = ("unfavourable", "favourable")
DOMAINS = ("films", "foods")
_FOODS = ("training_data", "testing_data")  # the objects with reviews of food


@dataclass(frozen=True, eq=False)
class Reviews:
    """Texts, their labels, and the domain of each, an index of DOMAINS."""

    texts: tuple[str, ...]
    labels: Integers
    domains: Integers


def parse(paths: Sequence[Path]) -> Reviews:
    """Read the reviews of films, then those of food, from one file or from index and database."""
    films, *rest = paths
    first = imdb.parse([films])
    pairs = sorted((imdb.without_tags(review), label) for review, label in _foods(rest))
    foods = np.array([label for _, label in pairs], dtype=np.int64)
    return Reviews(
        (*first.texts, *(review for review, _ in pairs)),
        np.concatenate([first.labels, foods]),
        np.repeat(np.arange(2), [len(first.texts), len(foods)]),
    )


def _foods(paths: Sequence[Path]) -> list[tuple[str, int]]:
    try:
        if len(paths) == 1:
            saved = r_files.read_saved(paths[0])
            frames = [saved[name].named() for name in _FOODS]
        else:
            index, database = paths
            frames = [r_files.read_database(index, database, name).named() for name in _FOODS]
        rows = [
            pair
            for frame in frames
            for pair in zip(frame["review"].values, frame["score"].values, strict=True)
        ]
        return [(review, ("other", "great").index(score)) for review, score in rows]
    except (*DAMAGE, KeyError, IndexError, AttributeError, TypeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise DataError(
            f"cannot read {paths[0]} as reviews of food ({said}); get a complete copy."
        ) from error


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of all reviews."""
    return _facts(parse(paths))


def _facts(found: Reviews) -> list[Fact]:
    films, foods = (found.domains == number for number in range(2))
    return [
        Fact("reviews of films", int(films.sum()), 10_000),
        Fact("favourable reviews of films", int(found.labels[films].sum()), 5_000),
        Fact("reviews of food", int(foods.sum()), 5_000),
        Fact("favourable reviews of food", int(found.labels[foods].sum()), 3_258),
        Fact("different reviews", len(set(found.texts)), 14_955),
    ]


def load(request: Request) -> Federation:
    """Download, check, partition and split the texts, and compute their features."""
    by_domain.check("reviews", request.options["domains"], DOMAINS)
    if request.options["path"]:
        found, origin = parse(_given(Path(request.options["path"]).expanduser())), "the files given"
    else:
        files = fetch.fetch(*DATASET.files, progress=request.progress)
        origin = text_features.joined(*(file.source for file in files))
        found = parse([file.path for file in files])
    check_facts("reviews", _facts(found))
    made = federate(found, request)
    return replace(made, origin=text_features.joined(origin, made.origin))


def _given(folder: Path) -> list[Path]:
    """Return the files in a folder, by their names in the cache."""
    for choice in DATASET.files:
        paths = [folder / file.name for file in choice]
        if all(path.is_file() for path in paths):
            return paths
    wanted = " or ".join(" and ".join(file.name for file in choice) for choice in DATASET.files)
    raise DataError(f"{folder} does not contain {wanted}; put them there, or remove 'path'.")


def federate(found: Reviews, request: Request) -> Federation:
    """Build the federation of parsed reviews."""
    wanted = tuple(request.options["domains"])
    by_domain.check("reviews", wanted, DOMAINS)
    numbers = [DOMAINS.index(domain) for domain in wanted]
    keep = np.flatnonzero(np.isin(found.domains, numbers))
    texts = tuple(found.texts[row] for row in keep)
    labels = found.labels[keep]
    domains = np.array([numbers.index(number) for number in found.domains[keep]])
    parts, names, clusters = by_domain.share_out(labels, domains, wanted, request)
    made = text_features.compute(texts, parts, request, column="review", what="reviews")
    federation = build(
        made.x,
        torch.from_numpy(labels),
        torch.zeros(len(texts), 0, dtype=torch.int64),
        parts,
        classes=2,
        names=names,
        labels=LABELS,
        features=made.names,
        clusters=clusters,
        source=DATASET.source,
        notes=(
            made.note,
            "Favourable means 7 to 10 of 10 stars for a film and five of five stars for food.",
            "Some reviews occur twice, possibly at different clients or in different splits.",
        ),
    )
    return replace(federation, preprocessing=made.preprocessing, origin=made.origin)


DATASET = Dataset(
    name="reviews",
    description="15,000 reviews of films and of food; is one favourable?",
    source="reviews from IMDb (Maas et al., 2011) and of Amazon's fine foods (McAuley, 2013)",
    licence="not stated by their authors, who ask to be cited; modeldata is MIT",
    load=load,
    options={
        "domains": Option(DOMAINS, "films, foods or both"),
        **text_features.options("reviews"),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "a folder with copies of the files, instead of downloading them"),
    },
    protected=(),
    clients=10,
    partition={"name": "domains"},
    partitions={
        **{name: each for name, each in PARTITIONS.items() if name != "column"},
        "domains": by_domain.partition("reviews"),
    },
    files=((_FILMS, _SAVED), (_FILMS, _INDEX, _DATABASE)),
    facts=facts,
)
