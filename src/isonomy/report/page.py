"""One self-contained HTML page on a set of runs: tables, figures, notes, configurations.

The page needs no network: the plotting library, styles and data are inside, and a content
security policy forbids everything else, including any script but the ones put there.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import tomli_w

from isonomy.errors import RunError
from isonomy.metrics import registry
from isonomy.report import data, figures, fronts, runs, tables
from isonomy.report.runs import Method
from isonomy.report.tables import Cell, Column, Table
from isonomy.runs.record import Record

_NAMED = 12


def write(records: list[Record], path: str | Path, title: str = "Isonomy report") -> Path:
    """Write the page to `path`, whole or not at all, and return where it is.

    Of `facts` the page uses `data` (see `figures.holdings`; also `source`), `versions` (a dict)
    and `command` (a line that repeats the run).
    """
    return _write(render(records, title), Path(path))


def write_data(facts: dict[str, Any], path: str | Path, title: str = "Data") -> Path:
    """A page on data alone, of what `Description.facts` says."""
    return _write(render_data(facts, title), Path(path))


def write_front(records: list[Record], path: str | Path, title: str = "Fronts") -> Path:
    """A page on fronts alone."""
    drawn = [figure for figure in figures.all_figures(records) if figure.name == "learnt"]
    body = [
        "<header>",
        f"<h1>{_e(title)}</h1>",
        _head(records, runs.methods(records)),
        "</header>",
        "<main>",
        *(_figure(figure) for figure in drawn),
        "</main>",
        "<noscript><p>The figure needs JavaScript.</p></noscript>",
    ]
    return _write(_document(title, body), Path(path))


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
            f"cannot write the report to '{to}' ({error.strerror}): choose another place."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return to


def render(records: list[Record], title: str = "Isonomy report") -> str:
    """The page as text."""
    found = runs.methods(records)
    drawn = figures.all_figures(records)
    table = tables.comparison(records)
    marks = any(cell.best for row in table.rows for cell in row)
    shaded = "At the last evaluation" + ("; the best of a column is shaded." if marks else ".")
    links = [("comparison", "Comparison"), *((f.name, f.title) for f in drawn)]
    judged = tables.verdicts(records)
    links += [("verdicts", "Verdicts")] if judged is not None else []
    links += [("metrics", "Every metric"), ("runs", "Runs")]
    body = [
        "<header>",
        f"<h1>{_e(title)}</h1>",
        _head(records, found),
        _brief(table, found),
        _warnings(records, found),
        "<nav aria-label='Contents'>",
        *(f'<a href="#{name}">{_e(text)}</a>' for name, text in links),
        "</nav>",
        "</header>",
        "<main>",
        '<section id="comparison"><h2>Comparison</h2>',
        "<p><strong>Over examples</strong>: all clients' examples together, each counting once, "
        "so a large client weighs more. <strong>Over clients</strong>: each client counting once, "
        "whatever its size. Click a heading to sort.</p>",
        _html_table(table, shaded),
        _list(table.footnotes),
        "</section>",
        *(_figure(f, _below(f.name, records)) for f in drawn),
        _verdicts(records, judged) if judged is not None else "",
        _every_metric(records),
        _runs(records),
        "</main>",
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>",
    ]
    return _document(title, body)


def render_data(facts: dict[str, Any], title: str = "Data") -> str:
    """The page on data alone, as text."""
    records = [data.record(facts)]
    rows = (f"<dt>{_e(name)}</dt><dd>{_e(text)}</dd>" for name, text in data.headline(facts))
    drawn = [figure for figure in figures.all_figures(records) if figure.name == "holdings"]
    body = [
        "<header>",
        f"<h1>{_e(title)}</h1>",
        f'<dl class="facts">{"".join(rows)}</dl>',
        "</header>",
        "<main>",
        *(_figure(figure, _held(records)) for figure in drawn),
        "</main>",
        "<noscript><p>The figure needs JavaScript; the tables do not.</p></noscript>",
    ]
    return _document(title, body)


def _document(title: str, body: Sequence[str]) -> str:
    """A whole page around what stands in it."""
    # Only these two may run; a closing tag inside them would end them early.
    offline: Any = import_module("plotly.offline")
    given = (str(offline.get_plotlyjs()), _asset("js"))
    scripts = [text.replace("</script", r"<\/script") for text in given]
    allowed = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{_e(title)}</title>",
        f"<style>{_asset('css')}</style>",
        "</head>",
        "<body>",
    ]
    tail = [*(f"<script>{text}</script>" for text in scripts), "</body>", "</html>"]
    return "\n".join(part for part in (*head, *body, *tail) if part) + "\n"


def _head(records: Sequence[Record], found: Sequence[Method]) -> str:
    """What was run, in a few lines."""
    facts: list[tuple[str, str]] = []
    labels = list(dict.fromkeys(method.label for method in found))
    facts.append(("Methods", f"{len(labels)}: {_some(labels)}"))
    data = [name for name in dict.fromkeys(method.data for method in found) if name]
    if data:
        facts.append(("Data", _some(data)))
    number = sorted({n for record in records if (n := _clients(record))})
    if number:
        facts.append(("Clients", " or ".join(str(n) for n in number)))
    rounds = sorted({t for record in records if (t := runs.last_round(record)) is not None})
    if rounds:
        facts.append(("Rounds", " or ".join(str(t) for t in rounds)))
    seeds = list(dict.fromkeys(record.seed for record in records))
    facts.append(("Runs", f"{len(records)}, with seed{'s' * (len(seeds) > 1)} {_some(seeds)}"))
    names = runs.attributes(records)
    if names:
        facts.append(("Protected", f"groups of {_some(names)}"))
    for name, values in _versions(records).items():
        facts.append((name, " or ".join(values)))
    rows = (f"<dt>{_e(name)}</dt><dd>{_e(text)}</dd>" for name, text in facts)
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _versions(records: Sequence[Record]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in records:
        versions = record.facts.get("versions")
        if isinstance(versions, Mapping):
            said = ", ".join(f"{name} {version}" for name, version in versions.items())
            if said and said not in found.setdefault("Versions", []):
                found["Versions"].append(said)
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


def _brief(table: Table, found: Sequence[Method]) -> str:
    """Which method has the best of each column, where methods are compared on one data set."""
    if len(found) < 2 or len({method.data for method in found}) > 1:
        return ""
    said = []
    for i, column in enumerate(table.columns):
        best = [row for row in table.rows if row[i].best]
        if not best or len(best) == len(table.rows) or column.scope == "per run":
            continue
        top = "highest" if column.better == "higher" else "lowest"
        who = _some([str(row[0].value) for row in best])
        value = tables.shown(best[0][i], column).replace("± ", "±\u00a0")
        said.append(f"<li>{top} {_e(column.title)}: <strong>{_e(who)}</strong>, {_e(value)}</li>")
    if not said:
        return ""
    after = "differences smaller than the spread over seeds may be chance"
    if all(len(method.runs) == 1 for method in found):
        after = "with one seed each, a difference may be chance"
    return f"<p>At the last evaluation ({after}):</p><ul>{''.join(said)}</ul>"


def _warnings(records: Sequence[Record], found: Sequence[Method]) -> str:
    said: dict[str, list[str]] = {}
    for record in records:
        who = f"{record.label}, seed {record.seed}"
        if not record.complete:
            at = runs.last_round(record)
            planned = _planned(record)
            where = "before its first round ended" if at is None else f"at round {at}"
            of = f" of {planned}" if planned and at is not None else ""
            said.setdefault(f"unfinished, stopped {where}{of}.", []).append(who)
        for note in record.notes:
            said.setdefault(str(note), []).append(who)
    if len({method.data for method in found}) > 1:
        said["The runs are on different data: compare only methods on the same data."] = []
    rows = []
    warned = sum(len(one.warnings) for one in data.held(records))
    if warned:
        link = '<a href="#holdings">who holds what</a>'
        rows.append(f"<li>{_count(warned, 'warning')} about the data: see {link}.</li>")
    if not said and not rows:
        return ""
    for text, names in said.items():
        who = f"All {len(names)} runs" if len(names) == len(records) > 1 else _some(names, 6)
        rows.append(f"<li>{_e(f'{who}: {text}' if names else text)}</li>")
    return f'<div class="warning" role="note"><strong>Notes</strong><ul>{"".join(rows)}</ul></div>'


def _verdicts(records: Sequence[Record], table: Table) -> str:
    """What methods say of their own models, with each constraint below."""
    parts = [
        '<section id="verdicts"><h2>Verdicts</h2>',
        "<p>What a method says of its own model at the end of a run.</p>",
        _html_table(table, "One row a run."),
        _list(table.footnotes),
    ]
    for record in records:
        if record.verdict is None:
            continue
        head = f"{record.label}, seed {record.seed}: {record.verdict.get('status', '')}"
        inner = tables.verdict_table(record)
        grid = ""
        if inner is not None:
            grid = _html_table(inner, "Each constraint.", sortable=False) + _list(inner.footnotes)
        text = f"<p>{_e(str(record.verdict.get('text', '')))}</p>"
        parts.append(f"<details><summary>{_e(head)}</summary>{text}{grid}</details>")
    return "".join([*parts, "</section>"])


def _planned(record: Record) -> int | None:
    """The rounds the configuration asks for, at its top or one level below."""
    for holder in (record.config, *record.config.values()):
        if isinstance(holder, Mapping) and isinstance(holder.get("rounds"), int):
            return int(holder["rounds"])
    return None


def _html_table(table: Table, caption: str, sortable: bool = True) -> str:
    heads = [_th(column, sortable) for column in table.columns]
    rows = []
    for row in table.rows:
        cells = [
            _td(cell, column, first=i == 0)
            for i, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(table.title)}">'
        f"<table{kind}><caption>{_e(caption)}</caption>"
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _th(column: Column, sortable: bool) -> str:
    way = {"higher": "↑ higher is better", "lower": "↓ lower is better"}.get(column.better or "")
    small = "".join(f"<small>{_e(text)}</small>" for text in (column.scope, way) if text)
    kind = ' class="text"' if column.text else ""
    tip = f' title="{_e(column.meaning)}"' if column.meaning else ""
    better = f' data-better="{column.better}"' if column.better else ""
    head = _e(column.title)
    head = f'<button type="button">{head}</button>' if sortable else head
    return f'<th scope="col"{kind}{tip}{better}>{head}{small}</th>'


def _td(cell: Cell, column: Column, first: bool) -> str:
    main, rest = (_e(part) for part in tables.parts(cell, column))
    at = cell.value
    value = at if isinstance(at, str) else "" if at is None or math.isnan(at) else _js(at)
    if first:
        tip = f' title="{_e(registry.find(value).meaning())}"' if column.name == "metric" else ""
        return f'<th scope="row" data-value="{_e(value)}"{tip}>{main}</th>'
    if cell.best:
        main = f'<strong>{main}</strong><span class="hidden"> (best)</span>'
    kinds = [kind for kind, on in (("text", column.text), ("best", cell.best)) if on]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    rest = f'<span class="rest">{rest}</span>' if rest else ""
    return f'<td data-value="{_e(value)}"{kind}>{main}{rest}</td>'


def _js(at: float) -> str:
    if math.isinf(at):
        return "Infinity" if at > 0 else "-Infinity"
    return repr(at)


def _below(name: str, records: list[Record]) -> str:
    """What stands below a figure."""
    if name == "fronts":
        found = fronts.fronts(records)
        volumes, points = fronts.volumes_table(found), fronts.points_table(found)
        grid = _html_table(volumes, "Hypervolume; the largest is shaded.")
        inner = _html_table(points, "Points on the fronts.")
        return (
            f"{grid}{_list(volumes.footnotes)}<h3>Pareto points</h3>{inner}"
            f"{_list(points.footnotes)}"
        )
    return _held(records) if name == "holdings" else ""


def _held(records: Sequence[Record]) -> str:
    """Below the figure of who holds what: how clients differ, and what to beware of."""
    found = data.held(records)
    out = []
    for one in found:
        out.append(f"<h3>{_e(one.name)}</h3>" if len(found) > 1 else "")
        out.append(f'<p class="soft">{_e(one.note)}</p>' if one.note else "")
        if one.warnings:
            said = "".join(
                f"<li>{'<strong>!</strong> ' * (weight > 2)}{_e(text)}</li>"
                for weight, text in one.warnings
            )
            out.append(
                f'<div class="warning" role="note"><strong>Beware</strong><ul>{said}</ul></div>'
            )
        if one.measures:
            caption = (
                "How clients' training rows differ. By chance: what clients drawn at random from "
                "all rows would have."
            )
            out.append(_html_table(one.measures, caption, sortable=False))
        if one.clients:
            grid = _html_table(one.clients, "Shares are of the client's training rows.")
            notes = _list(one.clients.footnotes)
            number = _count(len(one.clients.rows), "client")
            out.append(f"<details><summary>{number}, one by one</summary>{grid}{notes}</details>")
    return "".join(out)


def _figure(figure: figures.Figure, after: str = "") -> str:
    given = json.loads(figure.plot.to_json())
    menus = given["layout"].pop("updatemenus", [])
    buttons = menus[0]["buttons"] if menus else []
    given["views"] = [button["args"] for button in buttons]
    choose = ""
    if buttons:
        # The labels are escaped where the figure is made.
        options = "".join(f"<option>{button['label']}</option>" for button in buttons)
        choose = f'<label class="choose">Show <select>{options}</select></label>'
    said = _e(f"Figure: {figure.title}. {figure.caption}")
    return (
        f'<section id="{figure.name}"><figure data-plot="{figure.name}">'
        f"<h2>{_e(figure.title)}</h2><figcaption>{_e(figure.caption)}</figcaption>{choose}"
        f'<div class="plot" role="img" aria-label="{said}"></div>'
        f'<script type="application/json">{_json(given)}</script></figure>{after}</section>'
    )


def _every_metric(records: list[Record]) -> str:
    table = tables.everything(records)
    caption = "Every metric of the last evaluation. Hover over a name for what it means."
    grid = _html_table(table, caption, sortable=False)
    meanings = [
        f"<li><code>{_e(name)}</code>: {_e(registry.find(name).meaning())}</li>"
        for name in (str(row[0].value) for row in table.rows)
    ]
    return (
        '<section id="metrics"><h2>Every metric</h2>'
        f"<details><summary>{_count(len(table.rows), 'metric')} of "
        f"{_count(len(table.columns) - 1, 'method')}</summary>{grid}"
        f"{_list(table.footnotes)}<h3>What each name means</h3>"
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
        after += [f"{record.seconds:.1f} s"] if record.seconds else []
        command = record.facts.get("command")
        how = (
            "To repeat it:"
            if command
            else f"To repeat it, save the configuration as config.{language} and run:"
        )
        line = str(command) if command else f"isonomy run config.{language}"
        notes = _list([str(note) for note in record.notes])
        found.append(
            f"<details><summary>{_e(record.label)} "
            f'<span class="soft">{_e(", ".join(after))}</span></summary>'
            f'<p>{how}</p><pre class="command"><code>{_e(line)}</code></pre>{notes}'
            f'<pre class="config" data-language="{language}"><code>{_e(text)}</code></pre>'
            "</details>"
        )
    return "".join([*found, "</section>"])


def configuration(config: Mapping[str, Any]) -> tuple[str, str]:
    """A configuration as TOML where TOML can hold all of it, as JSON where it cannot."""
    try:
        text = tomli_w.dumps(dict(config))
        if tomllib.loads(text) == config:
            return "toml", text
    except (TypeError, ValueError, AttributeError):
        pass
    return "json", json.dumps(config, indent=2, default=str, ensure_ascii=False)


def _list(items: Iterable[str]) -> str:
    rows = "".join(f"<li>{_e(item)}</li>" for item in items)
    return f'<ul class="notes">{rows}</ul>' if rows else ""


def _some(items: Sequence[Any], most: int = _NAMED) -> str:
    named = ", ".join(str(item) for item in items[:most])
    return named + (f" and {len(items) - most} more" if len(items) > most else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(kind: str) -> str:
    return resources.files("isonomy.report").joinpath(f"page.{kind}").read_text(encoding="utf-8")


def _e(text: str) -> str:
    return html.escape(text, quote=True)
