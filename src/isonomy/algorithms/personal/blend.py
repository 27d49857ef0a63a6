"""Blend: fair directions for a common model, then each client's own share of a personal one.

A combination of Isonomy's own, made of published parts.

1. In every round, conflicts between the clients' updates g_k = w - w_k are removed as in FedFV
   (Wang et al., IJCAI 2021, step 1), the mean of the results is rescaled to the length of the mean
   of the g_k, and w <- w - g.
2. After the last round every client trains v_k from w on its own examples, as in fine-tuning, and
   predicts with

    w + s_k (v_k - w),    s_k the one of `shares` with the least loss on its validation examples.

   A client with fewer than `least` of them takes `share`. Of equal losses the smaller share counts.

So a client that the common model suits keeps it, and one that it does not suit leaves it as far as
its own held-out examples support. alpha = 1 and shares = (1,) is fine-tuning after FedAvg with
equal weights, and shares = (0,) is FedFV with tau = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.conflicts import check_alpha, length_factor, resolved
from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.blocks.personal import check_tuning, own_or_common, tuned, tuning_work, untuned
from isonomy.blocks.vectors import gram, rows, unflattened
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.core.work import Work


class Server(NamedTuple):
    """The model; after the last stage how many clients have a blend, how many of them had enough
    validation examples, and the sum of their shares.
    """

    params: Params
    blends: Tensor
    able: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Blend(Algorithm[Server]):
    """FedFV's directions, then fine-tuning as far as held-out examples support it."""

    name: ClassVar[str] = "blend"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "Isonomy's own combination"
    reveals: ClassVar[str] = (
        "each client's model and loss, and the sum of the shares; personal models are not sent"
    )

    alpha: float = option(
        0.1, "share of clients, those with the largest losses, whose updates are not changed"
    )
    shares: tuple[float, ...] = option(
        (0.0, 0.25, 0.5, 0.75, 1.0), "shares of the personal model that a client tries"
    )
    share: float = option(0.5, "the share of a client with too few validation examples")
    least: int = option(4, "number of validation examples below which a client uses share")
    epochs: int = option(10, "passes over a client's examples in the last stage")
    steps: int | None = option(None, "steps of the last stage, instead of epochs")
    lr: float | None = option(None, "learning rate of the last stage; the run's if unset")

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_tuning(self.epochs, self.steps, self.lr)
        if not self.shares:
            raise ValueError("shares is empty: give at least one number from 0 to 1.")
        for each in (*self.shares, self.share):
            if not 0 <= each <= 1:
                raise ValueError(f"a share is {each}: give numbers from 0 to 1.")
        if self.least < 1:
            raise ValueError(f"least = {self.least}: give 1 or more.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model."""
        none = torch.zeros(())
        return Server(params, none, none, none)

    def init_client(self, task: Task, params: Params) -> State:
        """No personal model yet."""
        return untuned(params)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """The mean of updates that do not conflict."""
        replies = cohort.gather(self.local, {"params": server.params})
        updates = rows(
            tree.tmap(lambda new, old: old - new, replies.value["params"], server.params)
        )
        products = gram(updates)
        weights = resolved(products, replies.value["loss"], self.alpha).mean(0)
        g = weights.to(updates.dtype) @ updates
        g = g * length_factor(g, products)
        return server._replace(params=tree.sub(server.params, unflattened(g, server.params)))

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """The last stage; the personal models stay with the clients."""
        work = self.other_work("tune", cohort.work)
        got = cohort.sum(self.tune, {"params": server.params}, work=work)
        return Server(server.params, got["blends"], got["able"], got["shares"])

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    def remark(self, server: Server) -> str:
        """How far clients went from the common model, and whether they could choose."""
        blends, able = int(server.blends), int(server.able)
        if not blends:
            return ""
        mean = float(server.shares) / blends
        said = f"Clients' shares of their personal models are {mean:.2f} on average"
        if able == blends:
            return f"{said}, chosen on their validation examples."
        return (
            f"{said}; {blends - able} of {blends} clients have fewer than {self.least} validation "
            f"examples and took algorithm.share = {self.share:g}; with more of them they choose."
        )

    def other_work(self, phase: str, work: Work) -> Work | None:
        """The last stage has its own work."""
        return tuning_work(work, self.epochs, self.steps, self.lr) if phase == "tune" else None

    @phase("gather", params="model", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, then training."""
        origin = message["params"]
        loss = train_loss(task, origin, client)
        return {"params": descend(task.loss, origin, client), "loss": loss}, client.state

    @phase("sum", blends="statistic", able="statistic", shares="statistic")
    def tune(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training from the common model, and the blend of both."""
        common = message["params"]
        own = descend(task.loss, common, client)
        able = client.sizes[1] >= self.least
        share = torch.where(able, self.best_share(task, common, own, client), self.share)
        reply = {"blends": torch.ones(()), "able": able.to(torch.float32), "shares": share}
        return reply, tuned(blended(common, own, share))

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client tunes the common model with the run's local work."""
        return {}, self.tune(task, {"params": message["model"].params}, client)[1]

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's blend, once it has one."""
        return own_or_common(state, deployed.params)

    def best_share(self, task: Task, common: Params, own: Params, client: Client) -> Tensor:
        """The share of the personal model with the least loss on the validation examples."""
        shares = torch.tensor(sorted(self.shares))
        losses = torch.stack(
            [task.loss(blended(common, own, share), client.validation) for share in shares]
        )
        best = torch.argmin(torch.nan_to_num(losses, nan=math.inf)).reshape(1)
        return shares.index_select(0, best).squeeze(0)


def blended(common: Params, own: Params, share: Tensor) -> Params:
    """Common + share (own - common); with share = 0 an `own` that diverged has no effect."""
    mixed = tree.mix(common, own, share)
    return tree.tmap(lambda a, b: torch.where(share > 0, b, a), common, mixed)
