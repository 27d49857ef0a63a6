"""SNIPPETS: is a sentence of a film review, product review, editorial or tweet favourable?

Hutto and Gilbert (2014), "VADER: a parsimonious rule-based model for sentiment analysis of social
media text", https://github.com/cjhutto/vaderSentiment: 10,605 sentences of film reviews, 3,708 of
reviews of five products, 5,190 of newspaper editorials and 4,200 tweets, each rated by twenty
people from -4 to 4. A sentence is favourable if its mean rating is above 0; those with mean 0
are not used.

This is real text of several domains: with `partition = "domains"` each client has sentences of one
domain, `counts` gives the number of clients of each, and the domains are the known clusters. The
default is films with seven clients and products with three. The features are TF-IDF of the `words`
words that occur in most training sentences, fitted from counts that clients report (see
`isonomy.data.text`).

Our choices: the sentences of a domain are assigned to its clients at random and split at each
client, so sentences of one review can be at several clients and in several splits.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.core.options import Option
from isonomy.data import text
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
from isonomy.data.preparation import Texts
from isonomy.errors import ConfigError, DataError, unknown

_NAME = "hutto_ICWSM_2014.tar.gz"
_ARCHIVE = fetch.File(
    _NAME,
    "d5bb07d87474b3eb8d30b4deccbc23f19d742a6c5718fbacc65485b70b95c5fa",
    2_338_514,
    (
        fetch.Url(
            "https://raw.githubusercontent.com/cjhutto/vaderSentiment/"
            f"18c86513ea60b02fce8f3b1b598da43042d91b08/additional_resources/{_NAME}"
        ),
        fetch.Package(
            "vaderSentiment",
            "3.3.2",
            f"vaderSentiment-3.3.2/additional_resources/{_NAME}",
            kind="sdist",
            size=2_466_783,
        ),
    ),
)
LABELS = ("unfavourable", "favourable")
FILES = {  # the file of each domain, and its number of sentences
    "films": ("movieReviewSnippets_GroundTruth.txt", 10_605),
    "products": ("amazonReviewSnippets_GroundTruth.txt", 3_708),
    "editorials": ("nytEditorialSnippets_GroundTruth.txt", 5_190),
    "tweets": ("tweets_GroundTruth.txt", 4_200),
}


@dataclass(frozen=True, eq=False)
class Snippets:
    """Texts, their mean ratings, and the domain of each, an index of FILES."""

    texts: tuple[str, ...]
    ratings: np.ndarray[tuple[int], np.dtype[np.float64]]
    domains: Integers


def parse(paths: Sequence[Path]) -> Snippets:
    """Read the sentences of all domains, in the order of the files."""
    texts: list[str] = []
    ratings: list[float] = []
    domains: list[int] = []
    for path in paths:
        try:
            with tarfile.open(path) as archive:
                for number, (name, _) in enumerate(FILES.values()):
                    stream = archive.extractfile(f"hutto_ICWSM_2014/{name}")
                    assert stream is not None, name
                    for line in stream.read().decode("utf-8").splitlines():
                        _, rating, sentence = line.split("\t", 2)
                        texts.append(" ".join(sentence.split()))
                        ratings.append(float(rating))
                        domains.append(number)
        except (*DAMAGE, KeyError, AssertionError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0][:120]
            raise DataError(
                f"cannot read {path} as rated sentences ({said}); give a complete {_NAME}."
            ) from error
    return Snippets(tuple(texts), np.array(ratings), np.array(domains, dtype=np.int64))


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of all sentences."""
    return _facts(parse(paths))


def _facts(found: Snippets) -> list[Fact]:
    counted = np.bincount(found.domains, minlength=len(FILES)).tolist()
    return [
        *(
            Fact(f"sentences of {domain}", count, right)
            for count, (domain, (_, right)) in zip(counted, FILES.items(), strict=True)
        ),
        Fact("favourable sentences", int((found.ratings > 0).sum()), 12_471),
        Fact("sentences rated 0", int((found.ratings == 0).sum()), 383),
    ]


def load(request: Request) -> Federation:
    """Download, check, partition and split the texts, and compute their features."""
    if request.options["path"]:
        found, origin = parse([Path(request.options["path"]).expanduser()]), "the file given"
    else:
        files = fetch.fetch(*DATASET.files, progress=request.progress)
        found, origin = parse([file.path for file in files]), files[0].source
    check_facts("snippets", _facts(found))
    return replace(federate(found, request), origin=origin)


def federate(found: Snippets, request: Request) -> Federation:
    """Build the federation of parsed sentences."""
    wanted = tuple(request.options["domains"])
    for domain in wanted:
        if domain not in FILES:
            raise ConfigError(unknown("domain of data set 'snippets'", domain, FILES))
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"data set 'snippets': domains are {list(wanted)}; give one or more, each once."
        )
    numbers = [list(FILES).index(domain) for domain in wanted]
    keep = np.flatnonzero(np.isin(found.domains, numbers) & (found.ratings != 0))
    texts = tuple(found.texts[row] for row in keep)
    labels = (found.ratings[keep] > 0).astype(np.int64)
    domains = np.array([numbers.index(number) for number in found.domains[keep]])
    parts, names, clusters = _share_out(labels, domains, wanted, request)
    x, vocabulary = text.features(texts, parts, request.options["words"])
    made = build(
        x,
        torch.from_numpy(labels),
        torch.zeros(len(texts), 0, dtype=torch.int64),
        parts,
        classes=2,
        names=names,
        labels=LABELS,
        features=vocabulary.words,
        clusters=clusters,
        source=DATASET.source,
        notes=(
            f"Features are TF-IDF of the {len(vocabulary.words):,} words that most training "
            "sentences contain, fitted from counts that clients report.",
        ),
    )
    kept = Texts(column="text", words=vocabulary.words, idf=tuple(vocabulary.idf.tolist()))
    return replace(made, preprocessing=kept.model_dump(mode="json"))


def _share_out(
    labels: Integers, domains: Integers, wanted: Sequence[str], request: Request
) -> tuple[dict[Split, list[Tensor]], tuple[str, ...], tuple[int, ...] | None]:
    fractions, how = request.options["fractions"], request.partition_options
    if request.partition.name != "domains":
        rows = Rows(labels)
        return *allocate(
            rows, request.partition, how, request.clients, request.seed, fractions
        ), None
    counts = how["counts"]
    if len(counts) != len(wanted) or min(counts) < 1:
        raise ConfigError(
            f"partition 'domains': counts are {list(counts)} for {len(wanted)} domains; give each "
            "domain 1 client or more."
        )
    if request.clients not in (0, sum(counts)):
        raise ConfigError(
            f"partition 'domains': counts {list(counts)} make {sum(counts)} clients, not "
            f"{request.clients}; remove the number of clients."
        )
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    names, clusters = [], []
    for number, (domain, count) in enumerate(zip(wanted, counts, strict=True)):
        mixed = generator("domains", (request.seed, number)).permutation(
            np.flatnonzero(domains == number)
        )
        for k, mine in enumerate(np.array_split(mixed, count)):
            seed = (request.seed, number, k)
            pieces = deal(torch.from_numpy(np.sort(mine)), labels, None, fractions, seed)
            for name in SPLITS:
                parts[name].append(pieces[name])
            names.append(f"{domain} {k}")
            clusters.append(number)
    return parts, tuple(names), tuple(clusters)


DATASET = Dataset(
    name="snippets",
    description="23,703 sentences on films, products, news and in tweets; is one favourable?",
    source="VADER's rated sentences (Hutto and Gilbert, 2014)",
    licence="MIT",
    load=load,
    options={
        "domains": Option(
            ("films", "products"), "one or more of films, products, editorials, tweets"
        ),
        "words": Option(
            2_000, "number of words used as features: those in most training sentences"
        ),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "a copy of the archive to read instead of downloading it"),
    },
    protected=(),
    clients=10,
    partition={"name": "domains"},
    partitions={
        **{name: each for name, each in PARTITIONS.items() if name != "column"},
        "domains": Partition(
            "domains",
            "clusters of clients, each with the sentences of one domain",
            {"counts": Option((7, 3), "number of clients of each domain, in the order of domains")},
            counts=True,
        ),
    },
    files=((_ARCHIVE,),),
    facts=facts,
)
