"""Suggests lam, the strength of FMTL's pull: by a Gaussian model, checked on held-out examples.

The Gaussian model gives one value. It is compared with the powers of ten in `GRID` and with the
global model on held-out examples (`isonomy.studies.lam_comparison`), and the value of the least
loss is suggested.

In federated point estimation (`isonomy.blocks.point_estimation`) the best lam is s / tau^2: the
variance of a client's own estimate by chance, over the variance of the clients' true ones. For
another model both are measured where federated averaging ends, at w. If there F_k is near
(h / 2) |w - w_k|^2 with one curvature h for all, its gradient is h (w - w_k), so that variances of
gradients are those of the w_k times h^2, and the best lam is h s / tau^2. Measured are

    within      mean over clients of s_k = |g' - g''|^2 n' n'' / n^2, from the gradients on two
                halves of the client's examples: an unbiased estimate of the chance in g_k
    between     the variance of the g_k over clients, less what chance contributes to it
    curvature   sum_k d_k (g_k(w) - g_k(w - eta d_k)) / (eta sum_k |d_k|^2), d_k = g_k - mean: how
                gradients change along what sets clients apart, plus weight decay. A personal model
                moves by d_k / (h + lam); so eta is the largest of some steps that go no further,
                which matters where curvature changes along the way, as with the hinge loss

In all sums over clients, a client counts by its number of examples n_k. The error over all examples
is, up to terms of 1 / K, sum_k n_k (lam^2 tau^2 + s_k) / (1 + lam)^2, so the best common lam is
sum_k n_k s_k / (sum_k n_k tau^2): small clients, whose s_k is large, do not decide for all.

The measurement takes two exchanges with all clients, of which the server sees sums only.

An attack is refused: what attackers do to the global model decides how far personal models should
be pulled to it, and no variance measured without them shows it (docs/suggest.md has the figures).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.func import grad

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.blocks.clustering import halves
from isonomy.blocks.measure import train_loss
from isonomy.blocks.point_estimation import suggested_lam
from isonomy.core import tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import NoReplies
from isonomy.core.phase import Part, phase
from isonomy.core.task import Task
from isonomy.errors import ConfigError
from isonomy.runs.build import Setting
from isonomy.studies.lam_comparison import Comparison, compare_lams
from isonomy.studies.plain_training import trained

GRID = (0.01, 0.1, 1.0, 10.0)  # that the Gaussian model's value is compared with
STEPS = (1, 4, 16, 64, 256, 1024)  # over which curvature is measured, times the learning rate


@dataclass(frozen=True)
class LamSuggestion:
    """The suggested lam, the Gaussian model's with its measurements, and the comparison."""

    lam: float
    gaussian: float
    within: float
    between: float
    curvature: float
    clients: int  # with two examples or more
    comparison: Comparison | None = None

    def text(self) -> str:
        """The suggestion as a few lines of text."""
        return "\n".join([*self._chosen(), *self._model()])

    def _chosen(self) -> list[str]:
        made, named = self.comparison, _named(self.lam)
        if made is None:
            return [
                f"{named}, by the Gaussian model alone: no client has enough examples to hold some "
                "out, so it was not compared with other values."
            ]
        where = "validation examples"
        if made.held_out:
            where = "training examples that were held out (a fifth of each client's)"
        lines = [f"{named}: the least loss of {len(made.rows)} values on {made.examples} {where}."]
        for row in made.rows:
            accuracy = "" if row.accuracy is None else f", accuracy {row.accuracy:.4f}"
            marks = [
                *(["Gaussian model"] if row.lam == self.gaussian else []),
                *(["global model"] if math.isinf(row.lam) else []),
                *(["suggested"] if row.lam == self.lam else []),
            ]
            note = f"  ({', '.join(marks)})" if marks else ""
            lines.append(f"  lam = {row.lam:<8.3g} loss {row.loss:.4f}{accuracy}{note}")
        return lines

    def _model(self) -> list[str]:
        lines = [
            f"By the Gaussian model of point estimation, {_named(self.gaussian)}. Of "
            f"{self.clients} clients, at the end of federated averaging: gradients vary by "
            f"{self.within:.3g} by chance within a client and by {self.between:.3g} between "
            f"clients; curvature {self.curvature:.3g}."
        ]
        if math.isinf(self.gaussian):
            lines.append(
                "Chance explains all differences between clients, so by the Gaussian model one "
                "global model (fedavg) is best."
            )
        if math.isinf(self.lam):
            lines.append("lam = inf is the global model: use algorithm 'fedavg'.")
        lines.append(
            "Neighbouring values usually differ by less than chance. Clients can also choose for "
            "themselves (algorithm.lams)."
        )
        return lines

    def plain(self) -> dict[str, Any]:
        """The values as JSON; infinity as a text."""
        out = {k: _plain(v) for k, v in self.__dict__.items() if k != "comparison"}
        made = self.comparison
        if made is not None:
            rows = [{k: _plain(v) for k, v in row._asdict().items()} for row in made.rows]
            out["comparison"] = {
                "examples": made.examples,
                "held_out": made.held_out,
                "values": rows,
            }
        return out


def _named(lam: float) -> str:
    return f"lam = {lam:.3g}"


def _plain(value: Any) -> Any:
    return "inf" if value == math.inf else value


def suggest_lam(setting: Setting, method: FMTL | None = None) -> LamSuggestion:
    """The lam of the least held-out loss among that of the Gaussian model and a few others."""
    found = gaussian_lam(setting)
    made = compare_lams(setting, method or FMTL(), [found.gaussian, *GRID])
    return found if made is None else replace(found, lam=made.best.lam, comparison=made)


def gaussian_lam(setting: Setting) -> LamSuggestion:
    """Train the setting's model by federated averaging, measure, and compute the model's lam."""
    work = setting.config.local
    server, everyone = trained(setting, FedAvg(weight="equal"))
    try:
        first = everyone.sum(pull, {"params": server.params})
        used, rows = float(first["used"]), float(first["rows"])
        if used < 2:
            raise ConfigError(
                "fewer than two clients have two training examples, so chance cannot be told apart "
                "from differences; give clients more examples."
            )
        mean = tree.tmap(lambda t: (t / rows).float(), first["gradient"])
        second = everyone.sum(differ, {"params": server.params, "mean": mean})
    except NoReplies as error:
        raise ConfigError(f"no client answered: {error}") from None
    within, total = float(first["within"]) / rows, float(second["apart"])
    # E total = tau^2 sum n (1 - n / N) + sum n s (1 - n / N), with N the sum of n
    chance = float(first["within"]) - float(first["within_squared"]) / rows
    between = max((total - chance) / (rows - float(first["squared"]) / rows), 0.0)
    bends = (second["bend"] / total + work.weight_decay).tolist() if total > 0 else [0.0]
    reach = [
        step * work.lr * bend * (1 + within / between if between else 1)
        for step, bend in zip(STEPS, bends, strict=False)
    ]
    curvature = bends[max((i for i, far in enumerate(reach) if far <= 1), default=0)]
    if total > 0 and not curvature > 0:
        raise ConfigError(
            f"the loss has curvature {curvature:.3g} between the clients, so no lam can be "
            "suggested; train longer (rounds), or choose lam by validation (algorithm.lams)."
        )
    lam = suggested_lam(within, between, curvature)
    return LamSuggestion(lam, lam, within, between, curvature, int(used))


@phase(
    "sum",
    gradient=Part("gradient", of="params"),
    within="statistic",
    within_squared="statistic",
    rows="statistic",
    squared="statistic",
    used="statistic",
)
def pull(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """Sums of n g, n s, n^2 s, n, n^2 and 1 for gradients g, without clients of one example."""
    both = halves(task, message["params"], client)
    size = client.sizes[0].to(torch.float32)
    one, other = torch.ceil(size / 2), torch.floor(size / 2)
    used = (size > 1).to(torch.float32)
    n = used * size
    apart = tree.sq_norm(tree.tmap(lambda t: t[0] - t[1], both))
    s = one * other / size.square().clamp(min=1) * apart
    reply = {
        "gradient": tree.tmap(lambda t: used * (one * t[0] + other * t[1]), both),
        "within": n * s,
        "within_squared": n.square() * s,
        "rows": n,
        "squared": n.square(),
        "used": used,
    }
    return reply, client.state


@phase("sum", apart="statistic", bend="statistic")
def differ(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """A client's squared distance from the mean gradient, and the curvature along it, times n."""
    params, mean = message["params"], message["mean"]
    n = client.sizes[0].to(torch.float32)
    n = torch.where(n > 1, n, 0.0)

    def at(where: tree.Tree) -> tree.Tree:
        return grad(lambda p: train_loss(task, p, client))(where)

    here = at(params)
    away = tree.sub(here, mean)
    bends = []
    for step in STEPS:
        eta = step * client.work.lr
        moved = tree.tmap(lambda p, d, eta=eta: p - eta * d, params, away)
        bends.append(tree.dot(away, tree.sub(here, at(moved))) / eta)
    return {"apart": n * tree.sq_norm(away), "bend": n * torch.stack(bends)}, client.state
