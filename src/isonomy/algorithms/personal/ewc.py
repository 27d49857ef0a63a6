"""EWC: fine-tuning held to the global model where the client's data say that it matters.

Elastic weight consolidation (Kirkpatrick et al., PNAS 2017) as a way to personalise, after Yu,
Bagdasaryan and Shmatikov (2020) and Li et al. (2020), Table 4. After FedAvg's w*, each client:

    I   <- mean of the squares of grad F at w*      (the empirical Fisher information's diagonal)
    v_k <- descent on F_k(v) + (lam / 2) sum_i I_i (v_i - w*_i)^2 from w*

The squares are of the gradients of single examples, as the definition asks; the public code of
Li et al. squares the gradients of four minibatches, which is smaller by about the batch's size:
`fisher = "batches"`. lam = 0 is plain fine-tuning.

Beyond the papers: steps against the penalty's gradient diverge where eta lam I_i >= 2, which a
feature of large values can bring about by itself. `pull = "proximal"` takes the pull implicitly,
v <- v - eta grad F_k(v), then v_i <- (v_i + eta lam I_i w*_i) / (1 + eta lam I_i).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch.func import grad

from isonomy.blocks.descent import along, descend, start, step
from isonomy.blocks.personal import (
    check_pull,
    check_tuning,
    nearer,
    pulled,
    served,
    tuned,
    tuning,
    untuned,
)
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree


@dataclass(frozen=True)
class EWC(Algorithm):
    """Federated averaging, then fine-tuning with a pull weighted by Fisher information."""

    name: ClassVar[str] = "ewc"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Kirkpatrick et al., 2017; Yu et al., 2020"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models; no personal one"

    lam: float = option(1.0, "strength of the pull; 0 is plain fine-tuning")
    fisher: Literal["examples", "batches"] = option("examples", "whose gradients are squared")
    batches: int = option(4, 'how many, with fisher = "batches"')
    pull: Literal["gradient", "proximal"] = option("gradient", "how a step takes it")
    epochs: int = option(30, "passes over a client's examples in the last stage")
    steps: int | None = option(None, "steps of the last stage, instead of epochs")
    lr: float | None = option(None, "its learning rate; the run's if unset")
    weight: Literal["equal", "size"] = option("equal", "a client's say in the global model")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        check_tuning(self)
        if self.batches < 1:
            raise ValueError(f"batches = {self.batches}: give 1 or more.")

    def init_client(self, task: Task, params: Params) -> State:
        """No model of its own yet, and nothing known of what matters."""
        return {**untuned(params), "fisher": tree.zeros_like(params)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Federated averaging."""
        return cohort.mean(self.local, {"params": server["params"]}, weight=self.weight)

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """What matters to each client, then its own problem; both stay with it."""
        model, work = {"params": server["params"]}, cohort.work
        if self.fisher == "examples":
            cohort.sum(self.inform, model, work=replace(work, batch=1, epochs=1, steps=None))
        else:
            cohort.sum(self.inform, model, work=replace(work, steps=self.batches))
        cohort.sum(self.tune, model, work=tuning(work, self.epochs, self.steps, self.lr))
        return server

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training of the common model."""
        return {"params": descend(task.loss, message["params"], client)}, client.state

    @phase("sum", informed="statistic")
    def inform(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The mean of squared gradients, along this phase's batches."""
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
            params = descend(pulled(task.loss, common, self.lam, fisher), common, client)
        else:
            params = self._held(task, common, fisher, client)
        return {"tuned": torch.ones(())}, {**tuned(params), "fisher": fisher}

    def _held(self, task: Task, common: Params, fisher: Tree, client: Client) -> Params:
        """Steps on the loss, each followed by the pull."""
        work, rate = client.work, client.rate

        def one(carry: Tree, batch: Batch) -> Tree:
            v, memory = carry
            v, memory = step(work, rate, v, memory, grad(task.loss)(v, batch))
            return nearer(v, common, rate * self.lam, fisher) if self.lam else v, memory

        params: Params = along(one, (common, start(work, common)), client)[0]
        return params

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client does both with the run's batches."""
        state = self.inform(task, message["model"], client)[1]
        return {}, self.tune(task, message["model"], replace(client, state=state))[1]

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """The client's own model, once it has one."""
        return served(state, server["params"])
