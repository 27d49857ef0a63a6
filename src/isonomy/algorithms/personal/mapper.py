"""MAPPER: each client interpolates its own model and the common one, with a share that it chooses.

Mansour, Mohri, Ro and Suresh, "Three approaches for personalization with applications to
federated learning" (2020), section 5. For each of several shares s, a client trains its own part
of the mixture s v + (1 - s) w. It keeps the share with the smallest loss and then trains the common
part with this share, which the server averages:

    v_s <- descent on F_k(s v + (1 - s) w) in v,    s_k <- argmin_s F_k(s v_s + (1 - s) w)
    w_k <- descent on F_k(s_k v + (1 - s_k) w) in w,          w <- mean of the w_k

Weights are mixed, which for linear models is the same as mixing outputs. The share is chosen by
the loss on all training examples, as in the public code of Li et al. (2020);
`choose = "validation"` uses the client's validation split if it has one. With the only share 0 it
is FedAvg, with the only share 1 local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective, descend
from isonomy.blocks.measure import train_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class Mapper(Algorithm[Global]):
    """Interpolation of local and common models, the share chosen by each client."""

    name: ClassVar[str] = "mapper"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Mansour et al., 2020"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' common models; personal models are not sent"
    )

    shares: tuple[float, ...] = option(
        (0.25, 0.5, 0.75), "shares of the client's own model to choose from"
    )
    choose: Literal["train", "validation"] = option(
        "train", "examples whose loss chooses the share"
    )
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the common model")

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= s <= 1 for s in self.shares):
            raise ValueError(f"shares = {list(self.shares)}: give one or more numbers from 0 to 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """The client's own model, at first the common initial one, and the first share."""
        return {"params": params, "share": torch.tensor(float(self.shares[0]))}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Every client's own model and share, then the common model."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Both models, one after the other."""
        common = message["params"]
        state = self._personal(task, common, client.state["params"], client)
        own, share = state["params"], state["share"]

        def shared(params: Params, batch: Batch) -> Tensor:
            return task.loss(tree.mix(params, own, share), batch)

        return {"params": descend(shared, common, client)}, state

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its own model, from the common one."""
        model = message["model"].params
        return {}, self._personal(task, model, model, client)

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The mixture of the client's own model and the common one."""
        return tree.mix(deployed.params, state["params"], state["share"])

    def _personal(self, task: Task, common: Params, own: Params, client: Client) -> State:
        """The client's own model and share: the best of a descent with each share."""
        tries = [descend(_mixed(task, common, s), own, client) for s in self.shares]
        losses = torch.stack(
            [
                self._loss(task, tree.mix(common, v, s), client)
                for s, v in zip(self.shares, tries, strict=True)
            ]
        )
        best = torch.argmin(losses).reshape(1)
        params = tree.tmap(lambda t: t.index_select(0, best).squeeze(0), tree.stack(tries))
        share = torch.tensor(self.shares, dtype=torch.float32).index_select(0, best).squeeze(0)
        return {"params": params, "share": share}

    def _loss(self, task: Task, params: Params, client: Client) -> Tensor:
        """The loss that chooses the share."""
        loss = train_loss(task, params, client)
        if self.choose == "train":
            return loss
        return torch.where(client.sizes[1] > 0, task.loss(params, client.validation), loss)


def _mixed(task: Task, common: Params, share: float) -> Objective:
    """The loss of the mixture, as a function of the client's own model."""
    return lambda params, batch: task.loss(tree.mix(common, params, share), batch)
