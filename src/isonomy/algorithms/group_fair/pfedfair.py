"""pFedFair: a common model trained for accuracy, and fair personal models that are pulled to it.

Lei, Gong, Dou and Farnia, "pFedFair: towards optimal group fairness-accuracy trade-off in
heterogeneous federated learning" (2025). Reconstructed: only the abstract and summaries were
available, and there is no public code. What they say fits

    min_w  sum_k p_k  min_{v_k}  F_k(v_k) + lam rho_k(v_k) + (gamma / 2) |v_k - w|^2

where rho_k measures how the predictions depend on the group, and fairness concerns only the
personal models v_k. Here w is FedAvg's model, trained on the plain loss, rho_k the largest
difference between groups' mean probabilities of class 1 in a batch, and after each step on
F_k + lam rho_k the pull to the round's w is applied exactly: v <- (v + eta gamma w) / (1 + eta
gamma). lam = 0 is FMTL (Ditto) with proximal pulls; a large gamma gives the common model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.func import grad

from isonomy.blocks.descent import along, start, step
from isonomy.blocks.groups import NOTION_OPTION, column, require_binary
from isonomy.blocks.personal import proximal_pull
from isonomy.blocks.soft_rates import soft_gap
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree


@dataclass(frozen=True)
class PFedFair(Algorithm[Global]):
    """Fair personal models that are pulled to a common one (reconstructed)."""

    name: ClassVar[str] = "pfedfair"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Lei et al., 2025 (reconstructed)"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' common models; personal models are not sent"
    )

    lam: float = option(
        0.5,
        "strength of fairness; 0 is FMTL with proximal pulls",
        search=Range(0.05, 5.0, log=True),
    )
    gamma: float = option(
        0.5, "strength of the pull to the common model", search=Range(0.05, 5.0, log=True)
    )
    notion: NotionCode = option("dp", NOTION_OPTION)
    weight: Literal["equal", "size"] = option("size", "a client's weight in the common model")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        for name in ("lam", "gamma"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """Every personal model starts from the common initial model."""
        return {"params": params}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """FedAvg for the common model; the personal models stay with the clients."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Both models, trained step by step on the same batches."""
        origin, own, work = message["params"], client.state["params"], client.work

        def one(carry: Tree, batch: Batch) -> Tree:
            (w, memory), second = carry
            new = step(work, client.rate, w, memory, grad(task.loss)(w, batch))
            return new, self._personal_step(task, client, second, origin, batch)

        carry = ((origin, start(work, origin)), (own, start(work, own)))
        (shared, _), (mine, _) = along(one, carry, client)
        return {"params": shared}, {"params": mine}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its personal model from the common one."""
        model = message["model"].params

        def one(carry: Tree, batch: Batch) -> Tree:
            return self._personal_step(task, client, carry, model, batch)

        return {}, {"params": along(one, (model, start(client.work, model)), client)[0]}

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """A client's personal model."""
        return state["params"]

    def _personal_step(
        self, task: Task, client: Client, carry: Tree, anchor: Params, batch: Batch
    ) -> Tree:
        """A step on the loss and the gap, then the pull to the common model."""
        v, memory = carry
        at, notion = column(task, self.attribute, self.name), NOTIONS[self.notion]

        def objective(params: Params) -> Tensor:
            outputs = task.outputs(params, batch.x)
            total = (task.each_loss(outputs, batch.y) * batch.weight).sum()
            loss = total / batch.weight.sum().clamp(min=1)
            return loss + self.lam * soft_gap(task, outputs, batch, at, notion)

        g = grad(objective)(v) if self.lam else grad(task.loss)(v, batch)
        new, memory = step(client.work, client.rate, v, memory, g)
        if self.gamma:
            new = proximal_pull(new, anchor, client.rate * self.gamma)
        return new, memory
