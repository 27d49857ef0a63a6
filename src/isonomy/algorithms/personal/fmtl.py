"""FMTL (Ditto): a global model by averaging, and a personal model per client that is pulled to it.

Li, Hu, Beirami and Smith, "Federated multi-task learning for competing constraints" (2020), and
"Ditto: Fair and robust federated learning through personalization" (ICML 2021). Objective 2:

    min_v F_k(v) + (lam / 2) |v - w*|^2     for each client,    w* = argmin_w sum_k p_k F_k(w)

Algorithm 1, on the same batches for both:

    w_k <- w_k - eta grad F_k(w_k)                           (from the round's w)
    v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w))         (from the client's own v_k)
    w   <- w + mean of (w_k - w)

v_k never leaves its client and does not change while the client is not in the cohort. lam = 0 is
local training; a large lam gives the global model. Algorithm 1 of the first paper pulls to the
moving copy w_k, the second paper and the authors' code to the round's w: see `anchor`.

With `lams`, every client chooses lam at every local step: it tries one step with each and keeps
the one with the smallest loss on its validation examples, as in the authors' code. Those are the
client's validation split (e.g. `data.validation = 0.1`), never its training or test examples. A
client with fewer than `least` of them uses `lam`.

Beyond the paper: gradient steps diverge where eta lam >= 2, so this is an error;
`pull = "proximal"` applies the pull implicitly, v <- (v - eta grad + eta lam w) / (1 + eta lam),
which is stable for any lam.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from isonomy.blocks.descent import along, start, step
from isonomy.blocks.personal import check_pull, proximal_pull
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class FMTL(Algorithm[Global]):
    """Personal models pulled to a global one (Ditto)."""

    name: ClassVar[str] = "fmtl"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Li et al., 2020, and ICML 2021 (Ditto)"
    reveals: ClassVar[str] = (
        "only the weighted sum of the clients' global models; personal models are not sent"
    )

    lam: float = option(
        1.0,
        "strength of the pull to the global model; 0 is local training",
        search=Range(0.01, 2.0, log=True),
    )
    lams: tuple[float, ...] = option(
        (), "if given, each client chooses lam from these by validation loss"
    )
    least: int = option(4, "number of validation examples below which a client uses lam")
    anchor: Literal["round", "moving"] = option(
        "round", "target of the pull: the round's w, or the client's moving copy of it"
    )
    pull: Literal["gradient", "proximal"] = option("gradient", "how a step applies the pull")
    weight: Literal["equal", "size"] = option("equal", "a client's weight in the global model")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)
        for value in self.lams:
            check_pull("lams", value)
        if self.least < 1:
            raise ValueError(f"least = {self.least}: give 1 or more.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """Every personal model starts from the common initial model."""
        return {"params": params}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1."""
        top = max((self.lam, *self.lams))
        if self.pull == "gradient" and cohort.work.optimiser == "sgd" and cohort.rate * top >= 2:
            raise ConfigError(
                f"algorithm.lam = {top:g} times the learning rate {cohort.rate:g} is 2 or more, so "
                "steps diverge; lower one of them, or set algorithm.pull = 'proximal'."
            )
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Both models, trained step by step on the same batches."""
        origin, own = message["params"], client.state["params"]
        work, rate, moving = client.work, client.rate, self.anchor == "moving"
        personal = self.personal_step(task, client)

        def one(carry: Tree, batch: Batch) -> Tree:
            (w, first), second = carry
            new = step(work, rate, w, first, grad(task.loss)(w, batch))
            return new, personal(second, new[0] if moving else origin, batch)

        carry = ((origin, start(work, origin)), (own, start(work, own)))
        (shared, _), (mine, _) = along(one, carry, client)
        return {"params": shared}, {"params": mine}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client solves its regularised problem from the global model."""
        model, personal = message["model"].params, self.personal_step(task, client)

        def one(carry: Tree, batch: Batch) -> Tree:
            return personal(carry, model, batch)

        return {}, {"params": along(one, (model, start(client.work, model)), client)[0]}

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """A client's personal model."""
        return state["params"]

    def personal_step(self, task: Task, client: Client) -> Callable[[Tree, Params, Batch], Tree]:
        """The function of one step: ((model, memory), anchor, batch) to a new (model, memory)."""
        work, rate, lam, lams = client.work, client.rate, self.lam, self.lams
        pulled_step = proximal_step if self.pull == "proximal" else gradient_step

        def fixed(carry: Tree, anchor: Params, batch: Batch) -> Tree:
            v, memory = carry
            return pulled_step(work, rate, v, memory, anchor, grad(task.loss)(v, batch), lam)

        if not lams:
            return fixed
        held, enough = client.validation, client.sizes[1] >= self.least

        def chosen(carry: Tree, anchor: Params, batch: Batch) -> Tree:
            v, memory = carry
            g = grad(task.loss)(v, batch)
            tries = [pulled_step(work, rate, v, memory, anchor, g, each) for each in lams]
            losses = torch.stack([task.loss(new, held) for new, _ in tries])
            best = torch.argmin(torch.nan_to_num(losses, nan=math.inf)).reshape(1)

            def pick(usual: Tensor, *others: Tensor) -> Tensor:
                least = torch.stack(others).index_select(0, best).squeeze(0)
                return torch.where(enough, least, usual)

            usual = pulled_step(work, rate, v, memory, anchor, g, lam)
            return tree.tmap(pick, usual, *tries)

        return chosen


def gradient_step(
    work: Work, rate: Tensor, v: Params, memory: Tree, anchor: Params, g: Tree, lam: float
) -> tuple[Params, Tree]:
    """A gradient step on F + (lam / 2) |v - anchor|^2, where F has gradient g."""
    if lam:  # with lam = 0 even an anchor that is not finite has no effect
        g = tree.tmap(lambda d, a, b: d + lam * (a - b), g, v, anchor)
    return step(work, rate, v, memory, g)


def proximal_step(
    work: Work, rate: Tensor, v: Params, memory: Tree, anchor: Params, g: Tree, lam: float
) -> tuple[Params, Tree]:
    """A step along -g, then the proximal step of (lam / 2) |v - anchor|^2."""
    new, memory = step(work, rate, v, memory, g)
    if lam:
        new = proximal_pull(new, anchor, rate * lam)
    return new, memory
