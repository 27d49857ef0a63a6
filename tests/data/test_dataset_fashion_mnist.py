import numpy as np
import pytest
import torch

from isonomy.data import images, load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import fashion_mnist
from isonomy.data.download import fetch
from isonomy.data.partition import Rows
from isonomy.data.test_split import allocate_tested
from isonomy.errors import ConfigError, DataError, FetchError


def refuse(*args):
    raise fetch._FailedError("no connection")


def test_without_a_network_and_without_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "_receive", refuse)
    with pytest.raises(FetchError, match="apt-get is not installed") as error:
        load("fashion_mnist")
    assert "no connection" in str(error.value)
    assert "\n" not in str(error.value)


def test_one_place_is_tried_once(tmp_path, monkeypatch):
    """Four files at one host: when it does not answer, once is enough."""
    tried = []

    def count(address, *args):
        tried.append(address)
        raise fetch._FailedError("no connection")

    monkeypatch.setattr(fetch, "_receive", count)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError):
        fetch.fetch(*fashion_mnist.FILES, cache=tmp_path / "cache")
    assert len(tried) == 1


def taken(labels, wanted):
    """By hand: each client's rows of each label, in the rows' order, from the first one again."""
    waiting = {label: np.flatnonzero(labels == label).tolist() for label in range(10)}
    left = {label: list(rows) for label, rows in waiting.items()}
    out = []
    for client, counts in enumerate(wanted):
        mine = []
        for step, count in enumerate(counts):
            label = (client + step) % 10
            if len(left[label]) < count:
                left[label] = list(waiting[label])
            mine += left[label][:count]
            left[label] = left[label][count:]
        out.append(sorted(mine))
    return out


def test_clients_of_the_paper_by_hand():
    """The partition's rule, step by step, on labels in another order than the data set's."""
    train, test = np.arange(60_000) * 7 % 10, np.arange(10_000) * 3 % 10
    draws = np.random.RandomState(233)
    sizes = draws.lognormal(3, 1, 500) + 10
    sizes = [60_000 * size / sum(sizes) for size in sizes]
    shares = [(given / sum(given)).tolist() for given in draws.lognormal(1, 1, (500, 5))]
    for part, labels, portion in ((0, train, 1), (1, test, 6)):
        wanted = [
            [int(share * size / portion) + 1 for share in mine]
            for size, mine in zip(sizes, shares, strict=True)
        ]
        made = fashion_mnist.paper(Rows(train), Rows(test))[part]
        assert [rows.tolist() for rows in made] == taken(labels, wanted)


def test_the_paper_wants_the_published_order():
    known = fashion_mnist.DATASET.partitions["paper"]
    rows = Rows(np.arange(60_000) % 10), Rows(np.arange(10_000) % 10)
    with pytest.raises(DataError, match="not in the published order"):
        allocate_tested(*rows, known, {}, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"clients": 400}, "has 500 clients, not 400"),
        ({"options": {"examples": 1000}}, "remove 'examples'"),
    ],
)
def test_the_paper_is_fixed(wrong, says):
    with pytest.raises(ConfigError, match=says):
        load("fashion_mnist", partition="paper", **wrong)


@pytest.fixture(scope="session")
def files():
    try:
        return fetch.fetch(*fashion_mnist.FILES)
    except FetchError as error:
        pytest.skip(f"Fashion-MNIST is neither cached nor available here: {error}")


@pytest.mark.slow
def test_facts(files):
    found = fashion_mnist.facts([file.path for file in files])
    check_facts("Fashion-MNIST", found)
    known = {fact.what: fact.found for fact in found}
    assert known["training images"] == 60_000
    assert known["test images of the rarest label"] == 1_000
    assert round(known["mean pixel"], 4) == 0.2860
    assert round(known["pixels' deviation"], 4) == 0.3530
    first = images.read_idx(files[1].path)[:3]
    names = [fashion_mnist.ABOUT.labels[label] for label in first]
    assert names == ["Ankle boot", "T-shirt/top", "T-shirt/top"]  # the paper's first pictures


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_even_clients():
    made = load("fashion_mnist", clients=7, partition="iid")
    assert made.x.shape == (70_000, 1, 28, 28)
    sizes = made.sizes("test")
    assert int(sizes.max() - sizes.min()) == 1
    assert int(sizes.sum()) == 10_000
    assert len(set(made.labels)) == 10
    assert torch.bincount(made.y).tolist() == [7_000] * 10


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_clients_of_the_paper():
    """Sizes as the authors' script makes them: 122 +- 118 (31 to 1,378), test 22.5 (7 to 231)."""
    made = load("fashion_mnist", partition="paper", options={"validation": 0.0})
    train, test = made.sizes("train"), made.sizes("test")
    assert len(train) == 500
    assert (int(train.sum()), int(train.min()), int(train.max())) == (61_251, 31, 1_378)
    assert (int(test.sum()), int(test.min()), int(test.max())) == (11_254, 7, 231)
    for client in (0, 7, 499):
        first, last = made.ranges[client, 0].tolist()
        assert set(made.y[first:last].tolist()) == {(client + j) % 10 for j in range(5)}
    kept = load("fashion_mnist", seed=5, partition="paper", options={"validation": 0.1})
    assert torch.equal(kept.sizes("train") + kept.sizes("validation"), train)
    assert torch.equal(kept.sizes("test"), test)
