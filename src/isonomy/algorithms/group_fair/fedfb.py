"""FedFB: learns weights of labels and groups that make the groups' rates equal.

Zeng, Chen and Lee, "Improving fairness via federated learning", 2021: FairBatch with sums over
clients. The objective gives the examples of label y and group z the mass lambda(y, z):

    w <- FedAvg's round on  sum over (y, z) of lambda(y, z) / m_z * (sum of its losses)

Then lambda is updated, with p_z = m_z / n the group's share, t the round and L_yz the sum of
losses:

    dp  F_z = (L_0z - L_1z) / m_z + P(y=1 | z) - (the same of group 0)
        lambda(0, z) += alpha / sqrt(t) F_z,  lambda(0, 0) -= alpha / sqrt(t) sum F_z,
        cut to [0, 2 p_z], lambda(1, z) = 2 p_z - lambda(0, z)
    eo  the same with F_z = the mean loss of label 1 in z minus that in group 0, applied to the
        groups' shares of label 1's mass (their sum stays 1)
    client  clients in place of groups: q_k += alpha / sqrt(t) (loss of k - mean of these losses)

lambda starts at p_z, which is FedAvg, and stays there with alpha = 0. Differences from a public
implementation: p_z is the share of group z (there, group 0's share is used for all groups),
P(y | z) is that of the totals and enters once (there, once for each client), and every client's
weight is used (there, the first client's is lost). A client's weight is its size and its loss is
the mean over its examples, so that the sum above is what is minimised; the authors weight clients
by the weights of their examples, and use Adam. For `client` the paper subtracts one client's loss;
we subtract the mean, which treats all clients equally.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import fairbatch
from isonomy.blocks.descent import descend
from isonomy.blocks.groups import (
    NOTION_OPTION,
    cells,
    check_least,
    column,
    require_binary,
    weighted_loss,
)
from isonomy.blocks.measure import train_loss
from isonomy.blocks.simplex import project
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """The model, and the weights of cells [2, groups] or of clients [clients].

    Weights are stored as ratios to those of the plain mean.
    """

    params: Params
    ratio: Tensor


@dataclass(frozen=True)
class FedFB(Algorithm[Server]):
    """FairBatch for federations: learnt weights of labels and groups, or of clients."""

    name: ClassVar[str] = "fedfb"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Zeng et al., 2021"
    reveals: ClassVar[str] = (
        "sums over all clients of models and of counts and losses by label and group; with "
        "fairness = 'client' each client's loss"
    )

    alpha: float = option(
        0.3, "step size of the weights; 0 is FedAvg", search=Range(0.001, 2.0, log=True)
    )
    fairness: Literal[NotionCode, "client"] = option("dp", f"{NOTION_OPTION}, or client parity")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")
    least: int = option(0, "a client withholds the sums of a cell with fewer examples")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")
        check_least(self.least)

    @property
    def by_client(self) -> int:
        """How often clients are asked in a round for what only weights of clients need."""
        return int(self.fairness == "client")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model, and ratios of 1."""
        if self.fairness == "client":
            return Server(params, torch.ones(clients, dtype=torch.float64))
        require_binary(task, self.name)
        at = column(task, self.attribute, self.name)
        return Server(params, fairbatch.start(task.levels[at]))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Train with the weights, measure, update the weights."""
        params, ratio = server
        step = self.alpha / math.sqrt(cohort.round + 1)
        if self.fairness == "client":
            weight = cohort.sizes * ratio[cohort.ids]
            params = cohort.mean(self.plain, {"params": params}, weight=weight)["params"]
            got = cohort.gather(self.loss, {"params": params})
            loss = got.value["loss"].to(torch.float64)
            own = got.sizes / got.sizes.sum()
            mass = (ratio[got.ids] * own).sum()
            moves = step * (loss - loss.mean()) / mass
            if bool((moves != 0).any()):
                new = project(ratio[got.ids] * own / mass + moves) * mass / own
                ratio = ratio.index_copy(0, got.ids, new)
            return Server(params, ratio)
        params = cohort.mean(self.train, {"params": params, "table": ratio})["params"]
        sums = cohort.sum(self.measure, {"params": params})["cells"]
        return Server(params, fairbatch.update(ratio, sums, step, NOTIONS[self.fairness]))

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the weighted losses."""
        at = column(task, self.attribute, self.name)
        objective = weighted_loss(task, message["table"], at)
        return {"params": descend(objective, message["params"], client)}, client.state

    @phase("sum", cells="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts and losses by label and group."""
        at = column(task, self.attribute, self.name)
        return {"cells": cells(task, message["params"], client, at, self.least)}, client.state

    @phase("mean", times="by_client", params="model")
    def plain(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Plain training; the server applies the client's weight."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("gather", times="by_client", loss="statistic")
    def loss(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's mean loss."""
        return {"loss": train_loss(task, message["params"], client)}, client.state
