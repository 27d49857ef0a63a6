"""`data describe`: what each client has, how clients differ, and warnings before training."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isonomy.cli import output, shell
from isonomy.cli.data.named_data import DataOverrides, NamedData, find_config
from isonomy.errors import ConfigError, unknown

if TYPE_CHECKING:
    pass

_FORMATS = ("text", "json")
_WIDTH = 100


def describe(
    what: NamedData,
    overrides: DataOverrides = None,
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text or json.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Also write a page with a figure."),
    ] = None,
) -> None:
    """Describe which client has what data, how clients differ, and warn of likely problems.

    Example: isonomy data describe adult clients=20 partition=dirichlet

    Example: isonomy data describe hospitals.toml --out hospitals.html
    """
    import json

    if format not in _FORMATS:
        raise ConfigError(unknown("format", format, _FORMATS))
    config = find_config(what, overrides or [])
    from isonomy.data import profile
    from isonomy.runs.build import effective, federation_of

    config = effective(config, shell.note)
    facts = profile.describe(federation_of(config), config.evaluate.split).facts()
    if format == "json":
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        _print(facts)
    if out is not None:
        from isonomy.report import page

        name = Path(what).stem or what
        page.write_data(facts, out, f"Data: {shell.one_line(name)}")
        output.print_status(f"page: {out}")


# --- printing ------------------------------------------------------------------------------------


def _print(facts: Mapping[str, Any]) -> None:
    """Print a summary, a table of clients, how they differ, and warnings."""
    from isonomy.report import data

    head = dict(data.headline(facts))
    counts = [f"{head.pop(key)} {key.lower()}" for key in ("Clients", "Rows", "Features")]
    typer.echo(f"{shell.one_line(head.pop('Data', 'data'))}: {'; '.join(counts)}")
    for name, text in head.items():
        typer.echo(shell.one_line(f"{name}: {text}"))
    typer.echo("")
    for table in (data.clients(facts), data.measures(facts)):
        if table is not None:
            output.print_table(table)
            typer.echo("")
    warnings = list(data.warnings(facts))
    typer.echo("Warnings" if warnings else "No warnings.")
    for weight, text in warnings:
        _print_warning(weight, text)


def _print_warning(weight: int, text: str) -> None:
    mark = "!" if weight > 2 else "-"
    line = shell.one_line(text)
    if not sys.stdout.isatty():
        typer.echo(f"{mark} {line}")
        return
    width = min(_WIDTH, shell.console().width)
    wrapped = textwrap.fill(line, width, initial_indent=f"{mark} ", subsequent_indent="  ")
    colour = {3: typer.colors.RED, 2: typer.colors.YELLOW}.get(weight)
    typer.secho(wrapped, fg=colour)
