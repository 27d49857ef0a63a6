"""PraFFL: every client learns its whole trade-off between performance and fairness.

Ye, Kou and Tang, "PraFFL: a preference-aware scheme in fair federated learning", KDD 2025. A body
psi is shared and averaged. Each client k has a hypernet h_k that generates the head for any
preference. In a round, for client k of the cohort and lam drawn uniformly from the simplex:

    psi_k <- local descent on the loss of (psi, h_k(1/2, 1/2)), with h_k fixed
    h_k   <- local descent on (1/N) sum_v max_j loss_j(psi_k, h_k(lam_v)) / lam_vj, with psi_k fixed
    psi   <- mean of psi_k

The round whose fronts have the largest mean hypervolume on validation examples is kept. The max is
smoothed to a log-sum-exp and unfairness is trained as a squared dependence of logits and groups, as
in the authors' code; options select the alternatives. Differences from that code: groups are
indicators, not numbers; all clients have equal weight in the mean (there the first client of a
round is left out); random draws differ between rounds and clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import preferences as simplex
from isonomy.blocks import trade_off
from isonomy.blocks.trade_off import OBJECTIVES_OPTION, Terms
from isonomy.core.algorithm import Algorithm
from isonomy.core.batches import halves
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.models import hypernet as nets


class Server(NamedTuple):
    """The body, that of the best round so far, and the score of that round."""

    psi: Params
    kept: Params
    score: Tensor


class Deployed(NamedTuple):
    """The body of the best round."""

    psi: Params


@dataclass(frozen=True)
class PraFFL(Algorithm[Server]):
    """A front for every client: a shared body, and a hypernet for each client."""

    name: ClassVar[str] = "praffl"
    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "Ye, Kou and Tang, KDD 2025"
    reveals: ClassVar[str] = (
        "only means: of the clients' bodies, and of the hypervolumes of their fronts on "
        "validation examples; hypernets stay with their clients"
    )

    objectives: tuple[str, ...] = option(("error", "dp"), OBJECTIVES_OPTION)
    preferences: int = option(8, "N, number of preferences drawn for each step of the hypernet")
    share: float = option(
        16 / 30, "fraction of the local steps that train the body; the rest train the hypernet"
    )
    scalar: Literal["logsumexp", "max"] = option(
        "logsumexp", "how objectives are combined: smoothed or exact Tchebycheff maximum"
    )
    fairness: Literal["squared", "covariance", "gap"] = option(
        "squared", "measure of unfairness that is trained"
    )
    code: Literal["one-hot", "number"] = option("one-hot", "how groups are encoded in it")
    weight: Literal["equal", "size"] = option("equal", "weight of a client in the mean of bodies")
    select: int = option(
        100, "number of rays on which rounds are compared by validation; 0 keeps the last round"
    )
    preference: tuple[float, ...] = option(
        (),
        "one share per objective at which clients predict, more for less of it; if empty, each "
        "client's preference of least error on its validation examples",
    )

    def __post_init__(self) -> None:
        trade_off.check_options(
            self.terms, self.preferences, self.share, self.select, self.preference
        )

    @property
    def terms(self) -> Terms:
        """What is traded off."""
        return Terms(self.objectives, self.scalar, self.fairness, self.code)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial body, and a score below that of any round."""
        trade_off.check_task(task, params, self.name)
        self.terms.aims(task)
        body = nets.split(task, params)[1]
        return Server(body, body, torch.tensor(-1.0, dtype=torch.float64))

    def init_client(self, task: Task, params: Params) -> State:
        """The hypernet, initially the same for all clients, and that of the best round so far."""
        hypernet = nets.initial(task, params, len(self.objectives))
        return {"hypernet": hypernet, "kept": hypernet}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Train, average, and keep this round if it is the best so far."""
        psi = cohort.mean(self.local, {"psi": server.psi}, weight=self.weight)["psi"]
        if not self.select:
            return server._replace(psi=psi, kept=psi)
        sums = cohort.sum(self.validate, {"psi": psi})
        better, score = trade_off.improved(sums, server.score)
        cohort.sum(self.keep, {"better": better})
        return Server(psi, psi if float(better) else server.kept, score)

    @phase("mean", psi="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train the body, then the hypernet with the body fixed."""
        m, own = len(self.objectives), client.state["hypernet"]
        first, second = halves(client.plan, self.share)
        psi = trade_off.train_body(task, message["psi"], own, client, first, m)
        own, _ = trade_off.train_hypernet(
            task,
            psi,
            own,
            client,
            second,
            terms=self.terms,
            count=self.preferences,
            sampler={"mixture": simplex.start(1, m, 1.0)},
        )
        kept = client.state["kept"] if self.select else own
        return {"psi": psi}, {"hypernet": own, "kept": kept}

    @phase("sum", volume="statistic", clients="statistic")
    def validate(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The hypervolume of the client's front on its validation examples."""
        own = client.state["hypernet"]
        reply = trade_off.validate(task, message["psi"], own, client, self.terms, self.select)
        return reply, client.state

    @phase("sum", kept="statistic")
    def keep(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Keep the hypernet if this round is the best so far."""
        own, better = client.state["hypernet"], message["better"] > 0
        kept = torch.where(better, own, client.state["kept"])
        return {"kept": message["better"]}, {"hypernet": own, "kept": kept}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its hypernet with the body fixed."""
        own, _ = trade_off.train_hypernet(
            task,
            message["model"].psi,
            client.state["hypernet"],
            client,
            client.plan,
            terms=self.terms,
            count=self.preferences,
            sampler={"mixture": simplex.start(1, len(self.objectives), 1.0)},
        )
        return {}, {"hypernet": own, "kept": own}

    def deployed(self, server: Server) -> Deployed:
        """The body of the best round."""
        return Deployed(server.kept)

    def joint(self, deployed: Deployed) -> bool:
        """There is no front for all clients together."""
        return False

    def at(self, task: Task, deployed: Deployed, state: State | None, preference: Tensor) -> Params:
        """The client's model for a preference.

        Raises ValueError without a state: there is no front for all clients together.
        """
        if state is None:
            raise ValueError("'praffl' has no front for all clients together")
        return nets.make_params(task, deployed.psi, state["kept"], preference)

    def personal(self, deployed: Deployed) -> bool:
        """Every client has its own front."""
        return True

    def model(self, task: Task, deployed: Deployed, state: State) -> Params:
        """The model for the option `preference`."""
        ray = trade_off.normalised(self.preference, len(self.objectives))
        return self.at(task, deployed, state, ray)
