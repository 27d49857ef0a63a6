"""The choice among candidates: on validation examples only, with a margin from their number.

A candidate is one model that could be used: the model of a trial, a point on a learnt front, or a
trained model with a rule for its decisions. Its counts on validation examples decide:

    clear     every requirement holds with the margin of `isonomy.metrics.requirements.margin`, so
              that it is likely to be answered `met` on the test examples
    possible  every requirement holds as measured, but not with the margin
    missed    a requirement does not hold as measured

A candidate is useful if its objective is better than that of a constant prediction by more than
chance: its cautious limit is (with probability POWER). The choice is the best objective among clear
and useful candidates. Without any, it is the possible and useful candidate that the test examples
are most likely to confirm, if that is likely enough (`WORTH`). Otherwise nothing is chosen: the
test examples can be used only once, and should not be spent on a model that they will hardly
confirm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from isonomy.metrics import Counts
from isonomy.metrics import bounds as limits_of
from isonomy.metrics.client import Better
from isonomy.metrics.requirements import (
    LEVEL,
    POWER,
    Cells,
    Requirement,
    Target,
    prospect,
    read_target,
)

Standing = Literal["clear", "possible", "missed"]
WORTH = 0.1  # the least probability of `met` with which a model is measured on the test examples
SHOWN = 5  # trade-offs that are listed


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

    @property
    def about_losses(self) -> bool:
        """Whether losses are needed, not only predictions."""
        targets = [self.objective, *(one.target for one in self.requirements)]
        return any(target.quantity.is_loss for target in targets)

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
    chance: float  # with which all requirements are answered `met` on the test examples, about
    kept: float  # the least share of its margin by which a value is inside its bound


def judge(wish: Wish, candidate: Candidate, times: float) -> Judged:
    """Judge a candidate; the test set has `times` as many examples as the validation set."""
    cells = Cells.of(candidate.counts)
    values = tuple(one.target.value(cells) for one in wish.requirements)
    number = max(len(wish.requirements), 1)
    ahead = [prospect(one, candidate.counts, times, number) for one in wish.requirements]
    margins = tuple(one.margin for one in ahead)
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
        math.prod(one.chance(s) for one, s in zip(ahead, slack, strict=True)),
        min(
            (s / max(m, 1e-12) for s, m in zip(slack, margins, strict=True) if m < math.inf),
            default=0.0,
        ),
    )


def constant_candidate(counts: Counts) -> Candidate:
    """The prediction of the most frequent label for everyone, from any candidate's counts.

    Its losses are those of predicting the shares of the labels as probabilities.
    """
    labels = counts.counts.sum(-1)
    total = labels[:, 0].sum(0)
    cells = np.zeros_like(counts.counts)
    cells[..., int(total.argmax())] = labels
    noise = counts.noise
    if noise is not None:
        spread = np.zeros_like(noise.variance)
        spread[..., int(total.argmax())] = noise.variance.sum(-1)
        noise = noise._replace(variance=spread)
    each = -np.log(np.maximum(total, 1) / max(total.sum(), 1))
    powers = np.stack([(labels * each**k).sum(-1) for k in (2, 3)], -1)
    made = Counts(cells, labels * each, counts.attributes, powers, noise)
    return Candidate("Constant prediction", {}, None, made, constant=True)


def perfect_candidate(counts: Counts) -> Candidate:
    """The prediction of every label itself, from any candidate's counts."""
    labels = counts.counts.sum(-1)
    cells = labels[..., None] * np.eye(labels.shape[-1], dtype=np.int64)
    noise = counts.noise
    if noise is not None:
        spread = noise.variance.sum(-1)[..., None] * np.eye(labels.shape[-1])
        noise = noise._replace(variance=spread)
    made = Counts(cells, np.zeros(counts.loss.shape), counts.attributes, noise=noise)
    return Candidate("Perfect prediction", {}, None, made)


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen candidate, None if none is worth measuring on the test examples.

    `nearest` are trade-offs for someone who may change the requirements: candidates that no other
    beats in the objective and in every requirement, from the one that misses the requirements by
    least to the one with the best objective.
    """

    chosen: Judged | None
    judged: tuple[Judged, ...]
    constant: Judged
    nearest: tuple[Judged, ...] = ()
    useful: frozenset[int] = frozenset()  # positions in `judged`

    @property
    def likeliest(self) -> Judged | None:
        """The useful candidate that meets the requirements as measured and likeliest on test.

        If the test examples are too few for all of them, it is about the one that needs the fewest.
        """
        found = [self.judged[i] for i in self.useful if self.judged[i].standing != "missed"]
        return max(found, key=lambda one: (one.chance, one.kept), default=None)


def better_but_unshown(wish: Wish, selection: Selection) -> Judged | None:
    """The useful candidate with an objective better than the chosen one's, by more than chance.

    It meets the requirements as measured, but does not keep the margin that test examples need to
    confirm it. None if there is none, or if nothing was chosen.
    """
    chosen = selection.chosen
    if chosen is None:
        return None

    def clearly(one: Judged) -> bool:
        low, high = wish.objective.limits(Cells.of(one.candidate.counts), 1 - POWER)
        worst = low if wish.better == "higher" else high
        return wish.gain(worst) > wish.gain(chosen.objective)

    useful = [selection.judged[i] for i in sorted(selection.useful)]
    found = [one for one in useful if one.standing == "possible" and clearly(one)]
    return max(found, key=lambda one: (wish.gain(one.objective), one.chance), default=None)


def select(wish: Wish, candidates: Sequence[Candidate], times: float) -> Selection:
    """Choose among candidates on their validation counts."""
    judged = tuple(judge(wish, one, times) for one in candidates)
    constant = judge(wish, constant_candidate(candidates[0].counts), times)
    at = frozenset(i for i, one in enumerate(judged) if _useful(wish, one, constant))
    useful = [one for i, one in enumerate(judged) if i in at]
    clear = [one for one in useful if one.standing == "clear"]
    worth = [one for one in useful if one.standing == "possible" and one.chance >= WORTH]
    best = None
    if clear:
        best = max(clear, key=lambda one: (wish.gain(one.objective), -one.shortfall))
    elif worth:
        best = max(worth, key=lambda one: (one.chance, wish.gain(one.objective)))
    return Selection(best, judged, constant, _nearest(wish, useful or judged), at)


def _useful(wish: Wish, one: Judged, constant: Judged) -> bool:
    """Whether it is better than a constant prediction, by more than chance.

    A constant prediction cannot be beaten in some objectives, such as a gap of 0. Then it is the
    accuracy that has to be better.
    """
    target, better, floor = wish.objective, wish.better, constant.objective
    if better == "lower" and not target.quantity.is_loss:
        target, better = read_target("accuracy", ()), "higher"
        floor = target.value(Cells.of(constant.candidate.counts))
    low, high = target.limits(Cells.of(one.candidate.counts), 1 - POWER)
    return low > floor if better == "higher" else high < floor


def _nearest(wish: Wish, judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """Trade-offs, at most SHOWN, in even steps of their order; nearly equal ones once."""
    front = sorted(undominated(wish, judged), key=lambda j: (j.missed, -wish.gain(j.objective)))
    seen: dict[tuple[float, ...], Judged] = {}
    for one in front:
        seen.setdefault(tuple(round(v, 3) for v in (one.objective, *one.values)), one)
    kept = list(seen.values())
    if len(kept) <= SHOWN:
        return tuple(kept)
    return tuple(kept[i] for i in np.linspace(0, len(kept) - 1, SHOWN).round().astype(int))


def times_to_show(wish: Wish, one: Judged, times: float) -> float:
    """How many times as many test examples would show that a candidate meets the requirements.

    With the rates that it has on validation examples; infinity beyond a million times.
    """
    alpha = (1 - LEVEL) / (2 * max(len(wish.requirements), 1))
    cells = Cells.of(one.candidate.counts)

    def shown(factor: float) -> bool:
        more = cells.scaled(times * factor)
        return all(
            requirement.holds(
                requirement.target.limits(more, alpha)[1 if requirement.sign == "<=" else 0]
            )
            for requirement in wish.requirements
        )

    return limits_of.times_needed(shown)


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
