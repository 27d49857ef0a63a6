"""`init`: write a first config for a folder of tables."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from isonomy.cli.arguments import Overwrite
from isonomy.cli.shell import one_line
from isonomy.errors import ConfigError, IsonomyError

if TYPE_CHECKING:
    from isonomy.data.federation import Federation
    from isonomy.data.tables.guess import Guess
    from isonomy.data.tables.sample import Look

MAX_CHECKED = 200_000_000  # bytes of tables that are read completely to check the config


def init(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A folder with one table per client, or one table (CSV, Parquet)."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE.toml", help="The config; NAME.toml here by default."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Inspect your own tables and write a first config, with guesses for you to check.

    Example: isonomy init hospitals
    """
    out = to or Path(f"{_name(path)}.toml")
    _check_target(out, overwrite)
    from isonomy.data.tables.first_config import requirements, starter
    from isonomy.data.tables.guess import guess, resized
    from isonomy.data.tables.sample import look_at

    look = look_at(path)
    guessed = guess(look)
    place = path if look.folder else look.paths[0]
    write = partial(
        starter,
        name=out.stem,
        path=relative(place, out.parent),
        command=f"isonomy init {shlex.quote(str(path))}",
        held=_held(look),
    )
    text = write(guessed)
    trouble, found = check(text, out, look)
    if found is not None:  # the sample may have missed clients of a single table
        guessed = resized(guessed, len(found), found.x.shape[0])
        text = write(guessed)
    _write(out, text)
    typer.echo("\n".join(_summary(look, guessed, place)))
    if guessed.doubts:
        typer.echo("\nPlease check:")
        for doubt in guessed.doubts:
            typer.echo(f"- {one_line(doubt)}")
    typer.echo("")
    if not guessed.label:
        typer.echo(f"Wrote {out}; it needs a label before it can run.")
    elif trouble:
        typer.echo(f"Wrote {out}; it cannot run yet: {one_line(trouble)}")
    else:
        typer.echo(f"Wrote {out}; every guess is marked, with its reason; {_counts(found)}.")
    file = shlex.quote(str(out))
    typer.echo(f"\nNext:\n  isonomy data describe {file}\n  isonomy compare {file}")
    wanted = requirements(guessed)
    if wanted:
        asked = " ".join(f"--require {shlex.quote(text)}" for text in wanted)
        typer.echo(f"  isonomy decide {file} {asked}")


def _name(path: Path) -> str:
    """The name of a folder, or of a file without its suffix."""
    from isonomy.data.tables.files import client_name

    whole = Path(os.path.abspath(path.expanduser()))
    return (whole.name if whole.is_dir() else client_name(whole)) or "tables"


def _check_target(out: Path, overwrite: bool) -> None:
    """Raise an error if the config cannot be written there."""
    if out.suffix != ".toml":
        raise ConfigError(f"--to {out}: a config is a TOML file; give a name that ends in .toml.")
    if out.is_dir() or (out.exists() and not overwrite):
        raise ConfigError(
            f"'{out}' exists already; give another file with --to, or replace it with --overwrite."
        )


def relative(place: Path, folder: Path) -> str:
    """The path of tables relative to the folder of the config, with forward slashes."""
    short = os.path.relpath(place.expanduser(), folder)
    if (folder / short).resolve() != place.expanduser().resolve():  # a symbolic link is in between
        short = os.path.relpath(place.expanduser().resolve(), folder.resolve())
    return Path(short).as_posix()


def check(text: str, out: Path, look: Look) -> tuple[str, Federation | None]:
    """The first problem of the config, or an empty text and the federation that it gives.

    For tables that are too large to be read twice, only the sample is checked, and the federation
    is None.
    """
    import tomllib

    from isonomy.config.files import with_data_path
    from isonomy.config.schema import parse
    from isonomy.data.tables.sample import look_at

    config = parse(with_data_path(tomllib.loads(text), out.parent), where=out.name)
    try:
        if look.size > MAX_CHECKED:
            options = dict(config.data.options)
            if "missing" in options:  # without these values, more columns are numeric
                look = look_at(options["path"], options["missing"])
            _check_sample(options, look)
            return "", None
        from isonomy.runs.build import build

        return "", build(config).federation
    except IsonomyError as error:
        return str(error), None


def _counts(found: Federation | None) -> str:
    from isonomy.report.phrases import counted

    if found is None:
        return "only a sample of the tables was read, and its columns agree"
    return (
        f"the tables agree: {counted(len(found), 'client')}, "
        f"{counted(found.x.shape[0], 'row')}, {counted(len(found.features), 'feature')} "
        "(one per value of a category)"
    )


def _check_sample(options: dict[str, Any], look: Look) -> None:
    """Raise an error if the columns of the sample do not agree."""
    from isonomy.data.tables.agreement import agree
    from isonomy.data.tables.columns import Table
    from isonomy.data.tables.files import client_name
    from isonomy.data.tables.local_clients import LocalClients
    from isonomy.data.tables.roles import Roles

    there = {name for table in look.tables.values() for name in table.columns}
    there.discard(options.get("client", ""))
    chosen = {key: value for key, value in options.items() if key in Roles.__dataclass_fields__}
    for key in ("drop", "categorical"):  # they may be in a file outside the sample
        chosen[key] = tuple(name for name in chosen.get(key, ()) if name in there)
    chosen["protected"] = tuple(chosen.get("protected", ()))

    class Sample:
        names = tuple(client_name(look.paths[k]) for k in look.tables)

        def open(self, client: int) -> Table:
            table = list(look.tables.values())[client]
            columns = {name: table.columns[name] for name in table.columns if name in there}
            return Table(columns, table.rows, table.place)

    agree(LocalClients(cast(Any, Sample())), Sample.names, Roles(**chosen))


def _write(out: Path, text: str) -> None:
    """Write the config atomically."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise IsonomyError(
            f"'{out}' cannot be written ({error.strerror}); give another file with --to."
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _held(look: Look) -> str:
    number = f"{len(look.paths)} tables, one per client" if look.folder else "one table"
    if look.excluded:
        number = f"{len(look.paths)} tables are used, one per client"
    return f"{number}; {look.rows_text} rows"


def _summary(look: Look, guess: Guess, place: Path) -> list[str]:
    """The guesses, one per line."""
    from isonomy.data.tables.roles import listed

    what = f"{len(look.paths)} tables in {place}" if look.folder else str(place)
    if look.excluded:
        what += f" ({len(look.excluded)} other files are excluded)"
    columns = len({name for header in look.headers for name in header})
    lines = [f"Inspected {what}: {look.rows_text} rows, {columns} columns.", ""]
    label = guess.label or "not found"
    label += f" ({listed(list(guess.classes), 4)})" if guess.classes else ""
    label += f", class 1 is {guess.positive}" if guess.positive else ""
    rows = [("label", label)]
    if guess.client:
        rows.append(("client", f"{guess.client}: {guess.why['client']}"))
    elif guess.clients:
        rows.append(("client", f"rows are distributed to {guess.clients} clients at random"))
    cuts = [
        f"{name} ({_cut(guess.bins[name])})" if name in guess.bins else name
        for name in guess.protected
    ]
    rows.append(("protected", ", ".join(cuts) or "none found"))
    rows.append(("features", f"{len(guess.features)}: {listed(list(guess.features), 12)}"))
    if guess.twins:
        rows.append(("twins", listed([f"{k} ({v})" for k, v in guess.twins.items()], 8)))
    if guess.categorical:
        rows.append(("codes", f"{listed(list(guess.categorical), 12)} (categories, not numbers)"))
    if guess.split:
        rows.append(("split", f"from column {guess.split}"))
    if guess.drop:
        dropped = [f"{name} ({why})" for name, why in guess.drop.items()]
        rows.append(("dropped", listed(dropped, 12)))
    return lines + [f"  {name:<10} {one_line(text)}" for name, text in rows]


def _cut(edges: tuple[int, ...] | int) -> str:
    return (
        f"{edges} groups" if isinstance(edges, int) else f"cut at {' and '.join(map(str, edges))}"
    )
