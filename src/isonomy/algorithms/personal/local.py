"""Local-only: every client trains by itself; the baseline that federation has to beat.

    v_k <- local descent on F_k from v_k

Nothing is shared. Clients outside a round's cohort rest, so all methods get the same local work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


@dataclass(frozen=True)
class Local(Algorithm):
    """Training on one's own examples only."""

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "the usual baseline"
    reveals: ClassVar[str] = "nothing but the number of clients that took part"

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The server keeps only how many client rounds there were."""
        return {"trained": torch.zeros((), dtype=torch.float64)}

    def init_client(self, task: Task, params: Params) -> State:
        """Each client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Every client of the cohort goes on by itself."""
        return {"trained": server["trained"] + cohort.sum(self.local, {})["trained"]}

    @phase("sum", trained="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Descend on one's own loss from one's own model."""
        params = descend(task.loss, client.state["params"], client)
        return {"trained": torch.ones(())}, {"params": params}

    def personal(self, deployed: Any) -> bool:
        """Every client has a model of its own."""
        return True

    def model(self, task: Task, server: Any, state: State) -> Params:
        """A client's own model."""
        return state["params"]
