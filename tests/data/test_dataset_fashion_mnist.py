import pytest
import torch

from isonomy.data import fetch, images, load
from isonomy.data.dataset import insist
from isonomy.data.datasets import fashion_mnist
from isonomy.errors import DataError, FetchError


def refuse(*args):
    raise fetch._FailedError("no connection")


def test_without_a_network_and_without_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "_receive", refuse)
    with pytest.raises(FetchError, match="there is no apt-get on this machine") as error:
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


@pytest.fixture(scope="session")
def files():
    try:
        return fetch.fetch(*fashion_mnist.FILES)
    except FetchError as error:
        pytest.skip(f"Fashion-MNIST is neither cached nor to be had here: {error}")


@pytest.mark.slow
def test_facts(files):
    found = fashion_mnist.facts([file.path for file in files])
    insist("Fashion-MNIST", found)
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
