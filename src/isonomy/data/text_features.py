"""The features of texts, as the option `features` of a data set of texts says.

`"words"` is TF-IDF, fitted from counts that clients report (`isonomy.data.text`); `"sentences"` are
vectors of a public pretrained encoder, for which nothing is fitted (`isonomy.data.sentences`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isonomy.core.examples import Split
from isonomy.core.options import Option
from isonomy.data import sentences, text
from isonomy.data.dataset import Request
from isonomy.data.encoder import LONGEST, NAME, SIZE, TOKENIZER, WEIGHTS
from isonomy.data.preparation import Sentences, Texts


@dataclass(frozen=True, eq=False)
class Features:
    """Features [texts, names], how new texts get them, a note, and the encoder's source."""

    x: Tensor
    names: tuple[str, ...]
    preprocessing: dict[str, Any]
    note: str
    origin: str = ""


def options(what: str) -> dict[str, Option]:
    """Return the options of a data set whose texts are called `what`, such as "reviews"."""
    return {
        "features": Option(
            "words",
            "'words' for TF-IDF of words, or 'sentences' for vectors of a pretrained encoder",
            choices=("words", "sentences"),
        ),
        "words": Option(
            2_000,
            f"number of words used as features: those in most training {what}; "
            "for features = 'words'",
        ),
        "length": Option(
            128,
            f"number of tokens of each text that are encoded, at most {LONGEST}; "
            "for features = 'sentences'",
            ge=3,
            le=LONGEST,
        ),
    }


def compute(
    texts: Sequence[str],
    parts: Mapping[Split, Sequence[Tensor]],
    request: Request,
    *,
    column: str,
    what: str,
) -> Features:
    """Return the features of texts; `parts` are the rows of each client in each split.

    `column` is the column in which tables of new texts have them, and `what` names them in the
    note, such as "reviews".
    """
    chosen = request.options
    if chosen["features"] == "words":
        x, vocabulary = text.features(texts, parts, chosen["words"])
        how = Texts(column=column, words=vocabulary.words, idf=tuple(vocabulary.idf.tolist()))
        note = (
            f"Features are TF-IDF of the {len(vocabulary.words):,} words that most training "
            f"{what} contain, fitted from counts that clients report."
        )
        return Features(x, vocabulary.words, how.model_dump(mode="json"), note)
    length = chosen["length"]
    vectors, origin = sentences.encode(texts, length, request.progress)
    kept = Sentences(column=column, length=length, weights=WEIGHTS.sha256, tokens=TOKENIZER.sha256)
    note = (
        f"Features are the vectors of the public encoder {NAME} for the first {length} tokens of "
        f"the {what}; nothing is fitted to the clients' data."
    )
    names = tuple(f"e{number}" for number in range(SIZE))
    return Features(torch.from_numpy(vectors), names, kept.model_dump(mode="json"), note, origin)


def joined(*origins: str) -> str:
    """Return the origins of texts and encoder as one, without repetitions.

    >>> joined("the local cache", "package a 1.0", "the local cache", "")
    'the local cache and package a 1.0'
    """
    return " and ".join(dict.fromkeys(origin for origin in origins if origin))
