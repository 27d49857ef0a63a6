"""FCFL: the worst client's loss is reduced while every client's disparity stays within epsilon.

Cui, Pan, Liang, Zhang, Zhou and Wang, "Addressing algorithmic disparity and performance
inconsistency in federated learning", NeurIPS 2021. Every client sends its loss l_k, its disparity
d_k (the difference between two groups' mean sigmoid(10 logit), over all examples or those with
label 1; with more than two groups, the largest difference, where the paper has two groups only) and
the gradients of both on all its examples. The maximum of each is smoothed:

    g_l = sum_k s_k grad l_k,  s = softmax(l / delta);     g_d the same for |d_k|

Stage 1, the first `first` rounds: w moves against a_1 g_l + a_2 g_d, where a linear program finds a
on the simplex. While max |d_k| <= epsilon, the direction has the largest inner product with g_l;
otherwise the largest with g_d among those whose inner product with g_l is not negative. Stage 2:
the combination of all grad l_k and g_d that has the largest inner product with the mean gradient,
such that to first order no client's loss increases, nor the disparity where it is above epsilon
(Pareto descent).

The paper has 800 rounds of each stage. Stage 1 gives the disparity priority over the loss, however
small the gain: as long as one client's disparity is above epsilon, the loss does not fall, and with
few rounds the model ends near the initial one or at a constant prediction. So by default there is
no stage 1; set `first` if there are hundreds of rounds.

delta is multiplied by `shrink` whenever a tenth of its gradient's length is below it, down to
`floor`, as in the authors' code. A group of which a client has no examples, or fewer than `least`,
is not compared; the disparity of a client with fewer than two groups is 0. The step size is the
round's learning rate, for which 1 is recommended; the other settings of local training are not
used. With epsilon = inf only the loss is minimised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from isonomy.blocks import programs
from isonomy.blocks.groups import (
    NOTION_OPTION,
    check_least,
    column,
    margin,
    member,
    require_binary,
    share,
)
from isonomy.blocks.measure import train_loss
from isonomy.blocks.simplex import min_norm
from isonomy.blocks.vectors import gram, rows
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.notions import NOTIONS, NotionCode
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid, Range
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

SHARP = 10.0  # factor of the logit in the disparity's sigmoid
TENTH = 0.1  # fraction of a gradient's length that is compared with delta


class Server(NamedTuple):
    """The model, and the smoothing delta of losses and of disparities, [2]."""

    params: Params
    delta: Tensor


@dataclass(frozen=True)
class FCFL(Algorithm[Server]):
    """Smoothed worst loss and worst disparity, by two linear programs."""

    name: ClassVar[str] = "fcfl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Cui et al., NeurIPS 2021"
    reveals: ClassVar[str] = "each client's loss, disparity, size, and the gradients of both"

    epsilon: float = option(
        0.05,
        "largest disparity allowed at a client; inf for no limit",
        search=Range(0.01, 0.1, log=True),
    )
    first: int = option(0, "number of rounds of stage 1", search=Grid((0, 10, 30, 100)))
    notion: NotionCode = option("dp", NOTION_OPTION)
    delta: float = option(0.5, "initial smoothing of the maxima")
    shrink: float = option(
        0.01, "factor applied to delta when it is large compared with the gradient"
    )
    floor: float = option(1e-4, "the smallest delta")
    attribute: str = option("", "protected attribute; the first if empty")
    least: int = option(0, "a client with fewer examples of a group withholds its disparity")

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise ValueError(f"epsilon = {self.epsilon}: give a number of at least 0, or inf.")
        if self.first < 0:
            raise ValueError(f"first = {self.first}: give 0 rounds or more.")
        if not 0 < self.floor <= self.delta < math.inf:
            raise ValueError(
                f"delta = {self.delta}, floor = {self.floor}: give 0 < floor <= delta."
            )
        if not 0 < self.shrink < 1:
            raise ValueError(f"shrink = {self.shrink}: give a number above 0 and below 1.")
        check_least(self.least)

    def recommended_work(self) -> dict[str, float]:
        """With one gradient step per round, a larger learning rate than that of local training."""
        return {"lr": 1.0}

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The model and the initial smoothing."""
        require_binary(task, self.name)
        column(task, self.attribute, self.name)
        return Server(params, torch.full((2,), self.delta, dtype=torch.float64))

    def round(self, server: Server, cohort: Cohort) -> Server:
        """One step against the combination that the stage's linear program finds."""
        got = cohort.gather(self.measure, {"params": server.params})
        loss, disparity = got.value["loss"].double(), got.value["disparity"].double()
        slopes, uneven = got.value["slope"], got.value["uneven"]
        delta, flat = server.delta, rows(slopes).double()
        worst = torch.softmax(loss / delta[0], 0)
        unfair = torch.softmax(disparity.abs() / delta[1], 0) * disparity.sign()
        both = torch.stack([worst @ flat, unfair @ rows(uneven).double()])
        over = bool(disparity.abs().max() > self.epsilon)
        if self.epsilon == math.inf:
            weight = torch.tensor([1.0, 0.0], dtype=torch.float64)
        elif cohort.round < self.first:
            weight = self.stage_one(gram(both), over)
        if self.epsilon == math.inf or cohort.round < self.first:
            on_loss, on_gap = weight[0] * worst, weight[1] * unfair
        else:
            mean = got.sizes.double() / got.sizes.sum()
            products = gram(torch.cat([flat, both[1:]]))
            weight = self.stage_two(products, mean, over)
            on_loss, on_gap = weight[:-1], weight[-1] * unfair
        step = tree.add(tree.weighted_sum(slopes, on_loss), tree.weighted_sum(uneven, on_gap))
        params = tree.tmap(lambda p, g: p - cohort.rate * g, server.params, step)
        small = TENTH * both.square().sum(1).sqrt() <= delta
        delta = torch.where(small, (delta * self.shrink).clamp(min=self.floor), delta)
        return Server(params, delta)

    def stage_one(self, products: Tensor, over: bool) -> Tensor:
        """Weights of (g_l, g_d) from their inner products [2, 2]."""
        if over:
            found = programs.mixture(products[1], products[:1])
        else:
            found = programs.mixture(products[0], products[:0])
        return torch.tensor([1.0, 0.0], dtype=torch.float64) if found is None else found

    def stage_two(self, products: Tensor, mean: Tensor, over: bool) -> Tensor:
        """Weights of (all grad l_k, g_d) from their inner products [K + 1, K + 1].

        The shortest combination has no negative inner product with any of them, so it is used
        where the program finds no solution because of rounding.
        """
        gain = mean @ products[:-1]
        keep = products if over else products[:-1]
        found = programs.mixture(gain, keep)
        if found is None:
            found = min_norm(products, torch.full_like(gain, 1 / len(gain)), 1.0)
        return found

    @phase(
        "gather",
        slope=Part("gradient", of="params"),
        loss="statistic",
        uneven=Part("gradient", of="params"),
        disparity="group statistic",
    )
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Loss, disparity and their gradients, on all examples."""
        params = message["params"]

        def loss(at: Params) -> Tensor:
            return train_loss(task, at, client)

        def uneven(at: Params) -> Tensor:
            return self.disparity(task, at, client)

        reply: Tree = {}
        reply["slope"], reply["loss"] = grad_and_value(loss)(params)
        reply["uneven"], reply["disparity"] = grad_and_value(uneven)(params)
        return reply, client.state

    def disparity(self, task: Task, params: Params, client: Client) -> Tensor:
        """Group 0's mean sigmoid(10 logit) minus group 1's, or the largest difference of more.

        0 if fewer than two groups have enough examples.
        """
        at = column(task, self.attribute, self.name)
        groups = task.levels[at]
        count, sums = torch.zeros(groups), torch.zeros(groups)
        for page in client.pages("train"):
            inside = NOTIONS[self.notion].compared(member(task, page, at), 1).sum(1)
            likely = torch.sigmoid(SHARP * margin(task, task.outputs(params, page.x)))
            count, sums = count + inside.sum(0), sums + likely @ inside
        rate, known = share(sums, count), count >= max(self.least, 1)
        if groups == 2:
            return torch.where(known.all(), rate[0] - rate[1], 0.0)
        most = torch.where(known, rate, -1.0).amax()
        fewest = torch.where(known, rate, 2.0).amin()
        return torch.where(known.sum() > 1, most - fewest, 0.0)
