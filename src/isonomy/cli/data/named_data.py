"""Which data a command is about: a data set, tables, or those of a config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isonomy.cli import shell
from isonomy.cli.packaged_configs import packaged_configs
from isonomy.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from isonomy.config.schema import Config

NamedData = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="A data set, a config (a TOML file or a packaged one), a table or a folder of tables.",
    ),
]
DataOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="For a data set or tables: keys of \\[data], e.g. clients=20; for a config: any key.",
        show_default=False,
    ),
]


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
