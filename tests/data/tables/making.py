"""Tables for the tests: made, written to disk, read back."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from isonomy.core.examples import SPLITS
from isonomy.data.federation import Federation

Columns = Mapping[str, Any]


def people(rows: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Columns of a small study: two numbers, a category, a group and a label."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, rows)
    score = rng.normal(size=rows).round(3)
    job = rng.choice(["clerk", "farmer", "nurse"], rows)
    sex = rng.choice(["F", "M"], rows)
    ill = ((age > 50) ^ (rng.random(rows) < 0.2)).astype(int)
    out = {"age": age, "score": score, "job": job, "sex": sex, "ill": ill}
    return {name: values.tolist() for name, values in out.items()} | more


def text(columns: Columns, delimiter: str = ",") -> str:
    """As CSV, every text quoted; None is an empty field."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(list(columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if value is None else value for value in row])
    return out.getvalue()


def write(path: Path, content: Any) -> Path:
    """A file: bytes or a text as they are, columns or an arrow table by the file's ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    if isinstance(content, Mapping) and path.suffix not in (".parquet", ".pq"):
        content = text(content).encode()
        content = gzip.compress(content) if path.suffix == ".gz" else content
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        table = content if isinstance(content, pa.Table) else pa.table(dict(content))
        pq.write_table(table, path)
    return path


def folder(place: Path, files: Mapping[str, Any]) -> Path:
    """A folder of such files."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(place / name, content)
    return place


def take(columns: Columns, rows: Any) -> dict[str, list[Any]]:
    """Some rows of columns."""
    return {name: [values[i] for i in rows] for name, values in columns.items()}


def same(one: Federation, other: Federation) -> None:
    """Two federations are equal in all that a run sees."""
    for part in ("x", "y", "groups", "ranges"):
        a, b = getattr(one, part).numpy(), getattr(other, part).numpy()
        np.testing.assert_array_equal(a, b, err_msg=part)
        assert a.dtype == b.dtype
    for part in ("names", "labels", "features", "attributes", "classes", "preprocessing"):
        assert getattr(one, part) == getattr(other, part), part


def rows_of(federation: Federation, client: int) -> dict[str, np.ndarray]:
    """A client's features by split."""
    return {s: federation.x[federation.rows(client, s)].numpy() for s in SPLITS}
