"""Large CSV files, which DuckDB reads, are read as small ones, by Python alone."""

import gzip
import random

import numpy as np
import pytest

from isonomy.data.tables import csv_large, files
from isonomy.data.tables.columns import Numbers, Words
from isonomy.errors import DataError

PLAIN = ["1", "2.5", "x", "NA", "a b", " y", "é", "", "-0.0", "1e5", "1_000", "0x10", "nan", "true"]
QUOTED = ['"q"', '"a,b"', '"a""b"', '""', '"x\ny"', '"NA"', '" s "', '"12"']
ODD = ['"ab"c', 'p"q', '"', '""x', ' "s"', '"s" ', "#c", "\t", " ", "+-5", "nan(1)", "1" * 17]


def table(rng):
    """Any small CSV file, most of them sound."""
    width = rng.randrange(1, 5)
    line = rng.choice(["\n", "\n", "\r\n", "\r"])
    pools = [rng.choice([PLAIN, PLAIN + QUOTED, ["1", "22", ""], ["0.5", "NA", "3"], ["u", "v_w"]])
             for _ in range(width)]  # fmt: skip
    odd = rng.random() < 0.3
    rows = []
    for _ in range(rng.randrange(1, 12)):
        row = [rng.choice(ODD if odd and rng.random() < 0.1 else pool) for pool in pools]
        if rng.random() < 0.02:
            row = row[:-1] if rng.random() < 0.5 else [*row, rng.choice(["", "z"])]
        rows.append(",".join(row))
    text = line.join([",".join(f"h{i}" for i in range(width)), *rows])
    return text + rng.choice([line, line, "", line * 2])


def held(path, encoding="utf-8"):
    """What a file contains, or what is wrong with it."""
    try:
        found = files.read(path, encoding=encoding)
    except DataError as error:
        return str(error)
    return [
        (name, "number", values.values.astype(np.float64).tolist(), values.truths)
        if isinstance(values, Numbers)
        else (name, values.levels, values.codes.tolist())
        if isinstance(values, Words)
        else (name, values.kind, len(values))
        for name, values in found.columns.items()
    ]


def both(monkeypatch, path, encoding="utf-8"):
    """The file read in both ways; the second one may decline."""
    small = held(path, encoding)
    with monkeypatch.context() as here:
        here.setattr(csv_large, "LARGE", 0)
        return small, held(path, encoding)


def test_any_file_is_read_alike(tmp_path, monkeypatch):
    rng, path, taken = random.Random(3), tmp_path / "a.csv", []
    real = csv_large.read_large

    def counted(*given):
        taken.append(real(*given) is not None)
        return real(*given)

    for _ in range(400):
        path.write_text(table(rng), encoding="utf-8", newline="")
        small, large = both(monkeypatch, path)
        assert repr(small) == repr(large), path.read_bytes()
    monkeypatch.setattr(csv_large, "read_large", counted)
    for _ in range(60):
        path.write_text(table(rng), encoding="utf-8", newline="")
        both(monkeypatch, path)
    assert sum(taken) > 15  # it is not Python alone


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "cp1252"])
def test_a_large_file_of_every_kind(tmp_path, monkeypatch, kind):
    rng = np.random.default_rng(0)
    lines = ["n,x,t,id,late"]
    for i in range(30_000):
        late = "1" if i < 29_000 else "no number"
        x = "" if i % 50 == 0 else repr(float(rng.standard_normal()))
        lines.append(f"{i},{x},{'äöü'[i % 3]},{2**62 + i},{late}")
    text = "\n".join(lines)
    path = tmp_path / f"a.{kind.replace('cp1252', 'csv')}"
    encoding = "cp1252" if kind == "cp1252" else "utf-8"
    raw = text.encode(encoding)
    path.write_bytes(gzip.compress(raw) if kind == "csv.gz" else raw)
    small, large = both(monkeypatch, path, encoding)
    assert repr(small) == repr(large)
    assert isinstance(small, list)


def test_numbers_of_a_large_file_are_those_of_python(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-300, 300, 2000)
    text = "\n".join(["a,b", *(f"{v!r},{i}" for i, v in enumerate(values.tolist()))])
    (tmp_path / "a.csv").write_text(text)
    monkeypatch.setattr(csv_large, "LARGE", 0)
    found = files.read(tmp_path / "a.csv").columns["a"]
    assert isinstance(found, Numbers)
    np.testing.assert_array_equal(found.values, values)
