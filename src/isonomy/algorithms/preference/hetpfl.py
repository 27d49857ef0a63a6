"""HetPFL: fronts for every client and for all together; each client learns where to sample.

Ye and Tang, "Learning heterogeneous performance-fairness trade-offs in federated learning", IJCAI
2025. A body psi is shared, client k has a hypernet h_k that makes the head of any preference, and
a distribution p(alpha_k) of preferences. In a round, with lam_v drawn from p(alpha_k):

    psi_k   <- local descent on the loss of (psi, h_k(1/2, 1/2))                          eq. 11
    h_k     <- local descent on (1/N) sum_v max_j loss_j(psi_k, h_k(lam_v)) / lam_vj      eq. 12
    alpha_k <- alpha_k + kappa mean_v HC(lam_v) grad log p(lam_v | alpha_k)               eq. 13, 14
    psi     <- (1/K) sum_k psi_k                                                          eq. 15

HC is a preference's contribution to the hypervolume of the batch's losses (PSA). After the last
round clients send hypernets and latent features, and the server learns FusionNet W, which weighs
the hypernets by preference: the head of all is made by W(lam) . [h_1, ..., h_K] (PHF, eq. 16).

As in PraFFL the maximum is smoothed, and the round with the best validation fronts is kept; both
are options. Departures from the authors' code, which does otherwise than the paper: alpha is
learnt on every batch (there, on the first of each epoch only), every client counts in the mean
(there, one is left out), FusionNet is used (there, the mean of hypernets is tuned on raw
examples; `fusion = "tuned"`, on latent features), groups are indicators. Beyond the paper:
`parts`, `baseline`, `refit`, more than two objectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from isonomy.blocks import descent, fusion, pareto, trade_off
from isonomy.blocks import preferences as simplex
from isonomy.blocks.trade_off import Terms
from isonomy.core.algorithm import Algorithm
from isonomy.core.batches import halves
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.models import hypernet as nets


@dataclass(frozen=True)
class HetPFL(Algorithm):
    """Fronts for every client and for all, with preferences sampled where they help."""

    name: ClassVar[str] = "hetpfl"
    family: ClassVar[str] = "preference"
    paper: ClassVar[str] = "Ye and Tang, IJCAI 2025"
    reveals: ClassVar[str] = (
        "means of the clients' bodies and of their fronts' hypervolumes; and after the last round, "
        "unless fusion = 'none', each client's hypernet and the latent features, labels and groups "
        "of up to `shown` of its examples"
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
    kappa: float = option(
        0.05, "Adam's rate for the distribution of preferences; 0: it does not learn"
    )
    alpha: float = option(1.05, "its parameters at first, 1 being uniform")
    limits: tuple[float, ...] = option((1.0, 5.0), "the least and the largest alpha")
    body: Literal["loss", "front"] = option(
        "loss", "what the body is trained on: eq. 11, or eq. 12's"
    )
    parts: int = option(1, "Dirichlet distributions in its mixture; 2 for fronts in two pieces")
    baseline: bool = option(
        False, "whether the others' mean contribution is taken off, for less noise"
    )
    fusion: Literal["net", "tuned", "mean", "none"] = option("net", "how the hypernets become one")
    fusion_steps: int = option(300, "steps of FusionNet, or epochs at most of the tuned mean")
    fusion_rate: float = option(0.01, "their learning rate (Adam)")
    shown: int = option(1024, "examples of a client whose latent features the server sees, at most")
    refit: int = option(
        0, "rounds of local work for the hypernets on the final body, before the fusion"
    )
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
        low, high = (*self.limits, 0.0, 0.0)[:2]
        if len(self.limits) != 2 or not 1 <= low <= self.alpha <= high:
            raise ValueError(
                f"limits = {list(self.limits)}, alpha = {self.alpha}: give two limits with alpha "
                "between them, the lower at least 1."
            )
        if not self.kappa >= 0:
            raise ValueError(f"kappa = {self.kappa}: give 0 or more.")
        for name, least in {"parts": 1, "fusion_steps": 0, "shown": 1, "refit": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: give {least} or more.")
        if not self.fusion_rate > 0:
            raise ValueError(f"fusion_rate = {self.fusion_rate}: give a number above 0.")
        if len(self.objectives) > 2 and self.kappa and self.preferences > pareto.MOST:
            raise ValueError(
                f"preferences = {self.preferences} of {len(self.objectives)} objectives: give at "
                f"most {pareto.MOST}, or kappa = 0."
            )

    @property
    def terms(self) -> Terms:
        """What is traded off."""
        return Terms(self.objectives, self.scalar, self.fairness, self.code)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The body, that of the best round and its score, and what the fusion will fill."""
        trade_off.check_task(task, params, self.name)
        self.terms.aims(task)
        body, m = nets.split(task, params)[1], len(self.objectives)
        server = {"psi": body, "kept": body, "score": torch.tensor(-1.0, dtype=torch.float64)}
        if self.fusion == "none":
            return server
        rows = clients if self.fusion == "net" else 1
        width = len(nets.initial(task, params, m))
        all_of = {"hypernets": torch.zeros(rows, width), "has": torch.zeros(rows)}
        return {**server, **all_of, "net": fusion.fusion_net(rows, m)}

    def init_client(self, task: Task, params: Params) -> State:
        """The hypernet, that of the best round, and the distribution of preferences."""
        m = len(self.objectives)
        hypernet, mixture = nets.initial(task, params, m), simplex.start(self.parts, m, self.alpha)
        memory = descent.start(_adam(self.kappa), _learnt(mixture))
        return {"hypernet": hypernet, "kept": hypernet, "mixture": mixture, "memory": memory}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """Phase I: train, average, and keep this round if it is the best so far."""
        psi = cohort.mean(self.local, {"psi": server["psi"]}, weight=self.weight)["psi"]
        if not self.select:
            return {**server, "psi": psi, "kept": psi}
        seen = cohort.sum(self.validate, {"psi": psi})
        better, score = trade_off.improved(seen, server["score"])
        cohort.sum(self.keep, {"better": better})
        kept = psi if float(better) else server["kept"]
        return {**server, "psi": psi, "kept": kept, "score": score}

    def finish(self, server: Any, cohort: Cohort) -> Any:
        """Phase II: the server fuses the hypernets."""
        body = {"psi": server["kept"]}
        for _ in range(self.refit):
            cohort.sum(self.again, body)
        if self.fusion == "none":
            return server
        got = cohort.gather(self.reveal, body)
        shown = fusion.Shown(**got.value)
        if self.fusion == "net":
            ids, net = got.ids, server["net"]
            new = fusion.train_net(
                cohort.task,
                shown,
                self.terms,
                steps=self.fusion_steps,
                rate=self.fusion_rate,
                count=2 * self.preferences,
            )
            net = {k: net[k].index_copy(0, ids, t) if k[-1] == "2" else t for k, t in new.items()}
            hypernets = server["hypernets"].index_copy(0, ids, shown.hypernet)
            has = server["has"].index_fill(0, ids, 1.0)
            return {**server, "hypernets": hypernets, "has": has, "net": net}
        one = shown.hypernet.mean(0)
        if self.fusion == "tuned":
            one = fusion.tuned(
                cohort.task,
                shown,
                self.terms,
                epochs=self.fusion_steps,
                rate=self.fusion_rate,
                count=2 * self.preferences,
            )
        return {**server, "hypernets": one.unsqueeze(0), "has": torch.ones(1)}

    @phase("mean", psi="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """First the body, then, with the body at rest, the hypernet and where it samples."""
        state, m = client.state, len(self.objectives)
        first, second = halves(client.plan, self.share)
        if self.body == "loss":
            psi = trade_off.train_body(task, message["psi"], state["hypernet"], client, first, m)
        else:
            psi = trade_off.train_body_for_all(
                task,
                message["psi"],
                state["hypernet"],
                client,
                first,
                terms=self.terms,
                count=self.preferences,
                mixture=state["mixture"],
            )
        own, sampler = self.train(task, psi, state["hypernet"], client, second)
        kept = state["kept"] if self.select else own
        return {"psi": psi}, {"hypernet": own, "kept": kept, **sampler}

    def train(self, task: Task, psi: Params, own: Tensor, client: Client, plan: Any) -> Any:
        """Eq. 12 to 14 along a plan: the hypernet, and the client's sampler, after it."""
        state, m = client.state, len(self.objectives)
        sampler = {"mixture": state["mixture"]}
        if self.kappa:
            sampler |= {"memory": state["memory"], "reference": torch.ones(m)}
        own, after = trade_off.train_hypernet(
            task,
            psi,
            own,
            client,
            plan,
            terms=self.terms,
            count=self.preferences,
            sampler=sampler,
            renew=self.renew if self.kappa else None,
        )
        return own, {k: after.get(k, state[k]) for k in ("mixture", "memory")}

    def renew(self, sampler: Tree, rays: Tensor, losses: Tensor) -> Tree:
        """PSA, eq. 13 and 14: more of the preferences that add to the hypervolume.

        The reference point is the largest loss seen so far in this round, at least 1.
        """
        reference = torch.maximum(sampler["reference"], losses.amax(0))
        gain = pareto.contributions(losses, reference)
        mixture, work = sampler["mixture"], _adam(self.kappa)
        g = simplex.evolution(mixture, rays, gain, self.baseline)
        rate = torch.full((), self.kappa)
        now, memory = descent.step(work, rate, _learnt(mixture), sampler["memory"], _learnt(g))
        mixture = simplex.bounded({**mixture, **now}, *self.limits)
        return {"mixture": mixture, "memory": memory, "reference": reference}

    @phase("sum", volume="statistic", clients="statistic")
    def validate(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The hypervolume of one's front on one's validation examples."""
        own = client.state["hypernet"]
        seen = trade_off.validated(task, message["psi"], own, client, self.terms, self.select)
        return seen, client.state

    @phase("sum", kept="statistic")
    def keep(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Remember the hypernet of the best round."""
        better = message["better"] > 0
        kept = torch.where(better, client.state["hypernet"], client.state["kept"])
        return {"kept": message["better"]}, {**client.state, "kept": kept}

    @phase("sum", done="statistic")
    def again(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train the hypernet on the final body, which rests."""
        own, sampler = self.train(task, message["psi"], client.state["kept"], client, client.plan)
        return {"done": torch.ones(())}, {**client.state, "kept": own, **sampler}

    @phase(
        "gather",
        hypernet=Part("model"),
        latent="examples",
        y="examples",
        groups="examples",
        weight="examples",
        start="statistic",
        draw="statistic",
    )
    def reveal(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """What the fusion needs of a client."""
        own = client.state["kept"]
        shown = fusion.shown(task, message["psi"], own, client, self.shown)
        return shown._asdict(), client.state

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new client trains its hypernet, from the fused one, on the body as it is."""
        server, state = message["model"], client.state
        start = state["kept"]
        if "has" in server:
            total = server["has"].sum()
            mean = server["has"] @ server["hypernets"] / total.clamp(min=1)
            start = torch.where(total > 0, mean, start)
        own, sampler = self.train(task, server["psi"], start, client, client.plan)
        return {}, {"hypernet": own, "kept": own, **sampler}

    def joint(self, server: Any) -> bool:
        """After the fusion."""
        return "has" in server and bool(server["has"].any())

    def deployed(self, server: Any) -> Any:
        """The body of the best round, and the fused front."""
        rest = {k: server[k] for k in ("hypernets", "has", "net") if k in server}
        return {"psi": server["kept"], **rest}

    def at(self, task: Task, server: Any, state: State | None, preference: Tensor) -> Params:
        """The model of a preference, of a client or of all."""
        if state is not None:
            own = state["kept"]
        else:
            own = fusion.fused(server["net"], server["hypernets"], server["has"], preference)
        return nets.whole(task, server["psi"], own, preference)

    def personal(self, deployed: Any) -> bool:
        """Every client has a front of its own, unless there is one for all together."""
        return not self.joint(deployed)

    def model(self, task: Task, server: Any, state: State) -> Params:
        """The model of the one preference that was chosen."""
        ray = trade_off.chosen(self.preference, len(self.objectives))
        return self.at(task, server, state, ray)


def _learnt(mixture: Tree) -> Tree:
    """What of a mixture learns: of one part, not its weight."""
    return mixture if len(mixture["alpha"]) > 1 else {"alpha": mixture["alpha"]}


def _adam(rate: float) -> Work:
    """How the distribution of preferences learns: as in the authors' code, across rounds."""
    return Work(optimiser="adam", lr=rate, weight_decay=1e-4)
