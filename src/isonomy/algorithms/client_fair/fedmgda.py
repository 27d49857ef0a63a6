"""FedMGDA+: a common descent direction, the shortest convex combination of normalised updates.

Hu, Shaloudegi, Zhang and Yu, "Federated learning meets multi-objective optimization", IEEE TNSE
2022, Algorithm 1. With w_k client k's model after local descent from w:

    g_k = (w - w_k) / |w - w_k|
    lambda = argmin |sum_k lambda_k g_k|^2  over the simplex with |lambda_k - lambda0_k| <= epsilon
    w <- w - eta sum_k lambda_k g_k

The shortest vector of the convex hull has a non-negative inner product with every g_k, so with
epsilon = 1 the step opposes no client's direction; epsilon = 0 gives lambda0 (equal, or by size).
The norm of a step is at most eta, whatever the local learning rate is: choose eta for the model,
and let it shrink by `decay` from round to round. `normalise = false` keeps the lengths of the
updates; with epsilon = 0 and eta = 1 that is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.simplex import min_norm
from isonomy.blocks.vectors import gram, rows
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedMGDA(Algorithm[Global]):
    """Multiple gradient descent over clients."""

    name: ClassVar[str] = "fedmgda"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Hu et al., IEEE TNSE 2022"
    reveals: ClassVar[str] = "each client's model"

    epsilon: float = option(
        0.1,
        "how far a weight may move from lambda0; 0: not at all, 1: anywhere",
        search=Grid((0.1, 0.5, 1.0)),
    )
    eta: float = option(
        1.0,
        "the server's step size: the length of a step if all updates agree",
        search=Range(0.1, 3.0, log=True),
    )
    decay: float = option(1.0, "factor of eta from one round to the next")
    normalise: bool = option(True, "whether updates are scaled to length 1")
    weight: Literal["equal", "size"] = option("equal", "lambda0: equal weights, or by size")

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon = {self.epsilon}: give a number from 0 to 1.")
        if not 0 < self.eta < math.inf:
            raise ValueError(f"eta = {self.eta}: give a number above 0.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay = {self.decay}: give a number above 0, at most 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1."""
        params = server.params
        replies = cohort.gather(self.local, {"params": params})
        moves = tree.tmap(lambda new, old: new - old, replies.value["params"], params)
        products = gram(rows(moves))
        lengths = products.diagonal().sqrt()
        scale = torch.where(lengths > 0, 1 / lengths, 0.0) if self.normalise else None
        if scale is not None:
            products = scale[:, None] * products * scale
        start = (
            replies.sizes if self.weight == "size" else torch.ones_like(replies.sizes)
        ).double()
        lam = min_norm(products, start / start.sum(), self.epsilon)
        eta = self.eta * self.decay**cohort.round
        step = tree.weighted_sum(moves, eta * (lam if scale is None else lam * scale))
        return Global(tree.add(params, step))

    @phase("gather", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state
