"""A table printed on a terminal with rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from isonomy.report.tables.cells import Cell, Column, parts, shown
from isonomy.report.tables.escaping import one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Terminal:
    """A table as rich prints it, with rows and columns swapped if it is too wide."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: Sequence[str]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich to print the table."""
        from rich.text import Text

        columns, rows = self.columns, self.rows
        heads = [max(map(len, column.title.split()), default=0) for column in columns]
        needed = sum(
            3 + max([head, *(len(shown(row[i], columns[i])) + row[i].best for row in rows)])
            for i, head in enumerate(heads)
        )
        if self.title:
            yield Text(one_line(self.title), style="bold")
        yield self._grid(flip=needed > options.max_width and len(columns) > len(rows) + 1)
        for note in self.notes:
            yield Text(one_line(note), style="dim")

    def _grid(self, flip: bool) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        columns, rows = self.columns, self.rows
        lines: list[list[Text]] = [[Text(one_line(column.title)) for column in columns]]
        for row in rows:
            line = []
            for cell, column in zip(row, columns, strict=True):
                main, rest = (one_line(part) for part in parts(cell, column))
                text = Text(main + "*" * cell.best, style="bold green" if cell.best else "")
                # A no-break space keeps the sign with its number if the cell wraps.
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
