"""From what a user names to a federation, and a description of it on the terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from isonomy.cli import catalogue, output, shell
from isonomy.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from isonomy.config.schema import Config
    from isonomy.data.profile import Description

_WIDTH = 100


def describe(what: str, overrides: Sequence[str]) -> Description:
    """The description of what is named."""
    config = named(what, overrides)
    from isonomy.data.profile import describe
    from isonomy.runs.build import effective, federation_of

    config = effective(config, shell.note)
    return describe(federation_of(config), config.evaluate.split)


def named(what: str, overrides: Sequence[str]) -> Config:
    """A config whose data are those named.

    A data set's name, with the keys of its own; tables by their path, likewise; or a config, a
    file or a packaged one, with any of its keys.
    """
    from isonomy import api

    path = Path(os.path.expanduser(what))
    if any(entry.name == what for entry in catalogue.datasets()):
        return _of_data({"name": what}, overrides)
    if path.exists() and path.suffix != ".toml":
        return _of_data(_tables(path, overrides), overrides)
    if path.suffix == ".toml" or what in catalogue.presets():
        return api.make_config(what, *overrides)
    known = [*(entry.name for entry in catalogue.datasets()), *catalogue.presets()]
    raise ConfigError(
        f"'{what}' is no data set, no config and no path here; see `isonomy data ls`, or give a "
        f"TOML file, a table or a folder of tables.{did_you_mean(what, known)}"
    )


def _of_data(data: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    from isonomy.config.overrides import merge, parse_override
    from isonomy.config.schema import parse

    values: dict[str, Any] = {"data": dict(data)}
    for text in overrides:
        given = parse_override(text)
        at = given["data"] if set(given) == {"data"} and isinstance(given["data"], dict) else given
        values = merge(values, {"data": at})
    return parse(values, where="data")


def _tables(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Own tables: with the label given, as they are; without, with guesses, which are told."""
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
            f"no column of '{path}' is plainly the label; say which is, e.g. `isonomy data "
            f"describe {path} label=COLUMN`."
        )
    text = starter(guessed, name="tables", path=whole, command="isonomy", held="")
    data: dict[str, Any] = tomllib.loads(text)["data"]
    protected = ", ".join(guessed.protected) or "none"
    shell.note(
        f"guessed: label = {guessed.label}, protected = {protected}; say otherwise with label=... "
        f"protected=..., or write all guesses to a config with `isonomy init {path}`."
    )
    return data


# --- printing ------------------------------------------------------------------------------------


def show(facts: Mapping[str, Any]) -> None:
    """A head, a table of clients, how they differ, what to beware of."""
    from isonomy.report import data

    head = dict(data.headline(facts))
    what = [f"{head.pop('Clients')} clients", f"{head.pop('Rows')} rows"]
    what += [f"{head.pop('Features')} features"]
    typer.echo(f"{shell.one_line(head.pop('Data', 'data'))}: {'; '.join(what)}")
    for name, text in head.items():
        typer.echo(shell.one_line(f"{name}: {text}"))
    typer.echo("")
    for table in (data.clients(facts), data.measures(facts)):
        if table is not None:
            output.put(table)
            typer.echo("")
    said = list(data.warnings(facts))
    typer.echo("Beware" if said else "Nothing to beware of was found.")
    for weight, text in said:
        _warn(weight, text)


def _warn(weight: int, text: str) -> None:
    mark = "!" if weight > 2 else "-"
    line = shell.one_line(text)
    if not sys.stdout.isatty():
        typer.echo(f"{mark} {line}")
        return
    width = min(_WIDTH, shell.console().width)
    wrapped = textwrap.fill(line, width, initial_indent=f"{mark} ", subsequent_indent="  ")
    colour = {3: typer.colors.RED, 2: typer.colors.YELLOW}.get(weight)
    typer.secho(wrapped, fg=colour)
