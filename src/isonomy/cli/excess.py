"""`excess`: measure the excess risk of a finished run again, with another surrogate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output

if TYPE_CHECKING:
    from isonomy.report.tables import Table
    from isonomy.runs.excess import ExcessRisk


def excess(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="The most training steps of a surrogate.")
    ] = None,
    checkpoints: Annotated[
        int | None, typer.Option("--checkpoints", min=1, help="How many models to choose from.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=0, help="Examples in a batch; 0 means all.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="The learning rate.")] = None,
    clusters: Annotated[
        str | None,
        typer.Option(
            "--clusters",
            metavar="true|found|own|one",
            help="Train a surrogate for each true cluster, each one that the method found, each "
            "client, or one for all.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write everything to this file."),
    ] = None,
) -> None:
    """Print each client's excess risk with its standard error, and FAA with its interval.

    The surrogates are trained again; what is not given is as in the run's config. The run does not
    change.

    Example: isonomy excess runs/mine

    Example: isonomy excess runs/mine --steps 10000 --clusters own --json excess.json
    """
    from isonomy import api

    found = api.excess(
        folder, steps=steps, checkpoints=checkpoints, batch=batch, lr=lr, clusters=clusters
    )
    output.print_table(_clients(found))
    typer.echo()
    output.print_table(_lengths(found))
    low, high = (_text(end) for end in (found.low, found.high))
    typer.echo(f"\nFAA {_text(found.faa)}, 95 % interval [{low}, {high}] over examples.")
    typer.echo(found.statement)
    if json_file is not None:
        text = json.dumps(found.plain(), indent=1, allow_nan=False) + "\n"
        output.write_text(json_file, text)
        output.print_status(f"excess: {json_file}")


def _clients(found: ExcessRisk) -> Table:
    """One row per client."""
    from isonomy.report.tables import Cell, Column, Table

    heads = (
        Column("client", "client", text=True),
        Column("cluster", "cluster", text=True),
        Column("surrogate", "surrogate's loss", digits=4),
        Column("excess", "excess", digits=4),
        Column("error", "standard error", digits=4),
        Column("reference", "reference", text=True),
    )
    rows = zip(
        found.clients,
        found.clusters,
        found.surrogate_loss,
        found.excess,
        found.error,
        found.better,
        strict=True,
    )
    cells = tuple(
        (
            Cell(name),
            Cell(str(cluster)),
            Cell(loss),
            Cell(above),
            Cell(error),
            Cell("own model" if better else "surrogate"),
        )
        for name, cluster, loss, above, error, better in rows
    )
    return Table("Excess risk of each client", heads, cells, ())


def _lengths(found: ExcessRisk) -> Table:
    """FAA by the length of a surrogate that is not chosen."""
    from isonomy.report.tables import Cell, Column, Table

    heads = (Column("steps", "steps of the surrogate", text=True), Column("faa", "FAA", digits=4))
    rows = tuple(
        (Cell(f"{steps:,}"), Cell(value))
        for steps, value in zip(found.lengths, found.by_length, strict=True)
    )
    return Table("FAA against surrogates of a fixed length, without a choice", heads, rows, ())


def _text(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
