"""L2SGD without its coin: every step pulls to a running mean of the clients' models.

What the public code of FMTL (Li et al., 2020) runs under the name L2SGD, and so what its tables
compare with; it is not the method of Hanzely and Richtarik (`l2sgd`). Of N clients, m in a round:

    v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w))
    w   <- w + (m / N) mean of (v_k - w)

w is the running mean of the personal models: the server is sent those, unlike in `fmtl`, where
the global model is trained by itself. lam = 0 is local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from isonomy.blocks.descent import descend
from isonomy.blocks.personal import check_pull, pulled
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class L2SGDRunning(Algorithm):
    """Personal models pulled to their running mean."""

    name: ClassVar[str] = "l2sgd_running"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "as in the public code of Li et al., 2020"
    reveals: ClassVar[str] = "only the mean of the cohort's personal models"

    lam: float = option(1.0, "strength of the pull to the running mean; 0 is local training")

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)

    def init_client(self, task: Task, params: Params) -> State:
        """Every client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Personal steps, then a step of the running mean."""
        mean = cohort.mean(self.local, {"params": server["params"]}, weight="equal")
        return tree.mix(server, mean, len(cohort.ids) / cohort.clients)

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """One's own model, pulled to the running mean."""
        objective = pulled(task.loss, message["params"], self.lam)
        params = descend(objective, client.state["params"], client)
        return {"params": params}, {"params": params}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client starts from the running mean."""
        model = message["model"]["params"]
        return {}, {"params": descend(pulled(task.loss, model, self.lam), model, client)}

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """A client's own model."""
        return state["params"]
