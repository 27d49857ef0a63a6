"""Hypernets: functions that map a preference to the last layer of another network.

The task's network is split into a body, which computes latent features, and a head, its last linear
layer. A hypernet generates the head for any preference, so the model of a preference is an ordinary
model of the task's architecture. There are two kinds.

`paper`, the hypernet of PraFFL and HetPFL: an embedding of the preference (Linear, ReLU, Linear),
and linear maps from it to a weight W1 [d, d], a bias b1 [d] and a weight W2 [o, d]. The head is

    out = W2 (W1 h + b1)

without an activation in between, so it is one linear layer with weight W2 W1 and bias W2 b1. It has
about d^3 parameters. (The authors add the same number b2 to all outputs. It does not change the
probabilities, so we leave it out.)

`interpolated`, ours: the shared parameters include a head, and the hypernet adds a correction that
is interpolated linearly in the preference between `KNOTS` learnt ones:

    head(lam) = shared head + sum_r hat_r(lam_0) Theta_r,    hat_r(t) = max(0, 1 - |KNOTS t - r|)

for r = 1, ..., KNOTS. At lam_0 = 0, where only the first objective counts, there is no correction:
that model is the shared one. With more than two objectives each knot has one Theta for each of the
other objectives, weighted by their parts of the preference. There are KNOTS (o d + o) parameters
for each of them, a number linear in d, and the mean of hypernets generates the mean of their heads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear, relu

from isonomy.core import tree
from isonomy.core.task import Params, Task
from isonomy.errors import ConfigError

Kind = Literal["interpolated", "paper"]
Make = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""The head's weight and bias from a hypernet and a preference, or stacked for several."""

KNOTS = 16  # corrections of an interpolated hypernet between which the others lie
WIDTH = 4  # smallest width of the embedding; otherwise the number of latent features


class Head(NamedTuple):
    """The last layer: the names of its parameters, and its numbers of inputs and outputs."""

    weight: str
    bias: str
    inputs: int
    outputs: int


def head_of(task: Task) -> Head:
    """The last linear layer of the task's network.

    Raises ConfigError if there is none with a bias.
    """
    found = [(name, m) for name, m in task.net.named_modules() if isinstance(m, nn.Linear)]
    if found and found[-1][1].bias is not None:
        name, last = found[-1]
        prefix = f"{name}." if name else ""
        return Head(f"{prefix}weight", f"{prefix}bias", last.in_features, last.out_features)
    raise ConfigError(
        "the algorithm generates the last layer of the network, but this model does not end in a "
        "linear layer with a bias; choose another model, such as mlp."
    )


def check_head(task: Task, params: Params, x: Tensor | None = None) -> None:
    """Raise ConfigError if the network does not end with its last linear layer.

    The check compares outputs for the rows `x`. Without `x`, rows are generated if the network
    starts with a linear layer; for other networks nothing is checked.
    """
    if x is None:
        first = next(
            (m for m in task.net.modules() if next(m.parameters(False), None) is not None), None
        )
        if not isinstance(first, nn.Linear):
            return
        x = torch.linspace(-2, 2, 5 * first.in_features).sin().reshape(5, first.in_features)
    head, body = split(task, params)
    latent = features(task, body, x)
    where = head_of(task)
    out = linear(latent, head[where.weight], head[where.bias])
    if not torch.allclose(out, task.outputs(params, x), rtol=1e-3, atol=1e-4):
        raise ConfigError(
            "the algorithm generates the last layer of the network, but this model does not end "
            "with its last linear layer; choose another model, such as mlp."
        )


def split(task: Task, params: Params) -> tuple[Params, Params]:
    """The parameters of the head and those of the body."""
    where = head_of(task)
    own = (where.weight, where.bias)
    return {k: params[k] for k in own}, {k: v for k, v in params.items() if k not in own}


def features(task: Task, body: Params, x: Tensor) -> Tensor:
    """The latent features [n, d]: the outputs of the network without its head.

    If the network is not a plain sequence of layers, its head is set to the identity instead, which
    takes one more product.
    """
    where, net = head_of(task), task.net
    if type(net) is nn.Sequential and isinstance(net[-1], nn.Linear):
        own = {k: v for k, v in body.items() if k not in (where.weight, where.bias)}
        found: Tensor = functional_call(net[:-1], own, (x,))
        return found
    same = {where.weight: torch.eye(where.inputs), where.bias: torch.zeros(where.inputs)}
    return task.outputs({**body, **same}, x)


def shared(task: Task, params: Params, kind: Kind) -> Params:
    """The parameters that clients share: all of them, or with the paper's hypernet the body."""
    return params if kind == "interpolated" else split(task, params)[1]


def maker(task: Task, psi: Params) -> Make:
    """The function that generates heads, given the shared parameters.

    The hypernet is an interpolated one if the shared parameters include the head.
    """
    where = head_of(task)
    if where.weight not in psi:
        return lambda hypernet, preference: make_head(hypernet, preference, where)
    weight, bias = psi[where.weight], psi[where.bias]

    def make(hypernet: Tensor, preference: Tensor) -> tuple[Tensor, Tensor]:
        more, constant = correction(hypernet, preference, where)
        return weight + more, bias + constant

    return make


def make_params(task: Task, psi: Params, hypernet: Tensor, preference: Tensor) -> Params:
    """All parameters of the network for a preference."""
    where = head_of(task)
    weight, bias = maker(task, psi)(hypernet, preference)
    return {**psi, where.weight: weight, where.bias: bias}


def correction(hypernet: Tensor, preference: Tensor, where: Head) -> tuple[Tensor, Tensor]:
    """What an interpolated hypernet adds to the head: weight [..., o, d] and bias [..., o]."""
    d, o = where.inputs, where.outputs
    others = preference[..., 1:]
    count = others.shape[-1]
    knots = torch.arange(1, KNOTS + 1)
    hats = relu(1 - (KNOTS * preference[..., :1] - knots).abs())  # [..., KNOTS]
    part = (others + 1e-6) / (others + 1e-6).sum(-1, keepdim=True)
    basis = (hats.unsqueeze(-1) * part.unsqueeze(-2)).flatten(-2)
    made = basis @ hypernet.reshape(KNOTS * count, o * d + o)
    weight, bias = torch.split(made, [o * d, o], -1)
    return weight.reshape(*preference.shape[:-1], o, d), bias


def shapes(inputs: int, outputs: int, objectives: int) -> list[tuple[int, int]]:
    """Outputs and inputs of the hypernet's layers; the last generates W1, b1 and W2 together."""
    width = max(WIDTH, inputs)
    made = inputs * inputs + inputs + outputs * inputs
    return [(width, objectives), (width, width), (made, width)]


def initial(task: Task, params: Params, objectives: int, kind: Kind = "paper") -> Tensor:
    """The hypernet before training, as one vector.

    An interpolated hypernet starts without any correction. The paper's has torch's default
    initialisation, seeded by a hash of the model's parameters: every layer's weight followed by
    its bias, because an optimiser's step on one tensor is much faster than on several small ones.
    """
    if kind == "interpolated":
        where = head_of(task)
        return torch.zeros(KNOTS * (objectives - 1) * where.outputs * (where.inputs + 1))
    seed = zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(params)))
    where = head_of(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(n, u) for u, n in shapes(where.inputs, where.outputs, objectives)]
    flat = [t.detach().flatten() for layer in layers for t in (layer.weight, layer.bias)]
    return torch.cat(flat)


def make_head(hypernet: Tensor, preference: Tensor, where: Head) -> tuple[Tensor, Tensor]:
    """The head of the paper's hypernet: weight [o, d] and bias [o] for a preference [m].

    For several preferences [n, m], they are stacked.
    """
    d, o = where.inputs, where.outputs
    layers = shapes(d, o, preference.shape[-1])
    parts = torch.split(hypernet, [size for u, n in layers for size in (u * n, u)])

    def layer(i: int, t: Tensor) -> Tensor:
        return linear(t, parts[2 * i].reshape(layers[i]), parts[2 * i + 1])

    out = layer(2, layer(1, relu(layer(0, preference))))
    first, bias, second = torch.split(out, [d * d, d, o * d], -1)
    lead = preference.shape[:-1]
    second = second.reshape(*lead, o, d)
    both = second @ torch.cat([first.reshape(*lead, d, d), bias.unsqueeze(-1)], -1)  # W2 [W1, b1]
    return both[..., :d], both[..., d]
