"""`data get`: download data sets into the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli import shell
from isonomy.cli.data.downloads import check_names, downloadable, show_downloads
from isonomy.errors import ConfigError, DataError, IsonomyError


def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Data sets; see `isonomy data ls`."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that can be downloaded.")] = False,
    sentences: Annotated[
        bool,
        typer.Option(
            "--sentences",
            help="Also encode the texts of data sets of texts, for features = 'sentences'.",
        ),
    ] = False,
) -> None:
    """Download data sets into the cache, so that runs need no network.

    The cache is the folder named by the environment variable ISONOMY_DATA, or `isonomy` in your
    cache folder. Files that are there are not downloaded again; broken downloads are continued.
    With --sentences the encoder is downloaded too and the texts' vectors are computed, which takes
    minutes; if it is interrupted, the next call continues.

    Example: isonomy data get adult mnist
    """
    from isonomy.data.datasets import DATASETS, load

    if not every and not names:
        raise ConfigError("no data set was given; name one or more, or give --all.")
    wanted = downloadable() if every else check_names(names or [])
    failed = []
    for name in wanted:
        encode = sentences and (not every or "features" in DATASETS[name].options)
        options = {"features": "sentences"} if encode else {}
        try:
            with show_downloads(name) as progress:
                federation = load(name, options=options, progress=progress)
        except IsonomyError as error:
            if len(wanted) == 1:
                raise
            failed.append(name)
            shell.note(f"{name}: {error}")
            continue
        rows, clients = federation.x.shape[0], len(federation)
        typer.echo(f"{name} is ready: {rows:,} rows, {clients} clients by default.")
        if federation.origin:
            typer.echo(f"The files came from {federation.origin}.")
        for note in federation.notes:
            typer.echo(note)
    if failed:
        raise DataError(
            f"{len(failed)} of {len(wanted)} data sets could not be loaded: {', '.join(failed)}; "
            "the notes above give the reasons."
        )
