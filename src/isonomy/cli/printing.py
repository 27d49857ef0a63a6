"""How `ls`, `show` and `data ls` print: headings, paragraphs, lines and aligned tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_heading(out: Console, title: str, subtitle: str) -> None:
    """Print the title of a page, and a line below it."""
    from rich.text import Text

    out.print()
    out.print(Text(title, style="bold"))
    out.print(Text(subtitle, style="dim"))
    out.print()


def print_text(out: Console, text: str) -> None:
    """Print a longer text, indented on a terminal."""
    from rich.padding import Padding
    from rich.text import Text

    out.print(Padding(Text(text), (0, 0, 0, 2)) if out.is_terminal else Text(text))
    out.print()


def print_line(out: Console, text: str) -> None:
    """Print one line as it is, without markup."""
    from rich.text import Text

    out.print(Text(text))


def print_columns(
    out: Console, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print aligned columns; they wrap at the width of a terminal, and not in a pipe."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for i, head in enumerate(heads):
        grid.add_column(head, no_wrap=i == 0, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell, style="cyan" if i == 0 else "") for i, cell in enumerate(row)))
    out.print(grid)
