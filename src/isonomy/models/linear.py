"""Linear models: one affine map from a row to the outputs.

Three models have this network and differ in the loss that they train with: `linear` (squared
error, or softmax cross-entropy for classes), `logistic` (one output and the logistic loss for two
classes, softmax for more) and `svm` (one output and the hinge loss, two classes only).
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from isonomy.models.entry import Entry, Shape, options


def linear(shape: Shape, outputs: int, *, bias: bool = True) -> nn.Module:
    """A linear map of the flattened row, with torch's own initialisation.

    >>> [name for name, _ in linear((3,), 1).named_parameters()]
    ['linear.weight', 'linear.bias']
    """
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(math.prod(shape), outputs, bias=bias))
    )


OPTIONS = options(linear, bias={"meaning": "whether the map has an intercept"})

LINEAR = Entry(
    build=linear,
    description="Linear regression, or softmax regression for classes.",
    options=OPTIONS,
    losses=("cross_entropy", "squared", "logistic", "hinge"),
)
LOGISTIC = Entry(
    build=linear,
    description="Logistic regression: one output for two classes, softmax for more.",
    options=OPTIONS,
    losses=("logistic", "cross_entropy"),
)
SVM = Entry(
    build=linear,
    description="Linear support vector machine: one output, hinge loss.",
    options=OPTIONS,
    losses=("hinge",),
)
