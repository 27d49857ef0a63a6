"""APFL: every client uses a mixture of its own model and the common one.

Deng, Kamani and Mahdavi, "Adaptive personalized federated learning" (2020), Algorithm 1. With
the mixture m = alpha v_k + (1 - alpha) w_k, on the same batch:

    w_k <- w_k - eta grad F_k(w_k)
    v_k <- v_k - eta alpha grad F_k(m)                (the gradient in v of F_k at the mixture)
    w   <- mean of the w_k,       used: alpha v_k + (1 - alpha) w

alpha is fixed or, with `adaptive`, learnt by each client with one gradient step per round:
alpha <- alpha - eta <v_k - w_k, grad F_k(m)> on the round's first batch, clamped to [0, 1].
alpha = 0 is FedAvg, alpha = 1 local training. For a fixed w and alpha > 0, the best v_k makes the
mixture the client's own minimiser, so APFL equals local training in convex problems that are
solved to convergence, as Li et al. (2020) remark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch.func import grad

from isonomy.blocks.descent import along, start, step
from isonomy.blocks.measure import gradient
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree


@dataclass(frozen=True)
class APFL(Algorithm[Global]):
    """Adaptive mixtures of a client's own model and the common one."""

    name: ClassVar[str] = "apfl"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Deng et al., 2020"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' global models; personal models are not sent"
    )

    alpha: float = option(
        0.5,
        "share of the client's own model; 0 is FedAvg, 1 is local training",
        search=Grid((0.25, 0.5, 0.75)),
    )
    adaptive: bool = option(
        False,
        "whether each client learns its alpha, starting from this one",
        search=Grid((False, True)),
    )
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the common model")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha = {self.alpha}: give a number from 0 to 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """The client's own model, at first the common initial one, and its share."""
        return {"params": params, "alpha": torch.tensor(self.alpha)}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Both models, trained step by step on the same batches."""
        shared, state = self._trained(task, message["params"], client.state, client)
        return {"params": shared}, state

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its own model, from the common one."""
        model = message["model"].params
        initial = {"params": model, "alpha": client.state["alpha"]}
        return {}, self._trained(task, model, initial, client)[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The mixture of the client's own model and the common one."""
        return tree.mix(deployed.params, state["params"], state["alpha"])

    def _trained(
        self, task: Task, origin: Params, state: State, client: Client
    ) -> tuple[Params, State]:
        """The trained copy of the common model, and the client's new state."""
        own, alpha = state["params"], state["alpha"]
        work, rate = client.work, client.rate
        if self.adaptive:
            g = gradient(task, tree.mix(origin, own, alpha), client, "first")
            alpha = (alpha - rate * tree.dot(tree.sub(own, origin), g)).clamp(0, 1)

        def one(carry: Tree, batch: Batch) -> Tree:
            (w, first), (v, second) = carry
            at_mixture = grad(task.loss)(tree.mix(w, v, alpha), batch)
            new = step(work, rate, w, first, grad(task.loss)(w, batch))
            return new, step(work, rate, v, second, tree.scale(at_mixture, alpha))

        carry = ((origin, start(work, origin)), (own, start(work, own)))
        (shared, _), (personal, _) = along(one, carry, client)
        return shared, {"params": personal, "alpha": alpha}
