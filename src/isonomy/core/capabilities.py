"""Optional capabilities of an algorithm: small protocols.

An algorithm has a capability by implementing its methods; `isinstance(algorithm, FindsClusters)`
tells whether it does.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.core.verdict import About, Verdict


@runtime_checkable
class LearnsFront(Protocol):
    """Learns a model for every preference between its objectives."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """What a preference weighs."""

    def at(self, task: Task, deployed: Any, state: State | None, preference: Tensor) -> Params:
        """The model for a ray of losses [objectives], in which more allows more of a loss.

        The ray of a preference as a person gives it is `isonomy.core.preference.ray_of`. It is
        the model of the client with this state or, if `state` is None, the model of all clients
        together, which exists if `joint` returns True.
        """

    def joint(self, deployed: Any) -> bool:
        """Whether the deployed state contains a front for all clients together."""


@runtime_checkable
class FusesFronts(Protocol):
    """Fuses the clients' fronts into one, with weights that depend on the preference."""

    def fusion_weights(self, deployed: Any, rays: Tensor) -> Tensor | None:
        """The clients' weights [R, K] for preferences [R, m]; None if there are no such weights."""


@runtime_checkable
class LearnsSampling(Protocol):
    """Every client learns a distribution from which it samples preferences."""

    def preference_distributions(self, states: State) -> dict[str, Tensor]:
        """From the clients' stacked states, mixtures of Dirichlet distributions.

        `alpha` [K, parts, m] are their parameters, `weight` [K, parts] their weights.
        """


def objectives(algorithm: object) -> tuple[str, ...]:
    """What a preference weighs; empty for a method that learns one model."""
    return algorithm.objectives if isinstance(algorithm, LearnsFront) else ()


@runtime_checkable
class FindsClusters(Protocol):
    """Finds groups of similar clients."""

    def clusters(self, server: Tree) -> Tensor:
        """Each client's cluster [clients]."""


@runtime_checkable
class Remarks(Protocol):
    """Adds a sentence to the notes of a run, such as a limit that was reached."""

    def remark(self, server: Tree) -> str:
        """The sentence, from the server's state after `finish`; empty if there is none."""


@runtime_checkable
class GivesVerdict(Protocol):
    """Judges its own model when training is over."""

    def examine(self, server: Tree, cohort: Cohort) -> Tree:
        """Measure what the verdict needs, after `finish`; returns the server's state with it.

        The cohort holds the clients that the metrics cover too: all, or under a simulated attack
        the benign ones.
        """

    def verdict(self, server: Tree, about: About) -> Verdict | None:
        """The method's verdict on its model, from the server's state after `examine`.

        None if nothing was required of the model.

        If the verdict withholds the model (the method did not reach what was asked for), the model
        is not part of the results.
        """


@runtime_checkable
class EndsEarly(Protocol):
    """May end training before the configured number of rounds."""

    @property
    def may_end(self) -> bool:
        """Whether it can end early with these options; if not, participants refuse an early end."""

    def ended(self, server: Tree) -> bool:
        """Whether training is over; asked after every round."""


@runtime_checkable
class Adapts(Protocol):
    """Computes the state of a client that did not take part in training."""

    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The phase that a new client runs before it predicts.

        `message["model"]` is the deployed state, `client.state` the result of `init_client`.
        """
