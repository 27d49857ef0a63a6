"""Compares values of FMTL's lam on examples that no model was trained on.

FMTL's global model does not depend on lam. So one training serves all values: each client trains
the global model once, and one personal model per value, on the same batches. The comparison uses
the clients' validation examples. If there are none, a fifth of each client's training examples is
held out for it. The server sees sums over clients only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.blocks.descent import along, start, step
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation, build
from isonomy.runs.build import Setting
from isonomy.studies.plain_training import trained

HELD = 0.2  # the part of a client's training examples that is held out if it has no others


class Compared(NamedTuple):
    """One value of lam on the held-out examples of all clients; infinity is the global model."""

    lam: float
    accuracy: float | None  # None for a target that is a number
    loss: float


@dataclass(frozen=True)
class Comparison:
    """All values, in ascending order, the number of examples, and whether they were held out."""

    rows: tuple[Compared, ...]
    examples: int
    held_out: bool

    @property
    def best(self) -> Compared:
        """The row of the least loss."""
        return min(self.rows, key=lambda row: row.loss)


def compare_lams(setting: Setting, method: FMTL, lams: Sequence[float]) -> Comparison | None:
    """Train with every lam at once and measure; None if there are no examples to measure on.

    Values with which gradient steps would diverge are left out; the global model, lam = infinity,
    is always among the rows.
    """
    federation, held = setting.federation, False
    if not int(federation.sizes("validation").sum()):
        federation, held = held_out(federation, setting.config.seed), True
        if not int(federation.sizes("validation").sum()):
            return None
    work = setting.config.local
    stable = method.pull == "proximal" or work.optimiser != "sgd"
    usable = sorted({lam for lam in lams if math.isfinite(lam) and (stable or lam * work.lr < 2)})
    several = SeveralLams(tuple(replace(method, lam=lam, lams=()) for lam in usable))
    server, everyone = trained(replace(setting, federation=federation), several)
    sums = everyone.sum(measure_each, {"params": server.params})
    rows = float(sums["rows"])
    found = [
        Compared(lam, correct / rows if setting.task.classes else None, loss / rows)
        for lam, correct, loss in zip(
            [*usable, math.inf], sums["correct"].tolist(), sums["loss"].tolist(), strict=True
        )
    ]
    return Comparison(tuple(found), round(rows), held)


def held_out(federation: Federation, seed: int) -> Federation:
    """A fifth of each client's training examples, chosen at random, as validation examples.

    A client with few examples keeps at least one of them for training.
    """
    generator = torch.Generator().manual_seed(seed)
    train, validation = [], []
    for k in range(len(federation)):
        at = federation.rows(k)
        size = at.stop - at.start
        order = at.start + torch.randperm(size, generator=generator)
        cut = max(size - int(HELD * size + 0.5), 1)
        train.append(order[:cut])
        validation.append(order[cut:])
    made = build(
        federation.x,
        federation.y,
        federation.groups,
        {"train": train, "validation": validation},
        classes=federation.classes,
    )
    # what describes the data stays
    same = ("attributes", "names", "labels", "features", "clusters", "source", "preprocessing")
    return replace(made, **{name: getattr(federation, name) for name in same})


@dataclass(frozen=True)
class SeveralLams(Algorithm[Global]):
    """FMTL with several values of lam: one global model, and a personal model for each value."""

    name: ClassVar[str] = "several_lams"
    family: ClassVar[str] = "personal"
    methods: tuple[FMTL, ...] = ()

    def init_server(self, task: Task, params: Params, clients: int) -> Global:
        """The initial model."""
        return Global(params)

    def init_client(self, task: Task, params: Params) -> State:
        """Every personal model starts from the initial one."""
        return {"each": tuple(params for _ in self.methods)}

    def round(self, server: Global, cohort: Cohort) -> Global:
        """Algorithm 1 of FMTL."""
        weight = self.methods[0].weight if self.methods else "equal"
        mean = cohort.mean(self.local, {"params": server.params}, weight=weight)
        return Global(mean["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The global model and the personal ones, trained step by step on the same batches."""
        origin, own = message["params"], client.state["each"]
        work, rate = client.work, client.rate
        steps = [method.personal_step(task, client) for method in self.methods]
        moving = [method.anchor == "moving" for method in self.methods]

        def one(carry: Tree, batch: Batch) -> Tree:
            (w, first), others = carry
            new = step(work, rate, w, first, grad(task.loss)(w, batch))
            after = tuple(
                personal(other, new[0] if moves else origin, batch)
                for personal, other, moves in zip(steps, others, moving, strict=True)
            )
            return new, after

        carry = ((origin, start(work, origin)), tuple((v, start(work, v)) for v in own))
        (shared, _), after = along(one, carry, client)
        return {"params": shared}, {"each": tuple(v for v, _ in after)}

    def model(self, task: Task, deployed: Global, state: State) -> Params:
        """The global model."""
        return deployed.params


@phase("sum", correct="statistic", loss="statistic", rows="statistic")
def measure_each(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """Sums over a client's validation examples, for each of its models and the global one."""
    models = [*client.state["each"], message["params"]]
    correct, loss = torch.zeros(len(models)), torch.zeros(len(models))
    for page in client.pages("validation"):
        outputs = [task.outputs(params, page.x) for params in models]
        if task.classes:
            correct = correct + torch.stack([_correct(task, out, page) for out in outputs])
        loss = loss + torch.stack(
            [(task.losses(params, page) * page.weight).sum() for params in models]
        )
    rows = client.sizes[1].to(torch.float32)
    return {"correct": correct, "loss": loss, "rows": rows}, client.state


def _correct(task: Task, outputs: Tensor, page: Batch) -> Tensor:
    return ((task.decide(outputs) == page.y) * page.weight).sum()
