"""SYNTHETIC: two Gaussians and a group that depends on the same features as the label.

Zafar et al. (2017), as divided among clients by FedFB (Zeng et al., 2021) and HetPFL (Ye and Tang,
2025):

    y ~ Bernoulli(0.6)
    x | y=0 ~ N((-2, -2), [[10, 1], [1, 3]])        x | y=1 ~ N((2, 2), [[5, 1], [1, 5]])
    P(z=1 | x) = p(x' | y=1) / (p(x' | y=1) + p(x' | y=0)),   x' = x rotated by +45 degrees

Clients differ in their shares of each group: by default, for each z, shares over the clients
~ Dirichlet(beta). The features are x1, x2 and, as in those papers, z; nothing is scaled.

With `partition = "paper"` the examples, clients and order are those of the papers' public code:
its fixed seed (123), 3,500 training and 1,500 test examples, and one fixed table of shares
(z=1, z=0) per client. Clients get shuffled slices of each group, and the last tenth of a client's
rows are validation rows. The seed of the run has no effect then. `level` selects the table:
"default", or one of the four degrees of heterogeneity of HetPFL's second table, of which "0.1" and
"0.2" were softened by hand. With 10, 50, 100 or 300 clients the shares are those in comments of
that code.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import Attribute, Split
from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation, build
from isonomy.data.partition import PARTITIONS, Partition, Rows, allocate, generator
from isonomy.errors import ConfigError, unknown

Reals = NDArray[np.float64]
Examples = tuple[Reals, NDArray[np.int64], NDArray[np.int64]]  # x [n, 2], y [n], z [n]
Shares = tuple[tuple[float, float], ...]  # a client's share of the z=1 and of the z=0 examples

POSITIVE = 0.6
MEANS = np.array([[-2.0, -2.0], [2.0, 2.0]])
COVARIANCES = np.array([[[10.0, 1.0], [1.0, 3.0]], [[5.0, 1.0], [1.0, 5.0]]])

LEVELS: dict[str, Shares] = {
    "default": ((0.5, 0.2), (0.3, 0.4), (0.2, 0.4)),
    "0.1": ((0.474, 0.09), (0.09, 0.818), (0.436, 0.092)),
    "0.2": ((0.44, 0.17), (0.11, 0.67), (0.45, 0.16)),
    "5": ((0.49924409, 0.33939015), (0.27875569, 0.42313098), (0.22200021, 0.23747887)),
    "1000": ((0.33855557, 0.33149328), (0.32945964, 0.33188017), (0.33198478, 0.33662654)),
}


def _blocks(low: float, high: float, clients: int) -> Shares:
    """Return shares in three blocks of clients: one fifth even, two fifths low, two fifths high."""
    few, many = clients // 5, 2 * clients // 5
    ones = [1.0] * few + [low] * many + [high] * many
    zeros = [high] * many + [1.0] * few + [low] * many
    return tuple((a / clients, b / clients) for a, b in zip(ones, zeros, strict=True))


_TEN_ONES = (0.08, 0.1, 0.15, 0.15, 0.12, 0.12, 0.1, 0.05, 0.05, 0.08)
_TEN_ZEROS = (0.1, 0.12, 0.05, 0.05, 0.08, 0.1, 0.08, 0.15, 0.15, 0.12)
MORE: dict[int, tuple[int, int, Shares]] = {  # clients: training and test examples, shares
    10: (5_000, 2_000, tuple(zip(_TEN_ONES, _TEN_ZEROS, strict=True))),
    50: (15_000, 5_000, _blocks(0.5, 1.5, 50)),
    100: (20_000, 8_000, _blocks(0.4, 1.6, 100)),
    300: (25_000, 8_000, _blocks(0.5, 1.5, 300)),
}


def sample(count: int, rng: np.random.Generator) -> Examples:
    """Draw `count` examples from the distribution above."""
    y = (rng.random(count) < POSITIVE).astype(np.int64)
    x = _place(rng.standard_normal((count, 2)), y)
    z = (rng.random(count) < group_probability(x)).astype(np.int64)
    return x, y, z


def group_probability(x: Reals) -> Reals:
    """Return P(z=1 | x) [n]."""
    c, s = math.cos(math.pi / 4), math.sin(math.pi / 4)
    turned = x @ np.array([[c, s], [-s, c]])
    ones, zeros = _log_density(turned, 1), _log_density(turned, 0)
    return 1 / (1 + np.exp(np.clip(zeros - ones, -700, 700)))


def paper_sample(count: int) -> Examples:
    """Return the examples of the papers' code: all y first, then x and z of each example.

    It uses NumPy's legacy generator, whose stream is frozen, in the order in which `binomial` and
    `multivariate_normal` draw from it.
    """
    stream = np.random.RandomState(123)
    y = (stream.random_sample(count) <= POSITIVE).astype(np.int64)
    noise, coin = np.empty((count, 2)), np.empty(count)
    for i in range(count):
        noise[i] = stream.standard_normal(2)
        coin[i] = stream.random_sample()
    x = _place(noise, y)
    p = group_probability(x)
    # a binomial draw counts failures when p is above a half
    z = np.where(p <= 0.5, coin > 1 - p, coin <= p).astype(np.int64)
    return x, y, z


def paper_parts(z: NDArray[np.int64], train: int, shares: Shares) -> dict[Split, list[Tensor]]:
    """Return consecutive slices of each group, z=1 first; training lists are shuffled in turn."""
    shuffler = random.Random(123)
    parts: dict[Split, list[Tensor]] = {"train": [], "validation": [], "test": []}
    for mine in _slices(z[:train], shares):
        shuffler.shuffle(mine)
        keep = int(0.9 * len(mine))
        parts["train"].append(torch.tensor(mine[:keep], dtype=torch.int64))
        parts["validation"].append(torch.tensor(mine[keep:], dtype=torch.int64))
    for mine in _slices(z[train:], shares):
        parts["test"].append(train + torch.tensor(mine, dtype=torch.int64))
    return parts


def _slices(z: NDArray[np.int64], shares: Shares) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in shares]
    for column, value in enumerate((1, 0)):
        members = np.flatnonzero(z == value).tolist()
        total, start = 0.0, 0
        for k, share in enumerate(shares):
            total += share[column]
            stop = len(members) if k == len(shares) - 1 else int(total * len(members))
            out[k] += members[start:stop]
            start = stop
    return out


def _place(noise: Reals, y: NDArray[np.int64]) -> Reals:
    """Transform standard normal noise [n, 2] to the Gaussian of its class."""
    factors = np.stack([_factor(covariance) for covariance in COVARIANCES])
    out: Reals = MEANS[y] + np.einsum("ni,nij->nj", noise, factors[y])
    return out


def _factor(covariance: Reals) -> Reals:
    """Return A with A'A = covariance, by eigenvectors, largest first, with fixed signs.

    The signs are those of NumPy's `multivariate_normal`, which depend on its linear algebra
    library; they are fixed here so that every machine draws the same.
    """
    values, vectors = np.linalg.eigh(covariance)
    rows = vectors.T[::-1]
    rows = rows * -np.sign(rows[:, :1])
    out: Reals = np.sqrt(values[::-1])[:, None] * rows
    return out


def _log_density(x: Reals, label: int) -> Reals:
    away = x - MEANS[label]
    precision = np.linalg.inv(COVARIANCES[label])
    size = np.log(np.linalg.det(COVARIANCES[label]))
    out: Reals = -0.5 * (np.einsum("ni,ij,nj->n", away, precision, away) + size)
    return out


def load(request: Request) -> Federation:
    """Draw the examples and assign them to clients."""
    paper = request.partition.name == "paper"
    x, y, z, parts, names = (_paper if paper else _drawn)(request)
    columns = np.column_stack([x, z]) if request.options["keep_protected"] else x
    return build(
        torch.from_numpy(columns),
        torch.from_numpy(y),
        torch.from_numpy(z)[:, None],
        parts,
        classes=2,
        attributes=(Attribute("z", ("0", "1")),),
        names=names,
        labels=("0", "1"),
        features=("x1", "x2", "z") if request.options["keep_protected"] else ("x1", "x2"),
        source=DATASET.source,
        notes=("The examples and clients are those of the papers; the seed has no effect.",)
        if paper
        else (),
    )


def _drawn(request: Request) -> tuple[Any, ...]:
    count = request.options["examples"]
    if count < 1:
        raise ConfigError(f"data set 'synthetic': examples is {count}; set it to 1 or more.")
    x, y, z = sample(count, generator("synthetic", request.seed))
    parts, names = allocate(
        Rows(y, z),
        request.partition,
        request.partition_options,
        request.clients,
        request.seed,
        request.options["fractions"],
    )
    return x, y, z, parts, names


def _paper(request: Request) -> tuple[Any, ...]:
    level, clients = request.partition_options["level"], request.clients
    if level not in LEVELS:
        raise ConfigError(unknown("level of partition 'paper'", level, LEVELS))
    if clients == 3:
        train, test, shares = 3_500, 1_500, LEVELS[level]
    elif clients in MORE and level == "default":
        train, test, shares = MORE[clients]
    else:
        raise ConfigError(
            f"partition 'paper' is not defined for {clients} clients at level '{level}'; use 3, or "
            "10, 50, 100 or 300 at level 'default', or the partition 'dirichlet'."
        )
    for name in ("examples", "fractions"):
        if request.options[name] != DATASET.options[name].default:
            raise ConfigError(f"partition 'paper' has fixed examples; remove '{name}'.")
    x, y, z = paper_sample(train + test)
    names = tuple(f"client {k}" for k in range(clients))
    return x, y, z, paper_parts(z, train, shares), names


DATASET = Dataset(
    name="synthetic",
    description="two Gaussian classes and a group correlated with them (FedFB, HetPFL)",
    source="SYNTHETIC (Zafar et al., 2017; Zeng et al., 2021)",
    licence="generated",
    load=load,
    options={
        "examples": Option(5_000, "number of examples"),
        "keep_protected": Option(True, "whether to use z as a feature, as in the papers"),
        "fractions": Option(
            (0.63, 0.07, 0.3), "shares of a client's rows for train, validation and test"
        ),
    },
    protected=("z",),
    clients=3,
    partition={"name": "dirichlet", "by": "group", "beta": 0.5},
    partitions={
        **PARTITIONS,
        "paper": Partition(
            "paper",
            "the fixed examples and clients of FedFB's and HetPFL's code",
            {"level": Option("default", f"the table of shares: {', '.join(LEVELS)}")},
        ),
    },
)
