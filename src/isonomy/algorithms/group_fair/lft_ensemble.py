"""LFT+Ensemble: every client trains its own fair model; predictions are those of all models.

The baseline of Zeng, Chen and Lee, "Improving fairness via federated learning", 2021: no model is
averaged,

    v_k <- local descent on  sum over (y, z) of lambda_k(y, z) / m_kz * (its losses),  from v_k
    lambda_k <- FairBatch's step of size alpha / sqrt(t) by v_k's losses on the own examples
    P(y | x) = sum_k n_k / n P_k(y | x)

with t the client's own number of rounds. Clients send their models as they train, so that the
ensemble can be measured at any time; the last ones are the result. One that never took part has
no say. (A public version measures the ensemble by a network that was never trained.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import binary, cells, column, weighted
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.mixture import Mixture
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class LFTEnsemble(Algorithm):
    """Local fair training, and the mean of all clients' probabilities."""

    name: ClassVar[str] = "lft_ensemble"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021 (baseline)"
    reveals: ClassVar[str] = "each client's own model and size, to all who predict"

    alpha: float = option(0.3, "step size of a client's weights")
    notion: Literal["dp", "eo"] = option(
        "dp", "fair in what: demographic parity or equal opportunity"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """Every client's model and its say, 0 before it took part."""
        binary(task, self.name)
        column(task, self.attribute, self.name)
        models = tree.tmap(lambda t: t.expand(clients, *t.shape).clone(), params)
        return {"models": models, "say": torch.zeros(clients, dtype=torch.float64)}

    def init_client(self, task: Task, params: Params) -> State:
        """A client's model, its weights as ratios to the plain mean's, and its rounds so far."""
        ratio = fairbatch.start(task.levels[column(task, self.attribute, self.name)])
        return {"params": params, "ratio": ratio, "rounds": torch.zeros((), dtype=torch.float64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Everybody goes on alone; models are collected."""
        got = cohort.gather(self.train, {})
        new = got.value["params"]
        models = tree.tmap(lambda a, b: a.index_copy(0, got.ids, b), server["models"], new)
        return {"models": models, "say": server["say"].index_copy(0, got.ids, got.sizes.double())}

    @phase("gather", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """FairBatch on the client's own examples, from its own model."""
        at = column(task, self.attribute, self.name)
        ratio, rounds = client.state["ratio"], client.state["rounds"] + 1
        params = descend(weighted(task, ratio, at), client.state["params"], client)
        got = cells(task, params, client, at)
        ratio = fairbatch.moved(ratio, got, self.alpha / rounds.sqrt(), self.notion)
        return {"params": params}, {"params": params, "ratio": ratio, "rounds": rounds}

    def model(self, task: Task, server: Any, state: State) -> Mixture:
        """The mixture of all models, by size; before any has been trained, of equal shares."""
        say = server["say"]
        say = torch.where(say.sum() > 0, say, torch.ones_like(say))
        return Mixture(server["models"], say / say.sum())
