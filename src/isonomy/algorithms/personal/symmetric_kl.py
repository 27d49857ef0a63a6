"""Symmetric KL: fine-tuning with a pull to the global model's predictions, not its weights.

A baseline in Li et al. (2020) and its public code. After FedAvg's w*, each client descends from
w* on

    F_k(v) + lam mean over its examples of [KL(p_v || p_w*) + KL(p_w* || p_v)]

where p are the predicted class probabilities (softmax, or one probability under the logistic
loss). The sum of both terms is sum_c (p_v - p_w*)_c (log p_v - log p_w*)_c. The public code
computes its gradient over all training examples in every step; here it is over the step's batch,
which is the same in expectation. lam = 0 is plain fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from isonomy.blocks.descent import Objective, descend
from isonomy.blocks.personal import (
    check_pull,
    check_tuning,
    own_or_common,
    tuned,
    tuning_work,
    untuned,
)
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.work import Work
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class SymmetricKL(Algorithm[Global]):
    """Federated averaging, then fine-tuning with a pull to the global model's predictions."""

    name: ClassVar[str] = "symmetric_kl"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Li et al., 2020; Yu et al., 2020"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' models; personal models are not sent"
    )

    lam: float = option(
        1.0,
        "strength of the pull to the global model's predictions; 0 is plain fine-tuning",
        search=Range(0.01, 10.0, log=True),
    )
    epochs: int = option(
        30, "passes over a client's examples in the last stage", search=Grid((1, 5, 10, 30))
    )
    steps: int | None = option(None, "steps of the last stage, instead of epochs")
    lr: float | None = option(None, "learning rate of the last stage; the run's if unset")
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the global model")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        check_tuning(self.epochs, self.steps, self.lr)

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model; raises a ConfigError for a loss without probabilities."""
        if task.loss_name not in ("cross_entropy", "logistic"):
            raise ConfigError(
                f"algorithm 'symmetric_kl' needs predicted probabilities, but the loss "
                f"'{task.loss_name}' has none; use a model with loss cross_entropy or logistic."
            )
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """No personal model yet."""
        return untuned(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Federated averaging."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    def finish(self, server: Global, cohort: Cohort) -> Global:
        """The last stage; the personal models stay with the clients."""
        work = self.other_work("tune", cohort.work)
        cohort.sum(self.tune, {"params": server.params}, work=work)
        return server

    def other_work(self, phase: str, work: Work) -> Work | None:
        """The last stage has its own work."""
        return tuning_work(work, self.epochs, self.steps, self.lr) if phase == "tune" else None

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local training of the common model."""
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
        return {}, self.tune(task, {"params": message["model"].params}, client)[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's personal model, once it has one."""
        return own_or_common(state, deployed.params)

    def _objective(self, task: Task, common: Params) -> Objective:
        """The loss plus lam times the divergence from the common model's predictions."""
        if not self.lam:
            return task.loss

        def total(params: Params, batch: Batch) -> Tensor:
            mine, theirs = task.outputs(params, batch.x), task.outputs(common, batch.x)
            losses = task.each_loss(mine, batch.y) + self.lam * divergence(task, mine, theirs)
            return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

        return total


def divergence(task: Task, mine: Tensor, theirs: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) of the predictions for each example, from outputs."""
    if task.loss_name == "logistic":  # the logits are log p - log(1 - p)
        return ((mine.sigmoid() - theirs.sigmoid()) * (mine - theirs)).squeeze(-1)
    p, q = log_softmax(mine, -1), log_softmax(theirs, -1)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)
