"""GIFAIR-FL: the differences between groups' losses are penalised, which makes dynamic weights.

Yue, Nouiehed and Al Kontar, "GIFAIR-FL: a framework for group and individual fairness in
federated learning", INFORMS Journal on Data Science, 2023:

    min_w  sum_k p_k F_k(w) + lambda sum over pairs of groups |L_a(w) - L_b(w)|

Its gradient weighs the mean loss L_z of group z by lambda r_z, r_z = sum over other groups b of
sign(L_z - L_b), so a round is FedAvg's with other weights, from the losses at w. In the paper
groups are made of clients. Here they are the groups of a protected attribute, whose examples lie
with all clients: an example of group z weighs 1 + lambda r_z n / m_z. `groups = "clients"` is the
paper's individual form: each client is a group, of weight n_k / n + lambda r_k.

No weight may be below 0, which bounds lambda: by the smallest share of a group over the number of
others. `strength` is lambda as a share of this bound; 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import cells, column, least_cell, share, weighted
from isonomy.blocks.measure import train_loss
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class GIFAIR(Algorithm):
    """A penalty on the differences between the losses of groups, or of clients."""

    name: ClassVar[str] = "gifair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Yue et al., 2023"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by group; with groups = "
        "'clients' each client's loss and size"
    )

    strength: float = option(
        0.5, "lambda, as a share of the largest that keeps all weights at 0 or above"
    )
    groups: Literal["attribute", "clients"] = option(
        "attribute", "groups of examples, or each client"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a group's sums")

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength = {self.strength}: give a number from 0 to 1.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model."""
        if self.groups == "attribute":
            column(task, self.attribute, self.name)
        return {"params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Losses at w decide the weights of FedAvg's round."""
        params = server["params"]
        if self.groups == "clients":
            seen = cohort.gather(self.loss, {"params": params})
            own = seen.sizes.to(torch.float64)
            factor = self.factors(seen.value["loss"].to(torch.float64), own)
            if not bool((factor * own).sum() > 0):
                return server
            return cohort.mean(self.plain, {"params": params}, weight=seen.sizes * factor)
        got = cohort.sum(self.measure, {"params": params})
        factor = self.factors(share(got["loss"], got["count"]), got["count"])
        return cohort.mean(self.train, {"params": params, "factor": factor})

    def factors(self, loss: Tensor, count: Tensor) -> Tensor:
        """1 + lambda r_z n / m_z; 1 for a group without examples."""
        told = count > 0
        pair = told.unsqueeze(0) & told.unsqueeze(1)
        ahead = torch.sign(loss.unsqueeze(1) - loss.unsqueeze(0)) * pair
        others = max(int(told.sum()) - 1, 1)
        own = share(count, count.sum())
        bound = float(own[told].min()) / others if bool(told.any()) else 0.0
        return (1 + self.strength * bound * share(ahead.sum(1), own)).clamp(min=0)

    @phase("sum", count="group statistic", loss="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and sums of losses by group."""
        at = column(task, self.attribute, self.name)
        got = cells(task, message["params"], client, at, self.least, by_label=False)
        return {"count": got.count[0], "loss": got.loss[0]}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on losses weighted by group."""
        at = column(task, self.attribute, self.name)
        objective = weighted(task, message["factor"].unsqueeze(0), at)
        return {"params": descend(objective, message["params"], client)}, client.state

    @phase("gather", loss="statistic")
    def loss(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's mean loss."""
        return {"loss": train_loss(task, message["params"], client)}, client.state

    @phase("mean", params="model")
    def plain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state
