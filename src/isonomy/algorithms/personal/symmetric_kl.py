"""Symmetrised KL: fine-tuning held near the global model's predictions instead of its weights.

A comparator of Li et al. (2020) and its public code: after FedAvg's w*, each client descends from
w* on

    F_k(v) + lam mean over its examples of [KL(p_v || p_w*) + KL(p_w* || p_v)]

with p the predicted probabilities of the classes (softmax, or one probability under the logistic
loss). The sum of both is sum_c (p_v - p_w*)_c (log p_v - log p_w*)_c. The public code takes its
gradient over all training examples in every step; here it is of the step's batch, the same in
expectation. lam = 0 is plain fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from isonomy.blocks.descent import Objective, descend
from isonomy.blocks.personal import check_pull, check_tuning, served, tuned, tuning, untuned
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class SymmetricKL(Algorithm):
    """Federated averaging, then fine-tuning with a pull to the global model's predictions."""

    name: ClassVar[str] = "symmetric_kl"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Li et al., 2020; Yu et al., 2020"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models; no personal one"

    lam: float = option(1.0, "strength of the pull; 0 is plain fine-tuning")
    epochs: int = option(30, "passes over a client's examples in the last stage")
    steps: int | None = option(None, "steps of the last stage, instead of epochs")
    lr: float | None = option(None, "its learning rate; the run's if unset")
    weight: Literal["equal", "size"] = option("equal", "a client's say in the global model")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        check_tuning(self)

    def init_server(self, task: Task, params: Params, clients: int) -> Tree:
        """The model; refuses a loss without probabilities."""
        if task.loss_name not in ("cross_entropy", "logistic"):
            raise ConfigError(
                f"algorithm 'symmetric_kl' needs predicted probabilities, which the loss "
                f"'{task.loss_name}' has none of; use a model with cross_entropy or logistic."
            )
        return {"params": params}

    def init_client(self, task: Task, params: Params) -> State:
        """No model of its own yet."""
        return untuned(params)

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Federated averaging."""
        return cohort.mean(self.local, {"params": server["params"]}, weight=self.weight)

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """The last stage; models stay where they are made."""
        work = tuning(cohort.work, self.epochs, self.steps, self.lr)
        cohort.sum(self.tune, {"params": server["params"]}, work=work)
        return server

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training of the common model."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("sum", tuned="statistic")
    def tune(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The regularised local problem, from the common model."""
        common = message["params"]
        params = descend(self._objective(task, common), common, client)
        return {"tuned": torch.ones(())}, tuned(params)

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client tunes the common model with the run's local work."""
        return {}, self.tune(task, message["model"], client)[1]

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """The client's own model, once it has one."""
        return served(state, server["params"])

    def _objective(self, task: Task, common: Params) -> Objective:
        if not self.lam:
            return task.loss

        def total(params: Params, batch: Batch) -> Tensor:
            mine, theirs = task.outputs(params, batch.x), task.outputs(common, batch.x)
            losses = task.each_loss(mine, batch.y) + self.lam * divergence(task, mine, theirs)
            return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

        return total


def divergence(task: Task, mine: Tensor, theirs: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) of the predictions of each example, from outputs."""
    if task.loss_name == "logistic":  # the logits are log p - log(1 - p)
        return ((mine.sigmoid() - theirs.sigmoid()) * (mine - theirs)).squeeze(-1)
    p, q = log_softmax(mine, -1), log_softmax(theirs, -1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)
