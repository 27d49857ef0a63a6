"""A model that was exported, as its user has it: load, predict."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from isonomy.core import tree
from isonomy.core.mixture import Mixture, outputs
from isonomy.core.task import Params, Task
from isonomy.data import preparation
from isonomy.deploy import card as cards
from isonomy.deploy.card import WEIGHTS, Card
from isonomy.deploy.network import Network, probabilities, task_of
from isonomy.deploy.rows import Features, Rows, features
from isonomy.errors import RunError

PAGE = 1 << 22  # numbers of features at a time
MEMBER = "members.{}."  # before a parameter's name, in a mixture's weights
SHARE = "share"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of rows, in their order.

    `values` are the names of the predicted classes, or the predicted numbers. `probabilities`
    [n, classes] are those of the classes `labels`; None where the model knows none. `margins`
    then tell how far a row is from the border, if there is one.
    """

    values: list[str] | list[float]
    labels: tuple[str, ...] = ()
    probabilities: NDArray[np.float32] | None = None
    margins: NDArray[np.float32] | None = None
    notes: tuple[str, ...] = ()  # columns that were not used, values that the model does not know

    def __len__(self) -> int:
        return len(self.values)

    def columns(self) -> dict[str, Any]:
        """As the columns of a table."""
        out: dict[str, Any] = {"prediction": self.values}
        if self.probabilities is not None:
            each = zip(self.labels, self.probabilities.T, strict=True)
            out |= {f"p({label})": column for label, column in each}
        if self.margins is not None:
            out["margin"] = self.margins
        return out

    def csv(self) -> str:
        """As CSV."""
        text, columns = io.StringIO(), self.columns()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        told = [
            [v if isinstance(v, str) else f"{v:.9g}" for v in values]
            for values in (list(column) for column in columns.values())
        ]
        writer.writerows(zip(*told, strict=True))
        return text.getvalue()

    def parquet(self) -> bytes:
        """As Parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(self.columns()), sink)
        return bytes(sink.getvalue().to_pybytes())


@dataclass(frozen=True, eq=False)
class Model:
    """A model with its card."""

    card: Card
    task: Task
    weights: Params | Mixture

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        count = self.card.architecture.classes
        return self.card.labels or tuple(str(k) for k in range(count))

    def predict(self, rows: Rows) -> Predictions:
        """What the model says of rows: a path, an array, a table or a mapping of columns.

        Tables are raw, as the data set publishes them: columns by name in any order. Arrays of
        bytes are images; other arrays are features.
        """
        kept = self.card.preprocessing
        how = preparation.of(kept) if kept is not None else None
        return self.predicted(features(rows, how, self.card.architecture.inputs))

    def predicted(self, given: Features) -> Predictions:
        """What the model says of features."""
        out = self.outputs(given.x)
        if not self.task.classes:
            return Predictions(out.squeeze(-1).tolist(), notes=given.notes)
        names = [self.labels[k] for k in self.task.decide(out).tolist()]
        found = probabilities(self.task.loss_name, out)
        margins = out.squeeze(-1).numpy() if found is None else None
        shares = None if found is None else found.numpy()
        return Predictions(names, self.labels, shares, margins, given.notes)

    def outputs(self, x: Tensor) -> Tensor:
        """Raw outputs [n, o] from features: logits, log-odds, margins or numbers."""
        rows = max(1, PAGE // max(1, x[:1].numel()))
        with torch.no_grad():
            parts = [outputs(self.task, self.weights, part) for part in torch.split(x, rows)]
        return torch.cat(parts)

    def network(self) -> Network:
        """As a module: features in, probabilities out."""
        return Network(self.task, self.weights)


def load_model(folder: str | Path, *, seal: str | None = None, trust: bool = False) -> Model:
    """The model in a folder that `isonomy export` wrote; refuses one that was changed.

    `seal` is the seal that its card has to have. `trust` allows a class of somebody's own to be
    imported, if the model is of one.
    """
    place = Path(folder).expanduser()
    card = cards.read(place, seal)
    task = task_of(card.architecture, trust=trust)
    try:
        return Model(card, task, unpacked(load_file(place / WEIGHTS), card, task))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        said = " ".join(str(error).split())[:120]
        raise RunError(
            f"the weights in '{place}' do not fit their card ({said}); export the model again."
        ) from None


def packed(weights: Params | Mixture) -> dict[str, Tensor]:
    """Weights as named tensors, those of one model by the names of the network's parameters."""
    if not isinstance(weights, Mixture):
        return {k: v.contiguous().clone() for k, v in weights.items()}
    out = {SHARE: weights.share.contiguous().clone()}
    for m in range(len(weights.share)):
        member = tree.take(weights.models, m)
        out |= {MEMBER.format(m) + k: v.contiguous().clone() for k, v in member.items()}
    return out


def unpacked(tensors: dict[str, Tensor], card: Card, task: Task) -> Params | Mixture:
    """Undo `packed`; every parameter has to be there, in its shape."""
    shapes = {k: v.shape for k, v in (*task.net.named_parameters(), *task.net.named_buffers())}

    def one(prefix: str) -> Params:
        found = {k: tensors[prefix + k] for k in shapes}
        for k, v in found.items():
            if v.shape != shapes[k]:
                raise KeyError(f"{k} has the shape {list(v.shape)}, not {list(shapes[k])}")
        return found

    count = len(card.architecture.shares)
    if not count:
        return one("")
    models = tree.stack([one(MEMBER.format(m)) for m in range(count)])
    return Mixture(models, tensors[SHARE])
