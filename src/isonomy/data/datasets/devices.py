"""DEVICES: as many small clients as you like, for simulations of cross-device federations.

Client k has a size, a shift of its features, a share of group 1 and its own labelling rule near a
common one:

    P(size = n) ~ n^-2 for n from `smallest` to `largest`,    z ~ Bernoulli(p_k), p_k ~ U(0.2, 0.8)
    x = b_k + z u + N(0, I),  b_k ~ N(0, shift^2 I)
    P(y = 1) = sigmoid((w + a_k) x - 0.5 z),                  a_k ~ N(0, (spread^2 / d) I)

where w and u are common to all clients (u has length 1/2). A client's examples are drawn
independently, so its first 60 % are training examples, then come 20 % for validation and 20 % for
the test. Clients are drawn in blocks of 1,000, each with its own stream of random numbers: client k
is the same whatever the number of clients, and packing needs the memory of one block only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from isonomy.core.examples import Attribute
from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation
from isonomy.data.partition import Partition, generator
from isonomy.errors import ConfigError

BLOCK = 1000  # clients that share a stream of random numbers


def parts(request: Request) -> Iterator[Federation]:
    """Yield the clients, one block at a time."""
    options = request.options
    if options["smallest"] > options["largest"]:
        raise ConfigError(
            f"data set 'devices': smallest = {options['smallest']} is more than largest = "
            f"{options['largest']}; lower it."
        )
    for first in range(0, request.clients, BLOCK):
        yield _block(first // BLOCK, min(BLOCK, request.clients - first), request.seed, options)


def load(request: Request) -> Federation:
    """Draw all clients."""
    found = list(parts(request))
    rows = np.cumsum([0, *(part.x.shape[0] for part in found)])
    shifted = [part.ranges + int(at) for part, at in zip(found, rows[:-1], strict=True)]
    return _federation(
        torch.cat([part.x for part in found]),
        torch.cat([part.y for part in found]),
        torch.cat([part.groups for part in found]),
        torch.cat(shifted),
    )


def _block(number: int, clients: int, seed: int, options: Mapping[str, Any]) -> Federation:
    """Draw the first clients of a block."""
    d, low, high = options["features"], options["smallest"], options["largest"]
    common = generator("devices common", seed)
    rule = common.standard_normal(d) / np.sqrt(d)
    away = common.standard_normal(d)
    away /= 2 * np.linalg.norm(away)
    stream = generator("devices", [seed, number])
    u = stream.random(BLOCK)
    sizes = np.floor(1 / (1 / low - u * (1 / low - 1 / (high + 1)))).astype(np.int64)
    share = 0.2 + 0.6 * stream.random(BLOCK)
    shift = options["shift"] * stream.standard_normal((BLOCK, d), dtype=np.float32)
    own = rule + options["spread"] / np.sqrt(d) * stream.standard_normal((BLOCK, d))
    who = np.repeat(np.arange(clients), sizes[:clients])
    rows = len(who)
    z = (stream.random(int(sizes.sum()))[:rows] < share[who]).astype(np.int64)
    coin = stream.random(int(sizes.sum()))[:rows]
    x = stream.standard_normal((rows, d), dtype=np.float32)
    x += shift[who]
    x += z[:, None] * away.astype(np.float32)
    score = np.einsum("nd,nd->n", x, own.astype(np.float32)[who]) - 0.5 * z
    y = (coin < 1 / (1 + np.exp(-score.astype(np.float64)))).astype(np.int64)
    return _federation(
        torch.from_numpy(x),
        torch.from_numpy(y),
        torch.from_numpy(z)[:, None],
        torch.from_numpy(_ranges(sizes[:clients])),
    )


def _ranges(sizes: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the ranges of each client's splits: 60 %, 20 % and 20 %, at least one to train on."""
    held = sizes // 5
    each = np.stack([sizes - 2 * held, held, held], 1).reshape(-1)
    ends = np.cumsum(each)
    return np.stack([ends - each, ends], 1).reshape(-1, 3, 2)


def _federation(
    x: torch.Tensor, y: torch.Tensor, groups: torch.Tensor, ranges: torch.Tensor
) -> Federation:
    return Federation(
        x=x,
        y=y,
        groups=groups,
        ranges=ranges,
        classes=2,
        attributes=(Attribute("z", ("0", "1")),),
        labels=("0", "1"),
        features=tuple(f"x{i}" for i in range(x.shape[1])),
        source=DATASET.source,
    )


DATASET = Dataset(
    name="devices",
    description="any number of small clients of very different sizes, generated block by block",
    source="DEVICES (generated)",
    licence="generated",
    load=load,
    parts=parts,
    options={
        "features": Option(16, "number of features", ge=1),
        "smallest": Option(10, "examples of the smallest clients", ge=1),
        "largest": Option(1000, "examples of the largest clients", ge=1),
        "shift": Option(0.5, "standard deviation of the clients' mean features", ge=0),
        "spread": Option(0.5, "how much the clients' labelling rules differ", ge=0),
    },
    protected=("z",),
    clients=1000,
    partition={"name": "own"},
    partitions={"own": Partition("own", "every client is drawn on its own")},
)
