"""Predict with the model of a finished run, as one of its clients or as a new client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from isonomy.core.mixture import outputs
from isonomy.core.task import Task, probabilities
from isonomy.deploy.groups import Given, given_groups
from isonomy.deploy.loading import ClientModel, load
from isonomy.deploy.new_client import Examples
from isonomy.deploy.predictions import Predictions, decided, in_pages, predictions
from isonomy.deploy.rows import Features, Rows, features


@dataclass(frozen=True, eq=False)
class Predictor:
    """Predicts with the model that one client of a run uses."""

    model: ClientModel

    @property
    def task(self) -> Task:
        """The network and its loss."""
        return self.model.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.model.card.labels)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why a new client should not rely on this model; empty if there is no reason."""
        return self.model.warnings

    def outputs(self, x: Tensor) -> Tensor:
        """The raw outputs [n, o] from features: logits, margins or numbers."""
        model = self.model
        with torch.no_grad():
            if model.choice is not None:
                return outputs(model.task, model.weights(), x)
            return model.algorithm.predict(model.task, model.server, model.state, x)

    def predict(self, x: Tensor, groups: Given | None = None) -> Tensor:
        """The predicted class of every row of features, or the predicted number.

        `groups` are the rows' groups, for a model whose decisions depend on them.
        """
        found, rule = self.outputs(x), self.model.rule
        if not self.task.classes:
            return found.squeeze(-1)
        known = None if rule is None else given_groups(groups, len(x), rule)
        return decided(self.task, found, Features(x, groups=known), rule)

    def probabilities(self, x: Tensor) -> Tensor | None:
        """The probability of each class [n, classes]; None if the loss defines none."""
        return probabilities(self.task.loss_name, self.outputs(x))

    def predict_rows(self, rows: Rows, groups: Given | None = None) -> Predictions:
        """The predictions of raw rows: a path, an array, a table or a mapping of columns.

        Tables are raw, as the data set publishes them: columns by name, in any order. Arrays of
        bytes are images; other arrays are features. If decisions depend on a protected attribute,
        a table needs its column, and an array its `groups`.
        """
        model = self.model
        given = features(rows, model.row_preparation, model.card.inputs, model.rule, groups)
        outputs = in_pages(self.outputs, given.x)
        return predictions(self.task, self.labels, outputs, given, model.rule)


def predictor(
    folder: str | Path,
    client: str | int | None = None,
    examples: Examples | str | Path | None = None,
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    *,
    force: bool = False,
    constant: bool = False,
    steps: int = 1,
) -> Predictor:
    """The predictor of a client of the run, of a new client, or of all; see `loading.load`."""
    made = load(
        folder, client, examples, preference, limits, force=force, constant=constant, steps=steps
    )
    return Predictor(made)
