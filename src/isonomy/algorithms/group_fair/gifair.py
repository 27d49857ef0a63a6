"""GIFAIR-FL: a penalty on the differences between groups' losses, as dynamic weights.

Yue, Nouiehed and Al Kontar, "GIFAIR-FL: a framework for group and individual fairness in
federated learning", INFORMS Journal on Data Science, 2023:

    min_w  sum_k p_k F_k(w) + lambda sum over pairs of groups |L_a(w) - L_b(w)|

Its gradient weights the mean loss L_z of group z by lambda r_z, r_z = sum over other groups b of
sign(L_z - L_b), so a round is FedAvg's with weights that depend on the losses at w. In the paper,
groups consist of clients. Here they are the groups of a protected attribute, whose examples are
spread over all clients: an example of group z has the weight 1 + lambda r_z n / m_z.
`groups = "clients"` is the paper's individual form: each client is a group with the weight n_k / n
+ lambda r_k.

No weight may be below 0, which bounds lambda by the smallest share of a group divided by the number
of other groups. `strength` is lambda as a fraction of this bound; 0 is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import cells, check_least, column, share, weighted_loss
from isonomy.blocks.measure import train_loss
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class GIFAIR(Algorithm[Global]):
    """A penalty on the differences between the losses of groups, or of clients."""

    name: ClassVar[str] = "gifair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Yue et al., 2023"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by group; with groups = "
        "'clients' each client's loss and size"
    )

    strength: float = option(
        0.5,
        "lambda, as a fraction of the largest value for which no weight is negative",
        search=Range(0.0, 1.0),
    )
    groups: Literal["attribute", "clients"] = option(
        "attribute", "the groups: those of a protected attribute, or each client"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a group with fewer examples")

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ValueError(f"strength = {self.strength}: give a number from 0 to 1.")
        check_least(self.least)

    @property
    def by_client(self) -> int:
        """How often clients are asked in a round for what only weights of clients need."""
        return int(self.groups == "clients")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The model."""
        if self.groups == "attribute":
            column(task, self.attribute, self.name)
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """FedAvg's round with weights from the losses at w."""
        params = server.params
        if self.groups == "clients":
            seen = cohort.gather(self.loss, {"params": params})
            own = seen.sizes.to(torch.float64)
            factor = self.factors(seen.value["loss"].to(torch.float64), own)
            if not bool((factor * own).sum() > 0):
                return server
            weight = seen.sizes * factor
            return Global(cohort.mean(self.plain, {"params": params}, weight=weight)["params"])
        sums = cohort.sum(self.measure, {"params": params})
        factor = self.factors(share(sums["loss"], sums["count"]), sums["count"])
        return Global(cohort.mean(self.train, {"params": params, "factor": factor})["params"])

    def factors(self, loss: Tensor, count: Tensor) -> Tensor:
        """1 + lambda r_z n / m_z; 1 for a group without examples."""
        known = count > 0
        pair = known.unsqueeze(0) & known.unsqueeze(1)
        sign = torch.sign(loss.unsqueeze(1) - loss.unsqueeze(0)) * pair
        others = max(int(known.sum()) - 1, 1)
        own = share(count, count.sum())
        bound = float(own[known].min()) / others if bool(known.any()) else 0.0
        return (1 + self.strength * bound * share(sign.sum(1), own)).clamp(min=0)

    @phase("sum", count="group statistic", loss="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and sums of losses by group."""
        at = column(task, self.attribute, self.name)
        sums = cells(task, message["params"], client, at, self.least, by_label=False)
        return {"count": sums.count[0], "loss": sums.loss[0]}, client.state

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on losses weighted by group."""
        at = column(task, self.attribute, self.name)
        objective = weighted_loss(task, message["factor"].unsqueeze(0), at)
        return {"params": descend(objective, message["params"], client)}, client.state

    @phase("gather", times="by_client", loss="statistic")
    def loss(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's mean loss."""
        return {"loss": train_loss(task, message["params"], client)}, client.state

    @phase("mean", times="by_client", params="model")
    def plain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training."""
        return {"params": descend(task.loss, message["params"], client)}, client.state
