"""Multi-layer perceptron: Linear, activation, ..., Linear.

HetPFL's baselines use `hidden = [4]`, FOCUS on rotated MNIST `hidden = [200]`.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from isonomy.models.entry import Entry, Shape, options

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


def mlp(
    shape: Shape, outputs: int, *, hidden: tuple[int, ...] = (200,), activation: str = "relu"
) -> nn.Module:
    """Fully connected layers over the flattened row.

    The layers are created in order with torch's own initialisation, so after
    `torch.manual_seed(seed)` the numbers are those of
    `nn.Sequential(nn.Linear(...), nn.ReLU(), nn.Linear(...))`.

    >>> [name for name, _ in mlp((3,), 2, hidden=[4]).named_parameters()]
    ['linear1.weight', 'linear1.bias', 'linear2.weight', 'linear2.bias']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = math.prod(shape)
    for number, units in enumerate(hidden, start=1):
        layers[f"linear{number}"] = nn.Linear(width, units)
        layers[f"activation{number}"] = ACTIVATIONS[activation]()
        width = units
    layers[f"linear{len(hidden) + 1}"] = nn.Linear(width, outputs)
    return nn.Sequential(layers)


MLP = Entry(
    build=mlp,
    description="Multi-layer perceptron.",
    options=options(
        mlp,
        hidden={"meaning": "units of each hidden layer", "ge": 1},
        activation={"meaning": "applied after each hidden layer", "choices": tuple(ACTIVATIONS)},
    ),
    losses=("cross_entropy", "squared", "logistic", "hinge"),
)
