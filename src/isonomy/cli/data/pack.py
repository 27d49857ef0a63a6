"""`data pack`: write data once, so that runs map them into memory and do not load them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.data.named_data import DataOverrides, NamedData, find_config


def pack(
    what: NamedData,
    overrides: DataOverrides = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="New folder for the data.")
    ] = None,
) -> None:
    """Write data to a folder that runs map into memory: for many clients, or much data.

    Preprocessing, splits and clients are fixed then. Use it with data.name=packed.

    Example: isonomy data pack devices clients=100000 --to data/devices
    """
    from isonomy.data.packed import pack as write
    from isonomy.runs.build import effective, parts_of

    config = effective(find_config(what, overrides or []), shell.note)
    place = to or Path("data") / (Path(what).stem or what)
    found = write(parts_of(config), place)
    rows = f"{len(found):,} clients, {found.x.shape[0]:,} examples"
    output.print_status(f"packed: {place} ({rows}, digest {found.digest[:8]})")
    typer.echo(f'data = {{ name = "packed", path = "{place}" }}')
