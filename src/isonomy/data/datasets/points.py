"""POINTS: federated point estimation, in which every client estimates its own point.

Li et al., "Federated Multi-Task Learning for Competing Constraints" (FMTL, later Ditto),
appendix B: client k's point is w_k = theta + N(0, tau^2 I_d), its examples are x_ki = w_k +
N(0, sigma^2 I_d), and it minimises f_k(w) = 1/2 |w - mean_i x_ki|^2, so its own estimate is the
mean of its examples. Of the K clients the last `adversaries` draw w_k with tau_a >= tau instead
of tau (section B.2). theta has no proper prior there and no result depends on it; here it is given.

As a regression: a point with d coordinates is d rows, row j with the j-th unit vector as features
and the j-th coordinate as target (in one dimension: feature 1, target the point). The model is
`linear` with `bias = false`, whose weights then are the estimate w, exactly; with an intercept
there would be two numbers for each coordinate. The mean squared error over a client's rows is

    F_k(w) = (2 / d) f_k(w) + a constant,

so the minimisers of F_k and of the mean of all F_k are the paper's, and what the paper calls
f_k + (lambda / 2) |w - w*|^2 is here F_k + (lambda / d) |w - w*|^2: a method that adds
(mu / 2) |w - w*|^2 solves the paper's problem with mu = 2 lambda / d.

With `n_test = 0` the only test example of a client is w_k itself, so that d times its test loss is
the paper's test error |w_k - w|^2. The paper gives no values; with ours, sigma = 1, tau = 0.2 and
n = 25, the best lambda is 1 (`isonomy.blocks.point_estimation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    clients: int = 20,
    seed: int = 0,
    *,
    d: int = 1,
    theta: float = 0.0,
    tau: float = 0.2,
    adversaries: int = 0,
    tau_a: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the true w_k [clients, d] and theta [d] that `load` draws with these options.

    Adversaries come last; the underlying draw of a client is the same whether it is one or not.

    >>> w, theta = parameters(4, tau=0.0, theta=3.0)
    >>> w[:, 0].tolist(), theta.tolist()
    ([3.0, 3.0, 3.0, 3.0], [3.0])
    """
    spread = np.full(clients, tau)
    spread[clients - adversaries :] = tau_a
    away = generator("points w", seed).standard_normal((clients, d))
    centre = np.full(d, theta)
    return torch.from_numpy(centre + spread[:, None] * away), torch.from_numpy(centre)


def load(request: Request) -> Federation:
    """Draw the point and the examples of every client."""
    options, clients = request.options, request.clients
    _check(options, clients)
    d = options["d"]
    names = ("d", "theta", "tau", "adversaries", "tau_a")
    w = parameters(clients, request.seed, **{name: options[name] for name in names})[0].numpy()
    counts: dict[Split, int] = {
        "train": options["n"],
        "validation": options["n_validation"],
        "test": options["n_test"] or 1,
    }
    each = sum(counts.values())
    noise = np.concatenate(
        [_noise(split, request.seed, clients, n, d) for split, n in counts.items()], 1
    )
    if not options["n_test"]:
        noise[:, -1] = 0.0
    points = w[:, None] + options["sigma"] * noise
    parts: dict[Split, list[Tensor]] = {}
    at = 0
    for split, count in counts.items():
        mine = torch.arange(at, at + count * d)
        parts[split] = [mine + k * each * d for k in range(clients)]
        at += count * d
    rows = clients * each * d
    benign = clients - options["adversaries"]
    return build(
        torch.eye(d).repeat(clients * each, 1),
        torch.from_numpy(points.reshape(rows)).to(torch.float32),
        torch.zeros(rows, 0, dtype=torch.int64),
        parts,
        classes=0,
        names=tuple(f"{'client' if k < benign else 'adversary'} {k}" for k in range(clients)),
        features=tuple(f"coordinate {j}" for j in range(d)) if d > 1 else ("one",),
        source=DATASET.source,
        notes=(
            'Use the model "linear" with bias = false: its weights are then the estimated point.',
        ),
    )


def _noise(split: Split, seed: int, clients: int, count: int, d: int) -> Reals:
    """Draw each split separately, so that more test points do not change the training points."""
    return generator(f"points {split}", seed).standard_normal((clients, count, d))


def _check(options: Mapping[str, Any], clients: int) -> None:
    where = "data set 'points'"
    for name, least in (("d", 1), ("n", 1), ("n_validation", 0), ("n_test", 0), ("adversaries", 0)):
        if options[name] < least:
            raise ConfigError(f"{where}: {name} is {options[name]}; set it to {least} or more.")
    for name in ("sigma", "tau", "tau_a"):
        if not 0 <= options[name] < math.inf:
            raise ConfigError(f"{where}: {name} is {options[name]}; set it to 0 or more.")
    if not math.isfinite(options["theta"]):
        raise ConfigError(f"{where}: theta is {options['theta']}; set it to a finite number.")
    if options["adversaries"] >= clients:
        raise ConfigError(
            f"{where}: {options['adversaries']} adversaries among {clients} clients; at "
            "least one client must not be an adversary."
        )
    if options["adversaries"] and options["tau_a"] < options["tau"]:
        raise ConfigError(
            f"{where}: tau_a is {options['tau_a']}, below tau, {options['tau']}; set "
            "it to tau or more."
        )


DATASET = Dataset(
    name="points",
    description="every client estimates its own point, all near a common one (FMTL, Ditto)",
    source="POINTS (Li et al., FMTL, appendix B)",
    licence="generated",
    load=load,
    options={
        "d": Option(1, "coordinates of a point; each is a row"),
        "n": Option(25, "training points per client"),
        "n_validation": Option(5, "validation points per client"),
        "n_test": Option(0, "test points per client; 0: w_k itself, once"),
        "theta": Option(0.0, "every coordinate of the common point"),
        "sigma": Option(1.0, "standard deviation of a client's points around w_k"),
        "tau": Option(0.2, "standard deviation of the w_k around theta"),
        "adversaries": Option(0, "number of clients that are adversaries; they come last"),
        "tau_a": Option(1.0, "standard deviation of the adversaries' w_k around theta"),
    },
    protected=(),
    clients=20,
    partition={"name": "own"},
    partitions={"own": Partition("own", "every client draws its own points")},
)
