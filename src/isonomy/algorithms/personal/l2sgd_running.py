"""L2SGD without the coin: every step is pulled to a running mean of the clients' models.

The public code of FMTL (Li et al., 2020) runs this under the name L2SGD, so its tables compare with
it; it is not the method of Hanzely and Richtarik (`l2sgd`). With m of N clients in a round:

    v_k <- v_k - eta (grad F_k(v_k) + lam (v_k - w))
    w   <- w + (m / N) mean of (v_k - w)

w is the running mean of the personal models. Clients send these to the server, unlike in `fmtl`,
where the global model is trained separately. lam = 0 is local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isonomy.blocks.descent import descend
from isonomy.blocks.personal import check_pull, with_pull
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class L2SGDRunning(Algorithm[Global]):
    """Personal models pulled to their running mean."""

    name: ClassVar[str] = "l2sgd_running"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "as in the public code of Li et al., 2020"
    reveals: ClassVar[str] = "only the mean of the cohort's personal models"

    lam: float = option(
        1.0,
        "strength of the pull to the running mean; 0 is local training",
        search=Range(0.01, 10.0, log=True),
    )

    def __post_init__(self) -> None:
        check_pull("lam", self.lam)

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """Every client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Personal steps, then a step of the running mean."""
        mean = cohort.mean(self.local, {"params": server.params}, weight="equal")
        return Global(tree.mix(server.params, mean["params"], len(cohort.ids) / cohort.clients))

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Training of the client's own model, with a pull to the running mean."""
        objective = with_pull(task.loss, message["params"], self.lam)
        params = descend(objective, client.state["params"], client)
        return {"params": params}, {"params": params}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client starts from the running mean."""
        model = message["model"].params
        return {}, {"params": descend(with_pull(task.loss, model, self.lam), model, client)}

    def personal(self, deployed: Global) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The client's own model."""
        return state["params"]
