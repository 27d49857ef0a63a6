"""A rule of decisions: data that say, for each client and group, how outputs become decisions.

A rule gives every example the chances of each class, from the model's outputs and the example's
group. A chance between 0 and 1 is settled by a number in (0, 1) that is a hash of the seed and of
the example's features. So the same row always gets the same decision, on every engine and after an
export, and different rows are drawn independently of each other.

The first axis of a rule's tensors are the clients, then one row for a client that was not in
training; a rule that is the same for all clients has that row only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.task import Task, probabilities
from isonomy.errors import ConfigError, DataError, unknown
from isonomy.metrics.counts import Floats, Tally, tally_of
from isonomy.metrics.scores import BINS, Scores, bin_of, positive_score

Own = dict[str, Tensor]
"""The tensors of one client's row of a rule."""


@dataclass(frozen=True)
class About:
    """What a rule was fitted for: what `Rule` holds beside its tensors."""

    method: str
    attribute: str  # the protected attribute whose groups are decided differently
    column: int  # the number of that attribute among those of the data
    levels: tuple[str, ...]
    classes: int
    notion: str
    budget: float
    local_budget: float | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Rule(ABC):
    """Abstract. A final subclass says what its tensors `parts` [clients + 1 or 1, ...] mean."""

    kind: ClassVar[str]
    about: About
    parts: Own

    @abstractmethod
    def chances(self, own: Own, task: Task, outputs: Tensor, level: Tensor) -> Tensor:
        """The chance of each class [n, classes] for examples of the groups `level` [n].

        `own` is a client's row of the tensors. Safe under `torch.func.vmap`.
        """

    @abstractmethod
    def accept(self, bins: int = BINS) -> Floats:
        """The chance of class 1 of a score in each bin, [rows, levels, bins], with two classes."""

    @property
    def rows(self) -> int:
        """The number of rows: clients + 1, or 1 if the rule is the same for all."""
        return len(next(iter(self.parts.values())))

    def row(self, client: int | None = None) -> Own:
        """The tensors of a client; None: of a client that was not in training."""
        at = self.rows - 1 if client is None or self.rows == 1 else client
        return {name: part[at] for name, part in self.parts.items()}

    def stacked(self, clients: int) -> Own:
        """The tensors of so many clients, [clients, ...]."""
        if self.rows == 1:
            return {k: part.expand(clients, *part.shape[1:]) for k, part in self.parts.items()}
        return {k: part[:clients] for k, part in self.parts.items()}

    def only(self, client: int | None = None) -> Rule:
        """The rule of one client for everyone; None: of a client that was not in training."""
        return type(self)(self.about, {k: v.unsqueeze(0) for k, v in self.row(client).items()})

    def decide(self, own: Own, task: Task, outputs: Tensor, x: Tensor, level: Tensor) -> Tensor:
        """The decision [n] on examples with features x and groups `level` [n].

        An example of unknown group is decided as the model alone would. Safe under vmap.
        """
        count = len(self.about.levels)
        chances = self.chances(own, task, outputs, level.clamp(0, count - 1)).to(torch.float64)
        passed = chances.cumsum(-1)[:, :-1] <= draws(x, self.about.seed).unsqueeze(-1)
        known = (level >= 0) & (level < count)
        return torch.where(known, passed.sum(-1), task.decide(outputs))

    def counts(self, scores: Scores) -> Floats:
        """The expected numbers of decisions on these histograms, [clients, 1 + levels, 2, 2].

        Rows are everyone and the groups of the rule's attribute; then follow label and decision.
        Examples of unknown group are decided as the model alone would.
        """
        group = scores.counts[:, scores.rows(self.about.attribute)].astype(np.float64)
        accept = self.accept(scores.bins)
        if len(accept) > 1:
            if len(scores) != len(accept) - 1:
                raise DataError(
                    f"a rule of {len(accept) - 1} clients and histograms of {len(scores)}: give "
                    "the histograms of the same clients, or use the rule's row for a new client "
                    "(rule.only())."
                )
            accept = accept[:-1]
        yes = (group * accept[:, :, None]).sum(-1)
        own = np.stack([group.sum(-1) - yes, yes], -1)
        rest = scores.counts[:, 0].astype(np.float64) - group.sum(1)
        half = np.arange(scores.bins) >= scores.bins / 2
        plain = np.stack([(rest * ~half).sum(-1), (rest * half).sum(-1)], -1)
        return np.concatenate([(own.sum(1) + plain)[:, None], own], 1)

    def tally(self, scores: Scores) -> Tally:
        """The expected decisions as a tally, from which every metric of groups is computed."""
        return expected_tally(self.counts(scores))

    def plain(self) -> dict[str, Any]:
        """The rule as JSON values."""
        return {"kind": self.kind, **asdict(self.about), "parts": lists(self.parts)}


def expected_tally(counts: Floats) -> Tally:
    """The tally of expected counts [..., rows, C, C]; it has no losses."""
    return tally_of(counts, np.zeros(counts.shape[:-1]))


def lists(parts: Own) -> dict[str, Any]:
    """Tensors as nested lists."""
    return {name: part.tolist() for name, part in parts.items()}


def draws(x: Tensor, seed: int) -> Tensor:
    """One number in (0, 1) per row of features [n, ...], a hash of the seed and of the row."""
    flat = x.reshape(x.shape[0], -1).to(torch.float32) + 0.0  # so that -0 and 0 are the same
    words = flat.view(torch.int32).to(torch.int64)
    place = random.mix64(torch.arange(words.shape[1]))
    rows = random.mix64(words ^ place).sum(-1)
    return random.uniform(random.key(seed, rows), "postprocess").to(torch.float64)


@dataclass(frozen=True, eq=False)
class Thresholds(Rule):
    """Class 1 if the score reaches a threshold, which is drawn from a few with given weights.

    `edge` [rows, levels, m] are thresholds as numbers of bins (0: every score is accepted, the
    number of bins: none) and `weight` [rows, levels, m] their probabilities.
    """

    kind: ClassVar[str] = "thresholds"

    def chances(self, own: Own, task: Task, outputs: Tensor, level: Tensor) -> Tensor:
        """The chance of each class [n, classes]."""
        place = bin_of(positive_score(task, outputs))
        reached = place.unsqueeze(-1) >= own["edge"][level]
        yes = (reached.to(own["weight"].dtype) * own["weight"][level]).sum(-1)
        return torch.stack([1 - yes, yes], -1)

    def accept(self, bins: int = BINS) -> Floats:
        """The chance of class 1 of a score in each bin."""
        if bins != BINS:
            raise DataError(f"histograms of {bins} bins: this rule needs {BINS}.")
        edge, weight = self.parts["edge"].numpy(), self.parts["weight"].numpy()
        reached = np.arange(bins) >= edge[..., None]
        found: Floats = (weight[..., None] * reached).sum(-2)
        return found


@dataclass(frozen=True, eq=False)
class Mixing(Rule):
    """The model's own decision with probability `keep`, otherwise a class drawn at random.

    `keep` is [rows, levels], `give` [rows, levels, classes] the probability of each class that is
    drawn; together they sum to 1.
    """

    kind: ClassVar[str] = "mixing"

    def chances(self, own: Own, task: Task, outputs: Tensor, level: Tensor) -> Tensor:
        """The chance of each class [n, classes]."""
        chosen = task.decide(outputs).unsqueeze(-1) == torch.arange(self.about.classes)
        keep, give = own["keep"][level].unsqueeze(-1), own["give"][level]
        return keep * chosen.to(keep.dtype) + give

    def accept(self, bins: int = BINS) -> Floats:
        """The chance of class 1 of a score in each bin."""
        _two_classes(self.about)
        half = np.arange(bins) >= bins / 2
        keep, give = self.parts["keep"].numpy(), self.parts["give"].numpy()
        found: Floats = keep[..., None] * half + give[..., 1:]
        return found

    def mixed(self, counts: Floats) -> Floats:
        """The expected counts from those of the model, both [clients, levels, C, C]."""
        own = self.stacked(len(counts))
        keep, give = own["keep"].numpy(), own["give"].numpy()
        found: Floats = (
            keep[..., None, None] * counts + give[:, :, None, :] * counts.sum(-1)[..., None]
        )
        return found


@dataclass(frozen=True, eq=False)
class Gains(Rule):
    """The class of largest expected gain, where a label y decided as k gains `gain[y, k]`.

    `gain` is [rows, levels, classes, classes] and `sharpness` [rows] > 0: the chance of a class is
    the softmax of sharpness times its expected gain under the model's probabilities.
    """

    kind: ClassVar[str] = "gains"

    def chances(self, own: Own, task: Task, outputs: Tensor, level: Tensor) -> Tensor:
        """The chance of each class [n, classes]."""
        eta = probabilities(task.loss_name, outputs.to(torch.float64))
        if eta is None:
            raise ConfigError(f"the loss '{task.loss_name}' defines no probabilities.")
        gain = (eta.unsqueeze(-1) * own["gain"][level]).sum(-2)
        return torch.softmax(own["sharpness"] * gain, -1)

    def accept(self, bins: int = BINS) -> Floats:
        """The chance of class 1 of a score in each bin."""
        _two_classes(self.about)
        score = (np.arange(bins) + 0.5) / bins
        gain, sharp = self.parts["gain"].numpy(), self.parts["sharpness"].numpy()
        more = gain[..., 1] - gain[..., 0]  # of class 1, by label
        margin = more[..., :1] * (1 - score) + more[..., 1:] * score
        found: Floats = 0.5 + 0.5 * np.tanh(0.5 * sharp[:, None, None] * margin)
        return found


def _two_classes(about: About) -> None:
    if about.classes != 2:
        raise ConfigError(f"histograms of scores are for two classes, not {about.classes}.")


KINDS: dict[str, type[Rule]] = {kind.kind: kind for kind in (Thresholds, Mixing, Gains)}


def read_rule(values: Mapping[str, Any], parts: Own | None = None) -> Rule:
    """A rule from `Rule.plain()`; `parts`, if given, are its tensors."""
    given = dict(values)
    kind, inner = given.pop("kind"), given.pop("parts", None)
    if kind not in KINDS:
        raise ConfigError(unknown("kind of rule", kind, KINDS))
    about = About(**{**given, "levels": tuple(given["levels"])})
    if parts is None:
        parts = {
            name: torch.tensor(value, dtype=torch.int64 if name == "edge" else torch.float64)
            for name, value in inner.items()
        }
    return KINDS[kind](about, parts)
