"""Predictions of rows, and how they are made from a network's outputs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core import parquet
from isonomy.core.csv_cell import csv_cell
from isonomy.core.task import Task, probabilities
from isonomy.deploy.rows import Features
from isonomy.postprocess import Rule

PAGE = 1 << 22  # numbers of features at a time


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of some rows, in the order of the rows.

    `values` are the names of the predicted classes, or the predicted numbers. `probabilities`
    [n, classes] are those of the classes `labels`, and None if the loss defines none; then
    `margins` are the signed distances from the decision boundary, if there is one. `notes` name
    columns that were not used and values that the model does not know.
    """

    values: list[str] | list[float]
    labels: tuple[str, ...] = ()
    probabilities: NDArray[np.float32] | None = None
    margins: NDArray[np.float32] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def columns(self) -> dict[str, Any]:
        """The predictions as the columns of a table."""
        out: dict[str, Any] = {"prediction": self.values}
        if self.probabilities is not None:
            each = zip(self.labels, self.probabilities.T, strict=True)
            out |= {f"p({label})": column for label, column in each}
        if self.margins is not None:
            out["margin"] = self.margins
        return out

    def csv(self) -> str:
        """The predictions as CSV."""
        text, columns = io.StringIO(), self.columns()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(csv_cell, columns))
        formatted = [
            [csv_cell(v) if isinstance(v, str) else f"{v:.9g}" for v in values]
            for values in (list(column) for column in columns.values())
        ]
        writer.writerows(zip(*formatted, strict=True))
        return text.getvalue()

    def parquet(self) -> bytes:
        """The predictions as a Parquet file."""
        return parquet.written(self.columns())


def predictions(
    task: Task,
    labels: Sequence[str],
    outputs: Tensor,
    given: Features,
    rule: Rule | None = None,
) -> Predictions:
    """The predictions from a network's raw outputs [n, o] for the given features.

    With a `rule` of one row, the classes are those that it decides, and the probabilities are
    still those of the network.
    """
    if not task.classes:
        return Predictions(outputs.squeeze(-1).tolist(), notes=given.notes)
    names = tuple(labels) or tuple(str(k) for k in range(task.classes))
    found = probabilities(task.loss_name, outputs)
    return Predictions(
        values=[names[k] for k in decided(task, outputs, given, rule).tolist()],
        labels=names,
        probabilities=None if found is None else found.numpy(),
        margins=outputs.squeeze(-1).numpy() if found is None else None,
        notes=given.notes,
    )


def decided(task: Task, outputs: Tensor, given: Features, rule: Rule | None) -> Tensor:
    """The class of each row: that of the task, or that of a rule."""
    if rule is None:
        return task.decide(outputs)
    assert given.groups is not None  # `features` was given the rule
    return rule.decide(rule.row(), task, outputs, given.x, given.groups)


def in_pages(outputs: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The outputs of all rows, computed for a limited number of rows at a time."""
    rows = max(1, PAGE // max(1, x[:1].numel()))
    with torch.no_grad():
        return torch.cat([outputs(part) for part in torch.split(x, rows)])
