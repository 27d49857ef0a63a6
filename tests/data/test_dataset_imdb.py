import gzip
import io
import tarfile
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from isonomy.core.examples import SPLITS
from isonomy.data import load
from isonomy.data.dataset import Request, check_facts
from isonomy.data.datasets import imdb
from isonomy.data.download import fetch
from isonomy.data.partition import plan
from isonomy.errors import ConfigError, DataError, FetchError

WORDS = ["film", "good", "bad", "plot", "actor", "cliché", "dull", "fine", "music", "scene"]


def some(count, seed=0):
    """Made-up reviews: favourable ones say 'good' more often."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        words = rng.choice(WORDS, size=rng.integers(3, 30)).tolist()
        words += ["good" if i % 2 else "bad", f"number{i}"]
        out.append((" ".join(words), ("negative", "positive")[i % 2]))
    return out


def as_csv(path, reviews, packed=False):
    lines = ["review,sentiment"]
    lines += ['"{}",{}'.format(text.replace('"', '""'), label) for text, label in reviews]
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def as_parquet(path, reviews):
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, labels = zip(*reviews, strict=True)
    pq.write_table(pa.table({"review": texts, "sentiment": labels}), path)
    return path


def as_archive(path, reviews):
    to = {"fileobj": path} if isinstance(path, io.BytesIO) else {"name": path}
    with tarfile.open(mode="w:gz", **to) as archive:

        def add(name, text):
            member = tarfile.TarInfo(f"aclImdb/{name}")
            content = text.encode()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

        add("README", "read me")
        add("train/urls_pos.txt", "http://somewhere")
        add("train/unsup/0_0.txt", "nobody has labelled this")
        for i, (text, label) in enumerate(reviews):
            add(f"{'train' if i % 3 else 'test'}/{label[:3]}/{i}_7.txt", text)
    return path


REVIEWS = [
    ('She said "yes",<br /><br />and I  left.', "positive"),
    ("A cliché.\nAnother line", "negative"),
    ("<i>Fine</i> <grin>", "positive"),
    ("A cliché.<br/>Another line", "negative"),
]
CLEAN = (
    "Fine <grin>",
    "A cliché. Another line",
    "A cliché. Another line",
    'She said "yes", and I left.',
)


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: as_csv(folder / "some.csv", REVIEWS),
        lambda folder: as_csv(folder / "some.csv.gz", REVIEWS, packed=True),
        lambda folder: as_parquet(folder / "some.parquet", REVIEWS),
        lambda folder: as_archive(folder / "some.tar.gz", REVIEWS),
    ],
)
def test_all_forms_are_read_alike(tmp_path, write):
    reviews = imdb.parse([write(tmp_path)])
    assert sorted(reviews.texts) == sorted(CLEAN)
    assert list(reviews.texts) == sorted(reviews.texts)
    label = dict(zip(reviews.texts, reviews.labels.tolist(), strict=True))
    assert label == {CLEAN[0]: 1, CLEAN[1]: 0, CLEAN[3]: 1}


def test_garbled_letters_are_mended(tmp_path):
    garbled = [(text.encode().decode("mac_roman"), label) for text, label in REVIEWS]
    assert garbled[1][0] == "A clich√©.\nAnother line"
    one = imdb.parse([as_csv(tmp_path / "some.csv", garbled)])
    assert one.texts == imdb.parse([as_csv(tmp_path / "some.csv", REVIEWS)]).texts


def _bent(content):
    """With a byte in the middle turned about."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


PACKED = gzip.compress(
    b"review,sentiment\n" + b"".join(b"fine %d,positive\n" % i for i in range(99))
)
ARCHIVE = as_archive(io.BytesIO(), some(50)).getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("some.csv", b"text,label\nfine,positive\n", "cannot read .*some.csv as IMDb reviews"),
        ("some.csv", b"review,sentiment\nfine,good\n", "row 1 of some.csv has no review"),
        ("some.csv", b"", "cannot read .*some.csv as IMDb"),
        ("some.parquet", b"PAR1 and then nothing", "cannot read .*some.parquet as IMDb"),
        ("some.tar.gz", b"\x1f\x8b\x08 and then nothing", "cannot read .*some.tar.gz as IMDb"),
        ("some.tar.gz", _bent(ARCHIVE), "cannot read .*some.tar.gz as IMDb"),
        ("some.csv.gz", _bent(PACKED), "cannot read .*some.csv.gz as IMDb"),
        ("some.csv", b"review,sentiment\nfine,positive\n", "it has 1 rows instead of 50,000"),
    ],
)
def test_damaged_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as error:
        load("imdb", options={"path": str(tmp_path / name)})
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"nothing\.csv"):
        load("imdb", options={"path": str(tmp_path / "nothing.csv")})


def federate(path, clients=4, partition="iid", seed=0, **options):
    known = {name: option.default for name, option in imdb.DATASET.options.items()}
    chosen = plan(partition, imdb.DATASET.partitions)
    return imdb.federate(imdb.parse([path]), Request(clients, seed, *chosen, {**known, **options}))


def test_features_are_tfidf_of_the_training_rows(tmp_path):
    path = as_csv(tmp_path / "some.csv", some(200))
    federation = federate(path, words=8, partition={"name": "dirichlet", "beta": 1.0})
    reviews = imdb.parse([path])
    assert len(federation.features) == 8
    # whose row is which: by the number that every review ends with
    order = federate(path, words=10_000, partition={"name": "dirichlet", "beta": 1.0})
    numbers = [i for i, name in enumerate(order.features) if name.startswith("number")]
    name_of = [order.features[numbers[int(row)]] for row in order.x[:, numbers].argmax(1)]
    there = {text.split()[-1]: text for text in reviews.texts}
    rows = [k for k in range(200) if order.x[k, numbers].max() > 0]  # those that trained
    train = [row for k in range(4) for row in range(*order.rows(k).indices(10**6))]
    assert set(rows) == set(train)
    oracle = TfidfVectorizer(vocabulary=list(federation.features))
    texts = [there[name_of[row]] for row in train]
    expected = oracle.fit_transform(texts).toarray()
    np.testing.assert_allclose(federation.x[train].numpy(), expected, atol=1e-6)
    labels = dict(zip(reviews.texts, reviews.labels.tolist(), strict=True))
    assert federation.y[train].tolist() == [labels[text] for text in texts]


def test_the_federation(tmp_path):
    path = as_csv(tmp_path / "some.csv", some(200))
    federation = federate(path, words=50)
    assert [int(federation.sizes(split).sum()) for split in SPLITS] == [140, 20, 40]
    assert federation.labels == ("negative", "positive")
    assert int(federation.y.sum()) == 100
    assert federation.clusters is None
    torch.testing.assert_close(federation.x.norm(dim=1), torch.ones(200))
    assert torch.equal(federation.x, federate(path, words=50).x)
    assert not torch.equal(federation.y, federate(path, words=50, seed=1).y)


def test_by_length(tmp_path):
    path = as_csv(tmp_path / "some.csv", some(200))
    partition = {"name": "length", "shares": [0.7, 0.3]}
    federation = federate(path, clients=10, words=500, partition=partition)
    assert federation.clusters == (0,) * 7 + (1,) * 3
    sizes = sum(federation.sizes(split) for split in SPLITS)
    assert sizes.tolist() == [20] * 10
    words = (federation.x > 0).sum(1)  # different words in a review
    last = federation.rows(6, "test").stop
    assert float(words[:last].float().mean()) < float(words[last:].float().mean()) - 1


@given(
    lengths=st.lists(st.integers(0, 50), min_size=12, max_size=60),
    clients=st.integers(4, 12),
    shares=st.sampled_from([(0.7, 0.3), (0.5, 0.5), (0.25, 0.5, 0.25)]),
    seed=st.integers(0, 99),
)
def test_clusters_by_length_part_the_rows(lengths, clients, shares, seed):
    lengths = np.array(lengths)
    members, clusters = imdb.by_length(lengths, clients, seed, shares)
    assert sorted(torch.cat(members).tolist()) == list(range(len(lengths)))
    sizes = [len(mine) for mine in members]
    assert max(sizes) - min(sizes) <= 1
    assert len(clusters) == clients
    assert list(clusters) == sorted(clusters)
    for one in range(len(shares)):
        assert abs(clusters.count(one) - shares[one] * clients) <= 1
    longest = [lengths[mine.numpy()].max() for mine in members]
    shortest = [lengths[mine.numpy()].min() for mine in members]
    for a in range(clients):
        for b in range(clients):
            assert clusters[a] >= clusters[b] or longest[a] <= shortest[b]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"options": {"size": "20k"}}, "unknown size of data set 'imdb' '20k'"),
        ({"partition": {"name": "length", "shares": [1.0]}}, r"shares are \[1.0\]; give two"),
        ({"partition": {"name": "length", "shares": [0.9, 0.2]}}, "that add up to 1"),
    ],
)
def test_refused(arguments, words, subset):
    options = {"size": "10k", **arguments.pop("options", {})}
    with pytest.raises(ConfigError, match=words):
        load("imdb", options=options, **arguments)


def test_a_cluster_needs_a_client():
    with pytest.raises(ConfigError, match="leave a cluster without clients"):
        imdb.by_length(np.arange(9), 2, 0, (0.9, 0.1))
    with pytest.raises(DataError, match="9 clients and 3 reviews"):
        imdb.by_length(np.arange(3), 9, 0, (0.5, 0.5))


def fetched(size):
    try:
        return [file.path for file in fetch.fetch(*imdb.SIZES[size])]
    except FetchError as error:
        pytest.skip(f"IMDb is neither cached nor available here: {error}")


@pytest.fixture(scope="session")
def subset():
    return imdb.parse(fetched("10k"))


def test_facts_of_the_subset(subset):
    check_facts("IMDb", imdb._facts(subset, "10k"))
    assert not [text for text in subset.texts if "√" in text or "<br" in text]


@pytest.mark.usefixtures("subset")
def test_words_tell_favourable_reviews_apart():
    """A least-squares line on 300 words tells most test reviews of the subset right."""
    federation = load("imdb", partition="iid", options={"size": "10k", "words": 300})
    rows = {
        split: torch.cat([torch.arange(10_000)[federation.rows(k, split)] for k in range(10)])
        for split in ("train", "test")
    }
    x, y = federation.x.double(), 2.0 * federation.y - 1
    x = torch.cat([x, torch.ones(10_000, 1, dtype=torch.float64)], 1)
    weights = torch.linalg.lstsq(x[rows["train"]], y[rows["train"], None].double()).solution
    right = (x[rows["test"]] @ weights)[:, 0].sign() == y[rows["test"]]
    assert float(right.float().mean()) > 0.75


@pytest.mark.slow
def test_all_reviews(subset):
    paths = fetched("50k")
    check_facts("IMDb", imdb.facts(paths))
    reviews = imdb.parse(paths)
    label = dict(zip(reviews.texts, reviews.labels.tolist(), strict=True))
    assert all(label[t] == y for t, y in zip(subset.texts, subset.labels.tolist(), strict=True))
    started = time.perf_counter()
    federation = load("imdb")
    assert time.perf_counter() - started < 60
    assert federation.x.shape == (50_000, 2_000)
    assert int(federation.y.sum()) == 25_000
    clustered = load("imdb", partition="length", options={"words": 100})
    assert clustered.clusters == (0,) * 7 + (1,) * 3
    sizes = sum(clustered.sizes(split) for split in SPLITS)
    assert sizes.tolist() == [5_000] * 10
