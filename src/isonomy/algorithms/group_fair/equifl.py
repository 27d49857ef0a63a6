"""EquiFL: each client trains with a fairness penalty and shares only a part of its model.

Makhija, Han, Ho and Ghosh, "Achieving fairness across local and global models in federated
learning", 2024, as a later comparison of fair methods runs it:

    v_k <- local descent on  loss + penalty * F,    F = sum over groups z of |cov(1[z_i = z], h)|
    shared part of every v_k <- mean of the clients', by size;   the rest stays with its client

where h is the positive probability and the covariance is that of a batch. As in that comparison,
only the weights of the first layer are shared by default. Its code squares each product before the
mean, mean_i ((z_i - mean z) (o_i - mean o))^2, summed over the model's outputs o; this is `form =
"product"`, which uses the group's number as it is. We could not read the method's original paper.
penalty = 0 with `shared = "all"` is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import column, margin, member, require_binary
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class EquiFL(Algorithm[Global]):
    """A local fairness penalty and a partly shared model."""

    name: ClassVar[str] = "equifl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Makhija et al., 2024"
    reveals: ClassVar[str] = "the weighted sum of the shared part of the models, and client sizes"

    penalty: float = option(
        2.0, "strength of the fairness penalty", search=Range(0.1, 20.0, log=True)
    )
    shared: Literal["first_weight", "first_layer", "all"] = option(
        "first_weight", "part of the model that is averaged"
    )
    form: Literal["covariance", "product"] = option("covariance", "formula of the penalty")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty = {self.penalty}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The model; only its shared part changes."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """The client's own part of the model."""
        return {name: params[name] for name in self._own(params)}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """FedAvg on the shared part."""
        params = server.params
        part = {name: params[name] for name in params if name not in self._own(params)}
        return Global({**params, **cohort.mean(self.train, {"params": part})["params"]})

    @phase("mean", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on the penalised loss; the client's own part is not sent."""
        part = message["params"]
        whole = {**part, **client.state}
        order = {name: whole[name] for name, _ in task.net.named_parameters()}
        params = descend(lambda p, batch: self.objective(task, p, batch), order, client)
        sent = {name: params[name] for name in part}
        return {"params": sent}, {name: params[name] for name in client.state}

    def objective(self, task: Task, params: Params, batch: Batch) -> Tensor:
        """The batch's mean loss plus the penalty."""
        outputs = task.outputs(params, batch.x)
        count = batch.weight.sum().clamp(min=1)
        loss = (task.each_loss(outputs, batch.y) * batch.weight).sum() / count
        at = column(task, self.attribute, self.name)
        if self.form == "covariance":
            scores = torch.sigmoid(margin(task, outputs)).unsqueeze(-1)
            groups = member(task, batch, at, by_label=False)[:, 0]
        else:
            scores = outputs
            groups = batch.groups[:, at].clamp(min=0).to(outputs.dtype).unsqueeze(-1)
        real = batch.weight.unsqueeze(-1)
        group = groups - (groups * real).sum(0) / count
        score = scores - (scores * real).sum(0) / count
        products = group.unsqueeze(-1) * score.unsqueeze(-2) * real.unsqueeze(-1)
        if self.form == "covariance":
            return loss + self.penalty * (products.sum(0) / count).abs().sum()
        return loss + self.penalty * (products.square().sum(0) / count).sum()

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains from the server's model, the shared part and the initial rest."""
        params = message["model"].params
        new = descend(lambda p, batch: self.objective(task, p, batch), params, client)
        return {}, {name: new[name] for name in client.state}

    def personal(self, deployed: Global) -> bool:
        """Every client has its own model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The latest shared part together with the client's own part."""
        return {**deployed.params, **state}

    def _own(self, params: Params) -> tuple[str, ...]:
        """The names of the parameters that stay with a client."""
        names = list(params)
        shared = {"first_weight": names[:1], "all": names}.get(self.shared)
        if shared is None:
            layer = names[0].rpartition(".")[0]
            shared = [n for n in names if n.rpartition(".")[0] == layer]
        return tuple(n for n in names if n not in shared)
