"""A user's tables, CSV and Parquet: `isonomy init` on them, and rows for `isonomy predict`."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from federation.participants import write_tables
from fuzz.fuzzer import Fuzzer, Try
from fuzz.guard import Bug, attempt
from fuzz.mutations import damaged
from isonomy import api
from isonomy.cli.init import check
from isonomy.data.tables.first_config import starter
from isonomy.data.tables.guess import guess
from isonomy.data.tables.sample import look_at

# --- samples --------------------------------------------------------------------------------------

HEAD = "age,income,job,sex,approved\n"
JOBS, LABELS = ("clerk", "nurse", ""), ("no", "yes")
ROWS = "".join(
    f"{20 + i},{30 + i / 7:.2f},{JOBS[i % 3]},{'FM'[i % 2]},{LABELS[i % 2]}\n" for i in range(24)
)
CSV = [
    (HEAD + ROWS).encode(),
    (HEAD + ROWS).replace(",", ";").replace(".", ",").encode(),
    (HEAD + ROWS).replace(",", "\t").encode(),
    ("\ufeff" + HEAD + ROWS).encode(),
    b'id,text,y\n1,"a, b",0\n2,"line\nbreak",1\n3,"quote ""x""",0\n4,,1\n',
    b"date,y\n2020-01-01,1\n2020-02-30,0\n2021-03-04T05:06:07Z,1\n",
    b"a,b\n1e308,1\n-1e308,0\nnan,1\ninf,0\n",
    b"x\n1\n2\n3\n",
]
TOKENS = [b",", b"\n", b"\r\n", b'"', b'""', b";", b"\t", b"\x00", b"\xff", b"\xef\xbb\xbf"]
TOKENS += [b"1e999", b"nan", b"-", b"?", b"=1+1", b"\xe2\x80\xae", b"9" * 40, b"x" * 300]
TOKENS += ["é".encode(), b"true", b"2020-01-01", b"\x1b[2J", b" ", b"\r"]


def _columns() -> list[Any]:
    """Columns of every kind that a Parquet file can have, some of them odd."""
    day = dt.date(2020, 1, 31)
    made: list[Any] = [
        pa.array([1, None, 3, 4]),
        pa.array([1.5, float("nan"), float("inf"), None]),
        pa.array([2**63, 0, 1, 2**64 - 1], pa.uint64()),
        pa.array(["a", None, "", "\x1b[2J"]),
        pa.array([True, False, None, True]),
        pa.array([b"\xff\x00", b"", None, b"x"]),
        pa.array([[1], [], None, [1, 2]]),
        pa.array([{"a": 1}, None, {"a": 2}, {"a": None}]),
        pa.array([day, None, day, dt.date(1, 1, 1)]),
        pa.array([dt.datetime(2020, 1, 1), None, dt.datetime(9999, 1, 1), dt.datetime(1, 1, 1)]),
        pa.array([dt.timedelta(1), None, dt.timedelta(-1), dt.timedelta(0)]),
        pa.array([Decimal("1.50"), None, Decimal("-2.25"), Decimal("0")]),
        pa.array([dt.time(1), None, dt.time(2), dt.time(3)]),
        pa.array(["no", "yes", "no", None]).dictionary_encode(),
        pa.array([None] * 4),
        pa.array([1, 2, 3, 4], pa.int8()),
        pa.array([0.5, 1, None, 2], pa.float16()),
    ]
    return made


COLUMNS = _columns()
NAMES = ["label", "y", "age", "sex", "", " ", "a.b", "é", "x" * 300, "client", "split", "=1+1"]


def _parquet(parts: list[tuple[str, int, int]]) -> bytes:
    """The bytes of a file with these columns: names, kinds, and which rows are repeated."""
    arrays = [pa.concat_arrays([COLUMNS[k]] * 6).slice(0, 24 - drop % 2) for _, k, drop in parts]
    rows = min((len(a) for a in arrays), default=0)
    table = pa.Table.from_arrays([a.slice(0, rows) for a in arrays], [name for name, _, _ in parts])
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


_part = st.tuples(st.sampled_from(NAMES), st.integers(0, len(COLUMNS) - 1), st.integers(0, 1))
made = st.lists(_part, max_size=6).map(_parquet)
PARQUET = [
    _parquet([("age", 0, 0), ("sex", 3, 0), ("label", 13, 0)]),
    _parquet([("a.b", 7, 0), ("y", 4, 0)]),
    _parquet([("y", 15, 0), ("age", 11, 0), ("client", 3, 0)]),
]


# --- isonomy init ---------------------------------------------------------------------------------


def opened(ending: str) -> Any:
    @contextmanager
    def tables(folder: Path) -> Iterator[Try]:
        place = folder / f"table{ending}"

        def init() -> None:
            look = look_at(place)
            guessed = guess(look)
            text = starter(guessed, name="x", path=place.name, command="c", held="h")
            check(text, folder / "x.toml", look)

        def one(case: bytes) -> None:
            place.write_bytes(case)
            attempt(init)

        yield one

    return tables


# --- isonomy predict ------------------------------------------------------------------------------


@contextmanager
def rows(folder: Path) -> Iterator[Try]:
    """Rows for a model of a run of tables; the first byte of a case says which kind of file."""
    tables = write_tables(folder / "tables")
    config = api.make_config(
        data={"path": str(tables), "label": "approved", "protected": ["sex"], "impute": "median"},
        rounds=1,
        model={"name": "mlp", "hidden": [4]},
        excess={"clusters": "none"},
        evaluate={"bootstrap": 0},
    )
    api.run(config, folder / "run")
    model = api.predictor(folder / "run")
    at = {"c": folder / "rows.csv", "p": folder / "rows.parquet"}

    def one(case: bytes) -> None:
        place = at["p" if case[:1] == b"p" else "c"]
        place.write_bytes(case[1:])
        found = attempt(lambda: model.predict_rows(place))
        if found is None:
            return
        text = found.csv()
        if "nan" in text.lower().replace("nan_", ""):
            raise Bug("a prediction is not a number")
        found.parquet()

    yield one


PREDICT = [b"c" + CSV[0], b"c" + CSV[1], b"p" + PARQUET[0]]
_named = st.lists(
    st.tuples(
        st.sampled_from(["age", "income", "job", "sex", "extra"]),
        st.integers(0, len(COLUMNS) - 1),
        st.integers(0, 1),
    ),
    max_size=5,
).map(lambda parts: b"p" + _parquet(parts))

FUZZERS = [
    Fuzzer("csv", damaged(CSV, TOKENS, most=8), opened(".csv")),
    Fuzzer("parquet", made | damaged(PARQUET, (), most=4), opened(".parquet")),
    Fuzzer("predict", _named | damaged(PREDICT, TOKENS, most=8), rows),
]
