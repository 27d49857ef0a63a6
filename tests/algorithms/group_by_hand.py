"""Three small clients with groups, and what they compute, in numpy.

The model is a logit w x of one weight with the logistic loss. Client 2 has no example of group 1.
Clients take full-batch steps of rate 0.1 from w = 0.5.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop

ENGINES = [Loop, Batched]
RATE, START = 0.1, 0.5

X = [np.array([1.0, 2.0, -1.0, 0.5, -2.0]), np.array([-2.0, 1.0, 3.0]), np.array([1.5, -0.5])]
Y = [np.array([1, 0, 1, 0, 1]), np.array([0, 1, 0]), np.array([1, 0])]
TWO = [np.array([0, 1, 1, 0, 0]), np.array([0, 0, 1]), np.array([0, 0])]
THREE = [np.array([0, 1, 2, 0, 2]), np.array([2, 0, 1]), np.array([0, 2])]
SIZES = np.array([5.0, 3.0, 2.0])


def parts(groups: int) -> list[np.ndarray]:
    return TWO if groups == 2 else THREE


def world(groups: int = 2) -> tuple[Task, Federation]:
    """The task and the federation."""
    task = Task(
        lambda: nn.Linear(1, 1, bias=False),
        loss_name="logistic",
        classes=2,
        levels=(groups,),
        attributes=("kind",),
    )
    at = np.cumsum([0, *map(len, X)])
    federation = build(
        torch.tensor(np.concatenate(X), dtype=torch.float32).unsqueeze(-1),
        torch.tensor(np.concatenate(Y)),
        torch.tensor(np.concatenate(parts(groups))).unsqueeze(-1),
        {"train": [torch.arange(a, b) for a, b in pairwise(at)]},
        classes=2,
        attributes=(Attribute("kind", tuple("abc"[:groups])),),
    )
    return task, federation


def play(
    algorithm: Algorithm,
    kind: type[Engine],
    *,
    rounds: int = 1,
    groups: int = 2,
    ids: Any = (0, 1, 2),
    wrap: tuple[Any, ...] = (),
    steps: int = 1,
) -> tuple[Any, Engine]:
    """The server and the engine after some rounds."""
    task, federation = world(groups)
    params = {"weight": torch.tensor([[START]])}
    engine = kind(task, federation)
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, 3)
    work = Work(epochs=steps, batch=0, lr=RATE)
    for r in range(rounds):
        cohort = engine.cohort(torch.tensor(ids), work=work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    return server, engine


def overhearing(part: str, heard: list[float]) -> Any:
    """Middleware of the exchange that records a part of every reply that has it."""

    def wrap(exchange: Any) -> Any:
        def wrapped(ask: Any) -> Any:
            for chunk in exchange(ask):
                heard.extend(chunk.value[part].tolist() if part in chunk.value else [])
                yield chunk

        return wrapped

    return wrap


def weight_of(server: Any) -> float:
    return float(server.params["weight"])


# --- numpy ----------------------------------------------------------------------------------------


def sigmoid(t: Any) -> Any:
    return 1 / (1 + np.exp(-t))


def losses(w: float, k: int) -> np.ndarray:
    return np.log1p(np.exp(-(2 * Y[k] - 1) * w * X[k]))


def slopes(w: float, k: int) -> np.ndarray:
    sign = 2 * Y[k] - 1
    return -sign * X[k] * sigmoid(-sign * w * X[k])


def step(w: float, k: int, weight: Any = 1.0) -> float:
    """One local step on the mean of weighted losses."""
    return w - RATE * float((weight * slopes(w, k)).mean())


def by_size(values: Any, ids: Any = (0, 1, 2)) -> float:
    at = list(ids)
    return float((SIZES[at] * np.asarray(values)).sum() / SIZES[at].sum())


def sums(w: float, groups: int = 2, ids: Any = (0, 1, 2)) -> tuple[Any, Any, Any]:
    """Count, loss and positive predictions by label and group."""
    count, loss, positive = np.zeros((3, 2, groups))
    for k in ids:
        for i, (y, z) in enumerate(zip(Y[k], parts(groups)[k], strict=True)):
            count[y, z] += 1
            loss[y, z] += losses(w, k)[i]
            positive[y, z] += w * X[k][i] > 0
    return count, loss, positive


def people(seed: int, clients: int = 4, n: int = 60, classes: int = 2) -> tuple[Task, Federation]:
    """Random rows, labels and two attributes; nobody's features tell the group exactly."""
    draw = np.random.default_rng(seed)
    size = clients * n
    x = draw.normal(size=(size, 3))
    sex, age = draw.integers(0, 2, size), draw.integers(0, 3, size)
    x[:, 0] += 0.7 * sex
    score = x @ draw.normal(size=3) + 0.8 * sex + draw.normal(size=size) * 1.5
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    cut = np.sort(draw.choice(np.arange(5, size - 5), clients - 1, replace=False))
    parts = [torch.from_numpy(p) for p in np.split(np.arange(size), cut)]
    split = {"train": [p[: max(3, len(p) * 2 // 3)] for p in parts]}
    split["test"] = [p[max(3, len(p) * 2 // 3) :] for p in parts]
    made = build(
        torch.from_numpy(x).float(),
        torch.from_numpy(y),
        torch.from_numpy(np.stack([sex, age], 1)),
        split,  # type: ignore[arg-type]
        classes=classes,
        attributes=(Attribute("sex", ("f", "m")), Attribute("age", ("young", "old", "older"))),
        labels=tuple("abc"[:classes]),
    )
    outputs, loss = (1, "logistic") if classes == 2 else (classes, "cross_entropy")
    task = Task(
        lambda: nn.Linear(3, outputs),
        loss_name=loss,  # type: ignore[arg-type]
        classes=classes,
        levels=(2, 3),
        attributes=("sex", "age"),
    )
    return task, made


def train(
    algorithm: Any,
    task: Task,
    made: Federation,
    *,
    rounds: int,
    kind: type[Engine] = Loop,
    lr: float = 0.5,
    params: Any = None,
    wrap: Any = (),
) -> Any:
    """The server after some rounds and the end."""
    engine = kind(task, made)
    start = task.init(0) if params is None else params
    engine.reset(algorithm.init_client(task, start))
    server = algorithm.init_server(task, start, len(made))
    work = Work(steps=5, batch=0, lr=lr)
    for r in range(rounds):
        cohort = engine.cohort(engine.everyone(), work=work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    server = algorithm.finish(server, engine.cohort(engine.everyone(), work=work, round=rounds))
    if isinstance(algorithm, GivesVerdict):
        everyone = engine.cohort(engine.everyone(), work=work, round=rounds)
        server = algorithm.examine(server, everyone)
    return server


def gap_slope(w: float, k: int) -> float:
    """The derivative of |mean probability of group 0 - that of group 1|; 0 with one group."""
    chance, z = sigmoid(w * X[k]), TWO[k]
    if len(set(z)) < 2:
        return 0.0
    each = X[k] * chance * (1 - chance)
    difference = chance[z == 0].mean() - chance[z == 1].mean()
    return float(np.sign(difference) * (each[z == 0].mean() - each[z == 1].mean()))
