"""PraFFL: every client learns its whole trade-off between performance and fairness.

Ye, Kou and Tang, "PraFFL: a preference-aware scheme in fair federated learning", KDD 2025. A body
psi is shared and averaged. Each client k has a hypernet h_k that generates the head for any
preference. In a round, for client k of the cohort and lam drawn uniformly from the simplex:

    psi_k <- local descent on the loss of (psi, h_k(1/2, 1/2)), with h_k fixed
    h_k   <- local descent on (1/N) sum_v max_j loss_j(psi_k, h_k(lam_v)) / lam_vj, with psi_k fixed
    psi   <- mean of psi_k

The round whose fronts have the largest mean hypervolume on validation examples is kept. Our
defaults differ from the paper as those of HetPFL do (`network`, `fit`, `scalar`, `fairness`,
`hypernet_rate`, `weight`); options select the authors'. Differences from their code: groups are
indicators, not numbers; no client is left out of the mean (there the first client of a round is);
random draws differ between rounds and clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks import preferences as simplex
from isonomy.blocks import trade_off
from isonomy.blocks.trade_off import OBJECTIVES_OPTION, Terms
from isonomy.core.algorithm import Algorithm
from isonomy.core.batches import Plan
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Range
from isonomy.core.task import Params, Task
from isonomy.core.tree import tmap
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
    network: nets.Kind = option(
        "interpolated", "the hypernet: corrections of a shared head, or the paper's network"
    )
    fit: Literal["mean", "own"] = option(
        "mean", "the body that a hypernet is trained with: the mean, or the client's own (eq. 12)"
    )
    share: float = option(
        0.85,
        "fraction of the local steps that the hypernet does not train in",
        search=Range(0.5, 0.95),
    )
    hypernet_rate: float = option(
        0.06,
        "Adam's learning rate for the hypernet; 0 uses the local optimiser",
        search=Range(0.003, 0.1, log=True),
    )
    scalar: Literal["augmented", "logsumexp", "max"] = option(
        "augmented",
        "how objectives are combined: Tchebycheff maximum, augmented, smoothed or exact",
    )
    fairness: Literal["squared", "covariance", "gap"] = option(
        "gap", "measure of unfairness that is trained"
    )
    code: Literal["one-hot", "number"] = option("one-hot", "how groups are encoded in it")
    weight: Literal["size", "equal"] = option("size", "weight of a client in the mean of bodies")
    select: int = option(
        50, "number of rays on which rounds are compared by validation; 0 keeps the last round"
    )
    preference: tuple[float, ...] = option(
        (),
        "one share per objective at which clients predict, more for less of it; if empty, each "
        "client's preference of least error on its validation examples",
    )

    def __post_init__(self) -> None:
        trade_off.check_options(
            self.terms,
            self.preferences,
            self.share,
            self.hypernet_rate,
            self.select,
            self.preference,
        )

    @property
    def terms(self) -> Terms:
        """What is traded off."""
        return Terms(self.objectives, self.scalar, self.fairness, self.code)

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial body, and a score below that of any round."""
        trade_off.check_task(task, params, self.name)
        self.terms.aims(task)
        psi = nets.shared(task, params, self.network)
        return Server(psi, psi, torch.tensor(-1.0, dtype=torch.float64))

    def init_client(self, task: Task, params: Params) -> State:
        """The hypernet, the same for all clients, that of the best round, and if it is trained."""
        own = nets.initial(task, params, len(self.objectives), self.network)
        return {"hypernet": own, "kept": own, "trained": torch.zeros(())}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Train, average, and keep this round if it is the best so far."""
        psi = cohort.mean(self.local, {"psi": server.psi}, weight=self.weight)["psi"]
        both = {"psi": psi, "kept": server.kept}
        if self.fit == "mean":
            sums = cohort.sum(self.fit_to_mean, both if self.select else {"psi": psi})
        if not self.select:
            return server._replace(psi=psi, kept=psi)
        if self.fit == "own":
            sums = cohort.sum(self.validate, both)
        better, score = trade_off.improved(sums, server.score)
        cohort.sum(self.keep, {"better": better})
        return Server(psi, psi if float(better) else server.kept, score)

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """Every client settles on a hypernet for the kept body."""
        body = {"psi": server.kept}
        sums = cohort.sum(self.settle, body)
        if float(sums["untrained"]):
            cohort.sum(self.catch_up, body)
        return server

    @phase("mean", psi="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train the body, then the hypernet with the body fixed."""
        state, m = client.state, len(self.objectives)
        first, second = trade_off.plans(message["psi"], task, client.plan, self.share)
        psi = trade_off.train_body(task, message["psi"], state["hypernet"], client, first, m)
        if self.fit == "mean":
            return {"psi": psi}, state
        return {"psi": psi}, self.trained(state, self.train(task, psi, client, second))

    def train(self, task: Task, psi: Params, client: Client, plan: Plan) -> Tensor:
        """The hypernet after training over the batches of a plan."""
        own, _ = trade_off.train_hypernet(
            task,
            psi,
            client.state["hypernet"],
            client,
            plan,
            terms=self.terms,
            count=self.preferences,
            rate=self.hypernet_rate,
            sampler={"mixture": simplex.start(1, len(self.objectives), 1.0)},
        )
        return own

    def trained(self, state: State, own: Tensor) -> State:
        """The client's state after a round; without a choice of the round, the last is kept."""
        first = state["trained"] == 0
        kept = torch.where(first, own, state["kept"]) if self.select else own
        return {"hypernet": own, "kept": kept, "trained": torch.ones(())}

    @phase("sum", volume="statistic", before="statistic", clients="statistic")
    def fit_to_mean(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train the hypernet with the mean of bodies, and measure its front as in `validate`."""
        _, second = trade_off.plans(message["psi"], task, client.plan, self.share)
        state = self.trained(client.state, self.train(task, message["psi"], client, second))
        if not self.select:
            none = torch.zeros(())
            return {"volume": none, "before": none, "clients": none}, state
        return self.validate(task, message, replace(client, state=state))

    @phase("sum", volume="statistic", before="statistic", clients="statistic")
    def validate(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The hypervolumes of this round's front and of the kept one, on validation examples."""
        own = client.state["hypernet"]
        return trade_off.compared(task, message, client, own, self.terms, self.select), client.state

    @phase("sum", kept="statistic")
    def keep(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Keep the hypernet if this round is the best so far."""
        better = message["better"] > 0
        kept = torch.where(better, client.state["hypernet"], client.state["kept"])
        return {"kept": message["better"]}, {**client.state, "kept": kept}

    @phase("sum", untrained="statistic")
    def settle(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Choose the hypernet to deploy with the kept body; tell whether none was trained."""
        kept = client.state["kept"]
        if self.select:
            kept = trade_off.settled(task, message["psi"], client, self.terms, self.select)
        return {"untrained": 1 - client.state["trained"]}, {**client.state, "kept": kept}

    @phase("sum", done="statistic")
    def catch_up(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A client that was in no cohort trains its hypernet now, with the kept body fixed."""
        state, late = client.state, client.state["trained"] == 0
        own = self.train(task, message["psi"], client, client.plan)
        after = {**self.trained(state, own), "kept": own}
        return {"done": torch.ones(())}, tmap(lambda a, b: torch.where(late, a, b), after, state)

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its hypernet with the body fixed."""
        own = self.train(task, message["model"].psi, client, client.plan)
        return {}, {"hypernet": own, "kept": own, "trained": torch.ones(())}

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
