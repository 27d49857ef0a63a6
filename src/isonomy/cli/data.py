"""`data`: what there is to train on, and fetching it beforehand."""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli import look, output
from isonomy.cli.shell import Group

app = typer.Typer(
    cls=Group,
    help="Data sets: list them, fetch them.\n\nExample: isonomy data get adult",
    no_args_is_help=True,
)


@app.command("ls")
def ls() -> None:
    """List the data sets.

    Example: isonomy data ls
    """
    look.list_data()


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set; see `isonomy ls data`.")],
) -> None:
    """Fetch a data set into the cache, so that runs need no network.

    The cache is the folder named by the environment variable ISONOMY_DATA, else isonomy in your
    cache folder.

    Example: isonomy data get adult
    """
    from isonomy.data.datasets import load

    said: set[str] = set()

    def progress(file: str, have: int, size: int) -> None:
        if have >= size and file not in said:
            said.add(file)
            output.tell(f"fetched {file}, {size:,} bytes")

    federation = load(name, progress=progress)
    rows, clients = federation.x.shape[0], len(federation)
    typer.echo(f"{name} is here: {rows:,} rows, {clients} clients by default.")
    if federation.origin:
        typer.echo(f"The files came from {federation.origin}.")
    for note in federation.notes:
        typer.echo(note)
