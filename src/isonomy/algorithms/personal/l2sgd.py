"""L2SGD: in each round clients either train locally or move towards their mean, at random.

Hanzely and Richtarik, "Federated learning of a mixture of global and local models" (2020),
Algorithm 1 (L2GD; L2SGD with minibatches). The objective, multiplied by the number of clients:

    sum_k F_k(v_k) + (lam / 2) sum_k |v_k - mean of the v|^2

A round, where eta is the run's learning rate and the coin depends on the seed and the round:

    with probability 1 - p    v_k <- v_k - eta / (1 - p) grad F_k(v_k)
    with probability p        v_k <- v_k + (eta lam / p) (mean of the v - v_k)

In expectation the step is a gradient step on the objective. The paper tosses the coin for every
step and uses all clients: `local.steps = 1` and no `cohort.size`. With more local steps, one toss
decides for all of them; with a smaller cohort, the mean is over the cohort. All clients start from
the same model. lam = 0 is local training, at rate eta / (1 - p) in the rounds that train. No model
is sent in those rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.personal import check_pull
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class L2SGD(Algorithm[Global]):
    """Local steps or steps towards the mean, chosen at random."""

    name: ClassVar[str] = "l2sgd"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Hanzely and Richtarik, 2020"
    reveals: ClassVar[str] = "only the mean of the cohort's models, in the rounds that compute it"

    lam: float = option(
        1.0,
        "strength of the pull to the mean; 0 is local training",
        search=Range(0.01, 2.0, log=True),
    )
    p: float = option(0.1, "probability of a step towards the mean", search=Range(0.05, 0.5))

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        if not 0 < self.p < 1:
            raise ValueError(f"p = {self.p}: give a number above 0 and below 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """Every client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """One toss of the coin; the server keeps the last mean for new clients."""
        share = cohort.rate * self.lam / self.p
        if share >= 2:
            raise ConfigError(
                f"algorithm.lam = {self.lam:g} times the learning rate {cohort.rate:g} over "
                f"algorithm.p = {self.p:g} is 2 or more, so steps diverge; lower lam or raise p."
            )
        if float(cohort.uniform("coin")) >= self.p:
            cohort.sum(self.train, {})
            return server
        mean = cohort.mean(self.send, {}, weight="equal")["params"]
        cohort.sum(self.approach, {"params": mean, "share": torch.tensor(share)})
        return Global(mean)

    @phase("sum", trained="statistic")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on the client's loss, from its own model."""
        faster = replace(client, rate=client.rate / (1 - self.p))
        params = descend(task.loss, client.state["params"], faster)
        return {"trained": torch.ones(())}, {"params": params}

    @phase("mean", params=Part("model"))
    def send(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's own model, of which the server only sees the mean."""
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
        initial = replace(client, state={"params": message["model"].params})
        return {}, self.train(task, {}, initial)[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's own model."""
        return state["params"]
