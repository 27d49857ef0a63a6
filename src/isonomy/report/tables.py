"""Tables as plain values, and their renderings for a terminal, a text file, a paper, a program.

A cell keeps the full number; how many digits are shown is decided once for a column. A missing
number is never an empty cell: a dash says the run does not have it, a word that it is undefined.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from isonomy.errors import ConfigError, unknown
from isonomy.metrics import registry
from isonomy.metrics.client import Better
from isonomy.report import runs
from isonomy.report.runs import Method
from isonomy.runs.record import Record

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

ABSENT = "–"
UNDEFINED = "undefined"
_MOST_DIGITS = 6
_HEADER_WIDTH = 16
_NAMED = 5  # clients or runs named before the rest are only counted


@dataclass(frozen=True)
class Column:
    """A heading: the metric's name, a title, its exact meaning and which way is better.

    Numbers are divided by `scale` and shown with `digits` decimals; `text` columns hold words.
    """

    name: str
    title: str
    meaning: str = ""
    better: Better | None = None
    scope: str = ""
    text: bool = False
    digits: int = 3
    scale: float = 1.0


@dataclass(frozen=True)
class Cell:
    """A value with its spread or interval, the number of runs behind it, and if it is the best.

    `n` of the `of` runs have the value; `digits` overrules the column's; `signed` always shows
    a sign.
    """

    value: float | str | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    of: int = 0
    best: bool = False
    digits: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class Table:
    """A title, columns, rows of as many cells, and notes below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footnotes: tuple[str, ...] = ()

    def text(self) -> str:
        """Plain text, aligned; a star marks the best of a column."""
        heads = [textwrap.wrap(_line(c.title), _HEADER_WIDTH) or [""] for c in self.columns]
        height = max((len(head) for head in heads), default=0)
        heads = [[""] * (height - len(head)) + head for head in heads]
        marked = [any(row[i].best for row in self.rows) for i in range(len(self.columns))]
        body = [
            [
                _line(shown(cell, column)) + (("*" if cell.best else " ") if mark else "")
                for cell, column, mark in zip(row, self.columns, marked, strict=True)
            ]
            for row in self.rows
        ]
        heads = [
            [line + (" " if mark else "") for line in head]
            for head, mark in zip(heads, marked, strict=True)
        ]
        widths = [
            max([len(line) for line in head] + [len(row[i]) for row in body])
            for i, head in enumerate(heads)
        ]

        def line(cells: Sequence[str]) -> str:
            pad = [
                cell.ljust(width) if column.text else cell.rjust(width)
                for cell, width, column in zip(cells, widths, self.columns, strict=True)
            ]
            return "  ".join(pad).rstrip()

        lines = [_line(self.title)] if self.title else []
        lines += [line([head[i] for head in heads]) for i in range(height)]
        lines += ["-" * (sum(widths) + 2 * (len(widths) - 1)), *(line(row) for row in body)]
        notes = self._notes("A star marks")
        return "\n".join([*lines, *([""] if notes else []), *(_line(n) for n in notes)]) + "\n"

    def markdown(self) -> str:
        """GitHub's Markdown; the best of a column in bold."""
        lines = [f"**{_md(self.title)}**", ""] if self.title else []
        lines.append("| " + " | ".join(_md(c.title) for c in self.columns) + " |")
        lines.append("| " + " | ".join("---" if c.text else "---:" for c in self.columns) + " |")
        for row in self.rows:
            cells = []
            for cell, column in zip(row, self.columns, strict=True):
                main, rest = map(_md, parts(cell, column))
                cells.append((f"**{main}**" if cell.best else main) + rest)
            lines.append("| " + " | ".join(cells) + " |")
        notes = self._notes("Bold marks")
        lines += ["", *(f"- {_md(note)}" for note in notes)] if notes else []
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        r"""A `table` with booktabs rules (`\usepackage{booktabs}`); the best in bold."""
        layout = "".join("l" if c.text else "r" for c in self.columns)
        lines = [r"\begin{table}", r"\centering"]
        if self.title:
            lines.append(rf"\caption{{{_tex(self.title)}}}")
        lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
        lines += [" & ".join(_tex(c.title) for c in self.columns) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = []
            for cell, column in zip(row, self.columns, strict=True):
                main, rest = map(_tex, parts(cell, column))
                cells.append((rf"\textbf{{{main}}}" if cell.best else main) + rest)
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        notes = self._notes("Bold marks")
        if notes:
            lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}\footnotesize"]
            lines += [" \\\\\n".join(_tex(note) for note in notes)]
            lines += [r"\end{minipage}"]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """Every number in full, with columns for its spread, interval and number of runs."""
        head: list[str] = []
        extras: list[list[str]] = []
        for i, column in enumerate(self.columns):
            at = [row[i] for row in self.rows]
            has = {
                "std": any(cell.spread is not None for cell in at),
                "low": any(cell.low is not None for cell in at),
                "high": any(cell.high is not None for cell in at),
                "n": any(cell.of for cell in at),
            }
            extras.append([name for name, there in has.items() if there])
            head += [column.name, *(f"{column.name} {name}" for name in extras[-1])]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        for row in self.rows:
            line: list[str] = []
            for cell, extra in zip(row, extras, strict=True):
                each = {"std": cell.spread, "low": cell.low, "high": cell.high}
                line.append(_full(cell.value))
                line += [str(cell.n) if e == "n" else _full(each[e]) for e in extra]
            writer.writerow(line)
        return out.getvalue()

    def rich(self) -> Terminal:
        """For a terminal: `rich.print(table.rich())`; the best in bold green with a star.

        Where the rows are too wide for the terminal, they become columns.
        """
        return Terminal(self)

    def _notes(self, mark: str) -> list[str]:
        if not any(cell.best for row in self.rows for cell in row):
            return list(self.footnotes)
        return [
            f"{mark} the best value, or values equal to it as shown.",
            *self.footnotes,
        ]


@dataclass(frozen=True)
class Terminal:
    """A table as rich prints it, lying or standing as the terminal's width allows."""

    table: Table

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """What rich calls to print it."""
        from rich.text import Text

        columns, rows = self.table.columns, self.table.rows
        heads = [max(map(len, column.title.split()), default=0) for column in columns]
        needed = sum(
            3 + max([head, *(len(shown(row[i], columns[i])) + row[i].best for row in rows)])
            for i, head in enumerate(heads)
        )
        if self.table.title:
            yield Text(_line(self.table.title), style="bold")
        yield self._grid(flip=needed > options.max_width and len(columns) > len(rows) + 1)
        for note in self.table._notes("A star marks"):
            yield Text(_line(note), style="dim")

    def _grid(self, flip: bool) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        columns, rows = self.table.columns, self.table.rows
        lines: list[list[Text]] = [[Text(_line(column.title)) for column in columns]]
        for row in rows:
            line = []
            for cell, column in zip(row, columns, strict=True):
                main, rest = (_line(part) for part in parts(cell, column))
                text = Text(main + "*" * cell.best, style="bold green" if cell.best else "")
                # The space that does not break keeps the sign with its number when cells wrap.
                line.append(text.append(rest.replace("± ", "±\u00a0"), style="not bold dim"))
            lines.append(line)
        left = [column.text for column in columns]
        if flip:
            lines = [list(line) for line in zip(*lines, strict=True)]
            left = [True, *(False for _ in rows)]
        grid = RichTable(box=box.SIMPLE_HEAD)
        for head, first in zip(lines[0], left, strict=True):
            side: Literal["left", "right"] = "left" if first else "right"
            grid.add_column(head, justify=side, vertical="bottom", overflow="fold")
        for line in lines[1:]:
            grid.add_row(*line)
        return grid


def comparison(records: list[Record], columns: list[str] | None = None) -> Table:
    """Methods side by side: a row a method, mean and standard deviation over seeds.

    Runs of one method are those with the same label and the same configuration but for the
    seed. A run that stopped early does not enter a mean beside runs that ended. The best of a
    column is marked among methods on the same data, and only where every seed has a value.
    """
    found = runs.methods(records)
    names = _default_columns(records) if columns is None else _known(columns, records)
    several = len({method.data for method in found}) > 1
    heads = [Column("method", "method", text=True)]
    heads += [Column("data", "data", text=True)] if several else []
    attacked = any(runs.attack(record) for record in records)
    heads += [Column(_ATTACK, _ATTACK, text=True)] if attacked else []
    rows: list[list[Cell]] = []
    for method in found:
        row = [Cell(method.label + ("" if method.finished else " (unfinished)"))]
        row += [Cell(method.data)] if several else []
        rows.append([*row, *([Cell(runs.attack(method.runs[0]) or "none")] if attacked else [])])
    for name in names:
        cells = [_cell(method, name) for method in found]
        column = _column(name, cells)
        heads.append(column)
        for row, cell in zip(rows, _marked(cells, column, found), strict=True):
            row.append(cell)
    return Table(
        "Comparison of methods",
        tuple(heads),
        tuple(tuple(row) for row in rows),
        tuple(_footnotes(found, heads, rows)),
    )


def everything(records: list[Record]) -> Table:
    """Every metric of every method: a row a metric, a column a method."""
    found = runs.methods(records)
    names = [*runs.metric_names(r.metrics for r in records), "seconds", "bytes"]
    heads = [Column("metric", "metric", text=True)]
    heads += [Column(m.title, m.title + ("" if m.finished else " (unfinished)")) for m in found]
    rows = []
    for name in dict.fromkeys(names):
        cells = [_cell(method, name) for method in found]
        if all(cell.value is None for cell in cells):
            continue
        column = replace(_column(name, cells), scale=1.0)
        digits = 0 if name.startswith("bytes") else column.digits
        marked = _marked(cells, replace(column, digits=digits), found)
        rows.append((Cell(name), *(replace(cell, digits=digits) for cell in marked)))
    return Table("Every metric", tuple(heads), tuple(rows), tuple(_run_notes(found, rows)))


def verdict_table(record: Record) -> Table | None:
    """What a method's verdict says of each of its constraints; None where it lists none."""
    each = ((record.verdict or {}).get("facts") or {}).get("constraints")
    if not each:
        return None
    titles = {
        "zeta": "bound",
        "loss": "training loss",
        "violation": "loss less bound",
        "examples": "examples",
        "held_violation": "held out",
        "held_term": "held out, ±",
        "held_examples": "held-out examples",
    }
    heads = [Column("constraint", "constraint", text=True)]
    for name, title in titles.items():
        heads.append(Column(name, title, digits=0 if name.endswith("examples") else 4))
    rows = []
    for one in each:
        numbers = [_optional(one.get(name)) for name in titles]
        signed = [name.endswith("violation") for name in titles]
        cells = [Cell(at, signed=mark) for at, mark in zip(numbers, signed, strict=True)]
        rows.append((Cell(str(one["constraint"])), *cells))
    note = (
        "Held out: loss less bound on the test examples; ±: what it may be more among people like "
        "them, with 95 % confidence for all constraints at once (normal approximation)."
    )
    return Table(f"Constraints of {record.label}", tuple(heads), tuple(rows), (note,))


def verdicts(records: Sequence[Record]) -> Table | None:
    """Every run's verdict; None where no run has one."""
    found = [record for record in records if record.verdict is not None]
    if not found:
        return None
    heads = (
        Column("method", "method", text=True),
        Column("seed", "seed", digits=0),
        Column("verdict", "verdict", text=True),
        Column("worst", "worst constraint", text=True),
        Column("violation", "loss less bound", digits=4),
        Column("limit", "certified up to", digits=4),
        Column("held", "held out", digits=4),
    )
    rows = []
    for record in found:
        verdict = record.verdict or {}
        facts = verdict.get("facts") or {}
        held = [_optional(one.get("held_violation")) for one in facts.get("constraints") or ()]
        rows.append(
            (
                Cell(record.label),
                Cell(float(record.seed)),
                Cell(str(verdict.get("status", ""))),
                Cell(str(facts.get("worst", ""))),
                Cell(_optional(facts.get("violation")), signed=True),
                Cell(_optional(facts.get("bound"))),
                Cell(max((at for at in held if at is not None), default=None), signed=True),
            )
        )
    notes = (
        "satisfied: on the training examples no constraint is violated by more than the last but "
        "one column. null: not certified, and no model is given. no claim: figures only.",
    )
    return Table("Verdicts", heads, tuple(rows), notes)


def reproduction(rows: list[dict[str, Any]], scale: str = "") -> Table:
    """Published numbers beside ours, with the difference, whatever it is.

    `scale` says how large a run ours are from.

    Each row has `preset`, `method`, `setting`, `metric`, `paper` (None where the paper gives no
    number), `ours`, `spread` (None with one seed) and `seeds` (how many).

    >>> row = dict(preset="focus", method="FedAvg", setting="mu=0.1", metric="accuracy",
    ...            paper=0.81, ours=0.8, spread=0.012, seeds=3)
    >>> print(reproduction([row]).rows[0][6].value)
    -0.01
    """
    wanted = ("preset", "method", "setting", "metric", "paper", "ours", "spread", "seeds")
    heads = (
        *(Column(name, name, text=True) for name in wanted[:4]),
        Column("paper", "paper"),
        Column("ours", "ours"),
        Column("difference", "difference"),
        Column("seeds", "seeds", digits=0),
    )
    body = []
    for i, row in enumerate(rows):
        if missing := [name for name in wanted if name not in row]:
            raise ConfigError(f"reproduction row {i}: give it {', '.join(missing)}.")
        paper, ours, spread = (_optional(row[name]) for name in ("paper", "ours", "spread"))
        seeds = len(row["seeds"]) if isinstance(row["seeds"], list | tuple) else row["seeds"]
        digits = max(2, min(_decimals(paper), _MOST_DIGITS)) if paper is not None else None
        if digits is None:
            digits = _digits([ours], [spread])
        gap = None if paper is None or ours is None else round(ours - paper, 12)
        body.append(
            (
                *(Cell(str(row[name])) for name in wanted[:4]),
                Cell(paper, digits=digits),
                Cell(ours, spread=spread, digits=digits),
                Cell(gap, digits=digits, signed=True),
                Cell(float(seeds)),
            )
        )
    notes = [
        "Difference is ours minus the paper's number, before rounding.",
        "± is the standard deviation over seeds.",
    ]
    if any(row[4].value is None for row in body):
        notes.append(f"{ABSENT} under paper: the paper gives no number for this.")
    if any(row[5].value is None for row in body):
        notes.append(f"{ABSENT} under ours: not run yet.")
    title = "Published numbers and ours" + (f", scale {scale}" if scale else "")
    return Table(title, heads, tuple(body), tuple(notes))


def parts(cell: Cell, column: Column) -> tuple[str, str]:
    """The value as shown, and what follows it: spread, interval, number of runs."""
    at = cell.value
    if at is None:
        return ABSENT, ""
    if isinstance(at, str):
        return at, ""
    digits = column.digits if cell.digits is None else cell.digits
    if math.isnan(at):
        return UNDEFINED, ""

    def show(number: float, signed: bool = False) -> str:
        return _number(number / column.scale, digits, signed)

    rest = ""
    if cell.spread is not None and math.isfinite(cell.spread):
        rest += f" ± {show(cell.spread)}"
    elif cell.low is not None and cell.high is not None:
        rest += f" [{show(cell.low)}, {show(cell.high)}]"
    if cell.n < cell.of:
        rest += f" ({cell.n} of {cell.of})"
    return show(at, cell.signed), rest


def shown(cell: Cell, column: Column) -> str:
    """The whole cell as shown."""
    return "".join(parts(cell, column))


def _default_columns(records: Sequence[Record]) -> list[str]:
    """Accuracy (or loss), between clients, between groups, excess risk, costs: what is there."""
    there = set(runs.metric_names(r.metrics for r in records))
    what = "accuracy" if "accuracy" in there else "loss"
    wanted = [what, f"client.{what}.std", f"client.{what}.worst10"]
    firsts = [found[0] for r in records if (found := runs.attributes([r]))]
    for name in dict.fromkeys(firsts):
        gaps = ("demographic_parity", "equal_opportunity", "max_loss")
        wanted += [f"group.{name}.{gap}" for gap in gaps]
    if any("preference.0" in record.front for record in records):
        wanted += ["hv.local", "hv.global"]
    wanted += ["faa", "seconds", "bytes"]
    return [n for n in wanted if any(runs.value(record, n) is not None for record in records)]


def _known(columns: Sequence[str], records: Sequence[Record]) -> list[str]:
    for name in columns:
        if all(runs.value(record, name) is None for record in records):
            there = [*runs.metric_names(r.metrics for r in records), "seconds", "bytes"]
            raise ConfigError(unknown("metric", name, there))
    return list(columns)


def _cell(method: Method, name: str) -> Cell:
    values = method.values(name)
    of = len(method.runs)
    if not values:
        return Cell(of=of)
    stat = runs.stat(values)
    ends = runs.interval(method.runs[0], name) if of == 1 else None
    low, high = ends or (None, None)
    return Cell(stat.mean, stat.spread, low, high, stat.n, of)


def _column(name: str, cells: Sequence[Cell]) -> Column:
    values = [cell.value for cell in cells if isinstance(cell.value, float)]
    spreads = [cell.spread for cell in cells]
    metric = registry.find(name)
    title, scale = metric.title, 1.0
    if name.startswith("bytes"):
        top = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
        scale, unit = next(
            (at for at in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if top >= at[0]),
            (1.0, "B"),
        )
        title = f"{title} ({unit})"
    scaled = [None if at is None else at / scale for at in spreads]
    digits = _digits([v / scale for v in values], scaled)
    if name.startswith("bytes"):
        digits = min(digits, 2) if scale > 1 else 0
    if name in ("client.number", "client.left_out") and not any(scaled):
        digits = 0
    return Column(
        name,
        title,
        metric.meaning(),
        metric.better,
        metric.scope,
        digits=digits,
        scale=scale,
    )


def _marked(cells: Sequence[Cell], column: Column, found: Sequence[Method]) -> list[Cell]:
    """The cells with the best of each data set marked."""
    best: set[int] = set()
    for data in {method.data for method in found} if column.better else ():
        at = {
            i: round(cell.value / column.scale, column.digits)
            for i, (cell, method) in enumerate(zip(cells, found, strict=True))
            if method.data == data and method.finished and cell.n == cell.of
            if isinstance(cell.value, float) and math.isfinite(cell.value)
        }
        if len(at) > 1:
            top = (max if column.better == "higher" else min)(at.values())
            best |= {i for i, v in at.items() if v == top}
    return [replace(cell, best=i in best) for i, cell in enumerate(cells)]


def _footnotes(
    found: Sequence[Method], heads: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> list[str]:
    notes = []
    for column in heads:
        if not column.text:
            way = f" {column.better.capitalize()} is better." if column.better else ""
            notes.append(f"{column.title}: {column.meaning}{way}")
    return notes + _run_notes(found, rows)


def _run_notes(found: Sequence[Method], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Over which runs, which clients, which rounds the numbers are."""
    cells = [cell for row in rows for cell in row]
    notes = []
    seeds = {tuple(run.seed for run in method.runs) for method in found}
    if len(seeds) == 1:
        (only,) = seeds
        of = f"seed {only[0]}" if len(only) == 1 else f"{len(only)} seeds ({_some(only)})"
        notes.append(f"Values are of one run, {of}." if len(only) == 1 else f"Means over {of}.")
    else:
        each = (f"{m.title} {len(m.runs)} ({_some([r.seed for r in m.runs])})" for m in found)
        notes.append(f"Means over seeds: {'; '.join(each)}.")
    if any(cell.spread is not None for cell in cells):
        notes.append("± is the sample standard deviation over seeds (divided by n - 1).")
    if any(cell.low is not None for cell in cells):
        from isonomy.metrics.summary import LEVEL

        notes.append(
            f"[low, high] is the {LEVEL:.0%} bootstrap interval over clients of the one run."
        )
    if any(0 < cell.n < cell.of for cell in cells):
        notes.append(
            "(n of m): the mean is over the n seeds with a value; in the others it is undefined "
            "or absent. Such a value is never marked best."
        )
    if any(isinstance(c.value, float) and math.isnan(c.value) for c in cells):
        notes.append(
            f"{UNDEFINED}: there is no such number, for instance because a group is empty or "
            "training diverged."
        )
    if any(cell.value is None for cell in cells):
        notes.append(f"{ABSENT}: not measured in these runs.")
    if len({method.data for method in found}) > 1:
        notes.append("Methods are compared with those on the same data only.")
    notes += _attacks(found)
    for method in found:
        if not method.finished:
            at = ", ".join(str(runs.last_round(run)) for run in method.runs if not run.complete)
            notes.append(
                f"{method.title}: unfinished; its numbers are of the last evaluation up to round "
                f"{at}, and are never marked best."
            )
        if method.unfinished:
            which = _some([run.seed for run in method.unfinished])
            notes.append(f"{method.title}: left out seed {which}, which did not finish.")
        if method.repeated:
            which = _some([run.seed for run in method.repeated])
            notes.append(f"{method.title}: seed {which} was run again; the last run counts.")
    rounds = {m.title: {runs.last_round(run) for run in m.runs} - {None} for m in found}
    if len(set().union(*rounds.values())) > 1:
        each = (f"{title} {_some(sorted(at, key=str))}" for title, at in rounds.items())
        notes.append(f"The number of rounds differs: {'; '.join(each)}.")
    return notes + _left_out(found)


_ATTACK = "attack (benign clients measured)"


def _attacks(found: Sequence[Method]) -> list[str]:
    """That metrics are of benign clients only, for each attack that there was."""
    said: dict[str, list[str]] = {}
    for method in found:
        if what := runs.attack(method.runs[0]):
            said.setdefault(what, []).append(method.title)
    return [
        f"Under attack ({what}), metrics are of the benign clients only"
        + ("." if len(titles) == len(found) else f": {', '.join(titles)}.")
        for what, titles in said.items()
    ]


def _left_out(found: Sequence[Method]) -> list[str]:
    """Which clients `client.*` leaves out, said once where it is the same for all."""
    said: dict[str, list[str]] = {}
    for method in found:
        names = list(dict.fromkeys(n for run in method.runs for n in runs.left_out(run)))
        counts = [runs.number(run.metrics.get("client.left_out", 0)) for run in method.runs]
        if names:
            said.setdefault(_some(names), []).append(method.title)
        elif any(count > 0 for count in counts):
            said.setdefault(f"{max(counts):.0f} clients", []).append(method.title)
    return [
        f"Left out of the numbers over clients, having no examples in the evaluated split: {who}"
        + ("." if len(titles) == len(found) else f" (in {', '.join(titles)}).")
        for who, titles in said.items()
    ]


def _some(items: Sequence[Any]) -> str:
    named = ", ".join(str(item) for item in items[:_NAMED])
    return named + (f" and {len(items) - _NAMED} more" if len(items) > _NAMED else "")


def _optional(at: Any) -> float | None:
    return None if at is None else float(at)


def _decimals(number: float) -> int:
    """The decimals with which a number was given."""
    return len(f"{number!r}".partition("e")[0].partition(".")[2])


def _digits(values: Sequence[float | None], spreads: Sequence[float | None]) -> int:
    """Decimals that show three or four figures of the largest value and one of the spread."""
    top = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    if not top:
        return 3
    power = math.floor(math.log10(top))
    digits = 3 - power if power >= 0 else 2 - power
    wide = max((s for s in spreads if s is not None and math.isfinite(s)), default=0.0)
    if wide:
        digits = max(digits, min(-math.floor(math.log10(wide)), digits + 2))
    return max(0, min(digits, _MOST_DIGITS))


def _number(at: float, digits: int, signed: bool = False) -> str:
    sign = "+" if signed else ""
    if math.isinf(at):
        return f"{'-' if at < 0 else sign}∞"
    tiny = digits >= _MOST_DIGITS and 0 < abs(at) < 0.5 * 10**-_MOST_DIGITS
    if tiny or abs(at) >= 1e12:
        return f"{at:{sign}.3g}"
    comma = "," if abs(at) >= 1e5 else ""
    return f"{round(at, digits) + 0.0:{sign}{comma}.{digits}f}"  # + 0.0: no minus before a zero


def _full(at: float | str | None) -> str:
    if at is None:
        return ""
    return at if isinstance(at, str) else repr(float(at))


def _line(words_: str) -> str:
    """One line without control characters, so that no name can steer a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", words_)


def _md(words_: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", _line(words_))


_TEX: dict[str, str] = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "[": "{[}",  # after a line's end a bare bracket would be read as its option
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "–": "--",
    "−": "$-$",
}


def _tex(words_: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in _line(words_))
