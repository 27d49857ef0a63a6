"""`keys`: certificates and keys for a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output


def keys(
    clients: Annotated[
        list[str], typer.Argument(metavar="CLIENT", help="The names of the clients.")
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="The folder to write to.")
    ] = Path("keys"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", help="A name or address of the server; loopback is always included."
        ),
    ] = None,
) -> None:
    """Make certificates and keys for a federation.

    Example: isonomy keys north south east --host federation.example.org
    """
    from isonomy.federation.flower import keys as making
    from isonomy.federation.flower import processes

    processes.need_flower()
    for path in making.make(to, clients, host or []):
        typer.echo(str(path))
    output.print_status(
        "Send each client its own key and ca.crt over a channel that you trust; keep server.key "
        "here."
    )
