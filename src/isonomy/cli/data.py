"""`data`: what there is to train on, fetching and checking it, and who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.shell import Group

app = typer.Typer(
    cls=Group,
    help="Data sets: list, fetch and check them; describe who holds what.\n\n"
    "Example: isonomy data describe adult",
    no_args_is_help=True,
)

_FORMATS = ("text", "json")


@app.command("ls")
def ls() -> None:
    """List the data sets, what there is to fetch of each, and whether it is here.

    Example: isonomy data ls
    """
    from isonomy.cli import stock

    stock.listed()


@app.command("get")
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Data sets; see `isonomy data ls`."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All that can be fetched.")] = False,
) -> None:
    """Fetch data sets into the cache, so that runs need no network.

    The cache is the folder named by the environment variable ISONOMY_DATA, else isonomy in your
    cache folder. What is there is not fetched again; what broke off is continued.

    Example: isonomy data get adult mnist
    """
    from isonomy.cli import stock

    stock.get(stock.chosen(names or [], every))


@app.command("check")
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Data sets; all that are here if left out."),
    ] = None,
    fetching: Annotated[bool, typer.Option("--get", help="Fetch what is not here first.")] = False,
) -> None:
    """Check the files in the cache: their SHA-256, and everything known of the data in them.

    Example: isonomy data check adult
    """
    from isonomy.cli import stock

    stock.check(names or [], fetching)


@app.command("describe")
def describe(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A data set, a config (a TOML file or a packaged one), a table or a folder of "
            "tables.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Of a data set or tables: keys of [data], e.g. clients=20; of a config: any.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="text or json.")
    ] = "text",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page with a figure as well."),
    ] = None,
) -> None:
    """Say who holds what, how clients differ, and what to beware of before training.

    Example: isonomy data describe adult clients=20 partition=dirichlet

    Example: isonomy data describe hospitals.toml --out hospitals.html
    """
    import json

    from isonomy.cli import described
    from isonomy.errors import ConfigError, unknown

    if format not in _FORMATS:
        raise ConfigError(unknown("format", format, _FORMATS))
    facts = described.describe(what, overrides or []).facts()
    if format == "json":
        typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        described.show(facts)
    if out is not None:
        from isonomy.report import page

        name = Path(what).stem or what
        page.write_data(facts, out, f"Data: {shell.one_line(name)}")
        output.tell(f"page: {out}")
