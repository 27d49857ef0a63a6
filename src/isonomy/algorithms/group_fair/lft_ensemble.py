"""LFT+Ensemble: every client trains its own fair model; the prediction averages all models.

The baseline of Zeng, Chen and Lee, "Improving fairness via federated learning", 2021. Parameters
are not averaged:

    v_k <- local descent on  sum over (y, z) of lambda_k(y, z) / m_kz * (its losses),  from v_k
    lambda_k <- FairBatch's step of size alpha / sqrt(t), from v_k's losses on k's own examples
    P(y | x) = sum_k n_k / n P_k(y | x)

with t the number of rounds that client k took part in. Clients send their models in every round, so
that the ensemble can be measured at any time; the latest models are the result. A client that never
took part has no weight. (A public implementation measures the ensemble with a network that was
never trained.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import NOTION_OPTION, cells, column, require_binary, weighted_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.mixture import Mixture
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """Every client's model [clients, ...], and its weight [clients], 0 before it took part."""

    models: Params
    weight: Tensor


@dataclass(frozen=True)
class LFTEnsemble(Algorithm[Server]):
    """Local fair training, and the mean of all clients' probabilities."""

    name: ClassVar[str] = "lft_ensemble"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline)"
    reveals: ClassVar[str] = "each client's own model and size, to everyone who predicts"

    alpha: float = option(
        0.3, "step size of a client's weights", search=Range(0.001, 1.0, log=True)
    )
    notion: NotionCode = option("dp", NOTION_OPTION)
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model for every client, with weight 0."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        models = tree.tmap(lambda t: t.expand(clients, *t.shape).clone(), params)
        return Server(models, torch.zeros(clients, dtype=torch.float64))

    def init_client(self, task: Task, params: Params) -> State:
        """The client's model, its weights as ratios to the plain mean's, and its rounds so far."""
        ratio = fairbatch.start(task.levels[column(task, self.attribute, self.name)])
        return {"params": params, "ratio": ratio, "rounds": torch.zeros((), dtype=torch.float64)}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Every client trains alone; the server collects the models."""
        got = cohort.gather(self.train, {})
        new = got.value["params"]
        models = tree.tmap(lambda a, b: a.index_copy(0, got.ids, b), server.models, new)
        return Server(models, server.weight.index_copy(0, got.ids, got.sizes.double()))

    @phase("gather", params=Part("model"))
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """FairBatch on the client's own examples, from its own model."""
        at = column(task, self.attribute, self.name)
        ratio, rounds = client.state["ratio"], client.state["rounds"] + 1
        params = descend(weighted_loss(task, ratio, at), client.state["params"], client)
        sums = cells(task, params, client, at)
        step = self.alpha / rounds.sqrt()
        ratio = fairbatch.update(ratio, sums, step, NOTIONS[self.notion])
        return {"params": params}, {"params": params, "ratio": ratio, "rounds": rounds}

    def model(self, task: Task, deployed: Server, state: State) -> Mixture:
        """The mixture of all models by size, with equal shares before any was trained."""
        weight = deployed.weight
        weight = torch.where(weight.sum() > 0, weight, torch.ones_like(weight))
        return Mixture(deployed.models, weight / weight.sum())
