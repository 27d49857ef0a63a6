"""PUFFLE: private training with a fairness regulariser whose weight follows a target.

Corbucci, Heikkila, Solans Noguero, Monreale and Kourtellis, "PUFFLE: balancing privacy, utility,
and fairness in federated learning", ECAI 2024. The unfairness of a model is the largest gap of
demographic parity between a group and the rest,

    V = max over (y, z) of |P(Yhat = y | Z = z) - P(Yhat = y | Z != z)|

and clients descend on (1 - lambda) loss + lambda V~, with V~ a differentiable form of V. After
each step, with T the target and V measured with noise,

    v <- m v + (T - V),   lambda <- clip(lambda - alpha v, 0, 1)

lambda begins at 0 in a client's first round, later at max(0, (V - T) / (1 - T)); alpha is
multiplied by `decay` from round to round. The server averages models by size.

In the paper V~ is computed on a batch, so the gradient of one example depends on the others, and
clipping it does not bound what one example changes. Here each example has a term of its own,

    V~_i = s c(z_i) softmax_y*(x_i) 1[argmax(x_i) = y*],  c = 1 / P(z*) in z*, else -1 / P(not z*)

where y*, z*, the sign s and the shares P come from the table of (Yhat, Z) that the client measured
in its step before. With these fixed, the mean of V~_i has the gradient of V~ on the batch. The
table is measured together with the gradient (`Task.examples_mean`), so at `privacy.level =
"example"` both have noise, one example changes them by a bounded amount, and the reported epsilon
covers all that clients send: no further split of the budget is needed. Where a group is (almost)
absent at a client, its rates are those of the server's table, the mean of the clients' tables of
the round before.

`lam` fixes lambda, as the paper's variant without tuning does. lam = 0 is FedAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad

from isonomy.blocks.descent import along, start, step
from isonomy.blocks.groups import column
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Batch, Each, Params, Task, probabilities
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError

SMALL = 0.02  # a share of a client's examples below which a group counts as absent


class Server(NamedTuple):
    """The model, and the mean table of predictions and groups [classes, groups] (0: unknown)."""

    params: Params
    table: Tensor


class Own(NamedTuple):
    """What a client keeps: its last table, and whether it took part before (0 or 1)."""

    table: Tensor
    before: Tensor


@dataclass(frozen=True)
class PUFFLE(Algorithm[Server]):
    """Private training with a regulariser of demographic parity that follows a target."""

    name: ClassVar[str] = "puffle"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Corbucci et al., ECAI 2024"
    reveals: ClassVar[str] = (
        "sums over the cohort of models, and of the shares of examples by prediction and group; "
        "with privacy.level = 'example' both have noise"
    )

    target: float = option(
        0.05, "the largest gap of demographic parity that is aimed at", search=Range(0.01, 0.2)
    )
    alpha: float = option(
        0.5, "step size of the regulariser's weight", search=Range(0.05, 4.0, log=True)
    )
    momentum: float = option(
        0.0, "momentum of the regulariser's weight", search=Grid((0.0, 0.5, 0.9))
    )
    decay: float = option(1.0, "factor of alpha from one round to the next")
    newest: float = option(
        1.0, "weight of the newest batch in a client's table; 1: only this batch, as in the paper"
    )
    lam: float | None = option(None, "a fixed weight of the regulariser, instead of the target")
    attribute: str = option("", "protected attribute whose groups are compared; the first if empty")

    def __post_init__(self) -> None:
        for name, low, high in (("target", 0, 1), ("momentum", 0, 1), ("newest", 0, 1)):
            value = getattr(self, name)
            if not low <= value <= high or (value == high and name != "newest"):
                raise ValueError(f"{name} = {value}: give a number from 0 to below 1.")
        if self.newest == 0:
            raise ValueError("newest = 0: give a number above 0, at most 1.")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha = {self.alpha}: give a number of at least 0.")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay = {self.decay}: give a number above 0, at most 1.")
        if self.lam is not None and not 0 <= self.lam <= 1:
            raise ValueError(f"lam = {self.lam}: give a number from 0 to 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model; nothing is known of the groups."""
        return Server(params, self._no_table(task))

    def init_client(self, task: Task, params: Params) -> State:
        """Nothing measured yet."""
        return Own(self._no_table(task), torch.zeros(()))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Clients train and measure; the server averages both by size."""
        alpha = torch.tensor(self.alpha * self.decay ** (cohort.round + 1))
        sent = {"params": server.params, "table": server.table, "alpha": alpha}
        got = cohort.mean(self.local, sent)
        table = got["table"].to(torch.float32)
        cohort.record(unfairness=float(unfairness(table, table)[0]))
        return Server(got["params"], table)

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    @phase("mean", params="model", table="group statistic")
    def local(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Train on the regularised loss, and measure predictions by group on the way."""
        at = column(task, self.attribute, self.name)
        known, own, target = message["table"], client.state, self.target
        gap = unfairness(own.table, known)[0]
        lam = own.before * ((gap - target) / (1 - target)).clamp(min=0)
        lam = lam if self.lam is None else torch.full_like(lam, self.lam)

        def one(carry: Tree, batch: Batch) -> Tree:
            params, memory, table, speed, lam, total, steps = carry
            each = regularised(table, known, lam, at)
            g, seen = grad(lambda p: task.examples_mean(each, p, batch), has_aux=True)(params)
            params, memory = step(client.work, client.rate, params, memory, g)
            first = (steps == 0) & (own.before == 0)
            newest = torch.where(first, 1.0, self.newest)
            table = (1 - newest) * table + newest * seen
            if self.lam is None:
                speed = self.momentum * speed + target - unfairness(table, known)[0]
                lam = (lam - message["alpha"] * speed).clamp(0, 1)
            return params, memory, table, speed, lam, total + seen, steps + 1

        params, zero = message["params"], torch.zeros(())
        begin = (params, start(client.work, params), own.table, zero, lam, known * 0, zero)
        params, _, table, _, _, total, steps = along(one, begin, client)
        mean = total / steps.clamp(min=1)
        return {"params": params, "table": mean}, Own(table, torch.ones(()))

    def _no_table(self, task: Task) -> Tensor:
        at = column(task, self.attribute, self.name)
        if not task.classes or task.loss_name not in ("cross_entropy", "logistic"):
            raise ConfigError(
                f"algorithm '{self.name}' needs the probabilities of classes, which a model with "
                f"the loss '{task.loss_name}' does not give; choose a classifier with "
                "cross-entropy or logistic loss."
            )
        return torch.zeros(task.classes, task.levels[at])


def regularised(table: Tensor, known: Tensor, lam: Tensor, at: int) -> Each:
    """The regularised loss of each example, and the cell of its prediction and group."""
    _, label, group, sign = unfairness(table, known)
    share = table.clamp(min=0).sum(0)
    share = share / share.sum().clamp(min=SMALL)
    inside = (share * group).sum()
    c_in, c_out = 1 / inside.clamp(min=SMALL), 1 / (1 - inside).clamp(min=SMALL)

    def each(task: Task, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs = task.outputs(params, batch.x)
        likely = probabilities(task.loss_name, outputs)
        assert likely is not None  # checked in init_server
        decided = one_hot(task.decide(outputs), label.shape[0])
        z = one_hot(batch.groups[:, at], group.shape[0])
        mine, known_group = (z * group).sum(-1), z.sum(-1)
        factor = known_group * (mine * c_in - (1 - mine) * c_out)
        term = sign * factor * (likely * decided * label).sum(-1)
        loss = task.each_loss(outputs, batch.y)
        return (1 - lam) * loss + lam * term, decided.unsqueeze(-1) * z.unsqueeze(-2)

    return each


def unfairness(table: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """V of a table [classes, groups]; the label and group of its maximum (one-hot), and its sign.

    The rates of groups that are almost absent are those of the table `known`. If they are absent
    there too, they are not compared.

    >>> table = torch.tensor([[0.3, 0.1], [0.2, 0.4]])
    >>> value, *where = unfairness(table, table)
    >>> round(float(value), 6), [t.tolist() for t in where]
    (0.4, [[1.0, 0.0], [1.0, 0.0], 1.0])
    """
    rest = [t.clamp(min=0) for t in (table, known)]
    inside, outside = [], []
    for cells in rest:
        inside.append(_rates(cells))
        outside.append(_rates(cells.sum(1, keepdim=True) - cells))
    gaps = _first_known(inside) - _first_known(outside)
    gaps = torch.nan_to_num(gaps, nan=0.0)
    flat = gaps.flatten()
    near = flat.abs() >= flat.abs().max() - 1e-4  # ties: the first, whatever the rounding is
    best = (near & (near.cumsum(0) == 1)).to(gaps.dtype)
    chosen = best.reshape(gaps.shape)
    return flat.abs().max(), chosen.sum(1), chosen.sum(0), torch.sign((best * flat).sum())


def _rates(cells: Tensor) -> Tensor:
    """P(Yhat = y | column), NaN for a column with almost no examples."""
    count = cells.sum(0, keepdim=True)
    return torch.where(count >= SMALL, cells / count.clamp(min=SMALL), math.nan)


def _first_known(rates: list[Tensor]) -> Tensor:
    return torch.where(rates[0].isnan(), rates[1], rates[0])


def one_hot(index: Tensor, count: int) -> Tensor:
    """One-hot rows; all 0 for an index below 0."""
    return (index.unsqueeze(-1) == torch.arange(count)).to(torch.float32)
