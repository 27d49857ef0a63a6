"""Read Parquet files."""

from __future__ import annotations

import re
from pathlib import Path

from isonomy.core.parquet import ParquetFile
from isonomy.core.values import Values
from isonomy.data.tables.file_errors import UNREADABLE, cannot_read, short_reason
from isonomy.errors import DataError

SMALL = 1 << 26  # files of up to so many bytes are read at once
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def open_file(path: Path) -> ParquetFile:
    """Open a file."""
    try:
        file = ParquetFile(path)
    except UNREADABLE as error:
        if "at least one non-root column" in str(error):
            raise DataError(_no_columns(path)) from None
        raise DataError(_message(path, error)) from error
    if not given_columns(file):
        raise DataError(_no_columns(path))
    return file


def _no_columns(path: Path) -> str:
    return f"{path} has no columns; give a table with columns and rows."


def given_columns(file: ParquetFile) -> list[int]:
    """Return the indices of a file's columns, without the row index that pandas adds."""
    return [i for i, name in enumerate(file.names) if not _PANDAS_INDEX.fullmatch(name)]


def given_names(file: ParquetFile) -> list[str]:
    """Return the names of a file's columns, without the row index that pandas adds."""
    return [file.names[i] for i in given_columns(file)]


def read_whole(path: Path, file: ParquetFile) -> list[Values]:
    """Read all columns at once."""
    try:
        return file.read(given_columns(file))
    except UNREADABLE as error:
        raise DataError(_message(path, error)) from error


def _message(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return cannot_read(path, error)
    return (
        f"{path} cannot be read as Parquet ({short_reason(error)}); it may be cut off or another "
        "kind of file, so get a complete copy."
    )
