"""Fine-tuning: FedAvg, then every client trains the result on its own examples.

Li, Hu, Beirami and Smith, "Federated multi-task learning for competing constraints" (2020),
section 4.2, compares its joint solver (`fmtl`) with

    w* <- FedAvg,    v_k <- descent on F_k(v) + (lam / 2) |v - w*|^2 from w*

after the last round, once for every client. lam = 0 is plain fine-tuning. The paper uses 30
epochs of minibatch SGD, its code 40. Before the last stage, clients predict with the common model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from isonomy.blocks.descent import descend
from isonomy.blocks.personal import (
    check_pull,
    check_tuning,
    own_or_common,
    tuned,
    tuning_work,
    untuned,
    with_pull,
)
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.work import Work


@dataclass(frozen=True)
class Finetune(Algorithm[Global]):
    """Federated averaging, then local fine-tuning with an optional pull to the global model."""

    name: ClassVar[str] = "finetune"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Li et al., 2020, section 4.2"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' models; personal models are not sent"
    )

    lam: float = option(0.0, "strength of the pull to the global model; 0 is plain fine-tuning")
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
        """The initial model."""
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
        params = descend(with_pull(task.loss, common, self.lam), common, client)
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
