"""FASHION-MNIST: images of clothes in the format of MNIST, 28 by 28 grey pixels.

Xiao, Rasul and Vollgraf (2017), "Fashion-MNIST: a novel image dataset for benchmarking machine
learning algorithms", https://github.com/zalandoresearch/fashion-mnist. The official split is
kept: clients get the 60,000 training images, and each gets test images of the 10,000 in
proportion to its training images of every label.

The partition "paper" is the 500 clients of the public code of FMTL (Li, Hu, Beirami and Smith,
"Ditto"), with its fixed seed. Clients take the images of a label in the order of the files,
starting again when they are used up, so some images are at several clients; training and test
images stay separate.

Pixels are divided by 255; with `normalise` they are also standardised by mean 0.2860 and
deviation 0.3530. Debian's files contain the same images but not the file name that gzip stores,
so they are separate files in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isonomy.data import fedfb_preparation, images
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation
from isonomy.data.partition import Partition, Rows

_OFFICIAL = (  # SHA-256 and size of the files in images.IDX_NAMES
    ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
    ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
    ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
    ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
)
_DEBIAN = (
    ("b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7", 26_421_856),
    ("0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056", 29_491),
    ("cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa", 4_422_079),
    ("8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05", 5_125),
)
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES = (
    tuple(
        fetch.File(f"fashion-mnist-{name}", sha256, size, (fetch.Url(_ZALANDO + name),))
        for name, (sha256, size) in zip(images.IDX_NAMES, _OFFICIAL, strict=True)
    ),
    tuple(
        fetch.File(
            f"fashion-mnist-debian-{name}",
            sha256,
            size,
            (
                fetch.DebianPackage(
                    "dataset-fashion-mnist",
                    f"usr/share/datasets/fashion-mnist/{name}",
                    size=30_900_652,
                ),
            ),
        )
        for name, (sha256, size) in zip(images.IDX_NAMES, _DEBIAN, strict=True)
    ),
)
ABOUT = images.About(
    name="Fashion-MNIST",
    source="Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017)",
    labels=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    train=60_000,
    test=10_000,
    mean=(0.2860,),
    deviation=(0.3530,),
)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set; all labels are equally frequent."""
    found = images.parse_idx(paths)
    return [*images.facts(ABOUT, found), *images.balance(ABOUT, found)]


PAPER_CLIENTS = 500
PAPER_LABELS = 5  # a client's
_FREE = ("validation", "normalise", "pixelwise")  # they leave the clients as they are
ORDER = 8_087_216_427  # see fedfb_preparation.in_order


def paper(train: Rows, test: Rows) -> tuple[list[Tensor], list[Tensor]]:
    """Return the training rows and the test rows of FMTL's clients.

    Client k has the labels k to k + 4, modulo ten. Sizes are drawn as lognormal(3, 1) + 10,
    shares of labels as lognormal(1, 1), and there is one test image per six training images.
    """
    rng = np.random.RandomState(233)
    sizes = rng.lognormal(3, 1, PAPER_CLIENTS) + 10
    sizes = ABOUT.train * sizes / sizes.sum()
    many = len(ABOUT.labels)
    stocks = [[np.flatnonzero(rows.labels == j) for j in range(many)] for rows in (train, test)]
    used = np.zeros((2, many), dtype=np.int64)
    out: tuple[list[Tensor], list[Tensor]] = ([], [])
    for client, size in enumerate(sizes):
        shares = rng.lognormal(1, 1, PAPER_LABELS)
        shares = shares / shares.sum()
        for part, portion in enumerate((size, size / 6)):
            pieces = []
            for step, count in enumerate((shares * portion).astype(np.int64) + 1):
                label = (client + step) % many
                if used[part, label] + count > len(stocks[part][label]):
                    used[part, label] = 0
                first = used[part, label]
                pieces.append(stocks[part][label][first : first + count])
                used[part, label] += count
            out[part].append(torch.from_numpy(np.sort(np.concatenate(pieces))))
    return out


def _published(train: Rows, test: Rows) -> tuple[list[Tensor], list[Tensor]]:
    fedfb_preparation.in_order(ABOUT.name, train.labels.astype(np.float64), ORDER)
    return paper(train, test)


def load(request: Request) -> Federation:
    """Download and read the images, and assign them to clients."""
    fedfb_preparation.wanted(request, DATASET, PAPER_CLIENTS, free=("path", *_FREE))
    return images.obtain(ABOUT, FILES, images.IDX_NAMES, images.parse_idx, request)


DATASET = Dataset(
    name="fashion_mnist",
    description="70,000 images of ten kinds of clothes, 28 by 28 grey pixels",
    source=ABOUT.source,
    licence="MIT",
    load=load,
    options=images.OPTIONS,
    protected=(),
    clients=10,
    partition={"name": "dirichlet", "beta": 0.5},
    partitions=images.UNDERSTOOD
    | {
        "paper": Partition(
            "paper",
            "500 clients with five neighbouring labels each, as in FMTL's code",
            counts=True,
            tested=_published,
        )
    },
    files=FILES,
    facts=facts,
)
