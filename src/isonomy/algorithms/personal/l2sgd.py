"""L2SGD: a coin decides whether clients train by themselves or move towards their mean.

Hanzely and Richtarik, "Federated learning of a mixture of global and local models" (2020),
Algorithm 1 (L2GD; L2SGD with minibatches). The objective, times the number of clients:

    sum_k F_k(v_k) + (lam / 2) sum_k |v_k - mean of the v|^2

A round, with eta the run's learning rate and a coin drawn by seed and round:

    with probability 1 - p    v_k <- v_k - eta / (1 - p) grad F_k(v_k)
    with probability p        v_k <- v_k + (eta lam / p) (mean of the v - v_k)

Both steps are gradients of the objective in expectation. The paper takes one step a coin and all
clients: `local.steps = 1` and no `cohort.size`. With more local steps a coin decides for all of
them, and with a cohort the mean is the cohort's. Clients start alike; lam = 0 is local training,
at eta / (1 - p) in the rounds that train. Nothing is sent in those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.personal import check_pull
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class L2SGD(Algorithm):
    """Local steps and steps towards the mean, by a coin."""

    name: ClassVar[str] = "l2sgd"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Hanzely and Richtarik, 2020"
    reveals: ClassVar[str] = "only the mean of the cohort's models, in the rounds that take it"

    lam: float = option(1.0, "strength of the pull to the mean; 0 is local training")
    p: float = option(0.1, "probability of a step towards the mean")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        if not 0 < self.p < 1:
            raise ValueError(f"p = {self.p}: give a number above 0 and below 1.")

    def init_client(self, task: Task, params: Params) -> State:
        """Every client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """One toss of the coin; the server keeps the last mean, for clients that are new."""
        share = cohort.rate * self.lam / self.p
        if share >= 2:
            raise ConfigError(
                f"algorithm.lam = {self.lam:g} times the learning rate {cohort.rate:g} over "
                f"p = {self.p:g} is 2 or more, where steps diverge; lower lam or raise p."
            )
        if float(cohort.uniform("coin")) >= self.p:
            cohort.sum(self.train, {})
            return server
        mean = cohort.mean(self.send, {}, weight="equal")
        cohort.sum(self.approach, {**mean, "share": torch.tensor(share)})
        return mean

    @phase("sum", trained="statistic")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on one's own loss."""
        sped = replace(client, rate=client.rate / (1 - self.p))
        params = descend(task.loss, client.state["params"], sped)
        return {"trained": torch.ones(())}, {"params": params}

    @phase("mean", params="model")
    def send(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """One's own model, of which the server sees the mean."""
        return {"params": client.state["params"]}, client.state

    @phase("sum", moved="statistic")
    def approach(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A step towards the mean."""
        mine = tree.tmap(
            lambda v, m: v + message["share"] * (m - v), client.state["params"], message["params"]
        )
        return {"moved": torch.ones(())}, {"params": mine}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains from the last mean."""
        begun = replace(client, state={"params": message["model"]["params"]})
        return {}, self.train(task, {}, begun)[1]

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """A client's own model."""
        return state["params"]
