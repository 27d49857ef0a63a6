"""How far a pair (w, lambda) is from a saddle point, where the model is linear.

Everything here is for G(w) = sum_i c_i loss_i(w), c_i >= 0, with outputs that are linear in w. The
server minimises G by Newton's method on sums of gradients and Hessians over the clients, and then
asks for a bound from below that holds whether or not it got to the minimum. It is the Fenchel
dual: for any q_i, loss_i(o) >= q_i (o - shift_i) - conjugate(q_i), so

    G(w) >= value(q) - |w| |residual(q)|,    residual(q) = sum_i c_i q_i x_i,

and q at w moved along one more Newton step to first order makes the residual vanish. Only sums
over clients are used.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree

RADIUS = 1e3  # of the weights among which the minimum is sought: |w| at most this
WIDEST = 1200  # weights up to which a Hessian is sent
PAGE = 256  # examples at a time, so that their part of the Hessian is small
_PLAIN = (nn.Flatten, nn.Identity)


def linear(task: Task) -> bool:
    """Whether the outputs are an affine map of the row, so that every loss is convex in w."""
    net = task.net
    if isinstance(net, nn.Linear):
        return True
    parts = list(net.children())
    return (
        type(net) is nn.Sequential
        and sum(isinstance(part, nn.Linear) for part in parts) == 1
        and all(isinstance(part, nn.Linear | _PLAIN[0] | _PLAIN[1]) for part in parts)
    )


def measurable(task: Task, params: Params) -> bool:
    """Whether the gap can be bounded: linear, a loss with a second derivative, not too wide."""
    numbers = sum(p.numel() for p in params.values())
    return linear(task) and task.loss_name != "hinge" and numbers <= WIDEST


def matrix(params: Params) -> Tensor:
    """The weights [outputs, inputs (+ 1)], the last column the constant; double precision."""
    weight = next(p for name, p in params.items() if name.endswith("weight")).double()
    bias = [p.double().unsqueeze(-1) for name, p in params.items() if name.endswith("bias")]
    return torch.cat([weight, *bias], -1)


def rows(x: Tensor, width: int) -> Tensor:
    """The rows that the weights multiply: flat, with a 1 where there is a constant."""
    flat = x.flatten(1).double()
    return flat if flat.shape[1] == width else torch.cat([flat, torch.ones_like(flat[:, :1])], -1)


class Bend(NamedTuple):
    """A loss at some outputs: itself [n], its slope [n, C] and curvature [n, C, C]."""

    loss: Tensor
    slope: Tensor
    curve: Tensor


def bend(task: Task, outputs: Tensor, y: Tensor) -> Bend:
    """The loss's first two derivatives by the outputs [n, C]."""
    if task.loss_name == "squared":
        gap = outputs - y.double().unsqueeze(-1)
        return Bend(gap.square().sum(-1), 2 * gap, torch.full_like(gap, 2.0).unsqueeze(-1))
    losses = task.each_loss(outputs, y)
    if task.loss_name == "logistic":
        p = outputs.sigmoid()
        return Bend(losses, p - y.double().unsqueeze(-1), (p * (1 - p)).unsqueeze(-1))
    p = outputs.softmax(-1)
    slope = p - _hot(y, outputs.shape[-1])
    return Bend(losses, slope, torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2))


def _hot(y: Tensor, classes: int) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(classes)).double()


def curvature(task: Task, at: Tensor, batch: Batch, weight: Tensor) -> Tree:
    """Sums of weighted losses, gradients [C, D] and Hessians [C D, C D] at the weights `at`."""
    x = rows(batch.x, at.shape[1])
    found = bend(task, x @ at.T, batch.y)
    c = weight.double()
    hessian = torch.einsum("n,nab,ni,nj->aibj", c, found.curve, x, x)
    size = at.numel()
    return {
        "value": (c * found.loss).sum(),
        "gradient": (c.unsqueeze(-1) * found.slope).T @ x,
        "hessian": hessian.reshape(size, size),
    }


def dual(task: Task, at: Tensor, move: Tensor, batch: Batch, weight: Tensor) -> Tree:
    """The bound's parts from some examples: `value` and `residual` [C, D]."""
    x = rows(batch.x, at.shape[1])
    outputs, shift, c = x @ at.T, x @ move.T, weight.double()
    if task.loss_name == "squared":
        y = batch.y.double().unsqueeze(-1)
        q = outputs + shift - y
        value, slope = (-q.square() - 2 * q * y).sum(-1), 2 * q
    elif task.loss_name == "logistic":
        p = outputs.sigmoid()
        p = (p + p * (1 - p) * shift).clamp(0, 1)
        value = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)).sum(-1)
        slope = p - batch.y.double().unsqueeze(-1)
    else:
        p = outputs.softmax(-1)
        p = (p + p * (shift - (p * shift).sum(-1, keepdim=True))).clamp(min=0)
        p = p / p.sum(-1, keepdim=True)
        value = -torch.xlogy(p, p).sum(-1)
        slope = p - _hot(batch.y, outputs.shape[-1])
    return {"value": (c * value).sum(), "residual": (c.unsqueeze(-1) * slope).T @ x}


def newton_step(gradient: Tensor, hessian: Tensor) -> Tensor:
    """Minus the inverse Hessian times the gradient, in the directions in which G bends at all."""
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    keep = values > 1e-13 * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
    along = (vectors.T @ gradient.flatten()) / torch.where(keep, values, 1.0)
    move: Tensor = vectors @ torch.where(keep, along, 0.0)
    return -move.reshape(gradient.shape)


def below(value: Tensor, residual: Tensor) -> float:
    """What G is at least, for all weights with |w| <= RADIUS."""
    return float(value) - RADIUS * float(residual.norm())


def assumed_risk(task: Task) -> float:
    """The risk of knowing nothing: log C of cross-entropy, 1 of the hinge loss; NaN if unknown."""
    if task.loss_name in ("cross_entropy", "logistic"):
        return math.log(max(task.classes, 2))
    return 1.0 if task.loss_name == "hinge" else math.nan
