"""A small federation with two groups for methods that learn fronts, and a round of it in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from isonomy.algorithms.preference.hetpfl import HetPFL
from isonomy.algorithms.preference.praffl import PraFFL
from isonomy.blocks import preferences
from isonomy.core import random
from isonomy.core.algorithm import Algorithm
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.models.mlp import mlp

TASK = Task(lambda: mlp((3,), 2, hidden=(4,)), classes=2, levels=(2,), attributes=("z",))


PAPER = {
    "network": "paper",
    "fit": "own",
    "hypernet_rate": 0.0,
    "scalar": "logsumexp",
    "fairness": "squared",
    "share": 16 / 30,
    "weight": "equal",
}
"""The options of the papers and the authors' code, where our defaults differ."""


def paper_praffl(**options: Any) -> PraFFL:
    """PraFFL as in the authors' code."""
    return PraFFL(**{**PAPER, **options})


def paper_hetpfl(**options: Any) -> HetPFL:
    """HetPFL as in the paper, with FusionNet."""
    return HetPFL(**{**PAPER, "fusion": "net", **options})


def federation(sizes: tuple[int, ...] = (12, 7, 9), validation: int = 6) -> Federation:
    """Clients whose labels depend on x and whose second group has more positive labels."""
    rng = np.random.default_rng(0)
    xs, ys, zs = [], [], []
    parts: dict[Any, list[torch.Tensor]] = {"train": [], "validation": [], "test": []}
    at = 0
    for size in sizes:
        for split, n in (("train", size), ("validation", validation), ("test", 8)):
            x = rng.normal(size=(n, 3))
            y = (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(np.int64)
            z = (rng.random(n) < 0.3 + 0.4 * y).astype(np.int64)
            x[:, 2] = z
            xs.append(x)
            ys.append(y)
            zs.append(z)
            parts[split].append(torch.arange(at, at + n))
            at += n
    return build(
        torch.tensor(np.concatenate(xs)),
        torch.tensor(np.concatenate(ys)),
        torch.tensor(np.concatenate(zs))[:, None],
        parts,
        classes=2,
        attributes=(Attribute("z", ("0", "1")),),
        source="fronts",
    )


def played(
    algorithm: Algorithm,
    kind: type[Engine],
    data: Federation,
    work: Work,
    *,
    rounds: int = 1,
    finish: bool = False,
    ids: list[int] | None = None,
    wrap: tuple[Any, ...] = (),
) -> tuple[Any, Engine]:
    """The server's state and the engine after some rounds."""
    params = TASK.init(0)
    engine = kind(TASK, data, seed=3)
    engine.reset(algorithm.init_client(TASK, params))
    server = algorithm.init_server(TASK, params, len(data))
    chosen = engine.everyone() if ids is None else torch.tensor(ids)
    for r in range(rounds):
        server = algorithm.round(server, engine.cohort(chosen, work=work, round=r, wrap=wrap))
    if finish:
        cohort = engine.cohort(engine.everyone(), work=work, round=rounds, wrap=wrap)
        server = algorithm.finish(server, cohort)
    return server, engine


def rays_of(client: int, count: int, name: str = "preferences") -> np.ndarray:
    """The preferences that a client draws in round 0 with seed 3, as points of the simplex."""
    key = random.key(3, 0, client)
    inner = (1, count, 2, preferences.TRIES)
    drawn = preferences.Draws(
        random.normal(key, f"{name} normal", inner)[0],
        random.uniform(key, f"{name} uniform", inner)[0],
        random.uniform(key, f"{name} part", (1, count))[0],
    )
    return preferences.sample(preferences.start(1, 2, 1.0), drawn).double().numpy()


# --- the same in numpy, in double precision -------------------------------------------------------


def heads(
    flat: np.ndarray, lam: np.ndarray, d: int = 4, o: int = 2
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of the head that a hypernet generates."""
    width = max(4, d)
    made = d * d + d + o * d
    sizes = [width * len(lam), width, width * width, width, made * width, made]
    p = np.split(flat, np.cumsum(sizes)[:-1])
    hidden = np.maximum(p[0].reshape(width, -1) @ lam + p[1], 0)
    out = p[4].reshape(made, width) @ (p[2].reshape(width, width) @ hidden + p[3]) + p[5]
    second = out[d * d + d :].reshape(o, d)
    return second @ out[: d * d].reshape(d, d), second @ out[d * d : d * d + d]


def cross_entropy(out: np.ndarray, y: np.ndarray) -> float:
    """The mean loss."""
    out = out - out.max(1, keepdims=True)
    return float((np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]).mean())


def squared(out: np.ndarray, z: np.ndarray) -> float:
    """The squared dependence of outputs and group."""
    product = (z - z.mean())[:, None] * (out - out.mean(0))
    return float((product**2).mean(0).sum())


def gradient(f: Any, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """By central differences."""
    out = np.zeros_like(at)
    for i in range(len(at)):
        up, down = at.copy(), at.copy()
        up[i] += step
        down[i] -= step
        out[i] = (f(up) - f(down)) / (2 * step)
    return out
