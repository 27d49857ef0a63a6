"""FedFB: the weights of labels and groups are learnt so that groups come out alike.

Zeng, Chen and Lee, "Improving fairness via federated learning", 2021: FairBatch with sums over
clients. The objective gives the examples of label y and group z the mass lambda(y, z):

    w <- FedAvg's round on  sum over (y, z) of lambda(y, z) / m_z * (sum of its losses)

and then lambda moves, with p_z = m_z / n the group's share, t the round and L_yz the sum of
losses:

    dp  F_z = (L_0z - L_1z) / m_z + P(y=1 | z) - (the same of group 0)
        lambda(0, z) += alpha / sqrt(t) F_z,  lambda(0, 0) -= alpha / sqrt(t) sum F_z,
        cut to [0, 2 p_z], lambda(1, z) = 2 p_z - lambda(0, z)
    eo  the same with F_z = the mean loss of label 1 in z less that in group 0, on the shares that
        groups have in label 1's mass (the sum of which stays 1)
    client  clients in place of groups: q_k += alpha / sqrt(t) (loss of k - mean of these losses)

lambda starts at p_z, where all this is FedAvg; so it is with alpha = 0. Each p_z is the group's
own (a public version has group 0's share for all), P(y | z) is of the totals and enters once
(there: once for each client), and every client has its weight (there: the first one's is lost). A
client's say is its size and its loss the mean over its examples, so that the sum above is what is
minimised; the authors weigh clients by their examples' weights, with Adam. For `client` the
paper's difference is to one client's loss; a mean treats all alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import binary, cells, column, least_cell, weighted
from isonomy.blocks.measure import train_loss
from isonomy.blocks.simplex import project
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedFB(Algorithm):
    """FairBatch for federations: learnt weights of labels and groups, or of clients."""

    name: ClassVar[str] = "fedfb"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by label and group; with "
        "fairness = 'client' each client's loss"
    )

    alpha: float = option(0.3, "step size of the weights; 0 is FedAvg")
    fairness: Literal["dp", "eo", "client"] = option(
        "dp", "parity, equal opportunity, or client parity"
    )
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "examples below which a client withholds a cell's sums")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, and the weights as ratios to the plain mean's."""
        if self.fairness == "client":
            return {"params": params, "ratio": torch.ones(clients, dtype=torch.float64)}
        binary(task, self.name)
        at = column(task, self.attribute, self.name)
        return {"params": params, "ratio": fairbatch.start(task.levels[at])}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Train with the weights, measure, move the weights."""
        ratio = server["ratio"]
        step = self.alpha / math.sqrt(cohort.round + 1)
        if self.fairness == "client":
            say = cohort.sizes * ratio[cohort.ids]
            params = cohort.mean(self.plain, {"params": server["params"]}, weight=say)["params"]
            got = cohort.gather(self.loss, {"params": params})
            loss = got.value["loss"].to(torch.float64)
            own = got.sizes / got.sizes.sum()
            mass = (ratio[got.ids] * own).sum()
            moves = step * (loss - loss.mean()) / mass
            if bool((moves != 0).any()):
                new = project(ratio[got.ids] * own / mass + moves) * mass / own
                ratio = ratio.index_copy(0, got.ids, new)
            return {"params": params, "ratio": ratio}
        message = {"params": server["params"], "table": ratio}
        params = cohort.mean(self.train, message)["params"]
        got = cohort.sum(self.measure, {"params": params})["cells"]
        return {"params": params, "ratio": fairbatch.moved(ratio, got, step, self.fairness)}

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the weighted losses."""
        at = column(task, self.attribute, self.name)
        objective = weighted(task, message["table"], at)
        return {"params": descend(objective, message["params"], client)}, client.state

    @phase("sum", cells="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and losses by label and group."""
        at = column(task, self.attribute, self.name)
        return {"cells": cells(task, message["params"], client, at, self.least)}, client.state

    @phase("mean", params="model")
    def plain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training: the client's weight is the server's affair."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("gather", loss="statistic")
    def loss(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's mean loss."""
        return {"loss": train_loss(task, message["params"], client)}, client.state
