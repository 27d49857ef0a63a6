"""A model that was exported: load it, and predict with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from isonomy.core import importing, tree
from isonomy.core.mixture import Mixture, outputs
from isonomy.core.task import Params, Task
from isonomy.data import preparation
from isonomy.deploy import card as cards
from isonomy.deploy.card import WEIGHTS, Architecture, Card
from isonomy.deploy.groups import Given
from isonomy.deploy.network import Network
from isonomy.deploy.predictions import Predictions, in_pages, predictions
from isonomy.deploy.rows import Rows, features
from isonomy.errors import RunError
from isonomy.models import MODELS, make_task
from isonomy.postprocess import Rule, read_rule

MEMBER = "members.{}."  # comes before a parameter's name in the weights of a mixture
SHARE = "share"


@dataclass(frozen=True, eq=False)
class Model:
    """A model with its card."""

    card: Card
    task: Task
    weights: Params | Mixture

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.card.labels or tuple(str(k) for k in range(self.card.architecture.classes))

    @property
    def rule(self) -> Rule | None:
        """The rule of decisions, if one was fitted after training."""
        return None if self.card.rule is None else read_rule(self.card.rule)

    def predict(self, rows: Rows, groups: Given | None = None) -> Predictions:
        """The predictions of raw rows: a path, an array, a table or a mapping of columns.

        Tables are raw, as the data set publishes them: columns by name, in any order. Arrays of
        bytes are images; other arrays are features. If decisions depend on a protected attribute
        (`card.rule`), a table needs its column, and an array its `groups`.
        """
        kept = self.card.preprocessing
        how = preparation.of(kept) if kept is not None else None
        rule = self.rule
        given = features(rows, how, self.card.architecture.inputs, rule, groups)
        return predictions(self.task, self.labels, self.outputs(given.x), given, rule)

    def outputs(self, x: Tensor) -> Tensor:
        """The raw outputs [n, o] from features: logits, log-odds, margins or numbers."""
        return in_pages(lambda part: outputs(self.task, self.weights, part), x)

    def network(self) -> Network:
        """The model as a module: features in, probabilities out."""
        return Network(self.task, self.weights)


def load_model(folder: str | Path, *, seal: str | None = None, trust: bool = False) -> Model:
    """The model in a folder that `isonomy export` wrote.

    Args:
        folder: The folder of the exported model.
        seal: The seal that the card must have, if it is to be checked.
        trust: Whether the class of a user's own network may be imported, which runs its code.

    Raises:
        RunError: If a file of the model is missing or was changed.
    """
    place = Path(folder).expanduser()
    card = cards.read(place, seal)
    task = task_of(card.architecture, trust=trust)
    try:
        return Model(card, task, unpacked(load_file(place / WEIGHTS), card, task))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RunError(
            f"the weights in '{place}' do not fit their card ({reason}); export the model again."
        ) from None


def task_of(architecture: Architecture, *, trust: bool = False) -> Task:
    """The task of an architecture; a user's own network is imported only if it is trusted."""
    name = architecture.name
    if trust and name not in MODELS:
        importing.trust(name)
    return make_task(
        name,
        architecture.shape,
        architecture.options,
        loss=architecture.loss,
        convert=architecture.convert,
    )


def packed(weights: Params | Mixture) -> dict[str, Tensor]:
    """Weights as named tensors; those of a single model have the names of its parameters."""
    if not isinstance(weights, Mixture):
        return {k: v.contiguous().clone() for k, v in weights.items()}
    out = {SHARE: weights.share.contiguous().clone()}
    for m in range(len(weights.share)):
        member = tree.take(weights.models, m)
        out |= {MEMBER.format(m) + k: v.contiguous().clone() for k, v in member.items()}
    return out


def unpacked(tensors: dict[str, Tensor], card: Card, task: Task) -> Params | Mixture:
    """The inverse of `packed`; raises a KeyError if a parameter is missing or has a wrong shape."""
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
