"""Sums of clipped per-example gradients.

For networks that apply `nn.Linear` layers and elementwise functions one after the other, the
gradient of an example is an outer product in every layer. Then its norm follows from the layer's
input and the gradient at its output, and the clipped sum costs about as much as a plain gradient
(Goodfellow 2015; Bu, Wang, Zha and Karypis 2023). Other networks compute every example's gradient
with `vmap`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap
from torch.linalg import vector_norm
from torch.nn.functional import linear

from isonomy.core import tree
from isonomy.core.task import Batch, Each, Params, Task
from isonomy.core.tree import Tree


def clipped_sum(
    task: Task, params: Params, batch: Batch, weight: Tensor, clip: float, share: Tensor
) -> Tree:
    """The sum of the examples' gradients, each at most as long as `clip`, times its weight.

    The sum is multiplied by `share`. An example whose gradient is not finite contributes nothing.
    """
    chain = linear_chain(task.net)
    if chain is None or (batch.x.ndim != 2 and not isinstance(chain[0][1], nn.Flatten)):
        return by_example(task, params, batch, weight, clip, share)
    return _by_layer(task, params, batch, weight, clip, share, chain)


def _factor(squares: Tensor, weight: Tensor, clip: float) -> Tensor:
    """What each example's gradient is multiplied by, given its squared norm; 0 if not finite."""
    # a little less than the clip, so that rounding does not exceed it
    factor = (clip * (1 - 1e-5) * squares.clamp(min=1e-30).rsqrt()).clamp(max=1.0)
    return _finite(factor) * weight


def _finite(t: Tensor) -> Tensor:
    """The numbers, with 0 where one is not finite."""
    return torch.nan_to_num(t, 0.0, 0.0, 0.0)


def by_example(
    task: Task, params: Params, batch: Batch, weight: Tensor, clip: float, share: Tensor
) -> Tree:
    """`clipped_sum` for any network: every example's gradient by `vmap`."""

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
    used = _factor(squares, weight, clip) * share
    return tree.tmap(lambda t: (used @ _finite(t.flatten(1))).reshape(t.shape[1:]), each)


def _by_layer(
    task: Task,
    params: Params,
    batch: Batch,
    weight: Tensor,
    clip: float,
    share: Tensor,
    chain: Chain,
) -> Tree:
    at, backs, inputs = batch.x, {}, {}
    for name, module in chain:
        if isinstance(module, nn.Linear):
            inputs[name] = at
            at = linear(at, params[f"{name}.weight"], params.get(f"{name}.bias"))
        else:
            at, backs[name] = vjp(module, at)  # type: ignore[misc]  # two values without has_aux
    slope = _at_outputs(task, at, batch.y)
    first, slopes, squares = next(iter(inputs)), {}, torch.zeros(())
    for name, module in reversed(chain):
        if not isinstance(module, nn.Linear):
            (slope,) = backs[name](slope)
            continue
        slopes[name] = slope
        ones = 0.0 if module.bias is None else 1.0
        squares = squares + vector_norm(slope, dim=1) ** 2 * (
            vector_norm(inputs[name], dim=1) ** 2 + ones
        )
        if name == first:
            break
        slope = slope @ params[f"{name}.weight"]
    used = (_factor(squares, weight, clip) * share).unsqueeze(1)
    out: dict[str, Tensor] = {}
    for name in slopes:
        scaled = _finite(slopes[name] * used)  # not finite: an example whose factor is 0
        out[f"{name}.weight"] = scaled.T @ _finite(inputs[name])
        out[f"{name}.bias"] = scaled.sum(0)
    return {name: out[name] for name in params}


def _at_outputs(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """The gradient of each example's loss at its outputs."""
    if task.loss_name != "cross_entropy":
        out: Tensor = grad(lambda at: task.each_loss(at, y).sum())(outputs)
        return out
    # softmax less one at the label; torch's own softmax is slow for few classes
    e = (outputs - outputs.amax(-1, keepdim=True)).exp()
    share = e / e.sum(-1, keepdim=True)
    return share.scatter_add(-1, y.unsqueeze(-1), torch.full_like(y, -1, dtype=e.dtype)[..., None])


Chain = tuple[tuple[str, nn.Module], ...]


@cache
def linear_chain(net: nn.Module) -> Chain | None:
    """A network's modules in the order in which they are applied; None if it has other modules.

    The first may flatten its input; the others are linear layers, each used once, and elementwise
    functions.
    """
    chain: list[tuple[str, nn.Module]] = []
    for name, module in net.named_modules(remove_duplicate=False):
        if type(module) is nn.Sequential:
            continue
        flattens = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
        if type(module) not in KNOWN and not (flattens and not chain):
            return None
        chain.append((name, module))
    layers = {name for name, module in chain if isinstance(module, nn.Linear)}
    own = {name.rpartition(".")[0] for name, _ in net.named_parameters()}
    return tuple(chain) if layers and layers == own else None  # a layer that is used twice has one


KNOWN = {nn.Linear, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.SiLU,
         nn.Softplus, nn.Identity}  # fmt: skip
