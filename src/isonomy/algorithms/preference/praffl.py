"""PraFFL: every client learns its whole trade-off between performance and fairness.

Ye, Kou and Tang, "PraFFL: a preference-aware scheme in fair federated learning", KDD 2025. A body
psi is shared and averaged; a hypernet h_k of the client's own makes the head of any preference.
In a round, client k of the cohort, with lam drawn from the uniform distribution on the simplex:

    psi_k <- local descent on the loss of (psi, h_k(1/2, 1/2)), h_k at rest
    h_k   <- local descent on (1/N) sum_v max_j loss_j(psi_k, h_k(lam_v)) / lam_vj, psi_k at rest
    psi   <- mean of psi_k

and the round whose fronts have the best mean hypervolume on validation examples is kept. The max is
smoothed to a log-sum-exp and unfairness is trained as a squared dependence of logits and groups, as
in the authors' code; both have the other form as an option. Departures from that code: groups are
indicators, not numbers; every client counts the same in the mean (there the first one of a round is
left out); draws differ from round to round and client to client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks import preferences as simplex
from isonomy.blocks import trade_off
from isonomy.blocks.trade_off import Terms
from isonomy.core.algorithm import Algorithm
from isonomy.core.batches import halves
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.task import Params, Task
from isonomy.models import hypernet as nets


@dataclass(frozen=True)
class PraFFL(Algorithm):
    """A front for every client: a shared body, and a hypernet of one's own."""

    name: ClassVar[str] = "praffl"
    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "Ye, Kou and Tang, KDD 2025"
    reveals: ClassVar[str] = (
        "only means: of the clients' bodies, and of the hypervolumes of their fronts on "
        "validation examples; hypernets stay with their clients"
    )

    objectives: tuple[str, ...] = option(
        ("error", "dp"), "error, then dp or eo, of an attribute: dp.sex"
    )
    preferences: int = option(8, "N, preferences drawn for every step of the hypernet")
    share: float = option(
        16 / 30, "of the local steps, those that train the body; the rest the hypernet"
    )
    scalar: Literal["logsumexp", "max"] = option("logsumexp", "Tchebycheff's maximum, or smoothed")
    fairness: Literal["squared", "covariance", "gap"] = option(
        "squared", "what unfairness is trained as"
    )
    code: Literal["one-hot", "number"] = option("one-hot", "how groups enter it")
    weight: Literal["equal", "size"] = option("equal", "a client's say in the mean of bodies")
    select: int = option(
        100, "rays by which rounds are compared on validation examples; 0: keep the last"
    )
    preference: tuple[float, ...] = option(
        (), "the trade-off that clients predict with; even if empty"
    )

    def __post_init__(self) -> None:
        trade_off.check_options(
            self.terms, self.preferences, self.share, self.select, self.preference
        )

    @property
    def terms(self) -> Terms:
        """What is traded off."""
        return Terms(self.objectives, self.scalar, self.fairness, self.code)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The body, that of the best round so far, and how good it was."""
        trade_off.check_task(task, params, self.name)
        self.terms.aims(task)
        body = nets.split(task, params)[1]
        return {"psi": body, "kept": body, "score": torch.tensor(-1.0, dtype=torch.float64)}

    def init_client(self, task: Task, params: Params) -> State:
        """The hypernet, the same at first for all, and that of the best round so far."""
        hypernet = nets.initial(task, params, len(self.objectives))
        return {"hypernet": hypernet, "kept": hypernet}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Train, average, and keep this round if it is the best so far."""
        psi = cohort.mean(self.local, {"psi": server["psi"]}, weight=self.weight)["psi"]
        if not self.select:
            return {**server, "psi": psi, "kept": psi}
        seen = cohort.sum(self.validate, {"psi": psi})
        better, score = trade_off.improved(seen, server["score"])
        cohort.sum(self.keep, {"better": better})
        kept = psi if float(better) else server["kept"]
        return {"psi": psi, "kept": kept, "score": score}

    @phase("mean", psi="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """First the body, then, with the body at rest, the hypernet."""
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
        """The hypervolume of one's front on one's validation examples."""
        own = client.state["hypernet"]
        seen = trade_off.validated(task, message["psi"], own, client, self.terms, self.select)
        return seen, client.state

    @phase("sum", kept="statistic")
    def keep(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Remember the hypernet of the best round."""
        own, better = client.state["hypernet"], message["better"] > 0
        kept = torch.where(better, own, client.state["kept"])
        return {"kept": message["better"]}, {"hypernet": own, "kept": kept}

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its hypernet, on the body as it is."""
        own, _ = trade_off.train_hypernet(
            task,
            message["model"]["psi"],
            client.state["hypernet"],
            client,
            client.plan,
            terms=self.terms,
            count=self.preferences,
            sampler={"mixture": simplex.start(1, len(self.objectives), 1.0)},
        )
        return {}, {"hypernet": own, "kept": own}

    def deployed(self, server: Any) -> Any:
        """The body of the best round."""
        return {"psi": server["kept"]}

    def joint(self, deployed: Any) -> bool:
        """There is no front of all clients together."""
        return False

    def at(self, task: Task, server: Any, state: State | None, preference: Tensor) -> Params:
        """The client's model of a preference; there is none for all clients together."""
        if state is None:
            raise ValueError("'praffl' has no front of all clients together")
        return nets.whole(task, server["psi"], state["kept"], preference)

    def personal(self, deployed: Any) -> bool:
        """Every client has a front of its own, unless there is one for all together."""
        return not self.joint(deployed)

    def model(self, task: Task, server: Any, state: State) -> Params:
        """The model of the one preference that was chosen."""
        ray = trade_off.chosen(self.preference, len(self.objectives))
        return self.at(task, server, state, ray)
