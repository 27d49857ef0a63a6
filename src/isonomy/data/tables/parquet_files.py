"""Read Parquet files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isonomy.data.tables.file_errors import UNREADABLE, cannot_read, short_reason
from isonomy.errors import DataError

SMALL = 1 << 26  # files of up to so many bytes are read at once
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def open_file(path: Path) -> Any:
    """Open a file; columns of text are read as dictionaries."""
    try:
        schema = pq.read_schema(path)
        texts = [f.name for f in schema if pa.types.is_string(f.type)]
        file = pq.ParquetFile(path, read_dictionary=texts)
    except UNREADABLE as error:
        raise DataError(_message(path, error)) from error
    if not given_names(file):
        raise DataError(f"{path} has no columns; give a table with columns and rows.")
    return file


def given_names(file: Any) -> list[str]:
    """Return the names of a file's columns, without the row index that pandas adds."""
    return [name for name in file.schema_arrow.names if not _PANDAS_INDEX.fullmatch(name)]


def read_whole(path: Path, file: Any) -> Any:
    """Read all columns at once."""
    try:
        return file.read()
    except UNREADABLE as error:
        raise DataError(_message(path, error)) from error


def _message(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return cannot_read(path, error)
    return (
        f"{path} cannot be read as Parquet ({short_reason(error)}); it may be cut off or another "
        "kind of file, so get a complete copy."
    )
