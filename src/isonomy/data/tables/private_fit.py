"""The server side of table preparation with differential privacy.

Everything that is learnt from the clients' rows comes from a `Mechanism`, which adds noise and
keeps the record of it. At most three questions are asked, about training rows only:

1. values of the label, of protected columns and of categories that the config does not list: those
   whose noisy count exceeds a threshold are used, the others are withheld;
2. ranges of columns of numbers that the config does not give: the cells of a public grid (powers
   of two) whose noisy counts stand out from the noise;
3. means and variances of these columns, of values clipped to their ranges.

Names and kinds of columns are taken as public. Questions that are not about them are refused by
`Guarded` unless the mechanism asks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from isonomy.data.tables import phases, private_phases
from isonomy.data.tables.agreement import candidates, kinds_of
from isonomy.data.tables.columns import numbers_first
from isonomy.data.tables.fit import Fitted
from isonomy.data.tables.phases import Ask, Message, Phase, Reply
from isonomy.data.tables.preprocessing import (
    GONE,
    Category,
    Groups,
    Label,
    Number,
    Preprocessing,
    Schema,
    intervals,
)
from isonomy.data.tables.private_phases import EDGES, MISSING
from isonomy.data.tables.roles import Roles
from isonomy.errors import ConfigError, DataError

Values = dict[tuple[str, str], float]
PUBLIC = (phases.look, private_phases.divide, private_phases.keep)  # ask nothing of the rows
FLATTEST = 0.02  # the least standard deviation of a column, as a share of its range
STANDS_OUT = 5.5  # standard deviations of noise that a cell must have; noise alone: 2e-8 a cell


class Mechanism(Protocol):
    """Adds noise to what clients reply, and keeps the record of it."""

    level: Literal["client", "example"]

    def plan(self, releases: int, *, selects: bool) -> None:
        """Say how many questions will be asked, and whether one of them selects values."""

    def total(self, name: str, vectors: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """The noisy sum over clients [n] of vectors [clients, n], and its standard deviation."""

    def selected(self, name: str, held: Sequence[Values], columns: int) -> Values:
        """The noisy sums of values above the threshold."""


@dataclass(frozen=True)
class Known:
    """What the config states about columns: ranges of numbers, and values."""

    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Guarded:
    """Asks clients only what is public, unless the mechanism adds noise to the replies."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __call__(self, phase: Phase, message: Message) -> list[Reply]:
        """Ask a public question."""
        if phase not in PUBLIC:
            raise RuntimeError(
                f"'{getattr(phase, '__name__', phase)}' was asked of clients without noise"
            )
        return self._ask(phase, message)

    def total(
        self, mechanism: Mechanism, phase: Phase, message: Message
    ) -> tuple[NDArray[np.float64], float]:
        """The noisy sum of the vectors that clients reply."""
        replies = self._ask(phase, message | {"level": mechanism.level})
        vectors = np.array([reply["vector"] for reply in replies], dtype=np.float64)
        return mechanism.total(phase.__name__, vectors)

    def selected(
        self, mechanism: Mechanism, columns: Sequence[str], binned: Sequence[str]
    ) -> dict[str, list[str]]:
        """The values of columns that have enough rows or clients, with noise.

        Of binned columns, it is found whether enough values are missing.
        """
        message = {"columns": list(columns), "level": mechanism.level, "binned": list(binned)}
        replies = self._ask(private_phases.values_held, message)
        held: list[Values] = [
            {(name, at): n for name, some in reply["values"].items() for at, n in some.items()}
            for reply in replies
        ]
        found = mechanism.selected("values_held", held, len(columns))
        return {name: [value for at, value in found if at == name] for name in columns}


class PrivateFit:
    """Fits a preprocessing with noise; a function such as `isonomy.data.tables.fit.fit`."""

    def __init__(self, mechanism: Mechanism, known: Known) -> None:
        self._mechanism, self._known = mechanism, known
        self.made: Preprocessing | None = None

    def __call__(
        self,
        ask: Ask,
        names: Sequence[str],
        roles: Roles,
        *,
        seed: int,
        fractions: Sequence[float],
    ) -> Fitted:
        """Ask the clients, and fit."""
        guarded, warnings = Guarded(ask), list[str]()
        _, kinds = kinds_of(guarded, names, roles)
        numbers, categories = self._features(kinds, roles, warnings)
        _check(roles, kinds, self._known, numbers, categories)
        columns = self._to_select(roles, categories)
        unknown = [name for name in numbers if name not in self._known.ranges]
        asked = bool(columns) + bool(unknown) * (1 + (roles.scale != "minmax"))
        guarded(private_phases.divide, {"split": roles.split, "seed": seed,
                                        "fractions": list(fractions)})  # fmt: skip
        self._mechanism.plan(asked, selects=bool(columns))
        values = (
            dict(guarded.selected(self._mechanism, columns, list(roles.bins))) if columns else {}
        )
        values |= {name: list(given) for name, given in self._known.categories.items()}
        schema = self._schema(roles, kinds, values, numbers, categories, warnings)
        encoders: dict[str, Number | Category] = self._numbers(guarded, numbers, roles, warnings)
        for name in categories:
            encoders[name] = _category(name, values[name])
        made = tuple(encoders[name] for name in schema.features)
        self.made = Preprocessing(table=schema, encoders=made)
        return applied(guarded, self.made, warnings)

    def _features(
        self, kinds: Mapping[str, str], roles: Roles, warnings: list[str]
    ) -> tuple[list[str], list[str]]:
        """The columns of numbers and of categories that become features."""
        numbers, categories = [], []
        for name in candidates(kinds, roles):
            if kinds[name] in ("empty", "time", "other"):
                warnings.append(
                    f"Column '{name}' contains no numbers and no categories, so it is not used as "
                    "a feature."
                )
            elif kinds[name] == "number" and name not in self._known.categories:
                numbers.append(name)
            else:
                categories.append(name)
        return numbers, categories

    def _to_select(self, roles: Roles, categories: Sequence[str]) -> list[str]:
        """The columns whose values are found with noise."""
        wanted = [*roles.protected_columns, *categories]
        if roles.task != "regression":
            wanted.insert(0, roles.label)
        return [name for name in dict.fromkeys(wanted) if name not in self._known.categories]

    def _schema(
        self,
        roles: Roles,
        kinds: Mapping[str, str],
        values: Mapping[str, list[str]],
        numbers: Sequence[str],
        categories: list[str],
        warnings: list[str],
    ) -> Schema:
        for name in [name for name in categories if not set(values[name]) - {MISSING}]:
            categories.remove(name)
            warnings.append(
                f"No value of column '{name}' is frequent enough to be found with noise, so it is "
                "not used as a feature; list its values in privacy.categories."
            )
        features: dict[str, Any] = dict.fromkeys(numbers, "number")
        features |= dict.fromkeys(categories, "category")
        if not features:
            raise DataError(
                "no column is left to use as a feature; list values in privacy.categories, or "
                "raise privacy.epsilon."
            )
        return Schema(
            label=_label(roles, values),
            protected=roles.protected,
            groups=tuple(_groups(name, roles, values) for name in roles.protected_columns),
            features={name: features[name] for name in kinds if name in features},
            split=roles.split,
            missing=roles.missing,
        )

    def _numbers(
        self, ask: Guarded, numbers: Sequence[str], roles: Roles, warnings: list[str]
    ) -> dict[str, Number | Category]:
        """Columns of numbers: scaled by given ranges, or by noisy ranges, means and variances."""
        unknown = [name for name in numbers if name not in self._known.ranges]
        ranges = {n: tuple(map(float, self._known.ranges[n])) for n in numbers if n not in unknown}
        out: dict[str, Number | Category] = {
            name: _scaled(name, ranges[name], None, roles) for name in ranges
        }
        if not unknown:
            return out
        cells, deviation = ask.total(
            self._mechanism, private_phases.histograms, {"columns": unknown}
        )
        found = {}
        for name, some in zip(unknown, cells.reshape(len(unknown), -1), strict=True):
            found[name] = range_of(some, deviation)
        if roles.scale == "minmax":
            return out | {name: _scaled(name, found[name], None, roles) for name in unknown}
        sums, deviation = ask.total(self._mechanism, private_phases.moments, {"ranges": found})
        for name, three in zip(unknown, sums.reshape(len(unknown), 3), strict=True):
            if three[2] < 3 * deviation:
                warnings.append(
                    f"The mean of column '{name}' is mostly noise; give its range in "
                    "privacy.ranges."
                )
            out[name] = _scaled(name, found[name], _moments(three, deviation), roles)
        return out


def given(preprocessing: Preprocessing, warnings: Sequence[str] = ()) -> Any:
    """A fit that uses a preprocessing that was fitted with noise before; nothing is asked."""

    def fit(
        ask: Ask, names: Sequence[str], roles: Roles, *, seed: int, fractions: Sequence[float]
    ) -> Fitted:
        del names
        guarded, about = Guarded(ask), {"seed": seed, "fractions": list(fractions)}
        guarded(private_phases.divide, {"split": roles.split, **about})
        return applied(guarded, preprocessing, warnings)

    return fit


def applied(ask: Guarded, preprocessing: Preprocessing, warnings: Sequence[str]) -> Fitted:
    """The outcome for clients that have divided their rows."""
    schema = json.loads(preprocessing.table.model_dump_json())
    replies = ask(private_phases.keep, {"schema": schema})
    return Fitted(preprocessing, [reply["sizes"] for reply in replies], list(warnings))


def range_of(cells: NDArray[np.float64], deviation: float) -> tuple[float, float]:
    """From the lowest to the highest cell of the grid that stands out from the noise.

    >>> cells = np.zeros(len(EDGES) - 1)
    >>> cells[np.searchsorted(EDGES, [20.0, 100.0], side="right") - 1] = 500
    >>> range_of(cells, 10.0)
    (16.0, 128.0)
    """
    there = np.flatnonzero(cells > STANDS_OUT * deviation)
    if not len(there):
        there = np.array([int(cells.argmax())])
    ends = EDGES.clip(EDGES[1], EDGES[-2])  # infinite ends count as the largest marks
    low, high = float(ends[there[0]]), float(ends[there[-1] + 1])
    if low == high:  # beyond the grid
        low, high = (low, 2 * high) if low > 0 else (2 * low, high)
    return low, high


def _moments(three: NDArray[np.float64], deviation: float) -> tuple[float, float]:
    """The mean and the standard deviation of scaled values, from noisy sums."""
    count = max(float(three[2]), deviation, 1e-12)
    mean = min(max(float(three[0]) / count, -1.0), 1.0)
    square = min(max(float(three[1]) / count, 0.0), 1.0)
    return mean, math.sqrt(max(square - mean * mean, (2 * FLATTEST) ** 2))


def _scaled(
    name: str, ends: Sequence[float], moments: tuple[float, float] | None, roles: Roles
) -> Number:
    """The encoder of a column of numbers in [-1, 1] of its range, or with mean 0 and variance 1."""
    low, high = ends
    middle, half = (low + high) / 2, (high - low) / 2
    mean, spread = (0.0, 1.0) if moments is None else moments
    centre = middle + half * mean
    shift, scale = centre, half * spread
    if roles.scale == "none":
        shift, scale = 0.0, 1.0
    elif roles.scale == "minmax":
        shift, scale = low, high - low
    fill = 0.0 if roles.impute == "zero" else centre
    return Number(
        name=name, fill=fill, shift=shift, scale=scale, indicate=roles.indicate, within=(low, high)
    )


def _category(name: str, values: Sequence[str]) -> Category:
    levels = sorted((value for value in values if value != MISSING), key=numbers_first)
    return Category(name=name, levels=tuple(levels), missing=MISSING in values)


def _label(roles: Roles, values: Mapping[str, list[str]]) -> Label:
    name = roles.label
    if roles.task == "regression":
        return Label(name=name)
    levels = sorted((value for value in values[name] if value != MISSING), key=numbers_first)
    if len(levels) < 2:
        raise ConfigError(
            f"fewer than two values of the label '{name}' were found with noise; list them, "
            f"privacy.categories = {{ {name} = [...] }}, or set data.task = 'regression'."
        )
    if roles.positive and roles.positive not in levels:
        raise ConfigError(
            f"positive is '{roles.positive}', which was not found with noise among the values of "
            f"'{name}'; list them in privacy.categories."
        )
    if roles.positive:
        levels = sorted(levels, key=lambda level: level == roles.positive)
    return Label(name=name, classes=tuple(levels))


def _groups(name: str, roles: Roles, values: Mapping[str, list[str]]) -> Groups:
    edges = roles.bins.get(name)
    if edges is not None and not isinstance(edges, int):
        at = tuple(float(edge) for edge in edges)
        gone = (GONE,) if MISSING in values[name] else ()
        return Groups(name=name, levels=(*intervals(at), *gone), edges=at)
    levels = sorted((value for value in values[name] if value != MISSING), key=numbers_first)
    gone = (GONE,) if MISSING in values[name] and GONE not in levels else ()
    if not levels:
        raise ConfigError(
            f"no value of the protected column '{name}' was found with noise; list its values, "
            f"privacy.categories = {{ {name} = [...] }}."
        )
    return Groups(name=name, levels=(*levels, *gone))


def _check(
    roles: Roles,
    kinds: Mapping[str, str],
    known: Known,
    numbers: Sequence[str],
    categories: Sequence[str],
) -> None:
    """Raise ConfigError for what cannot be private, or is not about a column."""
    for name, edges in roles.bins.items():
        if isinstance(edges, int):
            raise ConfigError(
                f"bins.{name} = {edges}: groups of equal size need exact quantiles of the rows, "
                f"which privacy.level protects; give edges, e.g. bins = {{ {name} = [25, 60] }}."
            )
    for name, (low, high) in known.ranges.items():
        if not low < high:
            raise ConfigError(f"privacy.ranges.{name} = [{low:g}, {high:g}]: give low < high.")
        if name not in numbers:
            raise ConfigError(
                f"privacy.ranges.{name}: '{name}' is not a feature of numbers; remove it."
            )
    used = {roles.label, *roles.protected_columns, *categories}
    for name, values in known.categories.items():
        if name not in used or name not in kinds:
            raise ConfigError(
                f"privacy.categories.{name}: '{name}' is not the label, a protected column or a "
                "feature; remove it."
            )
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"privacy.categories.{name}: list different values.")
