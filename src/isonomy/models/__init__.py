"""Models by name, and tasks: a model with the loss that fits some data.

>>> import torch
>>> from isonomy.data.federation import build
>>> rows = [torch.tensor([0, 1, 2]), torch.tensor([3, 4])]
>>> federation = build(
...     torch.eye(5), torch.tensor([0, 1, 1, 0, 1]), torch.zeros(5, 0, dtype=torch.int64),
...     {"train": rows}, classes=2, source="toy",
... )
>>> task = make_task("mlp", federation, {"hidden": [4]})
>>> task.loss_name, {name: list(value.shape) for name, value in task.init(seed=0).items()}
... # doctest: +NORMALIZE_WHITESPACE
('cross_entropy', {'linear1.weight': [4, 5], 'linear1.bias': [4],
                   'linear2.weight': [2, 4], 'linear2.bias': [2]})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import torch
from torch import nn

from isonomy.core.examples import DataShape
from isonomy.core.options import check as check_options
from isonomy.core.task import Loss, Recipe, Task
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError, DataError, unknown
from isonomy.models import check, custom
from isonomy.models.cnn import CNN
from isonomy.models.custom import converted
from isonomy.models.entry import LABELS, Entry
from isonomy.models.linear import LINEAR, LOGISTIC, SVM
from isonomy.models.mlp import MLP
from isonomy.models.resnet import RESNET18

__all__ = [
    "LOSSES",
    "MODELS",
    "Entry",
    "converted",
    "make_task",
]

MODELS: dict[str, Entry] = {
    "linear": LINEAR,
    "logistic": LOGISTIC,
    "svm": SVM,
    "mlp": MLP,
    "cnn": CNN,
    "resnet18": RESNET18,
}

LOSSES: tuple[Loss, ...] = get_args(Loss)

CUSTOM_LOSSES: tuple[Loss, ...] = ("cross_entropy", "squared", "logistic", "hinge")


def make_task(
    model: str,
    data: Federation | DataShape,
    options: Mapping[str, Any] | None = None,
    *,
    loss: str | None = None,
    convert: bool = False,
) -> Task:
    """The task of training a model on some data.

    Args:
        model: A name in MODELS, or the import path "package.module:Class" of a user's own network
            (see `isonomy.models.custom`).
        data: A federation, or only the description of its data.
        options: The model's options.
        loss: The loss; by default the first of the model's losses that fits the data. It decides
            the number of outputs: one for each class under cross-entropy, otherwise one.
        convert: Whether BatchNorm and Dropout of a user's own network are replaced.

    Raises:
        ConfigError, DataError: If the model does not exist, its options are not allowed, or it
            does not run on two rows of the data.
    """
    shape = data if isinstance(data, DataShape) else data.shape
    given = dict(options or {})
    entry = MODELS.get(model)
    if entry is None and ":" not in model:
        known = [*MODELS, "package.module:Class"]
        if "." in model:
            package, _, name = model.rpartition(".")
            raise ConfigError(
                f"unknown model '{model}': write a class of your own as '{package}:{name}', with a "
                "colon before its name."
            )
        raise ConfigError(unknown("model", model, known))
    losses = CUSTOM_LOSSES if entry is None else entry.losses
    chosen = _choose_loss(model, losses, shape, loss)
    outputs = shape.classes if chosen == "cross_entropy" else 1
    if not shape.inputs:
        raise DataError(
            f"model '{model}' needs rows with features but {check.source(shape)} has a single "
            "number in each row; give x the shape [rows, 1]."
        )
    build: Callable[[], nn.Module]
    if entry is None:
        make = custom.find(model)
        filled = custom.arguments(model, make, shape.inputs, outputs, given)
        build = partial(custom.construct, model, make, filled, convert=convert)
    else:
        if entry.images and len(shape.inputs) != 3:
            raise DataError(
                f"model '{model}' needs images [channels, height, width] but "
                f"the rows of {check.source(shape)} have the shape {list(shape.inputs)}; use mlp."
            )
        checked = check_options("model", model, entry.options, given)
        build = Recipe(entry.build, (tuple(shape.inputs), outputs), tuple(checked.items()))
    task = Task(
        build=build,
        loss_name=chosen,
        classes=shape.classes,
        levels=tuple(len(attribute.levels) for attribute in shape.attributes),
        attributes=tuple(attribute.name for attribute in shape.attributes),
    )
    if entry is None:
        _check_reproducible(model, task)
    check.check(model, task, shape, check.two_rows(data), outputs)
    return task


def _check_reproducible(model: str, task: Task) -> None:
    """Raise a ConfigError unless the same seed gives the same initial parameters."""
    first = dict(task.net.named_parameters())  # a Task builds its net after manual_seed(0)
    for name, value in task.init(0).items():
        if name not in first or not torch.equal(value, first[name]):
            raise ConfigError(
                f"model '{model}' initialises '{name}' with different numbers each time, although "
                "the seed is the same; draw initial values only from torch's own generator."
            )


def _choose_loss(
    model: str, losses: tuple[Loss, ...], shape: DataShape, wanted: str | None
) -> Loss:
    """The loss that is wanted, or the model's first loss that fits the data."""
    classes = shape.classes
    where = check.source(shape)
    fits: dict[str, bool] = {
        "cross_entropy": classes >= 2,
        "logistic": classes == 2,
        "hinge": classes == 2,
        "squared": classes == 0,
    }
    has = "a number to predict" if classes == 0 else f"{classes} classes"
    if classes == 1:
        raise DataError(
            f"model '{model}': {where} has only one class, so there is nothing to learn; give "
            "labels of two or more classes."
        )
    if wanted is None:
        for loss in losses:
            if fits[loss]:
                return loss
        advice = "linear or mlp" if classes == 0 else "logistic or mlp"
        raise DataError(
            f"model '{model}' needs {LABELS[losses[-1]]} but {where} has {has}; use {advice}."
        )
    if wanted not in LOSSES:
        raise ConfigError(unknown("loss", wanted, LOSSES))
    if wanted not in losses:
        raise ConfigError(
            f"model '{model}' trains with {' or '.join(losses)}, not with loss '{wanted}'; remove "
            "model.loss, or use the model linear or mlp."
        )
    if not fits[wanted]:
        advice = "squared" if classes == 0 else "cross_entropy"
        raise DataError(
            f"loss '{wanted}' needs {LABELS[wanted]} but {where} has {has}; use loss '{advice}'."
        )
    return wanted
