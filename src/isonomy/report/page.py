"""Self-contained HTML pages: on a set of runs, on data alone, on fronts alone."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from isonomy.errors import RunError
from isonomy.metrics.names import find_metric
from isonomy.report import data, figures, fronts, privacy, runs, summary, tables
from isonomy.report.figures import learnt_fronts, learnt_preferences
from isonomy.report.markup import document, escape, html_figure, html_list, html_table
from isonomy.report.phrases import counted, listed
from isonomy.report.runs import Method
from isonomy.report.tables import Table
from isonomy.runs.record import Record

_NAMED = 12


def write(records: list[Record], path: str | Path, title: str = "Isonomy report") -> Path:
    """Write the page on runs to `path` atomically, and return the path.

    Of a record's `facts` the page uses `data` (see `figures.holdings`; also `source`), `versions`
    (a dict) and `command` (a command line that repeats the run). Raises RunError if the file cannot
    be written.
    """
    return _write(render(records, title), Path(path))


def write_data(facts: dict[str, Any], path: str | Path, title: str = "Data") -> Path:
    """Write a page on data alone, from the result of `Description.facts`."""
    return _write(render_data(facts, title), Path(path))


def write_front(
    records: list[Record],
    path: str | Path,
    title: str = "Fronts",
    bounds: Mapping[str, float] | None = None,
) -> Path:
    """Write a page on fronts alone; `bounds` such as {"dp": 0.05} are drawn as lines."""
    learnt, about = learnt_fronts.FIGURE, learnt_preferences.FIGURE
    drawn = [
        figures.Figure(kind.name, kind.title, kind.caption, tuple(views))
        for kind, views in (
            (learnt, learnt_fronts.draw(records, bounds)),
            (about, about.draw(records)),
        )
        if views
    ]
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        _facts(records, runs.methods(records)),
        "</header>",
        "<main>",
        *(html_figure(figure) for figure in drawn),
        "</main>",
        "<noscript><p>The slider and the menus need JavaScript.</p></noscript>",
    ]
    return _write(document(title, body), Path(path))


def _write(text: str, to: Path) -> Path:
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(to)
    except OSError as error:
        raise RunError(
            f"cannot write the report to '{to}' ({error.strerror}): choose another path."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return to


def render(records: list[Record], title: str = "Isonomy report") -> str:
    """The page on runs as text; pages on equal runs differ in the section on seconds only."""
    measured, records = records, [replace(record, seconds=0.0) for record in records]
    found = runs.methods(records)
    drawn = figures.all_figures(records)
    table = tables.comparison(records)
    marks = any(cell.best for row in table.rows for cell in row)
    shaded = "At the last evaluation." + (f" Shaded: {table.best}" if marks else "")
    links = [("comparison", "Comparison"), *((f.name, f.title) for f in drawn)]
    judged = tables.verdicts(records)
    links += [("verdicts", "Verdicts")] if judged is not None else []
    protected = privacy.section(records)
    links += [("privacy", "Differential privacy")] if protected else []
    links += [("metrics", "Every metric"), ("runs", "Runs")]
    timed = _seconds(measured)
    links += [("seconds", "Seconds")] if timed else []
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        _facts(records, found),
        _summary(records, table),
        _warnings(records, found),
        "<nav aria-label='Contents'>",
        *(f'<a href="#{name}">{escape(text)}</a>' for name, text in links),
        "</nav>",
        "</header>",
        "<main>",
        '<section id="comparison"><h2>Comparison</h2>',
        "<p><strong>Over examples</strong>: all clients' examples together. Each example counts "
        "once, so a large client has more weight. <strong>Over clients</strong>: each client "
        "counts once, whatever its size. Click a heading to sort.</p>",
        html_table(table, shaded),
        _every_attribute(records),
        _folded("What the columns and marks mean", html_list(table.footnotes)),
        "</section>",
        *(html_figure(f, _after_figure(f.name, records)) for f in drawn),
        _verdicts(records, judged) if judged is not None else "",
        protected,
        _every_metric(records),
        _runs(records),
        timed,
        "</main>",
        "<noscript><p>The menus of figures need JavaScript.</p></noscript>",
    ]
    return document(title, body)


def render_data(facts: dict[str, Any], title: str = "Data") -> str:
    """The page on data alone as text."""
    records = [data.record(facts)]
    rows = (
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in data.headline(facts)
    )
    drawn = [figure for figure in figures.all_figures(records) if figure.name == "holdings"]
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<dl class="facts">{"".join(rows)}</dl>',
        "</header>",
        "<main>",
        *(html_figure(figure, _data_section(records)) for figure in drawn),
        "</main>",
        "<noscript><p>The menus of figures need JavaScript.</p></noscript>",
    ]
    return document(title, body)


def _facts(records: Sequence[Record], found: Sequence[Method]) -> str:
    """A short list of what was run."""
    facts: list[tuple[str, str]] = []
    labels = list(dict.fromkeys(method.label for method in found))
    facts.append(("Methods", f"{len(labels)}: {listed(labels, _NAMED)}"))
    data = [name for name in dict.fromkeys(method.data for method in found) if name]
    if data:
        facts.append(("Data", listed(data, _NAMED)))
    number = sorted({n for record in records if (n := _clients(record))})
    if number:
        facts.append(("Clients", " or ".join(str(n) for n in number)))
    rounds = sorted({t for record in records if (t := runs.last_round(record)) is not None})
    if rounds:
        facts.append(("Rounds", " or ".join(str(t) for t in rounds)))
    seeds = list(dict.fromkeys(record.seed for record in records))
    facts.append(
        ("Runs", f"{len(records)}, with seed{'s' * (len(seeds) > 1)} {listed(seeds, _NAMED)}")
    )
    names = runs.attributes(records)
    if names:
        facts.append(("Protected", f"groups of {listed(names, _NAMED)}"))
    for name, values in _versions(records).items():
        facts.append((name, " or ".join(values)))
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _versions(records: Sequence[Record]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        versions = record.facts.get("versions")
        if isinstance(versions, Mapping):
            text = ", ".join(f"{name} {version}" for name, version in versions.items())
            if text and text not in found.setdefault("Versions", []):
                found["Versions"].append(text)
    return found


def _clients(record: Record) -> int:
    data = record.facts.get("data")
    if isinstance(data, Mapping):
        for key in ("names", "sizes"):
            if data.get(key):
                return len(data[key])
    at = runs.last_clients(record)
    ids = at.get("client") or at.get("name") or []
    if ids:
        return len(set(map(str, ids)))
    total = [
        runs.number(record.metrics.get(name, 0)) for name in ("client.number", "client.left_out")
    ]
    return int(sum(n for n in total if math.isfinite(n)))


def _summary(records: list[Record], table: Table) -> str:
    """The comparison in a few sentences."""
    items = "".join(f"<li>{escape(text)}</li>" for text in summary.sentences(records, table))
    return f'<ul class="summary">{items}</ul>' if items else ""


def _every_attribute(records: list[Record]) -> str:
    """The gaps of every protected attribute, if there are several."""
    names = tables.gap_columns(records)
    if len(runs.attributes(records)) < 2 or not names:
        return ""
    table = tables.comparison(records, names, "Gaps of every protected attribute")
    kept = [i for i, column in enumerate(table.columns) if column.name != "remark"]
    less = replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
    )
    return f"<h3>{escape(table.title)}</h3>" + html_table(less, "At the last evaluation.")


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inner}</details>" if inner else ""


def _warnings(records: Sequence[Record], found: Sequence[Method]) -> str:
    notes: dict[str, list[str]] = {}
    for record in records:
        who = f"{record.label}, seed {record.seed}"
        if not record.complete:
            notes.setdefault(f"did not finish: {runs.state(record)}.", []).append(who)
        for note in record.notes:
            notes.setdefault(str(note), []).append(who)
    if len({method.data for method in found}) > 1:
        notes["The runs are on different data; compare only methods on the same data."] = []
    rows = []
    warned = sum(len(one.warnings) for one in data.held(records))
    if warned:
        link = '<a href="#holdings">who holds what</a>'
        rows.append(f"<li>{counted(warned, 'warning')} about the data: see {link}.</li>")
    if not notes and not rows:
        return ""
    for text, names in notes.items():
        who = f"All {len(names)} runs" if len(names) == len(records) > 1 else listed(names, 6)
        rows.append(f"<li>{escape(f'{who}: {text}' if names else text)}</li>")
    return f'<div class="warning" role="note"><strong>Notes</strong><ul>{"".join(rows)}</ul></div>'


def _verdicts(records: Sequence[Record], table: Table) -> str:
    """What methods conclude about their own models, with a table of the constraints."""
    parts = [
        '<section id="verdicts"><h2>Verdicts</h2>',
        "<p>What a method concludes about its own model at the end of a run.</p>",
        html_table(table, "One row per run."),
        html_list(table.footnotes),
    ]
    for record in records:
        if record.verdict is None:
            continue
        head = f"{record.label}, seed {record.seed}: {record.verdict.get('status', '')}"
        inner = tables.verdict_table(record)
        grid = ""
        if inner is not None:
            grid = html_table(inner, "One row per constraint.", sortable=False) + html_list(
                inner.footnotes
            )
        text = f"<p>{escape(str(record.verdict.get('text', '')))}</p>"
        parts.append(f"<details><summary>{escape(head)}</summary>{text}{grid}</details>")
    return "".join([*parts, "</section>"])


def _after_figure(name: str, records: list[Record]) -> str:
    """The HTML that follows a figure."""
    if name == "fronts":
        found = fronts.fronts(records)
        volumes, points = fronts.volumes_table(found), fronts.points_table(found)
        grid = html_table(volumes, "Hypervolume; the largest value is shaded.")
        inner = html_table(points, "Points on the fronts.")
        return (
            f"{grid}{html_list(volumes.footnotes)}<h3>Pareto points</h3>{inner}"
            f"{html_list(points.footnotes)}"
        )
    return _data_section(records) if name == "holdings" else ""


def _data_section(records: Sequence[Record]) -> str:
    """Tables of how the clients' data differ, and warnings about the data."""
    found = data.held(records)
    out = []
    for one in found:
        out.append(f"<h3>{escape(one.name)}</h3>" if len(found) > 1 else "")
        out.append(f'<p class="soft">{escape(one.note)}</p>' if one.note else "")
        if one.warnings:
            items = "".join(
                f"<li>{'<strong>!</strong> ' * (weight > 2)}{escape(text)}</li>"
                for weight, text in one.warnings
            )
            out.append(
                f'<div class="warning" role="note"><strong>Warnings</strong><ul>{items}</ul></div>'
            )
        if one.measures:
            caption = (
                "How clients' training rows differ. By chance: the value for clients drawn at "
                "random from all rows."
            )
            out.append(html_table(one.measures, caption, sortable=False))
        if one.clients:
            grid = html_table(one.clients, "Shares are of the client's training rows.")
            notes = html_list(one.clients.footnotes)
            number = counted(len(one.clients.rows), "client")
            out.append(f"<details><summary>{number}</summary>{grid}{notes}</details>")
    return "".join(out)


def _every_metric(records: list[Record]) -> str:
    table = tables.everything(records)
    caption = "Every metric of the last evaluation. Hover over a name to see its meaning."
    grid = html_table(table, caption, sortable=False)
    meanings = [
        f"<li><code>{escape(name)}</code>: {escape(find_metric(name).meaning())}</li>"
        for name in (str(row[0].value) for row in table.rows)
    ]
    return (
        '<section id="metrics"><h2>Every metric</h2>'
        f"<details><summary>{counted(len(table.rows), 'metric')} of "
        f"{counted(len(table.columns) - 1, 'method')}</summary>{grid}"
        f"{html_list(table.footnotes)}<h3>Meaning of each name</h3>"
        f'<ul class="notes">{"".join(meanings)}</ul></details></section>'
    )


def _runs(records: Sequence[Record]) -> str:
    found = ['<section id="runs"><h2>Runs</h2>']
    found.append("<p>The complete configuration of each run, and the command that repeats it.</p>")
    for record in records:
        language, text = configuration(record.config)
        state = "" if record.complete else ", unfinished"
        at = runs.last_round(record)
        after = [f"seed {record.seed}{state}"]
        after += [] if at is None else [f"last round {at}"]
        command = record.facts.get("command")
        how = (
            "To repeat it:"
            if command
            else f"To repeat it, save the configuration as config.{language} and run:"
        )
        line = str(command) if command else f"isonomy run config.{language}"
        notes = html_list([str(note) for note in record.notes])
        found.append(
            f"<details><summary>{escape(record.label)} "
            f'<span class="soft">{escape(", ".join(after))}</span></summary>'
            f'<p>{how}</p><pre class="command"><code>{escape(line)}</code></pre>{notes}'
            f'<pre class="config" data-language="{language}"><code>{escape(text)}</code></pre>'
            "</details>"
        )
    return "".join([*found, "</section>"])


def _seconds(records: list[Record]) -> str:
    """The seconds of all methods; empty if none were measured."""
    if not any(record.seconds for record in records):
        return ""
    table = tables.comparison(records, ["seconds"])
    return (
        '<section id="seconds"><h2>Seconds</h2><p>Measured on the machine that made the runs. They '
        "depend on its load: this is the only part of the page that differs between equal runs."
        f"</p>{html_table(table, 'Means over seeds, with the sample standard deviation.')}"
        f"{html_list(table.footnotes)}</section>"
    )


def configuration(config: Mapping[str, Any]) -> tuple[str, str]:
    """The format and text of a configuration: TOML if TOML can express it, else JSON."""
    try:
        text = tomli_w.dumps(dict(config))
        if tomllib.loads(text) == config:
            return "toml", text
    except (TypeError, ValueError, AttributeError):
        pass
    return "json", json.dumps(config, indent=2, default=str, ensure_ascii=False)
