"""`data check`: compare the files in the cache with their SHA-256 and known counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.data.downloads import cached_choice, check_names, downloadable, show_downloads
from isonomy.errors import DataError

if TYPE_CHECKING:
    from isonomy.data.datasets import Dataset
    from isonomy.data.download.fetch import File
    from isonomy.report.tables import Table

Row = tuple[str, str, str, str, bool]
"""Data set, what was checked, found, expected, whether they agree."""


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Data sets; all in the cache by default."),
    ] = None,
    download: Annotated[bool, typer.Option("--get", help="Download missing files first.")] = False,
) -> None:
    """Check the files in the cache: their SHA-256, and known counts of the data in them.

    Example: isonomy data check adult
    """
    from isonomy.data.datasets import DATASETS
    from isonomy.data.download import fetch

    cache = fetch.folder()
    rows: list[Row] = []
    absent, without_files, wrong = [], [], []
    for name in check_names(names) if names else downloadable():
        dataset = DATASETS[name]
        if not dataset.files:
            without_files.append(name)
            continue
        if download and not cached_choice(dataset.files, cache):
            try:
                with show_downloads(name) as progress:
                    fetch.fetch(*dataset.files, progress=progress)
            except DataError as error:
                shell.note(f"{name}: {error}")
        choice = cached_choice(dataset.files, cache)
        if choice is None:
            absent.append(name)
            continue
        found = list(_check(dataset, choice, cache))
        rows += found
        if not all(row[-1] for row in found):
            wrong.append(name)
    if rows:
        output.print_table(_table(rows))
    if without_files:
        typer.echo(f"No files with known content: {', '.join(without_files)}.")
    if absent:
        typer.echo(
            f"Not in the cache: {', '.join(absent)}; download them with `isonomy data get NAME`."
        )
    if wrong:
        raise DataError(
            f"the check failed for {', '.join(wrong)}; delete the files marked WRONG from {cache} "
            "and download them again."
        )
    if names and absent:
        raise DataError(
            f"not checked, because not in the cache: {', '.join(absent)}; download with --get."
        )


def _check(dataset: Dataset, choice: Sequence[File], cache: Path) -> Iterator[Row]:
    """The hashes of the files, then, if they are right, the counts of the content."""
    right = True
    for file in choice:
        with (cache / file.name).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        same = found == file.sha256
        right = right and same
        yield dataset.name, f"SHA-256 of {file.name}", found[:16], file.sha256[:16], same
    if not right or dataset.facts is None:
        return
    try:
        for fact in dataset.facts([cache / file.name for file in choice]):
            yield dataset.name, fact.what, _number(fact.found), _number(fact.right), fact.holds
    except DataError as error:
        yield dataset.name, "content", shell.one_line(str(error)), "readable", False


def _number(value: float) -> str:
    return f"{value:,}" if float(value).is_integer() else f"{value:,.6g}"


def _table(rows: Sequence[Row]) -> Table:
    from isonomy.report.tables import Cell, Column, Table

    heads = ("data", "what", "found", "expected", "result")
    body, last = [], ""
    for name, what, found, right, same in rows:
        words = ("" if name == last else name, what, found, right, "right" if same else "WRONG")
        body.append(tuple(Cell(word) for word in words))
        last = name
    return Table("", tuple(Column(head, head, text=True) for head in heads), tuple(body))
