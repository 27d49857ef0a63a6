"""A large table of one's own: loaded and described, with time and peak memory.

    python benchmarks/tables.py                    10 million rows, 20 columns, 1,000 clients
    python benchmarks/tables.py --rows 1000000     fewer
    python benchmarks/tables.py --keep FOLDER      keep the files there, and use them again

The rows are written as Parquet in two forms, one shuffled file with a client column and a folder
with one file per client. Each form is read in a new process by what `isonomy data describe` runs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECONDS, BYTES = 60.0, 4e9  # what a user of a laptop may expect
WORDS = {
    "sex": ("female", "male"),
    "race": ("A", "B", "C", "D", "E"),
    "ward": tuple(f"ward {i}" for i in range(8)),
    "insurance": ("none", "public", "private", "both", "other", "unknown"),
}
NUMBERS = [f"lab {i}" for i in range(13)]


def table(rows: int, clients: int, seed: int) -> pa.Table:
    """Some rows of 20 columns; two columns of numbers have missing values."""
    rng = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    names = pa.array([f"hospital {k:04d}" for k in range(clients)])
    codes = pa.array(rng.integers(0, clients, rows).astype(np.int32))
    columns["hospital"] = pa.DictionaryArray.from_arrays(codes, names).dictionary_decode()
    for name, levels in WORDS.items():
        codes = pa.array(rng.integers(0, len(levels), rows).astype(np.int32))
        columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(levels)).dictionary_decode()
    columns["age"] = pa.array(rng.integers(18, 95, rows))
    score = np.zeros(rows)
    for i, name in enumerate(NUMBERS):
        values = rng.standard_normal(rows) * (i + 1) + 10 * i
        score += values / (i + 1) - 10 * i / (i + 1)
        columns[name] = pa.array(values, mask=rng.random(rows) < 0.05 if i < 2 else None)
    ill = score + rng.standard_normal(rows) > 0
    columns["readmitted"] = pa.array(np.where(ill, "yes", "no"))
    return pa.table(columns)


def write(folder: Path, rows: int, clients: int) -> None:
    """Both forms, in pieces, so that writing takes little memory."""
    if (folder / "done").exists():
        return
    piece, writer = 500_000, None
    for start in range(0, rows, piece):
        part = table(min(piece, rows - start), clients, seed=start)
        writer = writer or pq.ParquetWriter(folder / "all.parquet", part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()
    (folder / "each").mkdir()
    for k in range(clients):
        share = rows // clients + (k < rows % clients)
        pq.write_table(
            table(share, 1, seed=k).drop_columns(["hospital"]), folder / f"each/h{k:04d}.parquet"
        )
    (folder / "done").touch()


def measure(path: str, client: str) -> None:
    """In a separate process: load, describe, and print what it took."""
    begin = time.perf_counter()
    from isonomy.data import load
    from isonomy.data.profile import describe

    options = {
        "path": path,
        "label": "readmitted",
        "protected": ["sex", "race", "age", "sex*race"],
        "bins": {"age": [40, 65]},
        **({"client": client} if client else {}),
    }
    federation = load("tables", options=options)
    loaded = time.perf_counter()
    described = describe(federation)
    end = time.perf_counter()
    assert described is not None
    print(
        json.dumps(
            {
                "rows": len(federation.y),
                "features": len(federation.features),
                "clients": len(federation),
                "load": loaded - begin,
                "describe": end - loaded,
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(*given.measure)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, given.rows, given.clients)
        for form, path, client in (("one file", "all.parquet", "hospital"), ("folder", "each", "")):
            command = [sys.executable, __file__, "--measure", str(folder / path), client]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout)
            seconds = found["load"] + found["describe"]
            good = seconds < SECONDS and found["peak"] < BYTES
            print(
                f"{form}: {found['rows']:,} rows, {found['clients']:,} clients, "
                f"{found['features']} features: load {found['load']:.1f} s, describe "
                f"{found['describe']:.1f} s, peak {found['peak'] / 1e9:.2f} GB "
                f"(bounds {SECONDS:.0f} s, {BYTES / 1e9:.0f} GB): {'yes' if good else 'NO'}"
            )


if __name__ == "__main__":
    main()
