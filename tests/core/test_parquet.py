"""Parquet files, against pyarrow."""

import math
import random
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isonomy.core import parquet
from isonomy.core.parquet import ParquetError, ParquetFile, join_files, read_frame, rows_of, written

COLUMNS = {
    "whole": [3, -1, 2**63 - 1],
    "real": [0.5, math.nan, -0.0],
    "text": ["é", "", "a\nb"],
    "gaps": [None, 1.5, math.nan],
    "whole gaps": [None, 2**60 + 1, 4],
    "no text": [None, "x", "x"],
    "truth": [True, False, None],
    "nothing": [None, None, None],
    "lists": [[1, 2], [], None],
    "real lists": [[1.0, 0.5], None, []],
    "a": [1, 2, 3],
    "A": [4, 5, 6],
    "'quoted\" name": ["u", "v", "w"],
}


def same(one, other):
    return repr(one) == repr(other)  # also where a value is NaN


def test_what_is_written_is_what_arrow_reads_and_what_is_read_again(tmp_path):
    path = tmp_path / "a[1]{x}*'.parquet"
    path.write_bytes(written(COLUMNS))
    assert same(pq.read_table(path).to_pydict(), COLUMNS)
    assert same(rows_of(path), COLUMNS)
    plain = {n: v for n, v in COLUMNS.items() if not n.endswith("lists")}
    found = read_frame(path)
    assert found.names == list(COLUMNS)
    assert same({n: found[n].listed() for n in plain}, plain)


def test_the_bytes_depend_on_the_values_only(tmp_path):
    assert written(COLUMNS) == written(dict(COLUMNS))
    frame = read_frame(_file(tmp_path, {"a": [1, 2], "b": ["x", None]}))
    assert written(frame.columns) == written({"a": [1, 2], "b": ["x", None]})


def _file(folder, columns):
    pq.write_table(pa.table(columns), folder / "given.parquet")
    return folder / "given.parquet"


@pytest.mark.parametrize("objects", [parquet.OBJECTS, 0])
def test_texts_of_short_and_long_files_are_the_same(tmp_path, monkeypatch, objects):
    monkeypatch.setattr(parquet, "OBJECTS", objects)
    words = [None if i % 7 == 0 else f"word {i % 5}" for i in range(100)]
    path = _file(tmp_path, {"x": words, "none": pa.nulls(100, pa.string()), "n": range(100)})
    x, none, n = ParquetFile(path).read()
    assert x.listed() == words
    assert none.listed() == [None] * 100
    assert n.listed() == list(range(100))


def test_files_are_joined_in_their_order(tmp_path):
    parts = [tmp_path / f"{k}.parquet" for k in range(3)]
    for k, part in enumerate(parts):
        part.write_bytes(written({"a": [k, k + 10], "A": [0.5, math.nan], "t": ["x", None]}))
    join_files(parts, tmp_path / "all.parquet")
    wanted = {"a": [0, 10, 1, 11, 2, 12], "A": [0.5, math.nan] * 3, "t": ["x", None] * 3}
    assert same(pq.read_table(tmp_path / "all.parquet").to_pydict(), wanted)


def test_a_column_without_values_in_one_file_has_the_type_that_it_has_in_another(tmp_path):
    parts = [tmp_path / f"{k}.parquet" for k in range(3)]
    for part, texts in zip(parts, ([None, None], ["x", None], ["y", "x"]), strict=True):
        part.write_bytes(written({"round": [1, 2], "t": texts}))
    join_files(parts, tmp_path / "all.parquet")
    wanted = {"round": [1, 2] * 3, "t": [None, None, "x", None, "y", "x"]}
    assert pq.read_table(tmp_path / "all.parquet").to_pydict() == wanted


def test_a_sample_is_from_all_over_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(1000), "t": ["u"] * 1000}), path, row_group_size=100)
    x, t = ParquetFile(path).sample(5, 50)
    starts = sorted({v // 100 for v in x.listed()})
    assert len(x) == len(t) == 50
    assert (starts[0], starts[-1], len(starts)) == (0, 9, 5)


def test_damaged_files_are_refused_or_read_and_never_end_the_process(tmp_path):
    rng = random.Random(0)
    whole = written({"a": list(range(50)), "t": ["x", None] * 25, "f": [0.5] * 50})
    refused = []
    for _ in range(200):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            raw[rng.randrange(4, len(raw))] = rng.randrange(256)
        (tmp_path / "bad.parquet").write_bytes(raw)
        try:
            read_frame(tmp_path / "bad.parquet")
        except (ParquetError, ValueError) as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert str(tmp_path) not in "".join(refused)
    (tmp_path / "good.parquet").write_bytes(written({"a": [1]}))  # the connection still works
    assert rows_of(tmp_path / "good.parquet") == {"a": [1]}


def test_threads_read_at_the_same_time(tmp_path):
    paths = [_other(tmp_path, k) for k in range(4)]
    found = {}

    def read(k):
        found[k] = [ParquetFile(paths[k]).read()[0].listed() for _ in range(5)]

    threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [[f"{k} {i}" for i in range(30)]] * 5 for k in range(4)}


def _other(folder, k):
    (folder / f"{k}.parquet").write_bytes(written({"t": [f"{k} {i}" for i in range(30)]}))
    return folder / f"{k}.parquet"


def test_neither_pandas_nor_pyarrow_is_imported(tmp_path):
    code = (
        "import sys; from pathlib import Path; from isonomy.core.parquet import *;"
        f"p = Path({str(tmp_path / 'a.parquet')!r});"
        "p.write_bytes(written({'a': [1], 'b': [0.5], 'c': ['x']})); read_frame(p); rows_of(p);"
        "print({'pandas', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "set()\n"


def test_arrays_of_numpy(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(written({"x": np.array([1.5, np.nan], np.float32), "n": np.arange(2)}))
    table = pq.read_table(tmp_path / "a.parquet")
    assert [str(kind) for kind in table.schema.types] == ["float", "int64"]
    assert same(table.to_pydict(), {"x": [1.5, math.nan], "n": [0, 1]})
