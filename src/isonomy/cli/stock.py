"""Data sets as files: which there are, fetching them, and whether those here are the right ones."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from isonomy.cli import catalogue, output, shell
from isonomy.errors import ConfigError, DataError, IsonomyError, unknown

if TYPE_CHECKING:
    from isonomy.data.datasets import Dataset
    from isonomy.data.download.fetch import File, Progress
    from isonomy.report.tables import Table

Choices = Sequence[Sequence["File"]]
_GENERATED = ("generated", "yours")  # licences of what is not fetched


# --- ls ------------------------------------------------------------------------------------------


def listed() -> None:
    """Print every data set: name, description, bytes to fetch, whether they are here."""
    from isonomy.cli.look import table
    from isonomy.data.download.fetch import folder

    cache = folder()
    rows = []
    for entry, choices in catalogue.files_of_datasets():
        if choices is None:
            size, here = "?", ""
        elif not choices:
            size, here = "", ""
        else:
            size = megabytes(sum(file.size for file in choices[0]))
            here = "here" if _complete(choices, cache) else ""
        rows.append((entry.name, entry.text, size, here))
    out = shell.console()
    table(out, "Data sets", ("name", "what it is", "to fetch", "here"), rows)
    out.print(f"Files are kept in {cache}.", markup=False)


def _complete(choices: Choices, cache: Path) -> Sequence[File] | None:
    """The first choice whose files are all in the cache."""
    for choice in choices:
        if all((cache / file.name).is_file() for file in choice):
            return choice
    return None


def megabytes(size: int) -> str:
    """Bytes for people.

    >>> megabytes(5_977_458), megabytes(41_000)
    ('6.0 MB', '0.04 MB')
    """
    at = size / 1e6
    return f"{at:.0f} MB" if at >= 10 else f"{at:.1f} MB" if at >= 0.1 else f"{at:.2f} MB"


# --- get -----------------------------------------------------------------------------------------


def chosen(names: Sequence[str], every: bool) -> list[str]:
    """The data sets asked for, known and each once."""
    from isonomy.data.datasets import DATASETS

    if every:
        return [name for name, dataset in DATASETS.items() if dataset.files]
    if not names:
        raise ConfigError("no data set was named; give one or more, or --all.")
    for name in names:
        if name not in DATASETS:
            raise ConfigError(unknown("data set", name, DATASETS))
    return list(dict.fromkeys(names))


def get(names: Sequence[str]) -> None:
    """Fetch and read each; those that cannot be had are told at the end, when there are several."""
    from isonomy.data.datasets import load

    failed = []
    for name in names:
        try:
            with watched(name) as progress:
                federation = load(name, progress=progress)
        except IsonomyError as error:
            if len(names) == 1:
                raise
            failed.append(name)
            shell.note(f"{name}: {error}")
            continue
        rows, clients = federation.x.shape[0], len(federation)
        typer.echo(f"{name} is here: {rows:,} rows, {clients} clients by default.")
        if federation.origin:
            typer.echo(f"The files came from {federation.origin}.")
        for note in federation.notes:
            typer.echo(note)
    if failed:
        raise DataError(
            f"{len(failed)} of {len(names)} data sets could not be had: {', '.join(failed)}; the "
            "notes above say why."
        )


@contextlib.contextmanager
def watched(title: str) -> Iterator[Progress]:
    """Something that follows downloads: a bar for each file, or a line when it is here."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=shell.console(err=True), transient=True) as bars:
        waiting = bars.add_task(title, total=None)

        def follow(file: str, have: int, size: int) -> None:
            if file not in tasks:
                bars.update(waiting, visible=False)
                tasks[file] = bars.add_task(file, total=size or None)
            bars.update(tasks[file], completed=have, total=size or None)
            if size and have >= size:
                bars.update(waiting, visible=True)  # reading, or the next file's source

        yield follow


def _lines() -> Progress:
    said: set[str] = set()

    def follow(file: str, have: int, size: int) -> None:
        if size and have >= size and file not in said:
            said.add(file)
            output.tell(f"fetched {file}, {size:,} bytes")

    return follow


# --- check ---------------------------------------------------------------------------------------


def check(names: Sequence[str], fetching: bool) -> None:
    """Print what was found beside what is right; fail if one differs or a named one is not here."""
    from isonomy.data.datasets import DATASETS
    from isonomy.data.download import fetch

    wanted = chosen(names, every=not names)
    cache = fetch.folder()
    rows: list[tuple[str, str, str, str, bool]] = []
    absent, nothing, wrong = [], [], []
    for name in wanted:
        dataset = DATASETS[name]
        if not dataset.files:
            nothing.append(name)
            continue
        if fetching and not _complete(dataset.files, cache):
            try:
                with watched(name) as progress:
                    fetch.fetch(*dataset.files, progress=progress)
            except DataError as error:
                shell.note(f"{name}: {error}")
        choice = _complete(dataset.files, cache)
        if choice is None:
            absent.append(name)
            continue
        found = list(_checked(dataset, choice, cache))
        rows += [(name, *row) for row in found]
        if not all(row[-1] for row in found):
            wrong.append(name)
    if rows:
        output.put(_table(rows))
    if nothing:
        typer.echo(f"Without files of known content: {', '.join(nothing)}.")
    if absent:
        typer.echo(f"Not here: {', '.join(absent)}; `isonomy data get NAME` fetches them.")
    if wrong:
        raise DataError(
            f"not as it should be: {', '.join(wrong)}; delete the files named wrong from {cache} "
            "and fetch them again."
        )
    if names and absent:
        raise DataError(f"not here, so not checked: {', '.join(absent)}; fetch with --get.")


def _checked(
    dataset: Dataset, choice: Sequence[File], cache: Path
) -> Iterator[tuple[str, str, str, bool]]:
    """What was looked at, found, right, and whether they agree: files first, then their content."""
    right = True
    for file in choice:
        with (cache / file.name).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        right = right and found == file.sha256
        what = f"SHA-256 of {file.name}"
        yield what, found[:16], file.sha256[:16], found == file.sha256
    if not right or dataset.facts is None:
        return
    try:
        for fact in dataset.facts([cache / file.name for file in choice]):
            yield fact.what, _number(fact.found), _number(fact.right), fact.holds
    except DataError as error:
        yield "content", shell.one_line(str(error)), "readable", False


def _number(at: float) -> str:
    return f"{at:,}" if float(at).is_integer() else f"{at:,.6g}"


def _table(rows: Sequence[tuple[str, str, str, str, bool]]) -> Table:
    from isonomy.report.tables import Cell, Column, Table

    heads = ("data", "what", "found", "right", "verdict")
    body, last = [], ""
    for name, what, found, right, holds in rows:
        words = ("" if name == last else name, what, found, right, "right" if holds else "WRONG")
        body.append(tuple(Cell(word) for word in words))
        last = name
    return Table("", tuple(Column(head, head, text=True) for head in heads), tuple(body))
