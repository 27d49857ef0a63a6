"""Rounding of a client's reply to what one row adds to it, against models made to isolate rows.

A server can send a model in which a neuron reacts to a single row, or two neurons that differ by
one row; the row can then be read from the reply's numbers. Rounded to steps that are at least twice
what any single row adds to a number, such a number is 0, and a difference of two numbers is 0 or a
whole step. What many rows add up to remains.

What row i adds to parameter j is estimated by its gradient g_ij of the task's loss, at the received
model and at the trained one: g_ij times the learning rate and the number of passes, divided by the
examples in a batch; at least the row's share of sum_i |g_ij|, times the number itself; and at least
g_ij in the proportion of the whole reply to sum_ij |g_ij|. Steps are powers of two, so they show
the order of magnitude only. Losses, sums of losses and of probabilities, and counts of predictions
by group are rounded likewise. Other statistics, such as a gap between groups, are not.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from isonomy.core import tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask
from isonomy.core.disclosure import even
from isonomy.core.phase import Phase
from isonomy.core.task import Batch, Task
from isonomy.core.tree import Tree

MANY = 2**21  # gradients at a time: 8 MB, and as much for their absolute values
LOSSES = frozenset(("loss", "losses"))
SHARES = frozenset(("positive", "hit", "correct"))  # of which a row adds at most 1


def rounding(ask: Ask, phase: Phase) -> Phase:
    """Client-side middleware: rounds the parameters, gradients and losses of replies.

    It applies where a reply has the form of the whole model that was sent; other replies, such as
    those of single layers or of hypernetworks, stay as they are.
    """
    parts = ask.declared.parts

    @functools.wraps(phase)
    def rounded(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        reply, state = phase(task, message, client)
        out = dict(reply)
        for name, value in reply.items():
            part = parts[name]
            sent = message.get(part.of or "params")
            if not whole(task, sent):
                continue
            if name in ask.declared.trained and whole(task, value):
                out[name] = _trained(task, value, sent, client, is_model=part.kind == "model")
            elif name not in ask.declared.trained:
                out[name] = _statistics(task, name, value, sent, client)
        return out, state

    return rounded


def whole(task: Task, value: Any) -> bool:
    """Whether a tree is a whole model of the task, whose gradient can be computed."""
    own = dict(task.net.named_parameters())
    if not isinstance(value, dict) or set(value) != set(own):
        return False
    return all(isinstance(t, Tensor) and t.shape == own[name].shape for name, t in value.items())


def coarse(value: Tensor, one_row: Tensor) -> Tensor:
    """The value, rounded to a power of two that is at least twice what one row adds.

    >>> coarse(torch.tensor([0.3, 7.3]), torch.tensor([0.3, 0.3])).tolist()
    [0.0, 7.0]
    """
    least = torch.finfo(value.dtype).tiny
    step = torch.exp2(torch.ceil(torch.log2((2 * one_row).clamp(min=least).to(value.dtype))))
    return (value / step).round() * step


def _trained(task: Task, value: Tree, sent: Tree, client: Client, *, is_model: bool) -> Tree:
    """A model, an update or a gradient."""
    change = tree.sub(value, sent) if is_model else value
    most, total = influence(task, sent, client)
    if is_model:
        after = influence(task, value, client)
        most = tree.tmap(torch.maximum, most, after[0])
        total = tree.tmap(torch.minimum, total, after[1])
    size, work = int(client.sizes[0]), client.work
    use = 1 / size
    if is_model:
        use = float(client.rate) * work.passes(size) / min(work.width(size), size)
    moved, all_rows = (sum(float(t.abs().sum()) for t in tree.leaves(v)) for v in (change, total))
    use = max(use, moved / all_rows if all_rows > 0 else 0.0)

    def one(number: Tensor, largest: Tensor, together: Tensor) -> Tensor:
        share = torch.where(together > 0, largest / together, 1.0).clamp(max=1)
        return coarse(number, torch.maximum(share * number.abs(), use * largest))

    near = tree.tmap(one, change, most, total)
    return tree.add(sent, near) if is_model else near


def _statistics(task: Task, name: str, value: Tree, sent: Tree, client: Client) -> Tree:
    """Losses (one mean, or sums by group), sums of probabilities, and counts of predictions."""
    leaves, spec = pytree.tree_flatten_with_path(value)
    names = [_innermost(path, name) for path, _ in leaves]
    found = {own: leaf for own, (_, leaf) in zip(names, leaves, strict=True)}
    if not (LOSSES | SHARES) & set(names):
        return value
    worst = torch.zeros(())
    for page in client.pages("train"):
        worst = torch.maximum(worst, (task.losses(sent, page) * page.weight).max())
    out = []
    for own, (_, leaf) in zip(names, leaves, strict=True):
        if own in LOSSES:
            row = worst / client.size if leaf.numel() == 1 else worst
            leaf = coarse(leaf, row)
        elif own in SHARES and "count" in found and found["count"].shape == leaf.shape:
            leaf = even(leaf, found["count"])
        elif own in SHARES:
            leaf = coarse(leaf, torch.ones_like(leaf))
        out.append(leaf)
    return pytree.tree_unflatten(out, spec)


def _innermost(path: Any, name: str) -> str:
    return str(getattr(path[-1], "name", getattr(path[-1], "key", ""))) if path else name


def influence(task: Task, params: Any, client: Client) -> tuple[Tree, Tree]:
    """For every parameter, the largest and the sum of the rows' absolute gradients."""
    most = total = tree.zeros_like(params)

    def row(x: Tensor, y: Tensor, groups: Tensor, weight: Tensor) -> Tree:
        one = Batch(x.unsqueeze(0), y.unsqueeze(0), groups.unsqueeze(0), weight.unsqueeze(0))
        return grad(task.loss)(params, one)

    size = sum(t.numel() for t in tree.leaves(params))
    for page in client.pages("train", min(1024, max(1, MANY // size))):
        each = tree.tmap(torch.abs, vmap(row)(*page))
        most = tree.tmap(lambda m, g: torch.maximum(m, g.amax(0)), most, each)
        total = tree.tmap(lambda t, g: t + g.sum(0), total, each)
    return most, total
