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
`isonomy.data.text`), or, with `features = "sentences"`, the vectors of a pretrained encoder (see
`isonomy.data.sentences`).

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

from isonomy.core.options import Option
from isonomy.data import domains as by_domain
from isonomy.data import text_features
from isonomy.data.dataset import Dataset, Fact, Request, check_facts
from isonomy.data.download import fetch
from isonomy.data.download.archives import DAMAGE
from isonomy.data.federation import Federation, build
from isonomy.data.partition import FRACTIONS, PARTITIONS, Integers
from isonomy.errors import DataError

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
    made = federate(found, request)
    return replace(made, origin=text_features.joined(origin, made.origin))


def federate(found: Snippets, request: Request) -> Federation:
    """Build the federation of parsed sentences."""
    wanted = tuple(request.options["domains"])
    by_domain.check("snippets", wanted, tuple(FILES))
    numbers = [list(FILES).index(domain) for domain in wanted]
    keep = np.flatnonzero(np.isin(found.domains, numbers) & (found.ratings != 0))
    texts = tuple(found.texts[row] for row in keep)
    labels = (found.ratings[keep] > 0).astype(np.int64)
    domains = np.array([numbers.index(number) for number in found.domains[keep]])
    parts, names, clusters = by_domain.share_out(labels, domains, wanted, request)
    made = text_features.compute(texts, parts, request, column="text", what="sentences")
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
        notes=(made.note,),
    )
    return replace(federation, preprocessing=made.preprocessing, origin=made.origin)


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
        **text_features.options("sentences"),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option("", "a copy of the archive to read instead of downloading it"),
    },
    protected=(),
    clients=10,
    partition={"name": "domains"},
    partitions={
        **{name: each for name, each in PARTITIONS.items() if name != "column"},
        "domains": by_domain.partition("sentences"),
    },
    files=((_ARCHIVE,),),
    facts=facts,
)
