import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from isonomy.data.text import agree, count_words, tokenise, weigh
from isonomy.errors import ConfigError, DataError

WORDS = st.sampled_from(["film", "good", "bad", "a", "Ünder", "x_1", "42", "İst", "ΣΑΣ", "naïve"])
SPACES = st.sampled_from([" ", "  ", "-", ".", "'", "\n", "\x85", "<br />", "é", "_"])
MADE = st.lists(st.tuples(WORDS, SPACES), max_size=8).map(lambda p: "".join(a + b for a, b in p))
TEXTS = st.lists(MADE | st.text(max_size=20), min_size=1, max_size=8)


def test_by_hand():
    """Three texts at two clients; "a" is no word, and the second client's test text is new."""
    mine = tokenise(["Good, good film", "a bad film"])
    yours = tokenise(["film noir", "good noir noir"])
    replies = [count_words(mine), count_words(yours, np.array([0]))]
    assert replies[0] == {"texts": 2, "words": {"good": 1, "film": 2, "bad": 1}}
    assert replies[1] == {"texts": 1, "words": {"film": 1, "noir": 1}}
    vocabulary = agree(replies, 3)
    assert vocabulary.words == ("bad", "film", "good")  # bad, good and noir: one text each
    rare, common = np.log(4 / 2) + 1, np.log(4 / 4) + 1
    np.testing.assert_allclose(vocabulary.idf, [rare, common, rare])
    length = np.hypot(2 * rare, common)
    expected = [[0, common / length, 2 * rare / length]]
    np.testing.assert_allclose(weigh(mine, vocabulary)[:1], expected, rtol=1e-6)
    np.testing.assert_allclose(weigh(yours, vocabulary), [[0, 1, 0], [0, 0, 1]])


@given(texts=TEXTS)
def test_words_are_scikit_learns(texts):
    tokens = tokenise(texts)
    counter = CountVectorizer(vocabulary=sorted(tokens.words) or ["none"])
    expected = counter.transform(texts).toarray()
    found = np.zeros_like(expected)
    order = np.argsort(np.argsort(np.array(tokens.words, dtype=object)))
    found[tokens.text, order[tokens.word]] = tokens.count
    np.testing.assert_array_equal(found, expected)
    analyse = counter.build_analyzer()
    assert set(tokens.words) == {word for text in texts for word in analyse(text)}


@given(texts=TEXTS, train=st.integers(1, 8), words=st.integers(1, 30))
def test_features_are_scikit_learns(texts, train, words):
    tokens = tokenise(texts)
    rows = np.arange(min(train, len(texts)))
    reply = count_words(tokens, rows)
    if not reply["words"]:
        with pytest.raises(DataError, match="no client has a text with a word"):
            agree([reply], words)
        return
    vocabulary = agree([reply], words)
    oracle = TfidfVectorizer(vocabulary=list(vocabulary.words))
    oracle.fit([texts[row] for row in rows])
    np.testing.assert_allclose(vocabulary.idf, oracle.idf_, rtol=1e-12)
    expected = oracle.transform(texts).toarray()
    np.testing.assert_allclose(weigh(tokens, vocabulary), expected, atol=1e-6)


@given(texts=TEXTS, owner=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_who_holds_which_text_changes_nothing(texts, owner):
    """Counts cross as JSON, and add up to those of all texts together."""
    held = [[i for i in range(len(texts)) if owner[i] == k] for k in range(3)]
    clients = [tokenise([texts[i] for i in mine]) for mine in held]
    replies = [json.loads(json.dumps(count_words(tokens))) for tokens in clients]
    together = tokenise(texts)
    if not together.words:
        return
    one, apart = agree([count_words(together)], 5), agree(replies, 5)
    assert one.words == apart.words
    np.testing.assert_array_equal(one.idf, apart.idf)
    whole = weigh(together, one)
    for mine, tokens in zip(held, clients, strict=True):
        np.testing.assert_array_equal(weigh(tokens, apart), whole[mine])


def test_many_texts_are_read_in_blocks():
    texts = [f"word{i % 7} common {'again ' * (i % 3)}" for i in range(4_500)]
    tokens = tokenise(texts)
    reply = count_words(tokens)
    assert reply["words"]["common"] == 4_500
    assert reply["words"]["again"] == 3_000
    assert reply["words"]["word6"] == 642
    assert tokens.count.sum() == 4_500 * 2 + 1_500 * 3


def test_refused():
    with pytest.raises(ConfigError, match="words is 0"):
        agree([count_words(tokenise(["some words"]))], 0)
    with pytest.raises(DataError, match="no client has a text"):
        agree([count_words(tokenise(["", "a b"]))], 5)
    assert tokenise([]).texts == 0
