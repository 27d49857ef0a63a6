"""FedProx: FedAvg with a proximal term that keeps the clients near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous
networks", MLSys 2020, Algorithm 2:

    w_k <- local descent on F_k(v) + (mu / 2) |v - w|^2 from w,    w <- mean of the w_k

mu = 0 is FedAvg. The paper samples clients by size and averages them equally; the authors' code
samples uniformly and weights by size. Here `weight` and the run's `cohort.sampling` decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Batch, Params, Task


@dataclass(frozen=True)
class FedProx(Algorithm[Global]):
    """Federated averaging with a proximal term."""

    name: ClassVar[str] = "fedprox"
    family: ClassVar[str] = "average"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models, and each client's size"

    mu: float = option(
        0.1, "strength of the pull towards the server's model", search=Grid((0.001, 0.01, 0.1, 1.0))
    )
    weight: Literal["size", "equal"] = option("size", "a client's weight in the mean")

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu = {self.mu}: give a number of at least 0.")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 2."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on h_k(v; w) = F_k(v) + (mu / 2) |v - w|^2."""
        anchor = message["params"]

        def proximal(params: Params, batch: Batch) -> Tensor:
            pull = 0.5 * self.mu * tree.sq_norm(tree.sub(params, anchor))
            return task.loss(params, batch) + pull

        return {"params": descend(proximal, anchor, client)}, client.state
