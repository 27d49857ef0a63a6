"""The contract of an algorithm.

An algorithm is a frozen dataclass whose fields are its hyper-parameters. It says what the server
keeps (`init_server`), what each client keeps (`init_client`), what happens in a round (`round`,
which reaches clients only through its cohort) and which model a client uses (`model`). Its phases
are pure functions of one client that declare what they reply (`isonomy.core.phase`). What else an
algorithm may be able to do is in `isonomy.core.capabilities`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor

from isonomy.core.client import State
from isonomy.core.cohort import Cohort
from isonomy.core.mixture import Mixture, outputs
from isonomy.core.task import Params, Task
from isonomy.core.work import Work

Server = TypeVar("Server")


class Global(NamedTuple):
    """One model for all clients: the server's state of the simplest methods, and what most others
    deploy.
    """

    params: Params


class Algorithm(ABC, Generic[Server]):
    """Abstract. A final subclass is a frozen dataclass whose fields are the hyper-parameters.

    `Server` is the type of the server's state: a NamedTuple of tensors and trees of tensors.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    family: ClassVar[str]
    reveals: ClassVar[str]  # what the server learns of a client, in plain words
    needs_server_data: ClassVar[bool] = False  # whether its server needs examples of its own

    @abstractmethod
    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """What the server keeps before the first round."""

    def init_client(self, task: Task, params: Params) -> State:
        """What each client keeps before the first round; it never leaves the client."""
        return ()

    @abstractmethod
    def round(self, server: Server, cohort: Cohort) -> Server:
        """One round: the paper's box."""

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """A last phase with all clients, after the last round."""
        return server

    def other_work(self, phase: str, work: Work) -> Work | None:
        """The local work of a phase that does other work than the config's; None: the config's.

        The server asks with this work, and a participant of a real federation accepts no other.
        """
        return None

    def recommended_work(self) -> Mapping[str, Any]:
        """Keys of the local work that suit the method, used where the config does not set them.

        Empty: the defaults suit it.
        """
        return {}

    def deployed(self, server: Server) -> Any:
        """The part of the server's state that clients need to predict: a NamedTuple."""
        return server

    def model(self, task: Task, deployed: Any, state: State) -> Params | Mixture:
        """The model that a client uses, from the deployed state and its own.

        It is one of the task's architecture, or a mixture of such. What is measured, exported and
        used is this.
        """
        return deployed.params

    def personal(self, deployed: Any) -> bool:
        """Whether `model` depends on the client's own state."""
        return False

    def predict(self, task: Task, deployed: Any, state: State, x: Tensor) -> Tensor:
        """The outputs that a client uses: those of its model."""
        return outputs(task, self.model(task, deployed, state), x)
