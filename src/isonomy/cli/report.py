"""`report`: one HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs or of comparisons.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The page; report.html in the first RUN by default."
        ),
    ] = None,
) -> None:
    """Write one HTML page about runs: tables, figures, configs. It works offline.

    Example: isonomy report runs/quickstart runs/mine --out both.html
    """
    from isonomy import api
    from isonomy.report import summary
    from isonomy.report.tables import comparison

    records = api.load(*folders)
    table = comparison(records)
    output.print_table(table)
    for sentence in summary.sentences(records, table):
        typer.echo(sentence)
    title = f"Isonomy: {', '.join(folder.name for folder in folders)}"
    output.write_report(records, out or folders[0] / "report.html", title)
