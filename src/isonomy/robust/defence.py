"""A defence: a combiner that replaces the mean where an algorithm averages models or updates.

It combines the flattened update of the whole model, that is, all parts of a reply that hold
parameters, updates or gradients (see `parts`). Other parts get the weighted mean. Clients of weight
0 are left out. A combiner that needs losses asks for them in one more exchange, at the sent model.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isonomy.blocks.measure import train_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask, Cohort, Replies
from isonomy.core.phase import declared, phase
from isonomy.core.task import Task
from isonomy.errors import ConfigError
from isonomy.robust.combiners import Combiner, outnumbered, told
from isonomy.robust.parts import Trained, replied, trained, updates


class Defence:
    """Applies a combiner, and counts how often it was used.

    It also counts how often there were too few updates, and how often more of them were malicious
    than the rule expects. `malicious` are the clients that attack, which only a simulation knows.
    """

    def __init__(self, rule: Combiner, malicious: Tensor | None = None) -> None:
        self.rule = rule
        self.malicious = torch.arange(0) if malicious is None else malicious
        self.used = self.short = self.outnumbered = 0

    def __call__(self, cohort: Cohort, ask: Ask, replies: Replies, weight: Tensor) -> Reply:
        """The combined reply."""
        order = replies.ids.argsort()  # so that ties do not depend on the order of arrival
        replies = Replies(tree.take(replies.value, order), replies.ids[order], replies.sizes[order])
        weight = weight[order]
        found = [
            replace(p, origin=None, own=False) if p.own else p
            for p in trained(ask, replies.value)
            if p.combines
        ]
        if not found:
            return _mean(replies.value, weight)
        losses = None
        if self.rule.losses:
            replies, weight, losses = self._losses(cohort, found, replies, weight)
        keep = weight > 0
        counted = tree.take(replies.value, keep)
        rows = updates(counted, found, torch.arange(0))
        bad = int(torch.isin(replies.ids[keep], self.malicious).sum())
        rule = told(self.rule, bad)
        self.used += 1
        self.short += not rule.enough(len(rows))
        self.outnumbered += outnumbered(rule, len(rows), bad)
        one = rule.combine(rows, weight[keep], None if losses is None else losses[keep])
        names = {p.name for p in found}
        rest = {k: v for k, v in replies.value.items() if k not in names}
        pattern = {name: tree.take(counted[name], slice(0, 1)) for name in names}
        made = replied(pattern, found, torch.arange(0), one.unsqueeze(0))
        mean = _mean(rest, weight)
        return {k: tree.take(made[k], 0) if k in names else mean[k] for k in replies.value}

    def _losses(
        self, cohort: Cohort, found: list[Trained], replies: Replies, weight: Tensor
    ) -> tuple[Replies, Tensor, Tensor]:
        """Every client's loss at the sent model; clients that do not reply are left out."""
        models = [p.sent for p in found if p.sent is not None]
        if not models:
            raise ConfigError(
                f"defence '{self.rule.name}' needs the loss of one sent model, but this algorithm "
                "sends every client its own; choose another defence."
            )
        got = cohort.gather(sent_loss, {"model": models[0]})
        at = torch.isin(replies.ids, got.ids).nonzero().squeeze(-1)
        left = Replies(tree.take(replies.value, at), replies.ids[at], replies.sizes[at])
        return left, weight[at], got.value["loss"][got.ids.argsort()]


LOSS = "loss"


@phase("gather", name=f"measure:{LOSS}", loss="statistic")
def sent_loss(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """The loss of the received model on all training examples."""
    return {"loss": train_loss(task, message["model"], client)}, client.state


def _mean(value: Reply, weight: Tensor) -> Reply:
    share = weight.double() / weight.sum()
    kind = torch.get_default_dtype()
    return tree.tmap(lambda t: torch.tensordot(share, t.double(), dims=1).to(kind), value)


# --- which algorithms it suits --------------------------------------------------------------------


def refusal(kind: type[Algorithm], defence: str) -> str | None:
    """Why a defence cannot be used with this algorithm, in a sentence; None if it can."""
    asked = {verb for one in declared(kind).values() if one.trained for verb in one.verbs}
    if "mean" in asked and "weigh" not in asked:
        return None
    how = "combines replies itself" if "gather" in asked else "shares no model"
    if "weigh" in asked:
        how = "weighs clients by what they reply"
    return (
        f"defence '{defence}': '{kind.name}' {how}, so there is no mean to replace; remove the "
        "defence, or choose an algorithm that averages, such as fedavg."
    )
