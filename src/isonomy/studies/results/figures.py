"""Pictures that are made from rows of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from isonomy.errors import ConfigError
from isonomy.metrics.names import find_metric
from isonomy.report.figures.excess import pooled
from isonomy.report.svg import Axis, Band, Chart, Line, Points, Rule
from isonomy.report.svg_picture import picture
from isonomy.studies.reproduce import Preset
from isonomy.studies.results.rows import Row
from isonomy.studies.results.tables import curves_of, label


@dataclass(frozen=True)
class Figure:
    """A picture as SVG text, and a sentence that says what it shows."""

    svg: str
    label: str


def excess(preset: Preset, rows: Sequence[Row]) -> Figure:
    """Each client's excess risk, as the mean over seeds with a 95 % interval over examples."""
    found = _measured(preset, [r for r in rows if r["complete"] and r.get("excess")])
    if not found:
        raise ConfigError("no row has the clients' excess risks; run it again with --results.")
    clients = max(len(r["excess"]["excess"]) for own in found.values() for r in own)
    chart = Chart(
        Axis("client", names=[str(k + 1) for k in range(clients)]),
        Axis("excess loss over the surrogate", "0: as good as the surrogate"),
    )
    for i, (name, own) in enumerate(found.items()):
        aside = 0.5 * (i / (len(found) - 1) - 0.5) if len(found) > 1 else 0.0
        places, means, errors = [], [], []
        for k in range(clients):
            pairs = [
                (r["excess"]["excess"][k], r["excess"]["error"][k] or 0.0)
                for r in own
                if k < len(r["excess"]["excess"]) and r["excess"]["excess"][k] is not None
            ]
            if pairs:
                places.append(k + aside)
                mean, half = pooled(pairs)
                means.append(mean)
                errors.append(half)
        chart.add(Points(places, means, series=i, name=name, y_error=errors, size=4))
    chart.add(Rule(y=0.0))
    seeds = len({r["seed"] for own in found.values() for r in own})
    text = (
        f"Excess risk of each of {clients} clients with {', '.join(found)}: means over "
        f"{_count(seeds, 'seed')}, with 95 % intervals over examples"
    )
    return Figure(picture(chart, text), text)


def rounds(preset: Preset, rows: Sequence[Row]) -> Figure:
    """The preset's `curve` after each round: the mean over seeds, and a deviation on each side."""
    found = curves_of(preset, rows)
    if preset.curve is None or not found:
        raise ConfigError("no row has a curve; a picture of rounds is of a preset with a `curve`.")
    title = find_metric(preset.curve).title
    chart = Chart(Axis("round", whole=True), Axis(title))
    names = _names(list(found))
    for i, (at, curves) in enumerate(found.items()):
        columns = list(zip(*curves, strict=False))
        x = [float(t + 1) for t in range(len(columns))]
        means = [fmean(column) for column in columns]
        spreads = [stdev(column) if len(column) > 1 else 0.0 for column in columns]
        low = [m - s for m, s in zip(means, spreads, strict=True)]
        high = [m + s for m, s in zip(means, spreads, strict=True)]
        chart.add(Band(x, low, high, series=i), Line(x, means, series=i, name=names[at]))
    text = f"{title} after each round with {', '.join(names.values())}: means over seeds, "
    text += "with a standard deviation on each side"
    return Figure(picture(chart, text), text)


def plane(preset: Preset, rows: Sequence[Row], *, x: str = "", y: str = "") -> Figure:
    """One point per method: the means of two metrics over seeds, with standard deviations."""
    if not x or not y:
        raise ConfigError("give the metrics of a plane as x=METRIC and y=METRIC.")
    found = _measured(preset, [r for r in rows if r["complete"]])
    titles = [find_metric(name).title for name in (x, y)]
    chart = Chart(Axis(titles[0]), Axis(titles[1]))
    shown = []
    for i, (name, own) in enumerate(found.items()):
        pairs = [
            (r["metrics"][x], r["metrics"][y])
            for r in own
            if r["metrics"].get(x) is not None and r["metrics"].get(y) is not None
        ]
        if not pairs:
            continue
        middle = [fmean(values) for values in zip(*pairs, strict=True)]
        errors = [stdev(v) if len(v) > 1 else 0.0 for v in zip(*pairs, strict=True)]
        chart.add(
            Points(
                [middle[0]], [middle[1]], series=i, name=name, x_error=[errors[0]],
                y_error=[errors[1]], tips=[f"{name}: {middle[0]:.4g}, {middle[1]:.4g}"],
            )
        )  # fmt: skip
        shown.append(name)
    if not shown:
        raise ConfigError(f"no row has both {x} and {y}.")
    text = f"{titles[1]} against {titles[0]} of {_count(len(shown), 'method')}: means over seeds, "
    text += "with standard deviations"
    return Figure(picture(chart, text), text)


def front(preset: Preset, rows: Sequence[Row]) -> Figure:
    """The global front of each method, of the first seed; a method with one model has one point."""
    found = _measured(preset, [r for r in rows if r["complete"] and r.get("front")])
    if not found:
        raise ConfigError("no row has a global front; run it again with --results.")
    chart = Chart(Axis("error", "lower is better"), Axis("unfairness", "lower is better"))
    for i, (name, own) in enumerate(found.items()):
        x, y = ([at[j] for at in own[0]["front"]] for j in (0, 1))
        if len(x) > 1:
            chart.add(Line(x, y, series=i, name=name, step="hv"))
        chart.add(Points(x, y, series=i, name=name, size=3 if len(x) > 1 else 5))
    text = f"Global fronts of {', '.join(found)} with seed {next(iter(found.values()))[0]['seed']}"
    return Figure(picture(chart, text), text)


KINDS: dict[str, Callable[..., Figure]] = {
    "excess": excess,
    "rounds": rounds,
    "plane": plane,
    "front": front,
}


def _measured(preset: Preset, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each method and setting by their name, in the preset's order."""
    keys = [(entry["label"], entry.get("setting", "")) for entry in preset.methods]
    own = {key: [r for r in rows if (r["method"], r["setting"]) == key] for key in keys}
    own = {key: found for key, found in own.items() if found}
    names = _names(list(own))
    return {names[key]: found for key, found in own.items()}


def _names(keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Names of methods, without their setting if all have the same one."""
    same = len({setting for _, setting in keys}) == 1
    return {key: key[0] if same else label(*key) for key in keys}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
