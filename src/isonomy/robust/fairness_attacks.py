"""Attacks on group fairness: malicious clients that make a model worse for one group.

Flipped groups and forged models are those of GuardFed (Li et al., 2025). Two attacks train their
models in another way: EAB-FL, which raises the loss of one group, and PFAttack, which undoes the
debiasing in the last rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from isonomy.blocks.descent import descend, start, step
from isonomy.blocks.groups import cells, column, member, rates
from isonomy.core import tree
from isonomy.core.batches import Plan
from isonomy.core.client import Client
from isonomy.core.fold import fold
from isonomy.core.notions import NOTIONS
from isonomy.core.options import option
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.robust.attack import Attack, Seen, Trainee, TrainingAttack

ATTRIBUTE = "protected attribute that it is about; the first if empty"
GUARDFED = "Li et al., GuardFed, 2025"


def negative_models(seen: Seen, factor: float) -> Tensor:
    """The updates to minus `factor` times the trained models, or minus so many updates."""
    models = seen.origins + seen.updates
    return -factor * models - seen.origins


@dataclass(frozen=True)
class FFlip(Attack):
    """Flipped groups: honest training on examples whose protected attribute is exchanged."""

    name: ClassVar[str] = "f_flip"
    paper: ClassVar[str] = f"{GUARDFED} (F-flip)"
    sees: ClassVar[str] = "its own data"
    forges: ClassVar[bool] = False
    flips: ClassVar[Literal["none", "all", "half"]] = "all"
    grouped: ClassVar[bool] = True

    attribute: str = option("", ATTRIBUTE)

    def forge(self, seen: Seen) -> Tensor:
        """The updates without changes: the flipped groups are the attack (see `labels`)."""
        return seen.updates


@dataclass(frozen=True)
class FOE(Attack):
    """Negative models: minus `factor` times the trained model, as in GuardFed's public code.

    The attack of that name by Xie et al. is `inner_product`.
    """

    name: ClassVar[str] = "foe"
    paper: ClassVar[str] = f"{GUARDFED} (FOE)"
    sees: ClassVar[str] = "its own model"

    factor: float = option(0.5, "length of the forged model, relative to the trained one", gt=0)

    def forge(self, seen: Seen) -> Tensor:
        """Minus factor times the model."""
        return negative_models(seen, self.factor)


@dataclass(frozen=True)
class SDFA(Attack):
    """S-DFA: every malicious client trains on flipped groups and sends a negative model."""

    name: ClassVar[str] = "s_dfa"
    paper: ClassVar[str] = f"{GUARDFED} (S-DFA)"
    sees: ClassVar[str] = "its own data and model"
    flips: ClassVar[Literal["none", "all", "half"]] = "all"
    grouped: ClassVar[bool] = True

    factor: float = option(0.5, "length of the forged model, relative to the trained one", gt=0)
    attribute: str = option("", ATTRIBUTE)

    def forge(self, seen: Seen) -> Tensor:
        """Minus factor times the model."""
        return negative_models(seen, self.factor)


@dataclass(frozen=True)
class SpDFA(SDFA):
    """Sp-DFA: half of the malicious clients train on flipped groups, the others send negative
    models.
    """

    name: ClassVar[str] = "sp_dfa"
    paper: ClassVar[str] = f"{GUARDFED} (Sp-DFA)"
    flips: ClassVar[Literal["none", "all", "half"]] = "half"


# --- attacks that train -------------------------------------------------------------------------


@dataclass(frozen=True)
class EABFL(TrainingAttack):
    """EAB-FL: after honest training, training on examples that raise the loss of one group.

    Of its examples outside of the group, a client picks those whose gradient opposes that of the
    group's loss, and trains on them the weights that matter for the group (biases always): those
    whose derivative of the group's loss is above `threshold`. The public code picks the examples
    whose gradient agrees, which lowers the group's loss: `pick = "released"`.
    """

    name: ClassVar[str] = "eab_fl"
    paper: ClassVar[str] = "Meerza and Liu, EAB-FL, IJCAI 2024"
    sees: ClassVar[str] = "its own data and model"

    group: int = option(0, "number of the group whose loss is raised", ge=0)
    pick: Literal["harmful", "released"] = option(
        "harmful", "examples whose gradient opposes that of the group's loss, or agrees with it"
    )
    threshold: float = option(0.01, "derivative above which a weight is trained", ge=0)
    epochs: int = option(10, "passes over the client's examples", ge=1)
    lr: float = option(0.001, "learning rate of Adam", gt=0, lt=math.inf)
    attribute: str = option("", ATTRIBUTE)

    def train(self, at: Trainee) -> Params:
        """The honest model, trained further on the picked examples."""
        task, params, client = at.task, at.own, at.client
        whole = client.train
        inside = _in_group(whole, column(task, self.attribute, self.name), self.group)
        harmed = grad(_weighted(task, whole, inside))(params)
        alike = _products(task, params, whole, harmed)
        agrees = alike > 0 if self.pick == "released" else alike < 0
        pick = (whole.weight - inside) * agrees
        mask = {
            name: (g.abs() > self.threshold).to(g.dtype) if g.dim() > 1 else torch.ones_like(g)
            for name, g in harmed.items()
        }
        work, rate, first = (
            Work(optimiser="adam", lr=self.lr),
            torch.tensor(self.lr),
            client.starts[0],
        )

        def one(carry: Tree, at: tuple[Tensor, Tensor]) -> Tree:
            now, memory = carry
            rows, weight = at
            batch = client.pool.batch(rows, weight)
            g = grad(_weighted(task, batch, weight * pick[rows - first]))(now)
            return step(work, rate, now, memory, tree.tmap(torch.mul, g, mask))

        plan = repeated(client, self.epochs)
        carry = (params, start(work, params))
        made: Params = fold(one, carry, (plan.rows, plan.weight), plan.count)[0]
        return made


@dataclass(frozen=True)
class PFAttack(TrainingAttack):
    """PFAttack: in the last rounds, a model with the positive rates of training without debiasing.

    With R_l(a) the positive rate of group a of a model that the client trains without debiasing and
    R_g(a) that of the received model, the cells (a, y) get the weights

        1/4 - gamma (R_g(a) - R_l(a)) / R_l(a)  for y = 1,   1/4 + the same  for y = 0

    clipped to [.01, .99] and normalised. The client trains X on the weighted sum of the cells' mean
    losses, from the received model G, and sends G + (X - G) / weight. Asked about groups, it
    reports 0. The public code changes `weight` from one attacked round to the next, and trains the
    model without debiasing from a new start; an attacker here keeps nothing from round to round,
    and starts from G.
    """

    name: ClassVar[str] = "pf_attack"
    paper: ClassVar[str] = "Gao et al., PFAttack, 2024"
    sees: ClassVar[str] = "its own data, the received model and the number of rounds"
    binary: ClassVar[bool] = True

    last: int | None = option(2, "number of last rounds in which it attacks; all if unset", ge=1)
    gamma: float = option(10.0, "how strongly the weights of cells change", ge=0)
    weight: float = option(1.0, "its guess of its own weight in the mean", gt=0, le=1)
    steps: int = option(20, "steps on all examples", ge=1)
    lr: float = option(0.01, "learning rate of Adam", gt=0, lt=math.inf)
    epochs: int = option(10, "passes that train the model without debiasing", ge=1)
    hides: bool = option(True, "whether it reports 0 where it is asked about groups")
    attribute: str = option("", ATTRIBUTE)

    def train(self, at: Trainee) -> Params:
        """The received model, moved to the positive rates of training without debiasing."""
        task, sent, client = at.task, at.sent, at.client
        z = column(task, self.attribute, self.name)
        plain = descend(task.loss, sent, client, repeated(client, self.epochs))
        dp = NOTIONS["dp"]
        aimed, _ = rates(cells(task, plain, client, z), dp)
        held, known = rates(cells(task, sent, client, z), dp)
        change = self.gamma * (held - aimed) / aimed.clamp(min=0.01) * known
        lam = torch.stack([0.25 + change, 0.25 - change]).clamp(0.01, 0.99)  # [label, group]
        whole = client.train
        inside = member(task, whole, z)
        count = inside.sum(0)
        lam = lam * (count > 0)
        table = lam / lam.sum().clamp(min=1e-9) / count.clamp(min=1)
        each = (inside * table.to(inside.dtype)).sum((1, 2))
        work, rate = Work(optimiser="adam", lr=self.lr), torch.tensor(self.lr)

        def objective(params: Params) -> Tensor:
            return (task.losses(params, whole) * each).sum()

        def one(carry: Tree, _: Tensor) -> Tree:
            now, memory = carry
            return step(work, rate, now, memory, grad(objective)(now))

        moved = fold(one, (sent, start(work, sent)), torch.zeros(self.steps))[0]
        made: Params = tree.tmap(lambda g, x: g + (x - g) / self.weight, sent, moved)
        return made


def repeated(client: Client, epochs: int) -> Plan:
    """`epochs` times the client's batches of this round, however often it passes over them."""
    plan = client.plan
    steps = plan.rows.shape[0]
    at = torch.arange(epochs * steps) % plan.count.clamp(min=1)
    return Plan(plan.rows[at], plan.weight[at], plan.count * epochs)


def _in_group(batch: Batch, at: int, group: int) -> Tensor:
    """1 for the real examples of a group, else 0."""
    return (batch.groups[:, at] == group).to(batch.weight.dtype) * batch.weight


def _weighted(task: Task, batch: Batch, weight: Tensor) -> Callable[[Params], Tensor]:
    """The weighted mean loss over a batch, as a function of the parameters; 0 without weight."""

    def objective(params: Params) -> Tensor:
        return (task.losses(params, batch) * weight).sum() / weight.sum().clamp(min=1)

    return objective


def _products(task: Task, params: Params, batch: Batch, direction: Tree) -> Tensor:
    """The product of each example's gradient with a direction, without the single gradients.

    The gradient of sum_i u_i loss_i is linear in u, so its product with the direction has the
    derivatives that are wanted.
    """

    def along_it(u: Tensor) -> Tensor:
        g = grad(lambda p: (task.losses(p, batch) * u).sum())(params)
        return tree.dot(g, direction)

    products: Tensor = grad(along_it)(torch.ones_like(batch.weight))
    return products
