"""The choice among candidates: on validation examples only, with a margin from their number.

A candidate is one model that could be used: the model of a trial, a point on a learnt front, or a
trained model with a rule for its decisions. Its counts on validation examples decide:

    clear     every requirement holds with the margin of `isonomy.metrics.requirements.margin`, so
              that it is likely to be answered `met` on the test examples
    possible  every requirement holds as measured, but not with the margin
    missed    a requirement does not hold as measured

The choice is the best objective among clear candidates or, if there are none, the possible one that
comes closest to the margins. A candidate that is no better than a constant prediction in the
objective is not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isonomy.metrics import Counts
from isonomy.metrics.client import Better
from isonomy.metrics.requirements import Cells, Requirement, Target, margin

Standing = Literal["clear", "possible", "missed"]


@dataclass(frozen=True)
class Wish:
    """What is asked for: requirements, and what to maximise or minimise among what meets them."""

    requirements: tuple[Requirement, ...]
    objective: Target
    better: Better

    @property
    def text(self) -> str:
        """In one line."""
        verb = "maximise" if self.better == "higher" else "minimise"
        parts = [one.text for one in self.requirements]
        return f"{', '.join(parts)}; {verb} {self.objective.text}"

    def gain(self, value: float) -> float:
        """The objective's value with a sign, so that more is better; NaN counts as the worst."""
        if math.isnan(value):
            return -math.inf
        return value if self.better == "higher" else -value


@dataclass(frozen=True, eq=False)
class Candidate:
    """One model that could be used, and its counts on validation examples.

    `method` is the row of the comparison that it belongs to; `settings` are those that its trial
    chose. `preference` is its point on a front, and `rule` the post-processing of its decisions.
    """

    method: str
    settings: dict[str, Any]
    folder: str | None
    counts: Counts = field(repr=False)
    trial: int = 0
    preference: tuple[float, ...] = ()
    rule: Any = None
    rule_text: str = ""
    constant: bool = False

    @property
    def name(self) -> str:
        """The method, its trial, and its point or rule."""
        parts = [self.method]
        if self.folder is not None:
            parts.append(f"trial {self.trial}")
        if self.preference:
            parts.append("preference " + ", ".join(f"{v:.3g}" for v in self.preference))
        if self.rule_text:
            parts.append(self.rule_text)
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Judged:
    """A candidate as the wish sees it: values, margins and standing on validation examples."""

    candidate: Candidate
    objective: float
    values: tuple[float, ...]
    margins: tuple[float, ...]
    standing: Standing
    shortfall: float  # by how much the least fulfilled requirement misses its bound and margin
    missed: float  # the sum of the distances from bounds that are not met as measured


def judge(wish: Wish, candidate: Candidate, times: float) -> Judged:
    """Judge a candidate; the test set has `times` as many examples as the validation set."""
    cells = Cells.of(candidate.counts)
    values = tuple(one.target.value(cells) for one in wish.requirements)
    number = max(len(wish.requirements), 1)
    margins = tuple(margin(one, candidate.counts, times, number) for one in wish.requirements)
    slack = [
        -math.inf if math.isnan(v) else one.slack(v)
        for one, v in zip(wish.requirements, values, strict=True)
    ]
    short = max((m - s for m, s in zip(margins, slack, strict=True)), default=0.0)
    standing: Standing = "clear" if short <= 0 else "possible"
    if any(s < 0 for s in slack):
        standing = "missed"
    return Judged(
        candidate,
        wish.objective.value(cells),
        values,
        margins,
        standing,
        short,
        sum(-s for s in slack if s < 0),
    )


def constant_candidate(counts: Counts) -> Candidate:
    """The prediction of the most frequent label for everyone, from any candidate's counts."""
    labels = counts.counts.sum(-1)
    top = int(labels[:, 0].sum(0).argmax())
    cells = np.zeros_like(counts.counts)
    cells[..., top] = labels
    made = Counts(cells, np.zeros(counts.loss.shape), counts.attributes)
    return Candidate("Constant prediction", {}, None, made, constant=True)


def perfect_candidate(counts: Counts) -> Candidate:
    """The prediction of every label itself, from any candidate's counts."""
    labels = counts.counts.sum(-1)
    cells = labels[..., None] * np.eye(labels.shape[-1], dtype=np.int64)
    made = Counts(cells, np.zeros(counts.loss.shape), counts.attributes)
    return Candidate("Perfect prediction", {}, None, made)


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen candidate, None if no candidate meets all requirements as measured."""

    chosen: Judged | None
    judged: tuple[Judged, ...]
    constant: Judged

    @property
    def nearest(self) -> tuple[Judged, ...]:
        """The candidates that miss the requirements by least, one per method, at most three."""
        found: dict[str, Judged] = {}
        for one in sorted(self.judged, key=lambda j: (j.missed, j.shortfall)):
            found.setdefault(one.candidate.method, one)
        return tuple(found.values())[:3]


def select(wish: Wish, candidates: Sequence[Candidate], times: float) -> Selection:
    """Choose among candidates on their validation counts."""
    judged = tuple(judge(wish, one, times) for one in candidates)
    constant = judge(wish, constant_candidate(candidates[0].counts), times)
    floor = wish.gain(constant.objective)
    useful = [
        one
        for one in judged
        if wish.gain(one.objective) > floor or _not_comparable(wish, one, floor)
    ]
    clear = [one for one in useful if one.standing == "clear"]
    possible = [one for one in useful if one.standing == "possible"]
    if clear:
        best = max(clear, key=lambda one: (wish.gain(one.objective), -one.shortfall))
    elif possible:
        best = min(possible, key=lambda one: (one.shortfall, -wish.gain(one.objective)))
    else:
        return Selection(None, judged, constant)
    return Selection(best, judged, constant)


def _not_comparable(wish: Wish, one: Judged, floor: float) -> bool:
    """Whether a constant prediction cannot be beaten in the objective, such as a gap of 0.

    Then it is the accuracy that has to be better than the constant's.
    """
    if wish.better == "higher":
        return False
    cells = Cells.of(one.candidate.counts)
    accuracy = float(cells.counts[:, 0].trace(axis1=-2, axis2=-1).sum() / cells.counts[:, 0].sum())
    labels = cells.counts[:, 0].sum((0, -1))
    return floor >= 0 and accuracy > float(labels.max() / labels.sum())


def undominated(wish: Wish, judged: Sequence[Judged]) -> list[Judged]:
    """Those that no other beats in the objective and in every required quantity."""
    if not judged:
        return []
    at = np.array(
        [
            [
                -wish.gain(one.objective),
                *(
                    math.inf if math.isnan(v) else -requirement.slack(v)
                    for requirement, v in zip(wish.requirements, one.values, strict=True)
                ),
            ]
            for one in judged
        ]
    )
    keep = []
    for i, point in enumerate(at):
        beaten = (at <= point).all(1) & (at < point).any(1)
        twin = (at[:i] == point).all(1).any()
        if not beaten.any() and not twin:
            keep.append(judged[i])
    return keep
