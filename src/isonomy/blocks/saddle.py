"""How far a pair (w, lambda) is from a saddle point, where the model is linear.

Everything here is for G(w) = sum_i c_i loss_i(w), c_i >= 0, with outputs that are linear in w. The
server minimises G by Newton's method on sums of gradients and Hessians over the clients. It then
asks for a lower bound that is valid whether or not the minimum was reached. It is the Fenchel dual:
for any q_i, loss_i(o) >= q_i (o - shift_i) - conjugate(q_i), so

    G(w) >= value(q) - |w| |residual(q)|,    residual(q) = sum_i c_i q_i x_i,

and q at w, moved along one more Newton step to first order, makes the residual vanish. Only sums
over clients are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree

STEPS = 60  # largest number of Newton steps
CURVES = 100  # largest number of sums that they ask for, with those of line searches
RADIUS = 1e3  # the minimum is over the weights with |w| at most this
WIDEST = 1200  # largest number of weights for which Hessians are sent
PAGE = 1024  # examples per page
_PLAIN = (nn.Flatten, nn.Identity)


def linear(task: Task) -> bool:
    """Whether the outputs are affine in the inputs, so that every loss is convex in w."""
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
    """Whether the gap can be bounded: a linear model, not too large, and a smooth loss."""
    numbers = sum(p.numel() for p in params.values())
    return linear(task) and task.loss_name != "hinge" and numbers <= WIDEST


def matrix(params: Params) -> Tensor:
    """The weights and the bias as one matrix [outputs, inputs (+ 1)], in double precision."""
    weight = next(p for name, p in params.items() if name.endswith("weight")).double()
    bias = [p.double().unsqueeze(-1) for name, p in params.items() if name.endswith("bias")]
    return torch.cat([weight, *bias], -1)


def rows(x: Tensor, width: int) -> Tensor:
    """The inputs that the matrix multiplies: flat, followed by a 1 if there is a bias."""
    flat = x.flatten(1).double()
    return flat if flat.shape[1] == width else torch.cat([flat, torch.ones_like(flat[:, :1])], -1)


class Derivatives(NamedTuple):
    """A loss at some outputs [n, C]: its value, its gradient and its Hessian."""

    loss: Tensor  # [n]
    gradient: Tensor  # [n, C]
    hessian: Tensor  # [n, C, C]


def derivatives(task: Task, outputs: Tensor, y: Tensor) -> Derivatives:
    """The losses with their first two derivatives with respect to the outputs [n, C]."""
    if task.loss_name == "squared":
        gap = outputs - y.double().unsqueeze(-1)
        hessian = torch.full_like(gap, 2.0).unsqueeze(-1)
        return Derivatives(gap.square().sum(-1), 2 * gap, hessian)
    losses = task.each_loss(outputs, y)
    if task.loss_name == "logistic":
        p = outputs.sigmoid()
        return Derivatives(losses, p - y.double().unsqueeze(-1), (p * (1 - p)).unsqueeze(-1))
    p = outputs.softmax(-1)
    gradient = p - _one_hot(y, outputs.shape[-1])
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return Derivatives(losses, gradient, hessian)


def losses(task: Task, at: Tensor, batch: Batch) -> Tensor:
    """The losses [n] of the model with the weights `at`."""
    return derivatives(task, rows(batch.x, at.shape[1]) @ at.T, batch.y).loss


def _one_hot(y: Tensor, classes: int) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(classes)).double()


def curvature(task: Task, at: Tensor, batch: Batch, weight: Tensor) -> Tree:
    """Sums of weighted losses, gradients [C, D] and Hessians [C D, C D] at the weights `at`."""
    x = rows(batch.x, at.shape[1])
    found = derivatives(task, x @ at.T, batch.y)
    c = weight.double()
    outputs = range(at.shape[0])
    curved = c.unsqueeze(-1).unsqueeze(-1) * found.hessian
    blocks = [[x.T @ (curved[:, a, b].unsqueeze(-1) * x) for b in outputs] for a in outputs]
    return {
        "value": (c * found.loss).sum(),
        "gradient": (c.unsqueeze(-1) * found.gradient).T @ x,
        "hessian": torch.cat([torch.cat(row, -1) for row in blocks]),
    }


def dual(task: Task, at: Tensor, move: Tensor, batch: Batch, weight: Tensor) -> Tree:
    """The parts of the dual bound from some examples: `value` and `residual` [C, D]."""
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
        slope = p - _one_hot(batch.y, outputs.shape[-1])
    return {"value": (c * value).sum(), "residual": (c.unsqueeze(-1) * slope).T @ x}


def newton_step(gradient: Tensor, hessian: Tensor) -> Tensor:
    """Minus the inverse Hessian times the gradient; 0 in directions without curvature."""
    values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
    keep = values > 1e-13 * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
    along = (vectors.T @ gradient.flatten()) / torch.where(keep, values, 1.0)
    move: Tensor = vectors @ torch.where(keep, along, 0.0)
    return -move.reshape(gradient.shape)


class Lowest(NamedTuple):
    """Where Newton's method ended: the weights, the sums there, and the step it would take next."""

    at: Tensor
    sums: Tree
    move: Tensor


def minimised(curve: Callable[[Tensor], Tree], start: Tensor, most: int = CURVES) -> Lowest:
    """The minimum of G by Newton's method; `curve` returns the sums of `curvature` at weights.

    It ends before the minimum if that takes more than `most` sums.
    """
    at, got, left = start, curve(start), most - 1
    move = newton_step(got["gradient"], got["hessian"])
    for _ in range(STEPS):
        slope = float((got["gradient"] * move).sum())
        if not slope < -1e-14 * (1 + abs(float(got["value"]))):
            break
        length, better = 1.0, None
        while length > 1e-6 and better is None and left:
            tried, left = curve(at + length * move), left - 1
            if float(tried["value"]) <= float(got["value"]) + 1e-4 * length * slope:
                better = tried
            else:
                length /= 2
        if better is None:
            break
        at, got = at + length * move, better
        move = newton_step(got["gradient"], got["hessian"])
    return Lowest(at, got, move)


def lower_bound(value: Tensor, residual: Tensor) -> float:
    """A lower bound on G over all weights with |w| <= RADIUS."""
    return float(value) - RADIUS * float(residual.norm())


def assumed_risk(task: Task) -> float:
    """The risk of a uniform guess: log C for cross-entropy, 1 for the hinge loss, else NaN."""
    if task.loss_name in ("cross_entropy", "logistic"):
        return math.log(max(task.classes, 2))
    return 1.0 if task.loss_name == "hinge" else math.nan
