"""Published files as a user would have them: a table with a line of names."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from isonomy.data.datasets import DATASETS, adult, german
from isonomy.data.download.fetch import fetch
from isonomy.errors import FetchError


def files(name: str) -> list[Path]:
    try:
        return [one.path for one in fetch(*DATASETS[name].files)]
    except FetchError as error:
        pytest.skip(f"{name} is neither cached nor available here: {error}")


def raw(name: str, to: Path) -> Path:
    """The published rows as one CSV file with a line of names."""
    paths = files(name)
    out = to / f"{name}.csv"
    if name == "adult":
        lines = [line for p in paths for line in p.read_text().splitlines() if line.count(",") > 5]
        out.write_text("\n".join([",".join(adult.COLUMNS), *lines]) + "\n")
    elif name == "german":
        lines = [line.replace(" ", ",") for line in paths[0].read_text().splitlines() if line]
        out.write_text("\n".join([",".join(german.COLUMNS), *lines]) + "\n")
    elif paths[0].suffix == ".gz":
        out.write_bytes(gzip.decompress(paths[0].read_bytes()))
    elif paths[0].suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(paths[0].read_bytes())) as archive:
            (inside,) = archive.namelist()
            out.write_bytes(archive.read(inside))
    else:
        out.write_bytes(paths[0].read_bytes())
    return out
