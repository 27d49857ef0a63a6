"""What an algorithm may be able to do besides training one model: small protocols.

An algorithm has a capability by implementing its methods; `isinstance(algorithm, FindsClusters)`
says whether it does.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.task import Params, Task
from isonomy.core.verdict import About, Verdict


@runtime_checkable
class LearnsFront(Protocol):
    """Learns a model for every preference between its objectives."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """What a preference weighs."""

    def at(self, task: Task, deployed: Any, state: State | None, preference: Tensor) -> Params:
        """The model of a preference [objectives]: that of the client with this state, or, without
        a state, that of all clients together, where the method has one (`joint`).
        """

    def joint(self, deployed: Any) -> bool:
        """Whether the deployed state has a front of its own, for all clients together."""


def objectives(algorithm: object) -> tuple[str, ...]:
    """What a preference weighs; nothing for a method that learns one model."""
    return algorithm.objectives if isinstance(algorithm, LearnsFront) else ()


@runtime_checkable
class FindsClusters(Protocol):
    """Groups clients that are alike."""

    def clusters(self, server: Any) -> Tensor:
        """Each client's cluster [clients]."""


@runtime_checkable
class GivesVerdict(Protocol):
    """Judges its own model when training is over."""

    def verdict(self, server: Any, about: About) -> Verdict | None:
        """What the method can say of its model, from the server's state after `finish`.

        A verdict that withholds the model (the method did not get what it was asked for) keeps
        it out of the results.
        """


@runtime_checkable
class Adapts(Protocol):
    """Finds, for a client that was never in training, the state that the client predicts with."""

    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The phase of a new client before it predicts.

        `message["model"]` is the deployed state, `client.state` what `init_client` made.
        """
