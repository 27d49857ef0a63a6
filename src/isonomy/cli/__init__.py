"""The command line: one module for each group of verbs; heavy imports wait inside the verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli import data, export, federation, fronts, init, look, many, single, suggest
from isonomy.cli.shell import Group

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Group,
    name="isonomy",
    help="Fair federated learning: run published methods, measure them alike, compare.\n\n"
    "Example: isonomy compare quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import isonomy

        typer.echo(f"isonomy {isonomy.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


for module in (init, look, single, many, fronts, export, federation, suggest):
    module.add(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line."""
    app(prog_name="isonomy")


if __name__ == "__main__":
    main()
