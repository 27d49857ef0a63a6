"""Read Parquet files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isonomy.data.tables.file_errors import UNREADABLE, cannot_read, short_reason
from isonomy.errors import DataError

SMALL = 1 << 26  # bytes of a Parquet file up to which it is read at once


def open_file(path: Path) -> Any:
    try:
        schema = pq.read_schema(path)
        texts = [f.name for f in schema if pa.types.is_string(f.type)]
        return pq.ParquetFile(path, read_dictionary=texts)  # texts as numbers in a dictionary
    except UNREADABLE as error:
        raise DataError(_parquet_trouble(path, error)) from error


def given_names(file: Any) -> list[str]:
    """The names of a file's columns, but for those that pandas adds to number rows."""
    return [name for name in file.schema_arrow.names if not _PANDAS.fullmatch(name)]


_PANDAS = re.compile(r"__index_level_\d+__")


def read_whole(path: Path, file: Any) -> Any:
    try:
        return file.read()
    except UNREADABLE as error:
        raise DataError(_parquet_trouble(path, error)) from error


def _parquet_trouble(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return cannot_read(path, error)
    return (
        f"{path} cannot be read as Parquet ({short_reason(error)}); it may be cut off or another kind "
        "of file, so get a whole copy."
    )
