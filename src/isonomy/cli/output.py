"""Tables and reports as results: what is printed, what goes to files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from isonomy.cli.shell import console
from isonomy.errors import ConfigError, IsonomyError, unknown

if TYPE_CHECKING:
    from isonomy.report.tables import Table
    from isonomy.runs.record import Record

_SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv"}


FORMATS = ("text", "markdown", "latex", "csv")


def check_format(format: str | None) -> None:
    """Refuse an unknown format before anything is run."""
    if format is not None and format not in FORMATS:
        raise ConfigError(unknown("format", format, FORMATS))


def put(table: Table, format: str | None = None, out: Path | None = None) -> None:
    """Print a table, or write it to a file in the format asked for or told by the file's name."""
    if out is not None:
        save(out, getattr(table, format or _SUFFIXES.get(out.suffix, "text"))())
        tell(f"table: {out}")
    elif format is None and sys.stdout.isatty():
        console().print(table.rich())
    else:
        typer.echo(getattr(table, format or "text")(), nl=False)


def put_one(record: Record) -> None:
    """Print one run's main numbers, a line each."""
    from isonomy.report.tables import Cell, Column, Table, comparison, shown

    wide = comparison([record])
    heads = (
        Column("metric", "metric", text=True),
        Column("value", "value", text=True),
        Column("better", "better", text=True),
    )
    rows = [
        (Cell(column.title), Cell(shown(cell, column)), Cell(column.better or ""))
        for column, cell in zip(wide.columns, wide.rows[0], strict=True)
        if not column.text
    ]
    meanings = {f"{column.title}: " for column in wide.columns}
    notes = [note for note in wide.footnotes if not note.startswith(tuple(meanings))]
    put(Table(record.label, heads, tuple(rows), tuple(notes)))


def put_verdict(record: Record, *, named: bool = False) -> None:
    """Print what the method says of its model, if it does."""
    if record.verdict is not None:
        who = f" on {record.label}, seed {record.seed}" if named else ""
        typer.echo(f"verdict{who}: {record.verdict['status']}. {record.verdict['text']}")


WITHHELD = 3
"""The exit code of a run that ended without a model, by its method's verdict."""


def end_withheld(folders: Sequence[Path]) -> None:
    """End with that exit code if a run has no model to give."""
    from isonomy.runs.folder import RunFolder

    for folder in folders:
        if RunFolder(folder).withheld:
            tell(f"no model: the verdict is null; to have it, `isonomy resume {folder} --keep`.")
            raise typer.Exit(WITHHELD)


def report(records: Sequence[Record], path: Path, title: str) -> None:
    """Write the page and say where."""
    from isonomy.report import page

    page.write(list(records), path, title)
    tell(f"report: {path}")


def check_columns(columns: str | None) -> list[str] | None:
    """Names of metrics, refused before anything is run."""
    if columns is None:
        return None
    from isonomy.metrics import describe

    names = [name.strip() for name in columns.split(",") if name.strip()]
    for name in names:
        if name not in ("seconds", "bytes", "bytes.down", "bytes.up"):
            describe(name)
    return names or None


def save(path: Path, text: str) -> None:
    """Write a file, or say in a sentence why not."""
    save_bytes(path, text.encode())


def save_bytes(path: Path, content: bytes) -> None:
    """Write a file, or say in a sentence why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise IsonomyError(
            f"'{path}' cannot be written ({error.strerror}); choose another file."
        ) from None


def tell(text: str) -> None:
    """Say where something is, on the error stream: the output stream carries results only."""
    typer.echo(text, err=True)
