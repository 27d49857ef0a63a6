"""Downloads of data sets: which were asked for, which are in the cache, and their progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isonomy.cli import output, shell
from isonomy.errors import ConfigError, unknown

if TYPE_CHECKING:
    from isonomy.data.download.fetch import File, Progress


def downloadable() -> list[str]:
    """The names of the data sets that have files to download."""
    from isonomy.data.datasets import DATASETS

    return [name for name, dataset in DATASETS.items() if dataset.files]


def check_names(names: Sequence[str]) -> list[str]:
    """The names without repetitions; raises ConfigError if one is not a data set."""
    from isonomy.data.datasets import DATASETS

    for name in names:
        if name not in DATASETS:
            raise ConfigError(unknown("data set", name, DATASETS))
    return list(dict.fromkeys(names))


def cached_choice(choices: Sequence[Sequence[File]], cache: Path) -> Sequence[File] | None:
    """The first choice of files that are all in the cache."""
    for choice in choices:
        if all((cache / file.name).is_file() for file in choice):
            return choice
    return None


@contextlib.contextmanager
def show_downloads(title: str) -> Iterator[Progress]:
    """A callback that shows downloads: one bar per file, or one line per completed file."""
    if not sys.stderr.isatty():
        yield _print_completed()
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

        def update(file: str, have: int, size: int) -> None:
            if file not in tasks:
                bars.update(waiting, visible=False)
                tasks[file] = bars.add_task(file, total=size or None)
            bars.update(tasks[file], completed=have, total=size or None)
            if size and have >= size:
                bars.update(waiting, visible=True)  # reading, or connecting for the next file

        yield update


def _print_completed() -> Progress:
    from isonomy.data.sentences import VECTORS

    printed: set[str] = set()

    def update(file: str, have: int, size: int) -> None:
        if size and have >= size and file not in printed:
            printed.add(file)
            done = "computed" if file == VECTORS else "downloaded"
            output.print_status(f"{done} {file}, {size:,} bytes")

    return update
