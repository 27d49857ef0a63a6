"""Per-FedAvg: a common model that adapts well to each client in one step on its data.

Fallah, Mokhtari and Ozdaglar, "Personalized federated learning: a meta-learning approach",
NeurIPS 2020, Algorithm 1. The objective is the mean of F_k(w - alpha grad F_k(w)). A local step
takes three batches, D, D' and D'':

    u <- w - alpha grad F_k(w; D)
    w <- w - eta (g - alpha H(w; D'') g),      g = grad F_k(u; D'),   H the Hessian of F_k

and the server averages. H g is exact: the gradient of <grad F_k(w), g> in w. The public code of
Li et al. (2020) uses a central difference. `first_order` omits this term (FO-MAML). The batches
are the step's own and the next two of the round; `batches = "same"` uses the step's own batch
three times, which is the exact gradient of that batch's objective. After the last round, every
client takes `tune` steps from w, with rate alpha. alpha = 0 with `batches = "same"` is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch.func import grad

from isonomy.blocks.descent import descend, start, step
from isonomy.blocks.personal import own_or_common, tuned, untuned
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.fold import fold
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work


@dataclass(frozen=True)
class PerFedAvg(Algorithm[Global]):
    """Model-agnostic meta-learning over clients."""

    name: ClassVar[str] = "perfedavg"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' models; personal models are not sent"
    )

    alpha: float = option(
        0.01,
        "rate of the inner step, and of a client's steps after the last round",
        search=Range(0.001, 0.1, log=True),
    )
    first_order: bool = option(False, "whether to omit the term with the Hessian")
    batches: Literal["three", "same"] = option(
        "three", "batches of a local step: three different ones, or the same"
    )
    tune: int = option(1, "steps of every client after the last round")
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the common model")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")
        if self.tune < 0:
            raise ValueError(f"tune = {self.tune}: give 0 or more.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """No personal model yet."""
        return untuned(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    def finish(self, server: Global, cohort: Cohort) -> Global:
        """Every client's personal steps."""
        if self.tune:
            work = self.other_work("personalise", cohort.work)
            cohort.sum(self.personalise, {"params": server.params}, work=work)
        return server

    def other_work(self, phase: str, work: Work) -> Work | None:
        """The personal steps are plain SGD."""
        if phase != "personalise":
            return None
        return replace(work, steps=self.tune, optimiser="sgd", momentum=0.0)

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on the loss after an inner step."""
        work, rate, pool, plan = client.work, client.rate, client.pool, client.plan
        at = torch.arange(plan.rows.shape[0])
        live = plan.count.clamp(min=1)
        turns = (0, 1, 2) if self.batches == "three" else (0, 0, 0)
        where = [(at + turn) % live for turn in turns]
        xs = [(plan.rows[i], plan.weight[i]) for i in where]

        def one(carry: Tree, triple: Tree) -> Tree:
            w, memory = carry
            g = self._gradient(task, w, *(pool.batch(*part) for part in triple))
            return step(work, rate, w, memory, g)

        params = message["params"]
        done = fold(one, (params, start(work, params)), xs, plan.count)
        return {"params": done[0]}, client.state

    @phase("sum", tuned="statistic")
    def personalise(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A client's personal steps from the common model, with rate alpha."""
        tuner = replace(client, rate=torch.full_like(client.rate, self.alpha))
        return {"tuned": torch.ones(())}, tuned(descend(task.loss, message["params"], tuner))

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client takes its personal steps, with the run's local work."""
        return {}, self.personalise(task, {"params": message["model"].params}, client)[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's personal model, once it has one."""
        return own_or_common(state, deployed.params)

    def _gradient(self, task: Task, w: Params, inner: Batch, outer: Batch, third: Batch) -> Tree:
        """(I - alpha H) g: the gradient in w of the loss after the step."""
        u = tree.tmap(lambda p, d: p - self.alpha * d, w, grad(task.loss)(w, inner))
        g = grad(task.loss)(u, outer)
        if self.first_order:
            return g
        bent = grad(lambda p: tree.dot(grad(task.loss)(p, third), g))(w)
        return tree.tmap(lambda d, h: d - self.alpha * h, g, bent)
