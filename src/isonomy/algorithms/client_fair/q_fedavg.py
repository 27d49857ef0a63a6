"""q-FedAvg: q-fair federated learning, which weights clients by the q-th power of their loss.

Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning", ICLR 2020,
Algorithm 2, which minimises sum_k F_k^(q+1) / (q+1). With L a Lipschitz constant of the gradients
and w_k client k's model after local descent from w:

    D_k = L (w - w_k),    Delta_k = F_k^q D_k,    h_k = q F_k^(q-1) |D_k|^2 + L F_k^q
    w <- w - sum_k Delta_k / sum_k h_k

F_k is the mean loss over all training examples of client k at the received w. It is computed in an
equivalent form: with weights F_k^q,

    w <- w + s (mean of w_k - w),    s = 1 / (1 + q L mean of |w - w_k|^2 / F_k)

q = 0 is the mean of the clients' models. L is 1 / learning rate unless given. As in the authors'
code, 1e-10 is added to F_k. Apart from F_k^q, clients have equal weights: sample them by size
(`cohort.sampling`) for the paper's objective with weights by size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.blocks.measure import train_loss
from isonomy.blocks.weights import LEAST, log_power
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class QFedAvg(Algorithm[Global]):
    """q-fair federated averaging."""

    name: ClassVar[str] = "q_fedavg"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Li et al., ICLR 2020"
    reveals: ClassVar[str] = "each client's loss, and only the weighted sum of the clients' models"

    q: float = option(
        1.0,
        "exponent of the loss: 0 is FedAvg with equal weights, large values favour large losses",
        search=Grid((0.01, 0.1, 1.0, 5.0)),
    )
    lipschitz: float | None = option(
        None, "Lipschitz constant L of the gradients; 1 / learning rate if unset"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.q < math.inf:
            raise ValueError(f"q = {self.q}: give a number of at least 0.")
        if self.lipschitz is not None and not 0 < self.lipschitz < math.inf:
            raise ValueError(f"lipschitz = {self.lipschitz}: give a number above 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 2."""
        params = server.params
        got = cohort.weigh(
            self.local,
            {"params": params},
            seen=("loss",),
            tilt={"params": self._power, "bend": self._power},
            weight="equal",
        )
        L = 1 / cohort.rate if self.lipschitz is None else self.lipschitz
        share = 1 / (1 + self.q * L * got.mean["bend"])
        return Global(tree.mix(params, got.mean["params"], share))

    def _power(self, seen: Reply) -> Tensor:
        """The logarithm of F^q."""
        return log_power(seen["loss"], self.q)

    @phase("weigh", seen=("loss",), params="model", bend="statistic", loss="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss of the received model, then training."""
        origin = message["params"]
        loss = train_loss(task, origin, client)
        params = descend(task.loss, origin, client)
        bend = tree.sq_norm(tree.sub(origin, params)) / (loss + LEAST)
        return {"params": params, "bend": bend, "loss": loss}, client.state
