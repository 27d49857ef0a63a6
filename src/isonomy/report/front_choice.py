"""The choice of a model on a front, by a preference, by upper bounds, or of least error.

Models are chosen on validation examples, among those that are offered there
(`isonomy.report.front_parts`). A bound is met with a margin: the upper confidence limit of the
bounded quantity has to be within it (`isonomy.metrics.bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isonomy.core.notions import read_objective
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.metrics import bounds
from isonomy.report.front_parts import (
    COUNT,
    TOGETHER,
    Columns,
    Part,
    constant_point,
    coordinates,
    offered,
    parts,
    splits,
    undominated,
)

_MOST_TIMES = 1000.0  # as many validation examples, beyond which a message gives no number


@dataclass(frozen=True)
class Bound:
    """A bounded quantity of the chosen model: on the examples of the choice, and as evaluated.

    `upper` is its upper confidence limit where it was chosen; None if it was chosen by its value.
    """

    name: str  # the coordinate, such as dp.sex
    metric: str  # the metric that measures it
    most: float
    split: str
    rows: int
    value: float
    upper: float | None
    evaluated: str
    evaluated_rows: int
    evaluated_value: float
    low: float
    high: float

    @property
    def held(self) -> bool:
        """Whether the value on the evaluated examples is within the bound."""
        return self.evaluated_value <= self.most

    def text(self) -> str:
        """Two sentences: what was required and measured, and whether it held."""
        if self.upper is None:
            margin = "chosen by this value alone, without a margin"
        elif self.upper == 0:
            margin = "as it must be: the prediction is constant, or only one group has examples"
        else:
            margin = f"at most {self.upper:.4f} with {bounds.LEVEL:.0%} confidence"
        text = (
            f"Bound: {self.metric} at most {self.most:g}; it is {self.value:.4f} on {self.rows:,} "
            f"{self.split} examples, {margin}."
        )
        if self.evaluated == self.split:
            return f"{text} It was not measured on other examples."
        verb = "held" if self.held else "did NOT hold"
        return (
            f"{text} It {verb} on {self.evaluated_rows:,} {self.evaluated} examples: "
            f"{self.evaluated_value:.4f} ({bounds.LEVEL:.0%} interval {self.low:.4f} to "
            f"{self.high:.4f})."
        )


@dataclass(frozen=True)
class Choice:
    """A chosen model: its preference, or the shares of the classes for a constant prediction.

    `split` is where it was chosen (empty if nothing was measured there), `chosen` its point there
    and `measured` its point on the evaluated examples. `notes` say why it is this model.
    """

    preference: tuple[float, ...]
    split: str
    chosen: tuple[float, ...]
    measured: tuple[float, ...]
    constant: tuple[float, ...] = ()
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()


# --- choosing --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Front:
    """The front of one client (or of all together) to choose on."""

    who: str
    names: tuple[str, ...]
    split: str
    there: Part
    evaluated: Part
    evaluated_split: str

    def choice(self, at: int, **more: Any) -> Choice:
        """The model of a preference that was measured."""
        return Choice(
            tuple(self.there.preferences[at].tolist()),
            self.split,
            tuple(self.there.points[at].tolist()),
            tuple(self.evaluated.points[at].tolist()),
            **more,
        )

    def shown(self, point: Sequence[float]) -> str:
        pairs = zip(self.names, point, strict=True)
        return ", ".join(f"{name} {value:.3f}" for name, value in pairs)

    @property
    def where(self) -> str:
        return f"the {self.there.rows:,} {self.split} examples of {self.who}"

    @property
    def error(self) -> int:
        """The number of the coordinate `error`, the first if there is none."""
        return self.names.index("error") if "error" in self.names else 0

    @property
    def least(self) -> int:
        """The preference of least error, and then of the least of the others."""
        order = [self.error, *(j for j in range(len(self.names)) if j != self.error)]
        return int(np.lexsort(self.there.points[:, order[::-1]].T)[0])


def choose(
    columns: Columns,
    client: int = TOGETHER,
    *,
    who: str = "",
    preference: Sequence[float] = (),
    limits: Mapping[str, float] | None = None,
    force: bool = False,
    constant: bool = False,
) -> Choice:
    """Choose a model on the front of a client, or of all clients together.

    Args:
        columns: The run's front.
        client: The client's number, -1 for all together.
        who: How messages call the client.
        preference: The preference that is wanted. If it is dominated, the nearest offered one is
            chosen, with a note.
        limits: Upper bounds such as {"dp": 0.05}: the least error among the offered preferences
            that are within them with a margin.
        force: Whether to take a dominated preference as given, or the point estimate of a bound.
        constant: Whether a constant prediction may be chosen.

    Without a preference and limits, it is the preference of least error. Raises RunError if there
    is no such model, ConfigError for an unknown coordinate or a bound that is not a number from 0.
    """
    if "preference.0" not in columns:
        raise RunError(
            "the method of this run learnt one model, not a front, so there is nothing to choose."
        )
    front = _front(columns, client, who)
    if limits:
        return _within(front, _checked(front.names, limits), force, constant)
    if np.isnan(front.there.points).any() or front.split != "validation":
        given = (
            tuple(preference)
            or (1 / front.there.preferences.shape[1],) * (front.there.preferences.shape[1])
        )
        nothing = (math.nan,) * len(front.names)
        note = (
            f"{front.who} has no validation examples, so it is not known whether another model is "
            "better in everything."
        )
        return Choice(given, "", nothing, nothing, notes=(note,))
    if preference:
        return _nearest(front, preference, force, constant)
    found = front.choice(front.least)
    note = (
        f"No preference was given: this is the one of least error on {front.where} "
        f"({front.shown(found.chosen)})."
    )
    return replace(found, notes=(note, *_against_constant(front, found.chosen)))


def _front(columns: Columns, client: int, who: str) -> _Front:
    if f"{COUNT}label" not in columns:
        raise RunError(
            "the front of this run was written by an earlier version, which did not store what is "
            "needed to choose on it, and whose preferences had another meaning; run it again."
        )
    given = splits(columns)
    split = "validation" if "validation" in given else given[0]
    there, evaluated = parts(columns, split), parts(columns)
    name = who or ("all clients together" if client == TOGETHER else f"client {client}")
    if client not in there:
        raise RunError(f"this run has no front of {name}; choose a client that has one.")
    return _Front(name, coordinates(columns), split, there[client], evaluated[client], given[0])


def _nearest(front: _Front, preference: Sequence[float], force: bool, constant: bool) -> Choice:
    """The wanted preference or, if it is not offered, the nearest one that is."""
    part, wanted = front.there, np.asarray(preference, np.float64)
    distance = np.abs(part.preferences - wanted).sum(1)
    at, free = int(distance.argmin()), offered(part)
    text = ",".join(f"{v:.3g}" for v in wanted)
    asked = front.choice(at)
    given = replace(asked, preference=tuple(wanted.tolist()))
    if at in free:
        return given
    reason = _reason(front, at)
    if force:
        return replace(given, notes=(f"Forced: preference {text} {reason}.",))
    if not len(free):
        fixed = constant_point(part)
        assert fixed is not None  # else some preference is undominated
        if constant:
            return _constant(front, (f"Preference {text} {reason}.",))
        raise RunError(
            f"on {front.where} a constant prediction ({front.shown(fixed)}) is at least as good as "
            f"every preference, so none is offered; accept it with --constant, or take preference "
            f"{text} ({front.shown(part.points[at])}) with --force."
        )
    near = int(free[distance[free].argmin()])
    moved = front.choice(near)
    shown = ",".join(f"{v:.3g}" for v in moved.preference)
    note = (
        f"Preference {text} {reason}. The nearest preference that is offered is used instead: "
        f"{shown} ({front.shown(moved.chosen)}). --force takes the one given."
    )
    return replace(moved, notes=(note,))


def _reason(front: _Front, at: int) -> str:
    """Why a preference is not offered."""
    part = front.there
    point, fixed = part.points[at], constant_point(part)
    text = f"({front.shown(point)} on {front.where})"
    if fixed is not None and (np.array(fixed) <= point).all() and (np.array(fixed) < point).any():
        return f"{text} is no better than a constant prediction ({front.shown(fixed)})"
    beats = (part.points <= point).all(1) & (part.points < point).any(1)
    if beats.any():
        near = np.abs(part.preferences - part.preferences[at]).sum(1)
        other = int(np.where(beats, near, np.inf).argmin())
        shown = ",".join(f"{v:.3g}" for v in part.preferences[other])
        return f"{text} is dominated by {shown} ({front.shown(part.points[other])})"
    return f"{text} is outside the range in which more share of an objective means less of it"


def _against_constant(front: _Front, point: Sequence[float]) -> tuple[str, ...]:
    fixed = constant_point(front.there)
    if fixed is None or fixed[front.error] > point[front.error]:
        return ()
    return (f"A constant prediction has no more error on {front.where} ({front.shown(fixed)}).",)


def _constant(
    front: _Front, notes: tuple[str, ...], limits: Mapping[int, float] | None = None
) -> Choice:
    """The constant prediction of the most frequent class."""
    labels = front.there.labels
    top = int(np.argmax(labels))
    point = constant_point(front.there)
    assert point is not None
    rows = front.evaluated.rows
    here, there = (
        np.array([[[part.rows - part.labels[top], part.rows]]])
        for part in (front.evaluated, front.there)
    )
    measured = tuple(
        1 - front.evaluated.labels[top] / max(rows, 1) if name == "error" else 0.0
        for name in front.names
    )
    shares = tuple((n + 0.5) / (sum(labels) + 0.5 * len(labels)) for n in labels)
    met = []
    for j, most in (limits or {}).items():
        upper, ends = 0.0, (0.0, 0.0)
        if front.names[j] == "error":
            upper = float(bounds.upper(there, 1 - bounds.LEVEL))
            ends = bounds.interval(here)
        met.append(
            Bound(
                name=front.names[j],
                metric=read_objective(front.names[j]).metric,
                most=most,
                split=front.split,
                rows=front.there.rows,
                value=point[j],
                upper=upper,
                evaluated=front.evaluated_split,
                evaluated_rows=rows,
                evaluated_value=measured[j],
                low=ends[0],
                high=ends[1],
            )
        )
    return Choice((), front.split, point, measured, shares, tuple(met), notes)


# --- bounds ----------------------------------------------------------------------------------


def _checked(names: Sequence[str], limits: Mapping[str, float]) -> dict[int, float]:
    """The largest allowed values by the number of the coordinate."""
    out = {}
    for name, most in limits.items():
        if not (math.isfinite(most) and most >= 0):
            raise ConfigError(f"the limit {name} = {most:g} cannot be met; give 0 or more.")
        out[_position(names, name)] = float(most)
    return out


def _within(front: _Front, limits: dict[int, float], force: bool, constant: bool) -> Choice:
    """The offered preference of least error within the limits, with a margin."""
    stated = " and ".join(
        f"{read_objective(front.names[j]).metric} at most {most:g}" for j, most in limits.items()
    )
    if front.split != "validation" or not front.there.rows:
        raise RunError(
            f"{front.who} has no validation examples to choose on, and test examples are not used "
            "for a choice; run again with validation examples, or give a preference."
        )
    part = front.there
    fixed = constant_point(part)
    assert fixed is not None
    wrong = np.array([[[part.rows - max(part.labels), part.rows]]])
    constant_fits = all(
        front.names[j] != "error" or float(bounds.upper(wrong, 1 - bounds.LEVEL)) <= most
        for j, most in limits.items()
    )
    if not force and not (constant and constant_fits):
        _require_groups(front, limits, stated)
    free = np.flatnonzero(undominated(part)).tolist()
    tested = [bounds.Limit(part.counts[front.names[j]], most) for j, most in limits.items()]
    alpha = 1 - bounds.LEVEL
    met = {}
    if not force:
        met = bounds.within_limits(bounds.levels_needed(tested), alpha, _starts(part))
    allowed = [i for i in free if i in met]
    if force:
        allowed = [i for i in free if all(part.points[i, j] <= most for j, most in limits.items())]
    if allowed:
        found = min(allowed, key=lambda i: (part.points[i, front.error], *part.points[i]))
        return front.choice(
            found,
            bounds=tuple(
                _bound(front, found, j, most, met.get(found)) for j, most in limits.items()
            ),
            notes=_against_constant(front, part.points[found]) if constant_fits else (),
        )
    if constant and constant_fits:
        note = f"No preference has {stated} with a margin, so the prediction is constant."
        return _constant(front, (note,), limits)
    raise RunError(_refusal(front, stated, limits, tested, fixed if constant_fits else None, force))


def _require_groups(front: _Front, limits: dict[int, float], stated: str) -> None:
    """Raise a RunError if a group that is evaluated has no validation examples."""
    for j in limits:
        name = front.names[j]
        there, evaluated = (
            part.counts[name][0, 1:, :, 1] for part in (front.there, front.evaluated)
        )
        unknown_groups = int(((there == 0) & (evaluated > 0)).any(-1).sum())
        if unknown_groups:
            raise RunError(
                f"{unknown_groups} of the groups of '{read_objective(name).attribute}' have no "
                f"examples for {name} among {front.where}, so nobody can say whether {stated} "
                "holds for them; give validation examples of every group, or accept the measured "
                "value of the other groups with --force."
            )


def _bound(front: _Front, at: int, j: int, most: float, alpha: float | None) -> Bound:
    name = front.names[j]
    counts, evaluated = front.there.counts[name][at], front.evaluated.counts[name][at]
    low, high = bounds.interval(evaluated)
    return Bound(
        name=name,
        metric=read_objective(name).metric,
        most=most,
        split=front.split,
        rows=front.there.rows,
        value=float(front.there.points[at, j]),
        upper=None if alpha is None else float(bounds.upper(counts, alpha)),
        evaluated=front.evaluated_split,
        evaluated_rows=front.evaluated.rows,
        evaluated_value=float(front.evaluated.points[at, j]),
        low=low,
        high=high,
    )


def _refusal(
    front: _Front,
    stated: str,
    limits: dict[int, float],
    tested: list[bounds.Limit],
    fixed: tuple[float, ...] | None,
    force: bool,
) -> str:
    """Why no preference is within the limits, what is nearest, and what could be done."""
    part = front.there
    free = np.flatnonzero(undominated(part)).tolist()
    inside = [i for i in free if all(part.points[i, j] <= m for j, m in limits.items())]
    only = ""
    if fixed is not None:
        only = (
            f"; only a constant prediction does ({front.shown(fixed)}, accept it with --constant)"
        )
    if not free:
        shown = front.shown(constant_point(part) or ())
        return (
            f"on {front.where} a constant prediction ({shown}) is at least as good as every "
            "preference, so none is offered; accept it with --constant, or choose a preference "
            "with --preference and --force."
        )
    if not inside:
        near = min(
            free,
            key=lambda i: max(part.points[i, j] - m for j, m in limits.items()),
        )
        shown = ",".join(f"{v:.3g}" for v in part.preferences[near])
        return (
            f"no preference that is offered has {stated} on {front.where}{only}; the nearest is "
            f"{shown} ({front.shown(part.points[near])}); raise the limit."
        )
    assert not force
    alpha = max((1 - bounds.LEVEL) / min(_starts(part), len(part.points)), bounds.FINEST)
    limit = np.max([bounds.upper(one.counts[inside], alpha) - one.most for one in tested], 0)
    near = inside[int(limit.argmin())]
    if limit.min() <= 0:  # enough where a test starts, but this model was not reached by one
        alpha = bounds.FINEST
    times = max(_times(tested, near, alpha), 1.01)
    upper = max(float(bounds.upper(one.counts[near], alpha)) for one in tested)
    shown = ",".join(f"{v:.3g}" for v in part.preferences[near])
    need = f"about {times * part.rows:,.0f} validation examples"
    if not math.isfinite(times):
        need = f"more than {_MOST_TIMES * part.rows:,.0f} validation examples"
    return (
        f"no preference has {stated} with {bounds.LEVEL:.0%} confidence on {front.where}{only}; "
        f"the nearest is {shown} ({front.shown(part.points[near])}), whose upper confidence limit "
        f"is {upper:.3f} and which would need {need}; raise the limit, give more validation "
        "examples, or accept the measured value without a margin with --force."
    )


def _starts(part: Part) -> int:
    """At how many preferences the test starts; more if they do not lie on a line."""
    return bounds.STARTS if part.preferences.shape[1] == 2 else bounds.MOST_STARTS


def _times(tested: list[bounds.Limit], model: int, alpha: float) -> float:
    """How many times as many examples with the same rates would be enough."""

    def enough(times: float) -> bool:
        return all(
            float(bounds.upper(one.counts[model] * times, alpha)) <= one.most for one in tested
        )

    return bounds.times_needed(enough, _MOST_TIMES)


def _position(names: Sequence[str], name: str) -> int:
    """The number of a coordinate, given by its full name or by its notion if that is unique."""
    if name in names:
        return names.index(name)
    same = [i for i, each in enumerate(names) if each.partition(".")[0] == name]
    if len(same) != 1:
        raise ConfigError(unknown("coordinate of the front", name, names))
    return same[0]
