import hashlib

import numpy as np
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data import encoder as encoders
from isonomy.data import sentences
from isonomy.data.dataset import Request
from isonomy.data.datasets import snippets
from isonomy.data.download import fetch
from isonomy.data.partition import plan
from isonomy.data.preparation import Sentences, of
from isonomy.deploy.rows import features
from isonomy.errors import ConfigError, DataError
from isonomy.runs.coverage import fitted

RECORD = 32 + 4 * 384 + 4


class Stand:
    """Stands in for the encoder: a text's tokens are its letters; it counts what it encodes."""

    def __init__(self):
        self.batches = []
        self.fails = 10**9

    def tokens(self, texts, length):
        return [[ord(letter) for letter in text[:length]] or [0] for text in texts]

    def vectors(self, tokens):
        if len(self.batches) >= self.fails:
            raise KeyboardInterrupt
        self.batches.append([len(each) for each in tokens])
        rows = [np.random.default_rng(each).normal(size=384) for each in tokens]
        return torch.nn.functional.normalize(torch.tensor(np.array(rows)).float(), dim=1)

    @property
    def encoded(self):
        return sum(map(len, self.batches))


@pytest.fixture
def stand(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(sentences, "BATCH", 4)
    made = Stand()
    monkeypatch.setattr(encoders, "load", lambda progress=None: (made, "package x 1.0"))
    return made


TEXTS = [letter * (1 + number % 7) for number, letter in enumerate("abcdefghijklmnopqrst")]


def test_each_text_is_encoded_once(stand):
    first, origin = sentences.encode(TEXTS, 9)
    assert first.shape == (20, 384)
    assert first.dtype == np.float32
    assert origin == "package x 1.0"
    assert stand.encoded == 20
    lengths = [length for batch in stand.batches for length in batch]
    assert lengths == sorted(lengths)  # similar lengths together, so little padding
    expected = stand.vectors(stand.tokens(TEXTS, 9)).numpy()
    assert (first == expected).all()
    stand.batches.clear()
    again, origin = sentences.encode([TEXTS[3], "new", "new", TEXTS[0]], 9)
    assert stand.encoded == 1
    assert (again[0] == first[3]).all()
    assert (again[1] == again[2]).all()
    stand.batches.clear()
    assert sentences.encode(TEXTS, 9)[1] == ""  # the encoder was not even loaded
    assert not stand.batches


def test_the_file_is_of_the_encoder_and_the_length(stand, monkeypatch):
    sentences.encode(["one text"], 3)
    sentences.encode(["one text"], 4)
    other = fetch.File("x", "0" * 64, 1, ())
    monkeypatch.setattr(sentences, "WEIGHTS", other)
    sentences.encode(["one text"], 4)
    assert stand.encoded == 3
    assert len(list(fetch.folder().iterdir())) == 3


def test_an_interrupted_encoding_continues(stand):
    stand.fails = 3
    with pytest.raises(KeyboardInterrupt):
        sentences.encode(TEXTS, 9)
    assert stand.encoded == 12
    stand.fails = 10**9
    sentences.encode(TEXTS, 9)
    assert stand.encoded == 20


def test_a_killed_process_leaves_half_a_record(stand):
    first, _ = sentences.encode(TEXTS, 9)
    path = sentences.cache_file(9)
    content = path.read_bytes()
    assert len(content) == 20 * RECORD
    path.write_bytes(content[: -RECORD // 2])
    stand.batches.clear()
    again, _ = sentences.encode(TEXTS, 9)
    assert stand.encoded == 1
    assert (again == first).all()
    assert len(path.read_bytes()) == 20 * RECORD


def test_a_damaged_record_is_encoded_again(stand):
    first, _ = sentences.encode(TEXTS, 9)
    path = sentences.cache_file(9)
    content = bytearray(path.read_bytes())
    content[2 * RECORD + 100] ^= 1
    path.write_bytes(bytes(content))
    stand.batches.clear()
    again, _ = sentences.encode(TEXTS, 9)
    assert stand.encoded == 1
    assert (again == first).all()


def test_a_record_starts_with_the_checksum_of_its_text(stand):
    sentences.encode(["one text"], 9)
    content = sentences.cache_file(9).read_bytes()
    assert content[:32] == hashlib.sha256(b"one text").digest()


def test_progress_counts_the_bytes_of_vectors(stand):
    seen = []
    sentences.encode(TEXTS, 9, lambda *report: seen.append(report))
    assert seen[-1] == (sentences.VECTORS, 20 * 1536, 20 * 1536)
    assert [have for _, have, _ in seen] == [n * 1536 for n in (4, 8, 12, 16, 20)]


def test_a_folder_that_cannot_be_written(stand, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="ISONOMY_DATA"):
        sentences.encode(["one text"], 9)


def request(spec="domains", clients=0, **options):
    known = {name: option.default for name, option in snippets.DATASET.options.items()}
    partition, how = plan(spec, snippets.DATASET.partitions)
    return Request(clients, 0, partition, how, {**known, "features": "sentences", **options})


@pytest.fixture
def found():
    texts = tuple(f"{'good' if i % 2 else 'bad'} text {i}" for i in range(80))
    ratings = np.array([1.0 if i % 2 else -1.0 for i in range(80)])
    return snippets.Snippets(texts, ratings, np.repeat([0, 1], 40))


def test_a_federation_of_vectors(stand, found):
    federation = snippets.federate(found, request(length=50))
    assert federation.x.shape == (80, 384)
    assert federation.features[:2] == ("e0", "e1")
    assert federation.origin == "package x 1.0"
    assert "nothing is fitted" in federation.notes[0]
    expected = stand.vectors(stand.tokens(found.texts, 50))
    rows = {tuple(row.tolist()): i for i, row in enumerate(expected)}
    for k in range(10):
        for split in SPLITS:
            at = federation.rows(k, split)
            for x, y in zip(federation.x[at], federation.y[at], strict=True):
                number = rows[tuple(x.tolist())]
                assert int(y) == number % 2
                assert federation.clusters[k] == number // 40


def test_clients_and_splits_are_those_of_words(stand, found):
    vectors = snippets.federate(found, request())
    words = snippets.federate(found, request(features="words"))
    assert (vectors.y == words.y).all()
    assert vectors.names == words.names
    assert all((vectors.sizes(split) == words.sizes(split)).all() for split in SPLITS)


def test_new_texts_are_encoded_alike(stand, found):
    federation = snippets.federate(found, request(length=6))
    how = of(federation.preprocessing)
    assert isinstance(how, Sentences)
    got = features({"text": list(found.texts), "more": [0] * 80}, how, [384])
    assert {tuple(row) for row in got.x.tolist()} == {tuple(row) for row in federation.x.tolist()}
    assert got.notes == ("the model does not use column more.",)
    assert how.transform([]).shape == (0, 384)
    other = how.model_copy(update={"weights": "0" * 64})
    with pytest.raises(DataError, match="another encoder than all-MiniLM-L6-v2"):
        other.transform(["a text"])


def test_nothing_is_fitted_to_the_clients_data(stand, found):
    assert not fitted(snippets.federate(found, request()).preprocessing)
    assert fitted(snippets.federate(found, request(features="words")).preprocessing)


@pytest.mark.parametrize("name", ["imdb", "snippets", "reviews"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"features": "letters"}, "give one of 'words' or 'sentences'|'words'"),
        ({"length": 2}, "at least 3"),
        ({"length": 513}, "at most 512"),
        ({"length": 1.5}, "a whole number"),
    ],
)
def test_refused(name, options, words):
    from isonomy.data import load

    with pytest.raises(ConfigError, match=words) as error:
        load(name, options=options)
    assert "\n" not in str(error.value)
