"""Suggests lam, the strength of FMTL's pull, from how clients differ, by a Gaussian model.

In federated point estimation (`isonomy.blocks.point_estimation`) the best lam is s / tau^2: the
variance of a client's own estimate by chance, over the variance of the clients' true ones. For
another model both are measured where federated averaging ends, at w. If there F_k is near
(h / 2) |w - w_k|^2 with one curvature h for all, its gradient is h (w - w_k), so that variances of
gradients are those of the w_k times h^2, and the best lam is h s / tau^2. Measured are

    within      mean over clients of |g' - g''|^2 n' n'' / n^2, from the gradients on two halves of
                the client's examples: an unbiased estimate of the chance in g_k
    between     the variance of the g_k over clients, less `within`
    curvature   sum_k d_k (g_k(w) - g_k(w - eta d_k)) / (eta sum_k |d_k|^2), d_k = g_k - mean: how
                gradients change over one step eta along what sets clients apart, plus weight decay

It takes two exchanges with all clients, of which the server sees sums only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.func import grad

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.blocks.clustering import halves
from isonomy.blocks.measure import train_loss
from isonomy.blocks.point_estimation import suggested_lam
from isonomy.config.schema import AlgorithmConfig, Config
from isonomy.core import tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import NoReplies
from isonomy.core.phase import Part, phase
from isonomy.core.task import Task
from isonomy.engines.base import sample
from isonomy.errors import ConfigError
from isonomy.runs.build import build, engine_of


@dataclass(frozen=True)
class Suggestion:
    """The measurements, and the lam that would be best if the Gaussian model were true."""

    lam: float
    within: float
    between: float
    curvature: float
    clients: int  # with two examples or more
    malicious: float
    spread: float

    def text(self) -> str:
        """The suggestion as a few lines of text."""
        lines = [
            f"lam = {self.lam:.3g}, by the Gaussian model of point estimation.",
            f"Of {self.clients} clients, at the end of federated averaging: gradients vary by "
            f"{self.within:.3g} by chance within a client and by {self.between:.3g} between "
            f"clients; curvature {self.curvature:.3g}.",
        ]
        if math.isinf(self.lam):
            lines[0] = (
                "lam = inf: chance explains all differences between clients, so by the Gaussian "
                "model one global model (fedavg) is best."
            )
        if self.malicious:
            lines.append(
                f"It assumes {self.malicious:.0%} malicious clients, {self.spread:g} times as far "
                "from the centre as others."
            )
        lines.append(
            "This is a diagnostic, not a guarantee: it assumes quadratic losses with one "
            "curvature. Try values around it, or let clients choose (algorithm.lams)."
        )
        return "\n".join(lines)


def suggest(
    config: Config,
    *,
    malicious: float = 0.0,
    spread: float = 3.0,
) -> Suggestion:
    """Train the config's model by federated averaging, measure, and suggest a lam.

    `malicious` is the expected share of malicious clients, whose models lie `spread` times as far
    from the centre as others'; the config's own attack and defence are not used.
    """
    if not 0 <= malicious < 1:
        raise ConfigError(f"malicious = {malicious:g}: give a share of at least 0 and below 1.")
    if not 1 <= spread < math.inf:
        raise ConfigError(f"spread = {spread:g}: give a number of at least 1.")
    algorithm = FedAvg(weight="equal")
    plain = AlgorithmConfig(name="fedavg", weight="equal")
    clean = Config.model_validate(
        {k: v for k, v in config.plain().items() if k not in ("attack", "defence", "algorithm")}
    )
    setting = build(clean.model_copy(update={"algorithm": plain}))
    engine = engine_of(setting)
    work, federation = config.local, setting.federation
    server = algorithm.init_server(setting.task, setting.params, len(federation))
    for r in range(config.rounds):
        count = config.cohort.size or len(federation)
        ids = sample(federation, count, seed=config.seed, round=r, how=config.cohort.sampling)
        cohort = engine.cohort(ids, work=work, round=r, rate=work.rate(r, config.rounds))
        server = algorithm.round(server, cohort)
    if not tree.finite(server):
        raise ConfigError(
            f"training diverged, so nothing can be measured; lower local.lr (now {work.lr:g})."
        )
    everyone = engine.cohort(engine.everyone(), work=work, round=config.rounds)
    try:
        first = everyone.sum(pull, {"params": server.params})
        used = float(first["used"])
        if used < 2:
            raise ConfigError(
                "fewer than two clients have two training examples, so chance cannot be told apart "
                "from differences; give clients more examples."
            )
        mean = tree.tmap(lambda t: (t / used).float(), first["gradient"])
        second = everyone.sum(differ, {"params": server.params, "mean": mean})
    except NoReplies as error:
        raise ConfigError(f"no client answered: {error}") from None
    within = float(first["within"]) / used
    total = float(second["apart"])
    curvature = float(second["bend"]) / total + work.weight_decay if total > 0 else 0.0
    if total > 0 and not curvature > 0:
        raise ConfigError(
            f"the loss has curvature {curvature:.3g} between the clients, so no lam can be "
            "suggested; train longer (rounds), or choose lam by validation (algorithm.lams)."
        )
    between = max(total / (used - 1) - within, 0.0)
    lam = suggested_lam(
        within, between, curvature, clients=int(used), malicious=malicious, spread=spread
    )
    return Suggestion(lam, within, between, curvature, int(used), malicious, spread)


@phase("sum", gradient=Part("gradient", of="params"), within="statistic", used="statistic")
def pull(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """A client's gradient and its variance by chance; zeros for a client with one example."""
    both = halves(task, message["params"], client)
    n = client.sizes[0].to(torch.float32)
    one, other = torch.ceil(n / 2), torch.floor(n / 2)
    used = (n > 1).to(torch.float32)
    share = one * other / n.square().clamp(min=1)
    apart = tree.sq_norm(tree.tmap(lambda t: t[0] - t[1], both))
    whole = tree.tmap(lambda t: used * (one * t[0] + other * t[1]) / n.clamp(min=1), both)
    return {"gradient": whole, "within": used * share * apart, "used": used}, client.state


@phase("sum", apart="statistic", bend="statistic")
def differ(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """A client's squared distance from the mean gradient, and the curvature along it."""
    params, mean = message["params"], message["mean"]
    used = (client.sizes[0] > 1).to(torch.float32)

    def at(where: tree.Tree) -> tree.Tree:
        return grad(lambda p: train_loss(task, p, client))(where)

    here = at(params)
    away = tree.sub(here, mean)
    moved = tree.tmap(lambda p, d: p - client.rate * d, params, away)
    bend = tree.dot(away, tree.sub(here, at(moved))) / client.rate
    return {"apart": used * tree.sq_norm(away), "bend": used * bend}, client.state
