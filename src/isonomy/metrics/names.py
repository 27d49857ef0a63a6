"""Metric names: parsed once, into a `Metric` that knows its title, meaning and direction.

The parts of a name, and what each means, are defined in `isonomy.metrics.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from isonomy.core.notions import read_objective
from isonomy.errors import ConfigError, unknown
from isonomy.metrics.client import Better
from isonomy.metrics.entries import Over
from isonomy.metrics.registry import (
    CLIENT_SUMMARIES,
    CLIENT_VALUES,
    COSTS,
    FRONT_END,
    GROUP_METRICS,
    LEFT_OUT,
    POOLED,
    RATES,
    SINGLE,
)

_SCOPES: dict[Over | None, str] = {
    "clients": "over clients",
    "examples": "over examples",
    "run": "per run",
    None: "",
}


@dataclass(frozen=True)
class Metric:
    """One metric, as its name describes it.

    `attribute` is set for comparisons between groups and for rates of one group, `level` for rates
    only, and `kind` is the part of the name that an entry of the registry defines, such as
    `demographic_parity`, `positive_rate` or `worst10`.
    """

    name: str
    title: str
    text: str  # the meaning, or what follows "Over ... examples," if `of_examples`
    better: Better | None = None
    over: Over | None = None
    kind: str = ""
    attribute: str | None = None
    level: str | None = None
    of_examples: bool = False  # computed from examples, of all clients together or of one client
    end_of: Metric | None = None  # for the end of an interval: the metric itself

    @property
    def scope(self) -> str:
        """`over clients`, `over examples`, `per run`, or an empty string."""
        return _SCOPES[self.over]

    @property
    def compares_groups(self) -> bool:
        """Whether the metric compares the groups of an attribute."""
        return self.attribute is not None and self.level is None

    def meaning(self, *, inside_client: bool = False) -> str:
        """One sentence: which definition, between whom.

        `inside_client` is for values that are measured on one client's own examples.
        """
        if self.end_of is not None:
            return f"{self.text} {self.end_of.meaning(inside_client=inside_client)}"
        if not self.of_examples:
            return self.text
        whose = "the client's own examples" if inside_client else "all clients' examples together"
        return f"Over {whose}, {self.text}"


@lru_cache(maxsize=4096)  # reports ask for the same few names thousands of times
def parse(name: str) -> Metric:
    """The metric with this name.

    Raises ConfigError for a name that the registry does not define.

    >>> found = parse("group.sex.true_positive_rate.female")
    >>> found.attribute, found.kind, found.level, found.title
    ('sex', 'true_positive_rate', 'female', 'true positive rate of sex = female')
    """
    found = _single(name) or _client(name) or _comparison(name) or _end(name) or _rate(name)
    found = found or _front_end(name)
    if found is None:
        known = [
            *POOLED,
            *SINGLE,
            *COSTS,
            *(f"client.accuracy.{summary}" for summary in CLIENT_SUMMARIES),
            *(f"group.NAME.{metric}" for metric in GROUP_METRICS),
        ]
        raise ConfigError(unknown("metric", name, known))
    return found


def find_metric(name: str) -> Metric:
    """As `parse`, but a name that is not known here becomes a metric without a direction.

    >>> find_metric("client.accuracy.worst10").title, find_metric("my_number").title
    ('worst 10 % client accuracy', 'my_number')
    >>> find_metric("verdict.risk").title
    'risk (verdict)'
    >>> find_metric("rounds.trusted").title, find_metric("rounds.chosen.malicious").title
    ('trusted (mean over rounds)', 'chosen, malicious clients (mean over rounds)')
    """
    try:
        return parse(name)
    except ConfigError:
        return Metric(name, _reported(name), "A number that the run reported under this name.")


def _reported(name: str) -> str:
    """The title of a number that is in the run's verdict, or recorded in its rounds."""
    kind, _, rest = name.partition(".")
    if kind == "rounds" and rest:
        what = rest.replace(".malicious", ", malicious clients").replace("_", " ")
        return f"{what} (mean over rounds)"
    return f"{rest} (verdict)" if kind == "verdict" and rest else name


def describe(name: str, *, inside_client: bool = False) -> str:
    """One sentence that says exactly what a metric is, and between whom.

    `inside_client` is for the columns of `per_client`, measured on one client's own examples.
    Raises ConfigError for an unknown name.

    >>> describe("client.accuracy.worst10")
    'The mean accuracy of the lowest-accuracy clients, 10 % of the clients rounded up.'
    """
    return parse(name).meaning(inside_client=inside_client)


def better(name: str) -> Better | None:
    """Which direction is better; None if neither is better in itself.

    Raises ConfigError for an unknown name.
    """
    return parse(name).better


def interval_of(name: str) -> str | None:
    """The name of the metric whose interval ends here, or None if the name is not such an end.

    >>> interval_of("accuracy:low"), interval_of("accuracy")
    ('accuracy', None)
    """
    inner, mark, end = name.rpartition(":")
    return inner if mark and inner and end in ("low", "high") else None


def _single(name: str) -> Metric | None:
    if name in POOLED:
        entry = POOLED[name]
        return Metric(
            name, entry.title, entry.meaning, entry.better, "examples", name, of_examples=True
        )
    found = SINGLE.get(name) or COSTS.get(name)
    if found is None:
        return None
    return Metric(name, found.title, found.meaning, found.better, found.over, name)


def _client(name: str) -> Metric | None:
    first, _, rest = name.partition(".")
    value, _, summary = rest.partition(".")
    if first != "client" or value not in CLIENT_VALUES:
        return None
    called = CLIENT_VALUES[value].title
    if summary == "left_out" and CLIENT_VALUES[value].partial:
        return Metric(
            name,
            LEFT_OUT.title.format(value=called),
            LEFT_OUT.meaning.format(value=called, name=value),
            kind=summary,
        )
    if summary not in CLIENT_SUMMARIES:
        return None
    entry, way = CLIENT_SUMMARIES[summary], CLIENT_VALUES[value].better
    worst, best = ("lowest", "highest") if way == "higher" else ("highest", "lowest")
    text = entry.meaning.format(value=called, worst=worst, best=best)
    return Metric(
        name, entry.title.format(value=called), text, entry.better or way, "clients", kind=summary
    )


def _comparison(name: str) -> Metric | None:
    before, _, kind = name.rpartition(".")
    attribute = before.removeprefix("group.")
    if attribute == before or not attribute or kind not in GROUP_METRICS:
        return None
    entry = GROUP_METRICS[kind]
    return Metric(
        name,
        f"{entry.title} ({attribute})",
        entry.meaning.replace("{attribute}", attribute),
        entry.better,
        "examples",
        kind,
        attribute,
        of_examples=True,
    )


def _end(name: str) -> Metric | None:
    inner = interval_of(name)
    if inner is None:
        return None
    which = "Lower" if name.endswith("low") else "Upper"
    text = f"{which} end of the bootstrap percentile interval over clients of:"
    return Metric(name, name, text, end_of=parse(inner))


def _front_end(name: str) -> Metric | None:
    rest = name.removeprefix("front.least.")
    if rest == name:
        return None
    for at in (i for i, letter in enumerate(rest) if letter == "."):
        try:
            least, value = read_objective(rest[:at]), read_objective(rest[at + 1 :])
        except ConfigError:
            continue
        return Metric(
            name,
            FRONT_END.title.format(least=least.name, value=value.name),
            FRONT_END.meaning.format(
                least=least.metric if least.attribute else least.name,
                value=value.metric if value.attribute else value.name,
            ),
            FRONT_END.better,
            FRONT_END.over,
            kind="front.least",
        )
    return None


def _rate(name: str) -> Metric | None:
    rest = name.removeprefix("group.")
    # An attribute's name may contain dots: the first rate after it counts.
    places = [(at, kind) for kind in RATES if (at := rest.find(f".{kind}.")) > 0]
    if rest == name or not places:
        return None
    at, kind = min(places)
    attribute, level = rest[:at], rest[at + len(kind) + 2 :]
    if not level:
        return None
    entry = RATES[kind]
    return Metric(
        name,
        f"{entry.title} of {attribute} = {level}",
        f"the {entry.meaning} in group {level} of {attribute}.",
        entry.better,
        "examples",
        kind,
        attribute,
        level,
        of_examples=True,
    )
