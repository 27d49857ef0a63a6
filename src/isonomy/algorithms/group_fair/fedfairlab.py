"""FedFairLAB: local training under fairness bounds, distillation, and the best model by a score.

Fontana et al., "FedFairLAB" (2026), after its public code; no paper was found. In a round

1. every client trains the model on the augmented Lagrangian of its bounds g_j <= 0,

       Psi = loss + sum_j ([lam_j + mu g_j]_+^2 - lam_j^2) / (2 mu),

   g_j the soft gap of an attribute minus `threshold`, and `budget` minus the soft accuracy; then
   lam_j <- max(lam0, lam_j + mu [g_j]_+) and mu <- growth mu, both at most `most`;
2. all models are scored on all clients' validation examples,

       score = accuracy - 10 sum_j [gap_j - threshold]_+ - 10 [budget - accuracy]_+;

3. every client distils a new model from all of them: from the initial model, on its own examples,
   towards the mean of their probabilities with weights in proportion to their scores;
4. these are scored too, and the best of all models (of equals, the one with the least loss) is
   the next one. The best one of all rounds is
   deployed (`keep = "last"`: that of the last round).

The public README says that clients exchange logits; in the code, as here, every model is sent to
every client. Here scores come from sums of counts over clients instead of means of the clients'
gaps, multipliers change once per round, and there are two classes; the README's selective
distillation, which the code does not use, is left out. One client, `threshold = 1`, `lam0 = 0`,
`epochs = 0` and `keep = "last"` are that client's own training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.descent import descend
from isonomy.blocks.groups import NOTION_OPTION, Cells, column, member, rates, require_binary
from isonomy.blocks.soft_rates import soft_accuracy, soft_gap
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.examples import Split
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Range
from isonomy.core.task import Batch, Params, Task, probabilities
from isonomy.core.work import Work
from isonomy.errors import ConfigError

PENALTY = 10.0  # of a violated bound in a score


class Server(NamedTuple):
    """The model, the initial one, the best one so far and its score (-inf: none yet)."""

    params: Params
    initial: Params
    best: Params
    score: Tensor


class Own(NamedTuple):
    """A client's multipliers [bounds], and mu."""

    lam: Tensor
    mu: Tensor


@dataclass(frozen=True)
class FedFairLAB(Algorithm[Server]):
    """Augmented Lagrangians at the clients, distillation, and the best model by a score."""

    name: ClassVar[str] = "fedfairlab"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Fontana et al., 2026 (after its public code)"
    reveals: ClassVar[str] = (
        "each client's models, to the server and to all clients; only sums of the losses, and of "
        "the counts of predictions by label and group"
    )

    threshold: float = option(
        0.05, "largest gap between groups, of each attribute", search=Range(0.01, 0.2), ge=0, le=1
    )
    budget: float = option(0.0, "least accuracy; 0: no bound", ge=0, le=1)
    notion: NotionCode = option("dp", NOTION_OPTION)
    attribute: str = option(
        "", "protected attribute whose gap is bounded; the first if empty, 'all' for all of them"
    )
    lam0: float = option(0.1, "first and least multiplier", ge=0, lt=math.inf)
    mu0: float = option(1.0, "first weight of squared violations", gt=0, lt=math.inf)
    growth: float = option(2.0, "factor of that weight from round to round", ge=1, lt=math.inf)
    most: float = option(100.0, "largest multiplier, and weight of squared violations", gt=0)
    epochs: int = option(10, "passes of distillation; 0: none", ge=0)
    keep: Literal["best", "last"] = option("best", "which round's model is deployed")

    def recommended_work(self) -> Mapping[str, Any]:
        """Larger batches, because gaps in small ones are mostly chance."""
        return {"batch": 256}

    def other_work(self, phase: str, work: Work) -> Work | None:
        """Distillation has its own number of passes."""
        return replace(work, epochs=self.epochs, steps=None) if phase == "distil" else None

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model."""
        require_binary(task, self.name)
        if task.loss_name not in ("cross_entropy", "logistic"):
            raise ConfigError(
                f"algorithm '{self.name}' distils probabilities, which the loss "
                f"'{task.loss_name}' does not define; set model.loss = 'logistic' or "
                "'cross_entropy'."
            )
        self._columns(task)
        return Server(params, params, params, torch.tensor(-math.inf))

    def init_client(self, task: Task, params: Params) -> State:
        """The first multipliers."""
        bounds = len(self._columns(task)) + (self.budget > 0)
        return Own(torch.full((bounds,), self.lam0), torch.tensor(self.mu0))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Train, score, distil, score, choose."""
        models = cohort.gather(self.train, {"params": server.params}).value["params"]
        scores, losses = self._scores(cohort, models)
        own = len(scores)
        if self.epochs:
            positive = scores.clamp(min=0)
            weight = positive if bool(positive.any()) else torch.ones_like(scores)
            sent = {"initial": server.initial, "models": models, "weight": weight / weight.sum()}
            work = self.other_work("distil", cohort.work)
            distilled = cohort.gather(self.distil, sent, work=work).value["params"]
            more = self._scores(cohort, distilled)
            scores, losses = torch.cat([scores, more[0]]), torch.cat([losses, more[1]])
            models = tree.concat([models, distilled])
        tied = scores >= scores.max() - 1e-9  # of these, the one with the least loss
        best = int(torch.where(tied, losses, math.inf).argmin())
        params, score = tree.take(models, best), scores[best].to(torch.float32)
        cohort.record(score=float(score), chosen="own" if best < own else "distilled")
        better = bool(score > server.score)
        kept = params if better or self.keep == "last" else server.best
        return Server(params, server.initial, kept, torch.maximum(score, server.score))

    def deployed(self, server: Server) -> Global:
        """The best model so far, or the last one."""
        return Global(server.best)

    @phase("gather", params="model")
    def train(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local training on the augmented Lagrangian; then the multipliers grow."""
        own: Own = client.state
        params = message["params"]

        def objective(params: Params, batch: Batch) -> Tensor:
            outputs = task.outputs(params, batch.x)
            total = (task.each_loss(outputs, batch.y) * batch.weight).sum()
            g = self._bounds(task, outputs, batch)
            shifted = (own.lam + own.mu * g).clamp(min=0)
            penalty = (shifted.square() - own.lam.square()).sum() / (2 * own.mu)
            return total / batch.weight.sum().clamp(min=1) + penalty

        new = descend(objective, params, client)
        whole = client.train
        g = self._bounds(task, task.outputs(new, whole.x), whole).clamp(min=0)
        lam = (own.lam + own.mu * g).clamp(self.lam0, max(self.most, self.lam0))
        return {"params": new}, Own(lam, (own.mu * self.growth).clamp(max=self.most))

    @phase("sum", times=2, cells="group statistic", loss="statistic")
    def score(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Counts, positive predictions and losses of each model, on validation examples if any.

        Counts are by label and group of each attribute.
        """
        held = self._counted(task, message["models"], client, "validation")
        seen = self._counted(task, message["models"], client, "train")
        loss, *counted = (
            torch.where(client.sizes[1] > 0, a, b) for a, b in zip(held, seen, strict=True)
        )
        return {"cells": tuple(counted), "loss": loss}, client.state

    @phase("gather", params=Part("model", of="initial"))
    def distil(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """A new model, trained towards the weighted mean of all models' probabilities."""
        models, weight = message["models"], message["weight"]

        def chances(params: Params, x: Tensor) -> Tensor:
            found = probabilities(task.loss_name, task.outputs(params, x))
            assert found is not None  # checked by init_server
            return found

        def objective(params: Params, batch: Batch) -> Tensor:
            taught: Tensor = vmap(chances, (0, None))(models, batch.x)
            target = torch.tensordot(weight.to(taught.dtype), taught, dims=1)
            loss: Tensor = -(target * chances(params, batch.x).clamp(min=1e-7).log()).sum(-1)
            return (loss * batch.weight).sum() / batch.weight.sum().clamp(min=1)

        return {"params": descend(objective, message["initial"], client)}, client.state

    def _columns(self, task: Task) -> list[int]:
        """The attributes that are bounded."""
        if self.attribute != "all":
            return [column(task, self.attribute, self.name)]
        column(task, "", self.name)  # there must be one
        return [at for at, levels in enumerate(task.levels) if levels > 1]

    def _bounds(self, task: Task, outputs: Tensor, batch: Batch) -> Tensor:
        """What must be at most 0, of a batch."""
        notion = NOTIONS[self.notion]
        gaps = [soft_gap(task, outputs, batch, at, notion) for at in self._columns(task)]
        bounds = [gap - self.threshold for gap in gaps]
        if self.budget:
            bounds.append(self.budget - soft_accuracy(task, outputs, batch))
        return torch.stack(bounds)

    def _counted(self, task: Task, models: Params, client: Client, split: Split) -> list[Tensor]:
        """Losses [models]; counts and positives [models, 2, labels, groups] of each attribute."""

        def one(params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
            outputs = task.outputs(params, batch.x)
            loss = (task.each_loss(outputs, batch.y) * batch.weight).to(torch.float64).sum()
            return loss, task.decide(outputs).to(torch.float64)

        totals: list[Tensor] = []
        for page in client.pages(split):
            loss, chosen = vmap(one, (0, None))(models, page)  # [models], [models, n]
            values = torch.stack([torch.ones_like(chosen), chosen], 1)
            inside = [member(task, page, at).to(torch.float64) for at in self._columns(task)]
            found = [loss, *(torch.einsum("mvn,nyz->mvyz", values, cell) for cell in inside)]
            totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
        return totals

    def _scores(self, cohort: Cohort, models: Params) -> tuple[Tensor, Tensor]:
        """The score of each of the stacked models, and its loss, which breaks ties."""
        got = cohort.sum(self.score, {"models": models})
        found = got["cells"]
        count, positive = found[0][:, 0].sum(-1), found[0][:, 1].sum(-1)  # [models, labels]
        correct = positive[:, 1] + count[:, 0] - positive[:, 0]
        accuracy = correct / count.sum(-1).clamp(min=1)
        score = accuracy - PENALTY * (self.budget - accuracy).clamp(min=0)
        for cells in found:
            gaps = torch.stack([_gap(one, self.notion) for one in cells])
            score = score - PENALTY * (gaps - self.threshold).clamp(min=0)
        return score, got["loss"]


def _gap(cells: Tensor, notion: str) -> Tensor:
    """The largest difference between groups' rates, from counts and positives."""
    rate, known = rates(Cells(cells[0], cells[0] * 0, cells[1]), NOTIONS[notion])
    some = rate[known]
    return some.max() - some.min() if len(some) > 1 else rate.new_zeros(())
