"""A task: a model and its loss, as pure functions of the parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import log_softmax, softplus

from isonomy.core.pooling import FastPools, has_pools

Params = Any
"""A tree of tensors: a dict from parameter name to value."""

Loss = Literal["cross_entropy", "logistic", "hinge", "squared"]

Each = Callable[["Task", Params, "Batch"], tuple[Tensor, Tensor]]
"""A function of single examples: for each of a batch a number [n], to differentiate, and a
statistic [n, ...] of norm at most 1. Neither may depend on other examples of the batch."""


def probabilities(loss: str, outputs: Tensor) -> Tensor | None:
    """The probability of each class [n, classes]; None if the loss defines none."""
    if loss == "cross_entropy":
        return outputs.softmax(-1)
    if loss == "logistic":
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], -1)
    return None


class Batch(NamedTuple):
    """Some examples. `weight` is 1 for a real example and 0 for padding."""

    x: Tensor
    y: Tensor
    groups: Tensor  # [n, A]: one column per protected attribute
    weight: Tensor

    @property
    def group(self) -> Tensor:
        """The first protected attribute."""
        return self.groups[:, 0]


@dataclass(frozen=True)
class Recipe:
    """A function that makes a network, and its arguments.

    Tasks with equal recipes have the same `net`, so that a step that was traced, or compiled, for
    one of them serves the others: the runs of a comparison, for example.
    """

    make: Callable[..., nn.Module]
    arguments: tuple[Hashable, ...]
    options: tuple[tuple[str, Hashable], ...]

    def __call__(self) -> nn.Module:
        """A new network."""
        return self.make(*self.arguments, **dict(self.options))


_nets: WeakValueDictionary[Recipe, nn.Module] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Task:
    """A model with its loss.

    `build` makes a new network with its usual initialisation. The weights of `net`, which is made
    by it, are not used, and nothing changes them. `classes` is 0 for regression.
    `levels` contains the number of groups of each protected attribute, and `attributes` their
    names, if known.
    """

    build: Callable[[], nn.Module]
    loss_name: Loss = "cross_entropy"
    classes: int = 2
    levels: tuple[int, ...] = ()
    attributes: tuple[str, ...] = ()
    net: nn.Module = field(init=False, repr=False)
    pools: bool = field(init=False, repr=False)  # whether the network has max pooling

    def __post_init__(self) -> None:
        net = _nets.get(self.build) if isinstance(self.build, Recipe) else None
        if net is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                net = self.build()
        if isinstance(self.build, Recipe):
            _nets[self.build] = net
        object.__setattr__(self, "net", net)
        object.__setattr__(self, "pools", has_pools(self.net))

    def on(self, device: torch.device) -> Task:
        """The same task with its network, and so the network's buffers, on a device."""
        if device.type == "cpu":
            return self
        moved = copy.copy(self)
        object.__setattr__(moved, "net", copy.deepcopy(self.net).to(device))
        return moved

    def init(self, seed: int) -> Params:
        """The model's initial parameters after `torch.manual_seed(seed)`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = self.build()
        return {name: p.detach().clone() for name, p in net.named_parameters()}

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """The model's raw outputs: logits, margins or predictions, [n, outputs]."""
        differentiated = torch.is_grad_enabled()
        with nullcontext() if differentiated or not self.pools else FastPools():
            out: Tensor = functional_call(self.net, params, (x,))
        return out

    def each_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each example, from the outputs."""
        if self.loss_name == "cross_entropy":
            return -log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        score = outputs.squeeze(-1)
        if self.loss_name == "squared":
            return (score - y).square()
        margin = score * (2 * y - 1).to(score.dtype)
        return softplus(-margin) if self.loss_name == "logistic" else (1 - margin).clamp(min=0)

    def losses(self, params: Params, batch: Batch) -> Tensor:
        """The loss of each example."""
        return self.each_loss(self.outputs(params, batch.x), batch.y)

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The mean loss over the real examples of a batch."""
        return (self.losses(params, batch) * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    def examples_mean(self, each: Each, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """The means over the real examples of what `each` computes, for `grad(..., has_aux=True)`.

        With privacy of examples, the gradient of the first and the value of the second have noise.
        """
        number, statistic = each(self, params, batch)
        weight, total = batch.weight, batch.weight.sum().clamp(min=1)
        mean = (weight @ statistic.flatten(1)).reshape(statistic.shape[1:]) / total
        return (number * weight).sum() / total, mean.detach()

    def decide(self, outputs: Tensor) -> Tensor:
        """The predicted class of each example (0 for regression)."""
        if self.loss_name == "cross_entropy":
            if outputs.shape[-1] == 2:  # the same as argmax, which is slow for a short axis
                return (outputs[..., 1] > outputs[..., 0]).to(torch.int64)
            return outputs.argmax(-1)
        if self.loss_name == "squared":
            return torch.zeros_like(outputs[..., 0], dtype=torch.int64)
        return (outputs.squeeze(-1) > 0).to(torch.int64)
