"""FASHION-MNIST: pictures of clothes in MNIST's form, 28 by 28 grey pixels.

Xiao, Rasul and Vollgraf (2017), "Fashion-MNIST: a novel image dataset for benchmarking machine
learning algorithms", https://github.com/zalandoresearch/fashion-mnist. The official division is
kept: clients share the 60,000 training images, and each gets test images of the 10,000 in
proportion to its training images of every label.

Pixels are divided by 255; with `normalise` they are also standardised by mean 0.2860 and
deviation 0.3530. Debian's files hold the same images; only the name that gzip wrote into each
file is missing, so they are files of their own in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isonomy.data import fetch, images
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.federation import Federation

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
    """What is true of the whole data set: also that every label is as frequent as another."""
    found = images.parse_idx(paths)
    return [*images.facts(ABOUT, found), *images.balance(ABOUT, found)]


def load(request: Request) -> Federation:
    """Fetch, read, give to clients."""
    return images.obtain(ABOUT, FILES, images.IDX_NAMES, images.parse_idx, request)


DATASET = Dataset(
    name="fashion_mnist",
    description="70,000 pictures of ten kinds of clothes, 28 by 28 grey pixels",
    source=ABOUT.source,
    licence="MIT",
    load=load,
    options=images.OPTIONS,
    protected=(),
    clients=10,
    partition={"name": "dirichlet", "beta": 0.5},
    partitions=images.UNDERSTOOD,
    files=FILES,
    facts=facts,
)
