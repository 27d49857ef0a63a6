"""A table and its formats: plain text, Markdown, LaTeX, CSV, a terminal."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from isonomy.core.csv_cell import csv_cell
from isonomy.report.tables import escaping
from isonomy.report.tables.cells import Cell, Column, parts, shown
from isonomy.report.tables.escaping import one_line
from isonomy.report.tables.terminal import Terminal

_HEADER_WIDTH = 16


@dataclass(frozen=True)
class Table:
    """A title, columns, rows with one cell per column, and footnotes."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footnotes: tuple[str, ...] = ()
    best: str = ""  # what a mark means, after "a star marks"

    def text(self) -> str:
        """Aligned plain text; a star marks the best value of a column."""
        heads = [textwrap.wrap(one_line(c.title), _HEADER_WIDTH) or [""] for c in self.columns]
        height = max((len(head) for head in heads), default=0)
        heads = [[""] * (height - len(head)) + head for head in heads]
        marked = [any(row[i].best for row in self.rows) for i in range(len(self.columns))]
        body = [
            [
                one_line(shown(cell, column)) + (("*" if cell.best else " ") if mark else "")
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

        lines = [one_line(self.title)] if self.title else []
        lines += [line([head[i] for head in heads]) for i in range(height)]
        lines += ["-" * (sum(widths) + 2 * (len(widths) - 1)), *(line(row) for row in body)]
        notes = self._notes("A star marks")
        return "\n".join([*lines, *([""] if notes else []), *(one_line(n) for n in notes)]) + "\n"

    def markdown(self) -> str:
        """GitHub Markdown; the best value of a column is bold."""
        lines = [f"**{escaping.markdown(self.title)}**", ""] if self.title else []
        lines.append("| " + " | ".join(escaping.markdown(c.title) for c in self.columns) + " |")
        lines.append("| " + " | ".join("---" if c.text else "---:" for c in self.columns) + " |")
        for row in self.rows:
            cells = []
            for cell, column in zip(row, self.columns, strict=True):
                main, rest = map(escaping.markdown, parts(cell, column))
                cells.append((f"**{main}**" if cell.best else main) + rest)
            lines.append("| " + " | ".join(cells) + " |")
        notes = self._notes("Bold marks")
        lines += ["", *(f"- {escaping.markdown(note)}" for note in notes)] if notes else []
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        r"""A `table` with booktabs rules (`\usepackage{booktabs}`); the best values are bold."""
        layout = "".join("l" if c.text else "r" for c in self.columns)
        lines = [r"\begin{table}", r"\centering"]
        if self.title:
            lines.append(rf"\caption{{{escaping.latex(self.title)}}}")
        lines += [rf"\begin{{tabular}}{{{layout}}}", r"\toprule"]
        lines += [" & ".join(escaping.latex(c.title) for c in self.columns) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = []
            for cell, column in zip(row, self.columns, strict=True):
                main, rest = map(escaping.latex, parts(cell, column))
                cells.append((rf"\textbf{{{main}}}" if cell.best else main) + rest)
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        notes = self._notes("Bold marks")
        if notes:
            lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}\footnotesize"]
            lines += [" \\\\\n".join(escaping.latex(note) for note in notes)]
            lines += [r"\end{minipage}"]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def csv(self) -> str:
        """CSV: every number in full, with columns for its spread, interval and number of runs."""
        head: list[str] = []
        extras: list[list[str]] = []
        for i, column in enumerate(self.columns):
            at = [row[i] for row in self.rows]
            has = {
                "std": any(cell.spread is not None for cell in at),
                "low": any(cell.low is not None for cell in at),
                "high": any(cell.high is not None for cell in at),
                "n": any(cell.of for cell in at),
                "note": any(cell.note for cell in at),
            }
            extras.append([name for name, there in has.items() if there])
            head += [column.name, *(f"{column.name} {name}" for name in extras[-1])]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(csv_cell, head))
        for row in self.rows:
            line: list[str] = []
            for cell, extra in zip(row, extras, strict=True):
                each = {"std": cell.spread, "low": cell.low, "high": cell.high}
                line.append(_full(cell.value))
                given = {"n": str(cell.n), "note": cell.note}
                line += [given[e] if e in given else _full(each[e]) for e in extra]
            writer.writerow(map(csv_cell, line))
        return out.getvalue()

    def rich(self) -> Terminal:
        """For a terminal: `rich.print(table.rich())`; the best values are bold, green and starred.

        If the rows are too wide for the terminal, they become columns.
        """
        return Terminal(self.title, self.columns, self.rows, self._notes("A star marks"))

    def _notes(self, mark: str) -> list[str]:
        if not any(cell.best for row in self.rows for cell in row):
            return list(self.footnotes)
        return [
            f"{mark} {self.best or 'the best value, and values that are equal to it as shown.'}",
            *self.footnotes,
        ]


def _full(at: float | str | None) -> str:
    if at is None:
        return ""
    return at if isinstance(at, str) else repr(float(at))
