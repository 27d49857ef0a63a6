"""Texts as TF-IDF features, fitted across clients: clients count words, the server sums.

1. A client splits its texts into words (`tokenise`) and reports in how many of its training texts
   each word occurs (`count_words`). No text leaves it, but the server learns which words it has.
2. The server sums the counts, chooses the words that occur in most texts, and computes
   idf(w) = ln((1 + texts) / (1 + texts with w)) + 1 (`agree`).
3. A client weights its words: count x idf, each text's row scaled to length 1 (`weigh`).

A word is a sequence of two or more letters, digits or underscores, in lower case: the default rule
of scikit-learn's TfidfVectorizer, which gives the same numbers for the same vocabulary.

>>> mine, yours = tokenise(["Good film!", "A good day"]), tokenise(["bad film"])
>>> vocabulary = agree([count_words(mine), count_words(yours)], 2)
>>> vocabulary.words
('film', 'good')
>>> weigh(yours, vocabulary).tolist()
[[1.0, 0.0]]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.errors import ConfigError, DataError

Reply = Mapping[str, Any]

_WORD = re.compile(r"\w\w+")
_BLOCK = 2_000  # texts whose words are Python strings at a time


@dataclass(frozen=True, eq=False)
class Tokens:
    """The texts of a client as words: how often (`count`) a word occurs in a text.

    `text` [p] is ascending; `word` [p] is an index into the client's `words`.
    """

    texts: int
    words: tuple[str, ...]
    text: NDArray[np.int64]
    word: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words that are features, in alphabetical order, and their idf."""

    words: tuple[str, ...]
    idf: NDArray[np.float64]


def tokenise(texts: Sequence[str]) -> Tokens:
    """Split the texts of a client into words."""
    lengths = np.zeros(len(texts), dtype=np.int64)
    place: dict[str, int] = {}
    chunks = [np.zeros(0, np.int64)]
    for start in range(0, len(texts), _BLOCK):
        found = [_WORD.findall(text.lower()) for text in texts[start : start + _BLOCK]]
        lengths[start : start + len(found)] = [len(words) for words in found]
        for word in dict.fromkeys(chain.from_iterable(found)):
            place.setdefault(word, len(place))
        each = map(place.__getitem__, chain.from_iterable(found))
        chunks.append(np.fromiter(each, np.int64, sum(map(len, found))))
    words = tuple(place)
    codes = np.concatenate(chunks)
    at = np.repeat(np.arange(len(texts)), lengths)
    pairs, count = np.unique(at * max(len(words), 1) + codes, return_counts=True)
    text, word = np.divmod(pairs, max(len(words), 1))
    return Tokens(len(texts), words, text, word, count)


def count_words(tokens: Tokens, rows: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """Return the reply of a client: the number of texts, and of texts with each word.

    `rows` are the texts to count (the training texts); all by default.
    """
    counted = np.ones(tokens.texts, dtype=np.bool_)
    if rows is not None:
        counted[:] = False
        counted[rows] = True
    found = np.bincount(tokens.word[counted[tokens.text]], minlength=len(tokens.words))
    pairs = zip(tokens.words, found.tolist(), strict=True)
    return {"texts": int(counted.sum()), "words": {word: n for word, n in pairs if n}}


def agree(replies: Iterable[Reply], words: int) -> Vocabulary:
    """Return the `words` most frequent words with their idf; ties are broken by name."""
    if words < 1:
        raise ConfigError(f"words is {words}; set it to 1 or more.")
    texts, found = 0, Counter[str]()
    for reply in replies:
        texts += reply["texts"]
        found.update(reply["words"])
    if not found:
        raise DataError(
            "no client has a text with a word of two or more letters; give texts with words."
        )
    chosen = sorted(sorted(found, key=lambda word: (-found[word], word))[:words])
    counts = np.array([found[word] for word in chosen], dtype=np.float64)
    return Vocabulary(tuple(chosen), np.log((1 + texts) / (1 + counts)) + 1)


def features(
    texts: Sequence[str], parts: Mapping[Split, Sequence[Tensor]], words: int
) -> tuple[Tensor, Vocabulary]:
    """Run all three steps for clients with the rows of `parts`; return x and the vocabulary."""
    held = [
        np.concatenate(pieces) for pieces in zip(*(parts[name] for name in SPLITS), strict=True)
    ]
    clients = [tokenise([texts[row] for row in rows]) for rows in held]
    replies = [
        count_words(tokens, np.arange(len(train)))
        for tokens, train in zip(clients, parts["train"], strict=True)
    ]
    vocabulary = agree(replies, words)
    x = np.empty((len(texts), len(vocabulary.words)), dtype=np.float32)
    for rows, tokens in zip(held, clients, strict=True):
        x[rows] = weigh(tokens, vocabulary)
    return torch.from_numpy(x), vocabulary


def weigh(tokens: Tokens, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return the features [texts, words]; a text with none of the words is all zeros."""
    place = {word: at for at, word in enumerate(vocabulary.words)}
    column = np.array([place.get(word, -1) for word in tokens.words], dtype=np.int64)
    known = column[tokens.word] >= 0
    text, at = tokens.text[known], column[tokens.word[known]]
    value = tokens.count[known] * vocabulary.idf[at]
    length = np.sqrt(np.bincount(text, value**2, minlength=tokens.texts))
    out = np.zeros((tokens.texts, len(vocabulary.words)), dtype=np.float32)
    out[text, at] = value / length[text]
    return out
