"""Which rows go to which client, and which of a client's rows train, validate and test.

Every partition is a pure function of what it may look at (`Rows`), the number of clients and a
seed. It returns one tensor of row numbers a client, ascending; every row goes to exactly one
client, and every client gets at least `minimum` rows. Draws come from NumPy's PCG64, keyed by the
seed, so the same seed gives the same clients on every machine.

>>> rows = Rows(np.array([0, 0, 0, 1, 1, 1]))
>>> [part.tolist() for part in iid(rows, 2, seed=0, minimum=1)]
[[0, 1, 5], [2, 3, 4]]
"""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.core.options import Option, check
from isonomy.errors import ConfigError, DataError, unknown

Integers = NDArray[np.int64]
Seed = int | Sequence[int]
Spec = str | Mapping[str, Any]
"""A partition by name, or its name and options: {"name": "dirichlet", "beta": 0.5}."""

FRACTIONS = (0.7, 0.1, 0.2)


@dataclass(frozen=True)
class Categories:
    """A column of categories: each row's code, and the codes' names."""

    codes: Integers
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def count(self, level: str) -> int:
        """How many rows have a level."""
        return int((self.codes == self.levels.index(level)).sum()) if level in self.levels else 0


@dataclass(frozen=True)
class Rows:
    """What a partition may look at: labels, groups (of the first attribute), named columns."""

    labels: Integers
    groups: Integers | None = None
    columns: Mapping[str, Categories] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def cells(self, by: str) -> Integers:
        """Each row's number of its label, its group or the pair of both."""
        if by not in ("label", "group", "label*group"):
            raise ConfigError(unknown("value of by", by, ("label", "group", "label*group")))
        if by == "label":
            return _renumber(self.labels)
        if self.groups is None:
            raise ConfigError(
                f"by='{by}' needs a protected attribute and the data has none; use by='label'."
            )
        groups = _renumber(self.groups)
        if by == "group":
            return groups
        return _renumber(_renumber(self.labels) * (int(groups.max(initial=0)) + 1) + groups)


class _Function(Protocol):
    def __call__(self, rows: Rows, clients: int, seed: Seed, **options: Any) -> list[Tensor]: ...


@dataclass(frozen=True)
class Partition:
    """A partition by name: its options and what it means.

    `function` is None where a data set makes its clients itself; `counts` is true where the
    number of clients follows from the data or the options. `angles`, of a partition whose clients
    also see their images turned, gives each client's angle in degrees for some options. `tested`,
    of one that also says who tests on what, gives clients' rows among training and test rows.
    """

    name: str
    meaning: str
    options: Mapping[str, Option] = field(default_factory=dict)
    function: _Function | None = None
    counts: bool = False
    angles: Callable[..., tuple[float, ...]] | None = None
    tested: Callable[[Rows, Rows], tuple[list[Tensor], list[Tensor]]] | None = None


PARTITIONS: dict[str, Partition] = {}
"""Those that share out the rows of any data set."""

IMAGE_PARTITIONS: dict[str, Partition] = {}
"""Those for data sets of images only."""

_F = TypeVar("_F", bound=Callable[..., list[Tensor]])


def _partition(
    name: str,
    meaning: str,
    *,
    counted: bool = False,
    angles: Callable[..., tuple[float, ...]] | None = None,
    **options: str,
) -> Callable:
    """Enter a function in its registry; the defaults are those of its signature."""

    def enter(function: _F) -> _F:
        defaults = inspect.signature(function).parameters
        entries = {key: Option(defaults[key].default, text) for key, text in options.items()}
        registry = PARTITIONS if angles is None else IMAGE_PARTITIONS
        registry[name] = Partition(name, meaning, entries, function, counted, angles)
        return function

    return enter


_MINIMUM = "every client's fewest rows, before they are split"
_BY = "what is skewed: 'label', 'group' or 'label*group'"
_EXPONENT = "client k's size falls as (k+1) to minus this; 0 is equal sizes"


@_partition("iid", "rows dealt at random, in equal numbers", minimum=_MINIMUM)
def iid(rows: Rows, clients: int, seed: Seed, *, minimum: int = 10) -> list[Tensor]:
    """Rows at random, sizes equal or one apart; the minimum holds when it can at all."""
    _feasible(len(rows), clients, minimum)
    sizes = largest_remainders(np.full(clients, 1 / clients), len(rows))
    return _cut(generator("partition", seed).permutation(len(rows)), sizes)


@_partition(
    "power_law",
    "rows dealt at random, in numbers that fall by a power law",
    exponent=_EXPONENT,
    minimum=_MINIMUM,
)
def power_law(
    rows: Rows, clients: int, seed: Seed, *, exponent: float = 1.5, minimum: int = 10
) -> list[Tensor]:
    """Rows at random; every client gets `minimum`, the power law shares out what remains."""
    sizes = _power_sizes(len(rows), clients, exponent, minimum)
    return _cut(generator("partition", seed).permutation(len(rows)), sizes)


@_partition(
    "dirichlet",
    "each label's (or group's) rows shared out in proportions drawn from a Dirichlet distribution",
    beta="concentration: near 0 a label sits at one client, large is even",
    by=_BY,
    minimum=_MINIMUM,
)
def dirichlet(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    beta: float = 0.5,
    by: str = "label",
    minimum: int = 10,
) -> list[Tensor]:
    """For each cell, shares over clients ~ Dirichlet(beta, ..., beta) (Yurochkin et al., 2019).

    A client that the draw leaves below `minimum` is filled up with random rows of whichever
    client is the largest at that moment; nothing is drawn again.
    """
    _feasible(len(rows), clients, minimum)
    _positive("dirichlet", "beta", beta)
    rng = generator("partition", seed)
    cells = rows.cells(by)
    shares = rng.dirichlet(np.full(clients, beta), size=int(cells.max()) + 1)
    members: list[list[Integers]] = [[] for _ in range(clients)]
    for cell, share in enumerate(shares):
        mine = rng.permutation(np.flatnonzero(cells == cell))
        for k, piece in enumerate(
            np.split(mine, np.cumsum(largest_remainders(share, len(mine)))[:-1])
        ):
            members[k].append(piece)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in members]
    return [torch.from_numpy(np.sort(part)) for part in _fill(parts, minimum)]


@_partition(
    "uneven",
    "power-law sizes, and label proportions that differ between clients",
    exponent=_EXPONENT,
    beta="concentration of a client's proportions about the whole's: small is skewed",
    by=_BY,
    minimum=_MINIMUM,
)
def uneven(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    exponent: float = 1.5,
    beta: float = 5.0,
    by: str = "label",
    minimum: int = 50,
) -> list[Tensor]:
    """Sizes as `power_law`; client k's label proportions ~ Dirichlet(beta p), p those of the whole.

    The smallest client chooses first; where a label has run out the client takes others in
    proportion to what remains, and the largest client takes the rest. So sizes, and with them
    the minimum, hold exactly.
    """
    sizes = _power_sizes(len(rows), clients, exponent, minimum)
    _positive("uneven", "beta", beta)
    rng = generator("partition", seed)
    cells = rows.cells(by)
    stock = np.bincount(cells)
    mixes = rng.dirichlet(beta * stock / stock.sum(), size=clients)
    left = [rng.permutation(np.flatnonzero(cells == cell)) for cell in range(len(stock))]
    parts: list[Tensor] = [torch.empty(0)] * clients
    for k in np.argsort(sizes, kind="stable"):
        there = np.array([len(rest) for rest in left])
        take = np.minimum(largest_remainders(mixes[k], int(sizes[k])), there)
        short = int(sizes[k]) - int(take.sum())
        if short:
            take = take + largest_remainders((there - take) / (there - take).sum(), short)
        part = np.concatenate([rest[:count] for rest, count in zip(left, take, strict=True)])
        left = [rest[count:] for rest, count in zip(left, take, strict=True)]
        parts[k] = torch.from_numpy(np.sort(part))
    return parts


@_partition(
    "shards",
    "rows sorted by label, cut into equal shards, a few shards a client",
    each="shards a client",
    minimum=_MINIMUM,
)
def shards(
    rows: Rows, clients: int, seed: Seed, *, each: int = 2, minimum: int = 10
) -> list[Tensor]:
    """McMahan et al. (2017): most clients see at most `each` labels.

    Shards are equal or one row apart, so the minimum holds or is refused.
    """
    if each < 1:
        raise ConfigError(f"partition 'shards': each is {each}; give every client 1 or more.")
    _feasible(len(rows), clients, minimum)
    smallest = len(rows) // (clients * each) * each
    if smallest < minimum:
        raise DataError(
            f"partition 'shards': {clients * each} shards of {len(rows)} rows leave a client as "
            f"few as {smallest} rows, below the minimum of {minimum}; take fewer clients or "
            "shards, or a lower minimum."
        )
    rng = generator("partition", seed)
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows.labels[order], kind="stable")]
    pieces = np.array_split(order, clients * each)
    dealt = rng.permutation(clients * each).reshape(clients, each)
    return [torch.from_numpy(np.sort(np.concatenate([pieces[i] for i in d]))) for d in dealt]


@_partition(
    "windows",
    "each client a run of neighbouring labels, sizes and proportions drawn from lognormals",
    each="labels a client",
    spread="deviation of the logarithm of clients' sizes; 0 makes them alike",
    skew="deviation of the logarithm of a client's shares of its labels; 0 is even",
    minimum=_MINIMUM,
)
def windows(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    each: int = 5,
    spread: float = 1.0,
    skew: float = 1.0,
    minimum: int = 10,
) -> list[Tensor]:
    """Client k sees the labels k, k + 1, ..., k + each - 1, modulo their number (FMTL's code).

    Sizes are wanted in proportion to lognormal(3, spread) + 10, and a client's labels in
    proportion to lognormal(1, skew). Each label's rows are then shared out in proportion to what
    is wanted of it, so that every row goes to one client: sizes come out near the wanted ones. A
    label in nobody's window is shared by size.
    """
    _feasible(len(rows), clients, minimum)
    labels = rows.cells("label")
    many = int(labels.max()) + 1
    if each < 1:
        raise ConfigError(f"partition 'windows': each is {each}; give every client 1 or more.")
    each = min(each, many)
    for option, value in (("spread", spread), ("skew", skew)):
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"partition 'windows': {option} is {value}; give 0 or more.")
    rng = generator("partition", seed)
    sizes = rng.lognormal(3.0, spread, clients) + 10
    mine = (np.arange(clients)[:, None] + np.arange(each)) % many
    shares = rng.lognormal(1.0, skew, (clients, each))
    wanted = np.zeros((clients, many))
    np.put_along_axis(wanted, mine, sizes[:, None] * shares / shares.sum(1, keepdims=True), 1)
    members: list[list[Integers]] = [[] for _ in range(clients)]
    for label in range(many):
        there = rng.permutation(np.flatnonzero(labels == label))
        claims = wanted[:, label] if wanted[:, label].any() else sizes
        counts = largest_remainders(claims / claims.sum(), len(there))
        for k, piece in enumerate(np.split(there, np.cumsum(counts)[:-1])):
            members[k].append(piece)
    parts = [rng.permutation(np.concatenate(pieces)) for pieces in members]
    return [torch.from_numpy(np.sort(part)) for part in _fill(parts, minimum)]


@_partition(
    "column",
    "a client for each value of a column, such as a state or a hospital",
    counted=True,
    column="the column's name",
    minimum=_MINIMUM,
)
def by_column(
    rows: Rows, clients: int, seed: Seed, *, column: str = "", minimum: int = 10
) -> list[Tensor]:
    """A client for each value, in the order of the levels; the seed changes nothing.

    Values with fewer than `minimum` rows are put together as one last client, joined by the next
    rarest values until that client has the minimum too. `clients` is 0, or that number.
    """
    del seed
    codes, names = _values(rows, column, minimum)
    if clients not in (0, len(names)):
        raise DataError(
            f"partition 'column': '{column}' makes {len(names)} clients of at least {minimum} "
            f"rows, not {clients}; leave the number of clients out, or set it to {len(names)}."
        )
    return [torch.from_numpy(np.flatnonzero(codes == k)) for k in range(len(names))]


def column_names(rows: Rows, column: str, minimum: int = 10) -> tuple[str, ...]:
    """The names of the clients that `by_column` makes."""
    return _values(rows, column, minimum)[1]


def rotation_angles(
    degrees: Sequence[float], counts: Sequence[int], minimum: int = 10
) -> tuple[float, ...]:
    """Every client's angle under the partition `rotations`, cluster after cluster.

    >>> rotation_angles((0, 90), (3, 1))
    (0.0, 0.0, 0.0, 90.0)
    """
    del minimum
    if len(degrees) != len(counts) or not degrees:
        raise ConfigError(
            f"partition 'rotations': {len(degrees)} degrees and {len(counts)} counts; give as many "
            "of one as of the other, an angle and a number of clients for each cluster."
        )
    if not all(math.isfinite(angle) for angle in degrees):
        raise ConfigError(f"partition 'rotations': degrees are {list(degrees)}; give numbers.")
    if len({angle % 360 for angle in degrees}) < len(degrees):
        raise ConfigError(
            f"partition 'rotations': degrees are {list(degrees)}; give every cluster another angle."
        )
    if min(counts) < 1:
        raise ConfigError(
            f"partition 'rotations': counts are {list(counts)}; give every cluster 1 client or "
            "more, or leave its angle out."
        )
    pairs = zip(degrees, counts, strict=True)
    return tuple(float(angle) for angle, count in pairs for _ in range(count))


@_partition(
    "rotations",
    "clusters of clients that see their images turned by different angles",
    counted=True,
    angles=rotation_angles,
    degrees="each cluster's angle, counter-clockwise; multiples of 90 are exact",
    counts="each cluster's number of clients",
    minimum=_MINIMUM,
)
def rotations(
    rows: Rows,
    clients: int,
    seed: Seed,
    *,
    degrees: Sequence[float] = (0.0, 90.0, 180.0),
    counts: Sequence[int] = (7, 2, 1),
    minimum: int = 10,
) -> list[Tensor]:
    """Chu et al. (FOCUS): rows dealt as by `iid`; the data set turns them by `rotation_angles`.

    `clients` is 0, or the sum of the counts.
    """
    there = len(rotation_angles(degrees, counts))
    if clients not in (0, there):
        raise ConfigError(
            f"partition 'rotations': counts {list(counts)} make {there} clients, not {clients}; "
            f"leave the number of clients out, or set counts that add up to {clients}."
        )
    parts: list[Tensor] = iid(rows, there, seed, minimum=minimum)
    return parts


def plan(
    spec: Spec, known: Mapping[str, Partition] = PARTITIONS
) -> tuple[Partition, dict[str, Any]]:
    """The partition that a specification names, and its options with defaults filled in."""
    given = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            "the partition has no name; write it as 'iid' or {name = \"dirichlet\", beta = 0.5}."
        )
    if name not in known:
        raise ConfigError(unknown("partition", name, known))
    return known[name], check("data.partition", name, known[name].options, given)


def allocate(
    rows: Rows,
    partition: Partition,
    options: Mapping[str, Any],
    clients: int,
    seed: int,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[dict[Split, list[Tensor]], tuple[str, ...]]:
    """Partition the rows, then split every client's: what `federation.build` wants, and names."""
    members, names = deal(rows, partition, options, clients, seed)
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    for k, mine in enumerate(members):
        for name, piece in split(mine, rows.labels, rows.groups, fractions, (seed, k)).items():
            parts[name].append(piece)
    return parts, names


def deal(
    rows: Rows, partition: Partition, options: Mapping[str, Any], clients: int, seed: int
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Every client's rows, before they are split, and its name."""
    if partition.function is None:
        raise ConfigError(f"partition '{partition.name}' belongs to one data set only.")
    if len(rows) == 0:
        raise DataError("there are no rows to share out; give at least one a client.")
    members = partition.function(rows, clients, seed, **options)
    if partition.angles is not None:
        angles = partition.angles(**options)
        return members, tuple(f"client {k}, {angle:g} degrees" for k, angle in enumerate(angles))
    if partition.counts:
        return members, column_names(rows, options["column"], options["minimum"])
    return members, tuple(f"client {k}" for k in range(len(members)))


def split(
    rows: Tensor,
    labels: Integers,
    groups: Integers | None,
    fractions: Sequence[float],
    seed: Seed,
) -> dict[Split, Tensor]:
    """Split row numbers into train, validation and test, stratified by label x group.

    The rows are shuffled, sorted by stratum and dealt out evenly along that order, so each split's
    size is its fraction of the rows, rounded, and its share of every stratum is within a row or
    two of it. Training always gets a row.

    >>> parts = split(torch.arange(10), np.arange(10) % 2, None, (0.6, 0.2, 0.2), seed=0)
    >>> [len(parts[name]) for name in SPLITS]
    [6, 2, 2]
    """
    train, validation, test = _checked(fractions)
    index = rows.numpy()
    index = generator("split", seed).permutation(index)
    strata = [labels[index]] if groups is None else [groups[index], labels[index]]
    index = index[np.lexsort(strata)]
    tested = _every(len(index), test)
    rest = index[~tested]
    validated = _every(len(rest), validation / (train + validation))
    if validated.all():  # a handful of rows: one of them has to train
        validated[-1:] = False
    if not len(rest):
        tested[-1:] = False
        rest, validated = index[~tested], np.zeros(min(1, len(index)), dtype=bool)
    pieces = {"train": rest[~validated], "validation": rest[validated], "test": index[tested]}
    return {name: torch.from_numpy(np.sort(pieces[name])) for name in SPLITS}


def _every(count: int, fraction: float) -> NDArray[np.bool_]:
    """True at round(count * fraction) of `count` places, spread as evenly as can be."""
    steps = np.floor(np.arange(count + 1) * fraction + 0.5 + 1e-9).astype(np.int64)
    out: NDArray[np.bool_] = steps[1:] > steps[:-1]
    return out


def _checked(fractions: Sequence[float]) -> tuple[float, float, float]:
    if (
        len(fractions) != 3
        or not all(math.isfinite(f) and f >= 0 for f in fractions)
        or fractions[0] <= 0
        or abs(sum(fractions) - 1) > 1e-6
    ):
        raise ConfigError(
            f"fractions are {list(fractions)}; give three for train, validation and test, the "
            "first above 0, that add up to 1."
        )
    return float(fractions[0]), float(fractions[1]), float(fractions[2])


def generator(stream: str, seed: Seed) -> np.random.Generator:
    """PCG64 keyed by the stream's name and the seed."""
    parts = [seed] if isinstance(seed, int) else list(seed)
    if any(part < 0 for part in parts):
        raise ConfigError(f"seed is {min(parts)}; give a whole number of 0 or more.")
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([zlib.crc32(stream.encode()), *parts]))
    )


def _renumber(codes: Integers) -> Integers:
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _feasible(rows: int, clients: int, minimum: int) -> None:
    if clients < 1:
        raise ConfigError(f"the number of clients is {clients}; give 1 or more.")
    if minimum < 1:
        raise ConfigError(f"minimum is {minimum}; every client needs 1 row or more.")
    if clients * minimum > rows:
        raise DataError(
            f"{clients} clients with at least {minimum} rows each need {clients * minimum} rows "
            f"and there are {rows}; take fewer clients or a lower minimum."
        )


def _positive(name: str, option: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"partition '{name}': {option} is {value}; give a number above 0.")


def largest_remainders(shares: NDArray[np.float64], total: int) -> Integers:
    """Whole numbers in proportion to shares that add up to `total`: largest remainders go up.

    >>> largest_remainders(np.array([0.5, 0.3, 0.2]), 6).tolist()
    [3, 2, 1]
    """
    exact = shares * total
    out = np.floor(exact + 1e-9).astype(np.int64)
    over = total - int(out.sum())
    if over:
        out[np.argsort(out - exact, kind="stable")[:over]] += 1
    return out


def _power_sizes(rows: int, clients: int, exponent: float, minimum: int) -> Integers:
    _feasible(rows, clients, minimum)
    if not (math.isfinite(exponent) and exponent >= 0):
        raise ConfigError(f"the power law's exponent is {exponent}; give a number of 0 or more.")
    weights = np.arange(1, clients + 1, dtype=np.float64) ** -exponent
    return minimum + largest_remainders(weights / weights.sum(), rows - clients * minimum)


def _cut(order: Integers, sizes: Integers) -> list[Tensor]:
    pieces = np.split(order, np.cumsum(sizes)[:-1])
    return [torch.from_numpy(np.sort(piece)) for piece in pieces]


def _fill(parts: list[Integers], minimum: int) -> list[Integers]:
    """Fill up those below the minimum from whichever is the largest, from its (shuffled) end."""
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < minimum:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        moved = int(min(minimum - sizes[poor], sizes[rich] - minimum))
        parts[poor] = np.concatenate([parts[poor], parts[rich][-moved:]])
        parts[rich] = parts[rich][:-moved]
        sizes[poor] += moved
        sizes[rich] -= moved
    return parts


def _values(rows: Rows, column: str, minimum: int) -> tuple[Integers, tuple[str, ...]]:
    """Each row's client, and the clients' names, when the values of a column are the clients."""
    if not column:
        raise ConfigError("partition 'column': which one; give column = \"NAME\".")
    if column not in rows.columns:
        raise ConfigError(unknown("column", column, rows.columns))
    _feasible(len(rows), 1, minimum)
    values = rows.columns[column]
    counts = np.bincount(values.codes, minlength=len(values.levels))
    order = [int(v) for v in np.argsort(counts, kind="stable") if counts[v] > 0]
    rare = [v for v in order if counts[v] < minimum]
    while rare and counts[rare].sum() < minimum:
        rare.append(order[len(rare)])
    kept = [v for v in sorted(order) if v not in rare]
    client = np.full(len(values.levels), len(kept), dtype=np.int64)
    client[kept] = np.arange(len(kept))
    names = [values.levels[v] for v in kept]
    if rare:
        names.append(
            " or ".join(values.levels[v] for v in sorted(rare)) if len(rare) < 4 else "other"
        )
    return client[values.codes], tuple(names)
