"""Per-FedAvg: a common model from which one step on a client's own data leads far.

Fallah, Mokhtari and Ozdaglar, "Personalized federated learning: a meta-learning approach",
NeurIPS 2020, Algorithm 1. The objective is the mean of F_k(w - alpha grad F_k(w)). A local step
takes three batches, D, D' and D'':

    u <- w - alpha grad F_k(w; D)
    w <- w - eta (g - alpha H(w; D'') g),      g = grad F_k(u; D'),   H the Hessian of F_k

and the server averages. H g is exact, the gradient of <grad F_k(w), g> in w; the public code of
Li et al. (2020) takes a central difference. `first_order` leaves it out (FO-MAML). The batches are
the step's own and the next two of the round; `batches = "same"` uses the step's own three times,
which is the gradient of the batch's own objective. After the last round every client takes its
step (`tune` of them, with rate alpha) from w. alpha = 0 with the same batch is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch.func import grad

from isonomy.blocks.descent import descend, start, step
from isonomy.blocks.personal import served, tuned, untuned
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.fold import fold
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Model-agnostic meta-learning over clients."""

    name: ClassVar[str] = "perfedavg"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models; no personal one"

    alpha: float = option(0.01, "rate of the inner step, which is also a client's own in the end")
    first_order: bool = option(False, "whether the Hessian's part is left out")
    batches: Literal["three", "same"] = option("three", "of a local step")
    tune: int = option(1, "steps of every client after the last round")
    weight: Literal["equal", "size"] = option("equal", "a client's say in the common model")

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")
        if self.tune < 0:
            raise ValueError(f"tune = {self.tune}: give 0 or more.")

    def init_client(self, task: Task, params: Params) -> State:
        """No model of its own yet."""
        return untuned(params)

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Algorithm 1."""
        return cohort.mean(self.local, {"params": server["params"]}, weight=self.weight)

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """Every client's own step or steps."""
        if self.tune:
            work = replace(cohort.work, steps=self.tune, optimiser="sgd", momentum=0.0)
            cohort.sum(self.personalise, {"params": server["params"]}, work=work)
        return server

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descent on the loss after a step."""
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
        """A client's own steps from the common model, with rate alpha."""
        slow = replace(client, rate=torch.full_like(client.rate, self.alpha))
        return {"tuned": torch.ones(())}, tuned(descend(task.loss, message["params"], slow))

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client takes its steps along the run's batches."""
        return {}, self.personalise(task, message["model"], client)[1]

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """The client's own model, once it has one."""
        return served(state, server["params"])

    def _gradient(self, task: Task, w: Params, inner: Any, outer: Any, third: Any) -> Tree:
        """(I - alpha H) g: the gradient in w of the loss after the step."""
        u = tree.tmap(lambda p, d: p - self.alpha * d, w, grad(task.loss)(w, inner))
        g = grad(task.loss)(u, outer)
        if self.first_order:
            return g
        bent = grad(lambda p: tree.dot(grad(task.loss)(p, third), g))(w)
        return tree.tmap(lambda d, h: d - self.alpha * h, g, bent)
