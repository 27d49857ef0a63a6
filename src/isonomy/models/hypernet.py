"""Hypernets: networks that map a preference to the last layer of another network.

The task's network is split into a body, which computes latent features, and a head, its last linear
layer. A hypernet generates the head for any preference. This is the hypernet of PraFFL and HetPFL:
an embedding of the preference (Linear, ReLU, Linear), and linear maps from it to a weight W1
[d, d], a bias b1 [d] and a weight W2 [o, d]. The head is

    out = W2 (W1 h + b1)

without an activation in between, so it is one linear layer with weight W2 W1 and bias W2 b1. The
model of a preference is therefore an ordinary model of the task's architecture. (The authors add
the same number b2 to all outputs. It does not change the probabilities, so we leave it out.)
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from isonomy.core import tree
from isonomy.core.task import Params, Task
from isonomy.errors import ConfigError

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
    """The latent features [n, d]: the outputs of the network with an identity head."""
    where = head_of(task)
    same = {where.weight: torch.eye(where.inputs), where.bias: torch.zeros(where.inputs)}
    return task.outputs({**body, **same}, x)


def make_params(task: Task, body: Params, hypernet: Tensor, preference: Tensor) -> Params:
    """All parameters of the network for a preference."""
    where = head_of(task)
    weight, bias = make_head(hypernet, preference, where)
    return {**body, where.weight: weight, where.bias: bias}


def shapes(inputs: int, outputs: int, objectives: int) -> list[tuple[int, int]]:
    """Outputs and inputs of the hypernet's layers; the last generates W1, b1 and W2 together."""
    width = max(WIDTH, inputs)
    made = inputs * inputs + inputs + outputs * inputs
    return [(width, objectives), (width, width), (made, width)]


def initial(task: Task, params: Params, objectives: int) -> Tensor:
    """A hypernet with torch's default initialisation, seeded by a hash of the model's parameters.

    It is one vector, every layer's weight followed by its bias, because an optimiser's step on one
    tensor is much faster than on several small ones.
    """
    seed = zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(params)))
    where = head_of(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(n, u) for u, n in shapes(where.inputs, where.outputs, objectives)]
    flat = [t.detach().flatten() for layer in layers for t in (layer.weight, layer.bias)]
    return torch.cat(flat)


def make_head(hypernet: Tensor, preference: Tensor, where: Head) -> tuple[Tensor, Tensor]:
    """The head's weight [o, d] and bias [o] for a preference [m], or stacked for several [n, m]."""
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
