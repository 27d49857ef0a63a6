"""Local: every client trains only on its own examples; the baseline that federation has to beat.

    v_k <- local descent on F_k from v_k

Nothing is shared. Clients outside the round's cohort do not train, so that all methods do the same
amount of local work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task


class Server(NamedTuple):
    """How many times clients have trained, over all rounds."""

    trained: Tensor


@dataclass(frozen=True)
class Local(Algorithm[Server]):
    """Training on the client's own examples only."""

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "personal"
    paper: ClassVar[str] = "the usual baseline"
    reveals: ClassVar[str] = "only the number of clients that took part"

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """No client has trained yet."""
        return Server(torch.zeros((), dtype=torch.float64))

    def init_client(self, task: Task, params: Params) -> State:
        """Each client starts from the common initial model."""
        return {"params": params}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Every client of the cohort trains its own model."""
        return Server(server.trained + cohort.sum(self.local, {})["trained"])

    @phase("sum", trained="statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent on the client's loss, from its own model."""
        params = descend(task.loss, client.state["params"], client)
        return {"trained": torch.ones(())}, {"params": params}

    def personal(self, deployed: Server) -> bool:
        """Every client has a personal model."""
        return True

    def model(self, task: Task, deployed: Server, state: State) -> Params:
        """The client's own model."""
        return state["params"]
