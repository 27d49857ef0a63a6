"""The contract of an algorithm.

An algorithm is a frozen dataclass whose fields are its hyper-parameters. It says what the server
keeps (`init_server`), what each client keeps (`init_client`), what happens in a round (`round`,
which reaches clients only through its cohort) and which model a client uses (`model`). A phase is
a pure function of one client: `phase(task, message, client) -> (reply, state)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.mixture import Mixture, outputs
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.core.verdict import About, Verdict


class Algorithm(ABC):
    """Abstract. A final subclass is a frozen dataclass whose fields are the hyper-parameters."""

    name: ClassVar[str]
    paper: ClassVar[str]
    family: ClassVar[str]
    reveals: ClassVar[str]  # what the server learns of a client, in plain words
    objectives: tuple[str, ...] = ()  # what a preference weighs; a method of one model has none

    def init_server(self, task: Task, params: Params, clients: int) -> Tree:
        """What the server keeps before the first round."""
        return {"params": params}

    def init_client(self, task: Task, params: Params) -> State:
        """What each client keeps before the first round; it never leaves the client."""
        return ()

    @abstractmethod
    def round(self, server: Any, cohort: Cohort) -> Any:
        """One round: the paper's box."""

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """A last phase with all clients, after the last round."""
        return server

    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The phase of a client that was never in training, before it predicts.

        `message["model"]` is the deployed state, `client.state` what `init_client` made. The
        default changes nothing; a method whose clients keep something of their own finds it here.
        """
        return {}, client.state

    def clusters(self, server: Any) -> Tensor | None:
        """Each client's cluster [clients], for a method that finds clusters."""
        return None

    def verdict(self, server: Any, about: About) -> Verdict | None:
        """What the method can say of its own model, from the server's state after `finish`.

        Nothing, unless a method says otherwise. A verdict that withholds the model (the method
        did not get what it was asked for) keeps it out of the results.
        """
        return None

    def deployed(self, server: Any) -> Any:
        """The part of the server's state that clients need to predict."""
        return server

    def model(self, task: Task, server: Any, state: State) -> Params | Mixture:
        """The model that a client uses, from the deployed state and its own.

        It is one of the task's architecture, or a mixture of such. What is measured, exported and
        used is this.
        """
        return server["params"]

    def predict(self, task: Task, server: Any, state: State, x: Tensor) -> Tensor:
        """The outputs that a client uses: those of its model."""
        return outputs(task, self.model(task, server, state), x)

    def at(self, task: Task, server: Any, state: State | None, preference: Tensor) -> Params:
        """The model of a preference [objectives], for a method that learns a front.

        It is the model of the client with this state, or, without one, of all clients together,
        where the method has such a model (`joint`).
        """
        raise NotImplementedError(f"'{self.name}' learns one model, not a front")

    def joint(self, server: Any) -> bool:
        """Whether the deployed state has a front of its own, for all clients together."""
        return False
