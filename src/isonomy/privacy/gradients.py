"""Sums of clipped per-example gradients.

For networks whose parameters are all those of `nn.Linear` layers that are used once on one vector
per example, the gradient of an example is an outer product in every layer. Then its norm follows
from the layer's input and the gradient at its output, and the clipped sum costs about as much as a
plain gradient (Goodfellow 2015; Bu, Wang, Zha and Karypis 2023). Other networks compute every
example's gradient with `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from isonomy.core import tree
from isonomy.core.task import Batch, Each, Params, Task
from isonomy.core.tree import Tree


def clipped_sum(
    task: Task, params: Params, batch: Batch, weight: Tensor, clip: float, share: Tensor
) -> Tree:
    """The sum of the examples' gradients, each at most as long as `clip`, times its weight.

    The sum is multiplied by `share`. An example whose gradient is not finite contributes nothing.
    """
    layers = linear_layers(task.net)
    if layers is None or (
        batch.x.ndim != 2 and not isinstance(next(task.net.children()), nn.Flatten)
    ):
        return _by_example(task, params, batch, weight, clip, share)
    return _by_layer(task, params, batch, weight, clip, share, layers)


def _factor(squares: Tensor, weight: Tensor, clip: float) -> Tensor:
    """What each example's gradient is multiplied by, given its squared norm."""
    norm = squares.clamp(min=1e-30).sqrt()
    # a little less than the clip, so that rounding does not exceed it
    factor = (clip * (1 - 1e-5) / norm).clamp(max=1.0) * weight
    return torch.where(torch.isfinite(squares), factor, 0.0)


def _by_example(
    task: Task, params: Params, batch: Batch, weight: Tensor, clip: float, share: Tensor
) -> Tree:
    def loss(p: Params, x: Tensor, y: Tensor, groups: Tensor) -> Tensor:
        one = Batch(x.unsqueeze(0), y.unsqueeze(0), groups.unsqueeze(0), torch.ones(1))
        return Task.loss(task, p, one)

    each = vmap(grad(loss), in_dims=(None, 0, 0, 0))(params, batch.x, batch.y, batch.groups)
    return _clipped(each, weight, clip, share)


def clipped_sums(
    task: Task,
    each: Each,
    params: Params,
    batch: Batch,
    weight: Tensor,
    clip: float,
    share: Tensor,
) -> tuple[Tree, Tensor]:
    """As `clipped_sum`, for any function of single examples, and the sum of their statistics.

    `each` is given one example at a time, so what it computes cannot depend on others. Statistics
    are clipped to norm 1.
    """

    def one(p: Params, x: Tensor, y: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
        single = Batch(x.unsqueeze(0), y.unsqueeze(0), groups.unsqueeze(0), torch.ones(1))
        number, statistic = each(task, p, single)
        return number[0], statistic[0].detach()

    slopes, statistics = vmap(grad(one, has_aux=True), in_dims=(None, 0, 0, 0))(
        params, batch.x, batch.y, batch.groups
    )
    total = _clipped(slopes, weight, clip, share)
    return total, tree.leaves(_clipped([statistics], weight, 1.0, share))[0]


def _clipped(each: Tree, weight: Tensor, clip: float, share: Tensor) -> Tree:
    """The weighted sum over the first axis of trees that are clipped one by one."""
    squares = torch.stack([t.flatten(1).square().sum(1) for t in tree.leaves(each)]).sum(0)
    factor = _factor(squares, weight, clip)
    good = factor > 0

    def combined(t: Tensor) -> Tensor:
        flat = torch.where(good.unsqueeze(1), t.flatten(1), 0.0)
        return ((factor * share) @ flat).reshape(t.shape[1:])

    return tree.tmap(combined, each)


def _by_layer(
    task: Task,
    params: Params,
    batch: Batch,
    weight: Tensor,
    clip: float,
    share: Tensor,
    layers: tuple[str, ...],
) -> Tree:
    probes = {
        name: torch.zeros(batch.x.shape[0], params[f"{name}.weight"].shape[0]) for name in layers
    }

    def total(added: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with _probed(task.net, layers, added) as inputs:
            outputs = functional_call(task.net, params, (batch.x,))
        return task.each_loss(outputs, batch.y).sum(), dict(inputs)

    slopes, inputs = grad(total, has_aux=True)(probes)
    squares: Any = 0.0
    for name in layers:
        ones = 1.0 if f"{name}.bias" in params else 0.0
        squares = squares + slopes[name].square().sum(1) * (inputs[name].square().sum(1) + ones)
    factor = _factor(squares, weight, clip).unsqueeze(1)
    good, used = factor > 0, factor * share
    out: dict[str, Tensor] = {}
    for name in layers:
        scaled = torch.where(good, slopes[name] * used, 0.0)
        out[f"{name}.weight"] = scaled.T @ torch.where(good, inputs[name], 0.0)
        if f"{name}.bias" in params:
            out[f"{name}.bias"] = scaled.sum(0)
    return {name: out[name] for name in params}


@contextmanager
def _probed(
    net: nn.Module, layers: tuple[str, ...], added: dict[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Inside, every layer adds its probe to its output, and its input is kept."""
    inputs: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., Tensor]:
        def of_layer(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs[name] = given[0]
            return output + added[name]

        return of_layer

    handles = [net.get_submodule(name).register_forward_hook(hook(name)) for name in layers]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


@cache
def linear_layers(net: nn.Module) -> tuple[str, ...] | None:
    """The names of a network's linear layers; None if it has other parameters or uses one twice.

    Only networks that apply their modules one after the other are recognised.
    """
    modules = [
        (name, module) for name, module in net.named_modules() if not list(module.children())
    ]
    if not isinstance(net, nn.Sequential):
        return None
    names = []
    for i, (name, module) in enumerate(modules):
        if i == 0 and isinstance(module, nn.Flatten) and module.start_dim == 1:
            continue
        if isinstance(module, nn.Linear):
            names.append(name)
        elif list(module.parameters()) or not isinstance(module, ELEMENTWISE):
            return None
    known = {f"{n}.{kind}" for n in names for kind in ("weight", "bias")}
    used = [id(module) for _, module in modules if isinstance(module, nn.Linear)]
    if len(set(used)) < len(used) or any(p not in known for p, _ in net.named_parameters()):
        return None
    return tuple(names)


ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Softplus,
               nn.Identity)  # fmt: skip
