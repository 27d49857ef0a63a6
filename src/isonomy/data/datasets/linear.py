"""LINEAR: linear regression of FOCUS, in which some clients have other parameters than the rest.

Chu et al., "FOCUS: Fairness via Agent-Awareness for Federated Learning on Heterogeneous Data",
section 5.2: client e draws x ~ N(0, I_d) and y = mu_e'x + noise, noise ~ N(0, sigma^2). Most
clients' mu_e are within r of mu*; those of outliers within r of a point at distance R from mu*.

The paper gives E = 10, one outlier, r = 0.01 and R = 1. Its average loss of 0.010 implies sigma =
0.1; d and the number of examples are our choice. In each of the two clusters the deviations add up
to zero and the largest is exactly r (zero in a cluster of one), so mu* is the mean of the normal
clients, as the paper's theorem on FAA requires. The loss is squared error, with no factor 1/2.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import Split
from isonomy.core.options import Option
from isonomy.data.dataset import Dataset, Request
from isonomy.data.federation import Federation, build
from isonomy.data.partition import Partition, generator
from isonomy.errors import ConfigError

Reals = NDArray[np.float64]


def parameters(
    clients: int = 10,
    seed: int = 0,
    *,
    d: int = 10,
    R: float = 1.0,
    r: float = 0.01,
    outliers: int = 1,
    norm: float = 1.0,
) -> Tensor:
    """Return the true mu_e [clients, d] that `load` draws with these options; outliers last.

    >>> mu = parameters(10, r=0.0)
    >>> float((mu[9] - mu[:9].mean(0)).norm().round(decimals=12))
    1.0
    """
    rng = generator("linear mu", seed)
    centre = norm * _direction(rng, d)
    other = centre + R * _direction(rng, d)
    normals = centre + _deviations(rng, clients - outliers, d, r)
    return torch.from_numpy(np.concatenate([normals, other + _deviations(rng, outliers, d, r)]))


def _direction(rng: np.random.Generator, d: int) -> Reals:
    v = rng.standard_normal(d)
    out: Reals = v / np.linalg.norm(v)
    return out


def _deviations(rng: np.random.Generator, count: int, d: int, r: float) -> Reals:
    """Return vectors [count, d] with mean zero, the longest of length r."""
    out: Reals = rng.standard_normal((count, d))
    if count < 2:
        return np.zeros((count, d))
    out = out - out.mean(0)
    out *= r / np.linalg.norm(out, axis=1).max()
    return out


def load(request: Request) -> Federation:
    """Draw the examples of every client."""
    options, clients = request.options, request.clients
    d, sigma, outliers = options["d"], options["sigma"], options["outliers"]
    counts: dict[Split, int] = {
        "train": options["n"],
        "validation": options["n_validation"],
        "test": options["n_test"],
    }
    for name, least in (("d", 1), ("n", 1), ("n_validation", 0), ("n_test", 0), ("outliers", 0)):
        if options[name] < least:
            raise ConfigError(
                f"data set 'linear': {name} is {options[name]}; set it to {least} or more."
            )
    for name in ("sigma", "R", "r", "norm"):
        if not 0 <= options[name] < float("inf"):
            raise ConfigError(f"data set 'linear': {name} is {options[name]}; set it to 0 or more.")
    if outliers >= clients:
        raise ConfigError(
            f"data set 'linear': {outliers} outliers among {clients} clients; at least one client "
            "must not be an outlier."
        )
    mu = parameters(
        clients,
        request.seed,
        **{name: options[name] for name in ("d", "R", "r", "outliers", "norm")},
    ).numpy()
    rng = generator("linear examples", request.seed)
    each = sum(counts.values())
    x = rng.standard_normal((clients, each, d))
    y = np.einsum("end,ed->en", x, mu) + sigma * rng.standard_normal((clients, each))
    parts: dict[Split, list[Tensor]] = {}
    at = 0
    for split, count in counts.items():
        parts[split] = [torch.arange(at, at + count) + e * each for e in range(clients)]
        at += count
    rows = clients * each
    return build(
        torch.from_numpy(x.reshape(rows, d)),
        torch.from_numpy(y.reshape(rows)).to(torch.float32),
        torch.zeros(rows, 0, dtype=torch.int64),
        parts,
        classes=0,
        names=tuple(f"client {e}" for e in range(clients - outliers))
        + tuple(f"outlier {e}" for e in range(clients - outliers, clients)),
        features=tuple(f"x{i}" for i in range(d)),
        clusters=(0,) * (clients - outliers) + (1,) * outliers,
        source=DATASET.source,
    )


DATASET = Dataset(
    name="linear",
    description="linear regression with a cluster of outlying clients (FOCUS)",
    source="LINEAR (Chu et al., FOCUS, section 5.2)",
    licence="generated",
    load=load,
    options={
        "d": Option(10, "number of features"),
        "n": Option(1_000, "training examples per client"),
        "n_validation": Option(100, "validation examples per client"),
        "n_test": Option(1_000, "test examples per client"),
        "sigma": Option(0.1, "standard deviation of the noise"),
        "R": Option(1.0, "distance of the outliers' centre from the normal clients' mean"),
        "r": Option(0.01, "largest distance of a client from its cluster's mean"),
        "outliers": Option(1, "number of clients that are outliers; they come last"),
        "norm": Option(1.0, "length of mu*, whose direction is random"),
    },
    protected=(),
    clients=10,
    partition={"name": "clusters"},
    partitions={
        "clusters": Partition("clusters", "every client draws its own examples"),
    },
)
