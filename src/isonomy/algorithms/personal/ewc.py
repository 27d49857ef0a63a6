"""EWC: fine-tuning with a pull to the global model, weighted by Fisher information.

Elastic weight consolidation (Kirkpatrick et al., PNAS 2017) for personalisation, after Yu,
Bagdasaryan and Shmatikov (2020) and Li et al. (2020), Table 4. After FedAvg's w*, each client:

    I   <- mean of the squares of grad F at w*      (the empirical Fisher information's diagonal)
    v_k <- descent on F_k(v) + (lam / 2) sum_i I_i (v_i - w*_i)^2 from w*

The gradients of single examples are squared, as in the definition. The public code of Li et al.
squares the gradients of four minibatches, which gives values smaller by a factor of about the
batch size: `fisher = "batches"`. lam = 0 is plain fine-tuning.

Beyond the papers: gradient steps on the penalty diverge where eta lam I_i >= 2, which a single
feature with large values can cause. `pull = "proximal"` applies the pull implicitly:
v <- v - eta grad F_k(v), then v_i <- (v_i + eta lam I_i w*_i) / (1 + eta lam I_i).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch.func import grad

from isonomy.blocks.descent import along, descend, start, step
from isonomy.blocks.personal import (
    check_pull,
    check_tuning,
    own_or_common,
    proximal_pull,
    tuned,
    tuning_work,
    untuned,
    with_pull,
)
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work


@dataclass(frozen=True)
class EWC(Algorithm[Global]):
    """Federated averaging, then fine-tuning with a pull weighted by Fisher information."""

    name: ClassVar[str] = "ewc"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Kirkpatrick et al., 2017; Yu et al., 2020"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' models; personal models are not sent"
    )

    lam: float = option(
        1.0,
        "strength of the pull to the global model; 0 is plain fine-tuning",
        search=Range(0.01, 10.0, log=True),
    )
    fisher: Literal["examples", "batches"] = option(
        "examples", "squared gradients: of single examples, or of minibatches"
    )
    batches: int = option(4, 'number of minibatches, with fisher = "batches"')
    pull: Literal["gradient", "proximal"] = option("gradient", "how a step applies the pull")
    epochs: int = option(
        30, "passes over a client's examples in the last stage", search=Grid((1, 5, 10, 30))
    )
    steps: int | None = option(None, "steps of the last stage, instead of epochs")
    lr: float | None = option(None, "learning rate of the last stage; the run's if unset")
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the global model")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        check_tuning(self.epochs, self.steps, self.lr)
        if self.batches < 1:
            raise ValueError(f"batches = {self.batches}: give 1 or more.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """No personal model and no Fisher information yet."""
        return {**untuned(params), "fisher": tree.zeros_like(params)}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Federated averaging."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    def finish(self, server: Global, cohort: Cohort) -> Global:
        """Fisher information, then fine-tuning; the results of both stay with the clients."""
        model, work = {"params": server.params}, cohort.work
        cohort.sum(self.inform, model, work=self.other_work("inform", work))
        cohort.sum(self.tune, model, work=self.other_work("tune", work))
        return server

    def other_work(self, phase: str, work: Work) -> Work | None:
        """One pass for the Fisher information, and the work of the last stage."""
        if phase == "inform" and self.fisher == "examples":
            return replace(work, batch=1, epochs=1, steps=None)
        if phase == "inform":
            return replace(work, steps=self.batches)
        return tuning_work(work, self.epochs, self.steps, self.lr) if phase == "tune" else None

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local training of the common model."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("sum", informed="statistic")
    def inform(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The mean of the squared gradients over this phase's batches."""
        common = message["params"]

        def one(total: Tree, batch: Batch) -> Tree:
            g = grad(task.loss)(common, batch)
            return tree.tmap(lambda t, d: t + d * d, total, g)

        total = along(one, tree.zeros_like(common), client)
        mean = tree.scale(total, 1 / client.plan.count.clamp(min=1).to(torch.float32))
        return {"informed": torch.ones(())}, {**client.state, "fisher": mean}

    @phase("sum", tuned="statistic")
    def tune(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The regularised local problem, from the common model."""
        common, fisher = message["params"], client.state["fisher"]
        if self.pull == "gradient":
            params = descend(with_pull(task.loss, common, self.lam, fisher), common, client)
        else:
            params = self._proximal(task, common, fisher, client)
        return {"tuned": torch.ones(())}, {**tuned(params), "fisher": fisher}

    def _proximal(self, task: Task, common: Params, fisher: Tree, client: Client) -> Params:
        """Steps on the loss, each followed by an implicit pull."""
        work, rate = client.work, client.rate

        def one(carry: Tree, batch: Batch) -> Tree:
            v, memory = carry
            v, memory = step(work, rate, v, memory, grad(task.loss)(v, batch))
            return proximal_pull(v, common, rate * self.lam, fisher) if self.lam else v, memory

        params: Params = along(one, (common, start(work, common)), client)[0]
        return params

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client does both with the run's local work."""
        common = {"params": message["model"].params}
        state = self.inform(task, common, client)[1]
        return {}, self.tune(task, common, replace(client, state=state))[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's personal model, once it has one."""
        return own_or_common(state, deployed.params)
