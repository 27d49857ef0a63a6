"""`data describe`: what each client has, how clients differ, and warnings before training."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isonomy.cli import output, shell
from isonomy.cli.packaged_configs import packaged_configs
from isonomy.errors import ConfigError, did_you_mean, unknown

if TYPE_CHECKING:
    from isonomy.config.schema import Config

_FORMATS = ("text", "json")
_WIDTH = 100


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
            help="For a data set or tables: keys of [data], e.g. clients=20; for a config: any "
            "key.",
            show_default=False,
        ),
    ] = None,
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


# --- what is described ---------------------------------------------------------------------------


def find_config(what: str, overrides: Sequence[str]) -> Config:
    """The config of the data that are named.

    `what` is the name of a data set or the path of tables, and then `overrides` are keys of [data];
    or it is a config, a file or a packaged one, and then they are any of its keys.
    """
    from isonomy import api
    from isonomy.data.datasets import DATASETS

    path = Path(os.path.expanduser(what))
    if what in DATASETS:
        return _data_config({"name": what}, overrides)
    if path.exists() and path.suffix != ".toml":
        return _data_config(_tables(path, overrides), overrides)
    if path.suffix == ".toml" or what in packaged_configs():
        return api.make_config(what, *overrides)
    raise ConfigError(
        f"'{what}' is not a data set, a config or an existing path; see `isonomy data ls`, or give "
        f"a TOML file, a table or a folder of tables."
        f"{did_you_mean(what, [*DATASETS, *packaged_configs()])}"
    )


def _data_config(data: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    from isonomy.config.overrides import merge, parse_override
    from isonomy.config.schema import parse

    values: dict[str, Any] = {"data": dict(data)}
    for text in overrides:
        given = parse_override(text)
        at = given["data"] if set(given) == {"data"} and isinstance(given["data"], dict) else given
        values = merge(values, {"data": at})
    return parse(values, where="data")


def _tables(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The [data] table of a user's tables; without a label it is guessed, with a note."""
    whole = str(path.absolute())
    if any(text.removeprefix("data.").startswith("label=") for text in overrides):
        return {"path": whole}
    import tomllib

    from isonomy.data.tables.first_config import starter
    from isonomy.data.tables.guess import guess
    from isonomy.data.tables.sample import look_at

    guessed = guess(look_at(path))
    if not guessed.label:
        raise ConfigError(
            f"no column of '{path}' is clearly the label; name it, e.g. `isonomy data describe "
            f"{path} label=COLUMN`."
        )
    text = starter(guessed, name="tables", path=whole, command="isonomy", held="")
    data: dict[str, Any] = tomllib.loads(text)["data"]
    protected = ", ".join(guessed.protected) or "none"
    shell.note(
        f"guessed: label = {guessed.label}, protected = {protected}; change them with label=... "
        f"protected=..., or write all guesses to a config with `isonomy init {path}`."
    )
    return data


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
