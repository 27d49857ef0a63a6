"""How verbs print and write results: tables, verdicts, reports, files."""

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
    """Raise an error if the format is unknown; called before anything runs."""
    if format is not None and format not in FORMATS:
        raise ConfigError(unknown("format", format, FORMATS))


def print_table(table: Table, format: str | None = None, out: Path | None = None) -> None:
    """Print a table, or write it to a file; the format is given or follows from the file's name."""
    if out is not None:
        write_text(out, getattr(table, format or _SUFFIXES.get(out.suffix, "text"))())
        print_status(f"table: {out}")
    elif format is None and sys.stdout.isatty():
        console().print(table.rich())
    else:
        typer.echo(getattr(table, format or "text")(), nl=False)


def print_run(record: Record) -> None:
    """Print the main metrics of a run, one per line, beside those of a constant prediction."""
    from isonomy.report.tables import Cell, Column, Table, comparison, shown

    wide = comparison([record])  # the run, and below it the constant prediction if there is one
    titles = ("value", *(str(row[0].value) for row in wide.rows[1:]))
    heads = tuple(Column(name, name, text=True) for name in ("metric", *titles, "better"))
    rows = [
        (
            Cell(column.title),
            *(Cell(shown(cell, column)) for cell in cells),
            Cell(column.better or ""),
        )
        for column, *cells in zip(wide.columns, *wide.rows, strict=True)
        if not column.text
    ]
    meanings = tuple(f"{column.title}: {column.meaning}" for column in wide.columns)
    notes = [note for note in wide.footnotes if not note.startswith(meanings)]
    print_table(Table(record.label, heads, tuple(rows), tuple(notes)))


def print_verdict(record: Record, *, with_label: bool = False) -> None:
    """Print the method's verdict on its model, if it gives one."""
    if record.verdict is not None:
        who = f" on {record.label}, seed {record.seed}" if with_label else ""
        typer.echo(f"verdict{who}: {record.verdict['status']}. {record.verdict['text']}")


NOT_MET = 3
BUDGET_ENDED = 4
"""The exit code of a run whose verdict is not `met`, whether its model was kept or not."""


DIVERGED = 4
"""The exit code of a comparison in which a method diverged with every seed."""


def exit_if_diverged(records: Sequence[Record]) -> None:
    """Exit with code `DIVERGED` if a method diverged with every seed; warn if with some."""
    states: dict[str, list[bool]] = {}
    for record in records:
        states.setdefault(record.label, []).append("diverged" in record.facts)
    for label, each in states.items():
        if any(each):
            print_status(f"Warning: {label} diverged in {sum(each)} of {len(each)} runs.")
    if any(all(each) for each in states.values()):
        raise typer.Exit(DIVERGED)


def exit_if_budget_ended(record: Record) -> None:
    """Exit with code `BUDGET_ENDED` if the privacy budget ended training early."""
    status = str(record.facts.get("privacy", {}).get("status", ""))
    if status.startswith("ended"):
        print_status(f"training was {status}.")
        raise typer.Exit(BUDGET_ENDED)


def exit_if_not_met(folder: Path) -> None:
    """Exit with code `NOT_MET` if the run in the folder has a verdict that is not `met`."""
    from isonomy.runs.folder import RunFolder

    place = RunFolder(folder)
    verdict = place.verdict()
    if verdict is None or verdict["status"] == "met":
        return
    if place.withheld:
        text = f"no model was written, because the verdict is '{verdict['status']}'"
        if not place.served:
            text += f"; to write it anyway, run `isonomy resume {folder} --keep`"
        print_status(f"{text}.")
    raise typer.Exit(NOT_MET)


def write_report(records: Sequence[Record], path: Path, title: str) -> None:
    """Write the HTML report and print its path."""
    from isonomy.report import page

    page.write(list(records), path, title)
    print_status(f"report: {path}")


def check_columns(columns: str | None) -> list[str] | None:
    """The metrics in the text; raises an error if one is unknown, before anything runs."""
    if columns is None:
        return None
    from isonomy.metrics import parse

    names = [name.strip() for name in columns.split(",") if name.strip()]
    for name in names:
        parse(name)
    return names or None


def write_text(path: Path, text: str) -> None:
    """Write a text file; raises IsonomyError if that fails."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file and the folders above it; raises IsonomyError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise IsonomyError(
            f"'{path}' cannot be written ({error.strerror}); choose another file."
        ) from None


def print_status(text: str) -> None:
    """Print a line on standard error; standard output has only results."""
    typer.echo(text, err=True)
