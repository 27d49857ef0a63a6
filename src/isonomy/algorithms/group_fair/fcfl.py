"""FCFL: no client is left behind while each client's disparity is held within epsilon.

Cui, Pan, Liang, Zhang, Zhou and Wang, "Addressing algorithmic disparity and performance
inconsistency in federated learning", NeurIPS 2021. Every client sends its loss l_k, its disparity
d_k (the difference of two groups' mean sigmoid(10 logit), of all examples or those of label 1)
and the gradients of both on all its examples. The largest of each is smoothed:

    g_l = sum_k s_k grad l_k,  s = softmax(l / delta);     g_d the same of |d_k|

Stage 1, `first` rounds: w moves against a_1 g_l + a_2 g_d, a on the simplex by a linear program.
While max |d_k| <= epsilon it has the largest inner product with g_l; else the largest with g_d of
those that do not have a negative one with g_l. Stage 2: the combination of all grad l_k and g_d
with the largest inner product with the mean gradient, such that no client's loss rises at first
order, nor the disparity where it is above epsilon (Pareto descent).

delta is multiplied by `shrink` whenever a tenth of its gradient's length is below it, to no less
than `floor`, as in the authors' code. A client without examples of both groups, or with fewer
than `least` of one, has no disparity.
The step is the round's learning rate; local work is not used. epsilon = inf leaves the loss
alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad_and_value

from isonomy.blocks import programs
from isonomy.blocks.groups import binary, column, least_cell, margin, member, share
from isonomy.blocks.measure import train_loss
from isonomy.blocks.simplex import min_norm
from isonomy.blocks.vectors import gram, rows
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

SHARP = 10.0  # factor of the logit in the disparity's sigmoid
TENTH = 0.1  # of a gradient's length, which delta is held against


@dataclass(frozen=True)
class FCFL(Algorithm):
    """Smoothed worst loss and disparity by two linear programs."""

    name: ClassVar[str] = "fcfl"
    family: ClassVar[str] = "group_fair"
    paper: ClassVar[str] = "Cui et al., NeurIPS 2021"
    reveals: ClassVar[str] = "each client's loss, disparity, size, and the gradients of both"

    epsilon: float = option(0.05, "disparity that every client may have; inf: any")
    first: int = option(100, "rounds of stage 1")
    notion: Literal["dp", "eo"] = option(
        "dp", "disparity of all examples, or of those with label 1"
    )
    delta: float = option(0.5, "smoothing of the maxima at first")
    shrink: float = option(0.01, "factor of delta when it is large against the gradient")
    floor: float = option(1e-4, "the smallest delta")
    attribute: str = option("", "protected attribute, of two groups; the first if empty")
    least: int = option(0, "examples of each group below which a client withholds its disparity")

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
        least_cell(self.least)

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        """The model, and the smoothing of losses and of disparities."""
        binary(task, self.name)
        column(task, self.attribute, self.name, groups=2)
        return {"params": params, "delta": torch.full((2,), self.delta, dtype=torch.float64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        """One step against the combination that the stage's program finds."""
        got = cohort.gather(self.measure, {"params": server["params"]})
        loss, disparity = got.value["loss"].double(), got.value["disparity"].double()
        slopes, uneven = got.value["slope"], got.value["uneven"]
        delta, flat = server["delta"], rows(slopes).double()
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
        params = tree.tmap(lambda p, g: p - cohort.rate * g, server["params"], step)
        small = TENTH * both.square().sum(1).sqrt() <= delta
        delta = torch.where(small, (delta * self.shrink).clamp(min=self.floor), delta)
        return {"params": params, "delta": delta}

    def stage_one(self, products: Tensor, over: bool) -> Tensor:
        """Weights of (g_l, g_d) from their inner products [2, 2]."""
        if over:
            found = programs.mixture(products[1], products[:1])
        else:
            found = programs.mixture(products[0], products[:0])
        return torch.tensor([1.0, 0.0], dtype=torch.float64) if found is None else found

    def stage_two(self, products: Tensor, mean: Tensor, over: bool) -> Tensor:
        """Weights of (all grad l_k, g_d) from their inner products [K + 1, K + 1].

        The shortest combination never points against any of them, so it serves where the program
        finds nothing for want of digits.
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
        """The mean sigmoid(10 logit) of group 0 less that of group 1; 0 if one has too few."""
        at = column(task, self.attribute, self.name, groups=2)
        count, sums = torch.zeros(2), torch.zeros(2)
        for page in client.pages("train"):
            inside = member(task, page, at)
            inside = inside[:, 1] if self.notion == "eo" else inside.sum(1)
            likely = torch.sigmoid(SHARP * margin(task, task.outputs(params, page.x)))
            count, sums = count + inside.sum(0), sums + likely @ inside
        rate = share(sums, count)
        return torch.where((count >= max(self.least, 1)).all(), rate[0] - rate[1], 0.0)
