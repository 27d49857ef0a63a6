"""FedAvg: local training from the server's model, then the mean of the clients' models.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017, Algorithm 1:

    w_k <- local descent on F_k from w,    w <- sum_k n_k w_k / sum_k n_k

`weight = "equal"` gives every client the same weight, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class FedAvg(Algorithm[Global]):
    """Federated averaging."""

    name: ClassVar[str] = "fedavg"
    family: ClassVar[str] = "average"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    reveals: ClassVar[str] = "only the weighted sum of the clients' models, and each client's size"

    weight: Literal["size", "equal"] = option("size", "a client's weight in the mean")

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1."""
        mean = cohort.mean(self.local, {"params": server.params}, weight=self.weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from the received model (ClientUpdate)."""
        return {"params": descend(task.loss, message["params"], client)}, client.state
