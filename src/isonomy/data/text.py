"""Texts as TF-IDF features, fitted as a federation can: clients count, the server adds up.

1. A client splits its texts into words (`tokenise`) and tells in how many of its training texts
   each word occurs (`tell`). No text leaves it, but the server does learn which words it has.
2. The server adds the counts up, chooses the words that most texts have, and computes
   idf(w) = ln((1 + texts) / (1 + texts with w)) + 1 (`agree`).
3. A client weighs its words: count x idf, each text's row scaled to length 1 (`weigh`).

A word is two or more letters, digits or underscores in a row, in lower case: the default rule of
scikit-learn's TfidfVectorizer, whose numbers these are for the same vocabulary.

>>> mine, yours = tokenise(["Good film!", "A good day"]), tokenise(["bad film"])
>>> vocabulary = agree([tell(mine), tell(yours)], 2)
>>> vocabulary.words
('film', 'good')
>>> weigh(yours, vocabulary).tolist()
[[1.0, 0.0]]
"""

from __future__ import annotations

import importlib
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
_BLOCK = 2_000  # texts whose words are held as Python's strings at a time


@dataclass(frozen=True, eq=False)
class Tokens:
    """One client's texts as words: how often (`count`) a text has a word, each pair once.

    `text` [p] is ascending; `word` [p] numbers the client's own `words`.
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
    """A client's texts as words."""
    pa: Any = importlib.import_module("pyarrow")
    lengths = np.zeros(len(texts), dtype=np.int64)
    chunks = []
    for start in range(0, len(texts), _BLOCK):
        found = [_WORD.findall(text.lower()) for text in texts[start : start + _BLOCK]]
        lengths[start : start + len(found)] = [len(words) for words in found]
        chunks.append(pa.array(list(chain.from_iterable(found)), pa.string()))
    coded = pa.chunked_array(chunks, pa.string()).dictionary_encode().unify_dictionaries().chunks
    words = tuple(coded[0].dictionary.to_pylist()) if coded else ()
    codes = np.concatenate([np.zeros(0, np.int64), *(np.asarray(chunk.indices) for chunk in coded)])
    at = np.repeat(np.arange(len(texts)), lengths)
    pairs, count = np.unique(at * max(len(words), 1) + codes, return_counts=True)
    text, word = np.divmod(pairs, max(len(words), 1))
    return Tokens(len(texts), words, text, word, count)


def tell(tokens: Tokens, rows: NDArray[np.int64] | None = None) -> dict[str, Any]:
    """A client's reply: how many texts it counted, and how many of them have each word.

    `rows` are the texts to count, those that train; all of them if not given.
    """
    counted = np.ones(tokens.texts, dtype=np.bool_)
    if rows is not None:
        counted[:] = False
        counted[rows] = True
    found = np.bincount(tokens.word[counted[tokens.text]], minlength=len(tokens.words))
    told = zip(tokens.words, found.tolist(), strict=True)
    return {"texts": int(counted.sum()), "words": {word: n for word, n in told if n}}


def agree(replies: Iterable[Reply], words: int) -> Vocabulary:
    """The server's half: the `words` words that most texts have; of equals, the first by name."""
    if words < 1:
        raise ConfigError(f"words is {words}; give 1 or more.")
    texts, found = 0, Counter[str]()
    for reply in replies:
        texts += reply["texts"]
        found.update(reply["words"])
    if not found:
        raise DataError("no client has a text with a word of two letters; give texts with words.")
    chosen = sorted(sorted(found, key=lambda word: (-found[word], word))[:words])
    counts = np.array([found[word] for word in chosen], dtype=np.float64)
    return Vocabulary(tuple(chosen), np.log((1 + texts) / (1 + counts)) + 1)


def features(
    texts: Sequence[str], parts: Mapping[Split, Sequence[Tensor]], words: int
) -> tuple[Tensor, Vocabulary]:
    """All three steps over clients that hold the rows of `parts`: [texts, words] and what it is."""
    held = [
        np.concatenate(pieces) for pieces in zip(*(parts[name] for name in SPLITS), strict=True)
    ]
    clients = [tokenise([texts[row] for row in rows]) for rows in held]
    replies = [
        tell(tokens, np.arange(len(train)))
        for tokens, train in zip(clients, parts["train"], strict=True)
    ]
    vocabulary = agree(replies, words)
    x = np.empty((len(texts), len(vocabulary.words)), dtype=np.float32)
    for rows, tokens in zip(held, clients, strict=True):
        x[rows] = weigh(tokens, vocabulary)
    return torch.from_numpy(x), vocabulary


def weigh(tokens: Tokens, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """A client's features [texts, words]; a text with none of the words is all zeros."""
    place = {word: at for at, word in enumerate(vocabulary.words)}
    column = np.array([place.get(word, -1) for word in tokens.words], dtype=np.int64)
    known = column[tokens.word] >= 0
    text, at = tokens.text[known], column[tokens.word[known]]
    value = tokens.count[known] * vocabulary.idf[at]
    length = np.sqrt(np.bincount(text, value**2, minlength=tokens.texts))
    out = np.zeros((tokens.texts, len(vocabulary.words)), dtype=np.float32)
    out[text, at] = value / length[text]
    return out
