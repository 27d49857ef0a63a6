"""Any small table: a federation that holds together, or one sentence; never another error."""

import csv
import datetime as dt
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from isonomy.core.examples import SPLITS
from isonomy.data.tables import Roles, own
from isonomy.data.tables.columns import MISSING
from isonomy.errors import ConfigError, DataError, IsonomyError

from .making import same

LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")
ODD = st.sampled_from(
    ["NA", "?", "nan", "inf", "1", "2.5", "1e400", " x ", 'a"b', "a,b", "a\nb", "true", "other"]
)
TEXTS = st.text(LETTERS, max_size=6) | ODD
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-5, 5).map(float)
KINDS = {
    "reals": NUMBERS,
    "wild": st.floats(allow_nan=True, allow_infinity=True),
    "small": st.integers(0, 3),
    "whole": st.integers(-(2**63), 2**63 - 1),
    "truth": st.booleans(),
    "words": st.sampled_from(["red", "green", "blue"]),
    "texts": TEXTS,
    "odd": ODD,
    "day": st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    "nothing": st.none(),
}
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=5)


@st.composite
def clients(draw):
    """Columns of one kind each, with gaps, at one to three clients."""
    kinds = {
        "y": draw(st.sampled_from([*["small", "words", "truth"] * 4, "reals", "texts", "wild"])),
        "g": draw(st.sampled_from([*["small", "words", "truth"] * 3, "reals", "texts", "nothing"])),
    }
    for name in draw(st.lists(NAMES, max_size=3)):
        kinds.setdefault(name, draw(st.sampled_from([*KINDS, *["reals", "words", "truth"] * 3])))
    gaps = {name: draw(st.booleans()) for name in kinds}
    out, number = [], 0
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(2, 9) | st.just(0) if number else st.integers(2, 9))
        table = {"row": list(range(number, number + rows))}
        number += rows
        for name, kind in kinds.items():
            values = KINDS[kind] | st.none() if gaps[name] else KINDS[kind]
            table[name] = draw(st.lists(values, min_size=rows, max_size=rows))
        out.append(table)
    return out


TYPES = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    dt.date: pa.date32(),
}


def as_parquet(table):
    out = io.BytesIO()
    arrays = {}
    for name, values in table.items():
        kind = next((type(v) for v in values if v is not None), None)
        arrays[name] = pa.array(values, TYPES[kind] if kind else pa.null())
    pq.write_table(pa.table(arrays), out)
    return out.getvalue()


def as_csv(table):
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(list(table))
    for row in zip(*table.values(), strict=True):
        writer.writerow(["" if value is None else value for value in row])
    return out.getvalue().encode()


def attempt(tables, form, roles, order=lambda k, count: k):
    """The federation of a folder of tables, or the error."""
    place = Path(tempfile.mkdtemp())
    try:
        for k, table in enumerate(tables):
            raw = {"csv": as_csv, "parquet": as_parquet}[form](table)
            (place / f"{order(k, len(tables))}.{form}").write_bytes(raw)
        try:
            return own(str(place), Roles(**roles), seed=3)
        except IsonomyError as error:
            return type(error), str(error).replace(str(place), "").replace(f".{form}", "")
    finally:
        shutil.rmtree(place)


def labelled(table):
    """The numbers of the rows with a label."""
    return [
        number
        for number, y in zip(table["row"], table["y"], strict=True)
        if not (
            y is None or (isinstance(y, float) and np.isnan(y)) or str(y).strip() in ("", *MISSING)
        )
    ]


def hold_together(federation, tables):
    """What is true of every federation."""
    assert np.isfinite(federation.x.numpy()).all()
    assert len(set(federation.features)) == len(federation.features) == federation.x.shape[1]
    at = federation.ranges.reshape(-1, 2).numpy()
    assert at[0, 0] == 0
    assert at[-1, 1] == len(federation.y)
    assert (at[1:, 0] == at[:-1, 1]).all()
    assert (at[:, 1] >= at[:, 0]).all()
    numbers = federation.x[:, federation.features.index("row")].numpy()
    for k, table in enumerate(tables):
        mine = [numbers[federation.rows(k, split)] for split in SPLITS]
        assert sorted(np.concatenate(mine).astype(int).tolist()) == labelled(table)
        assert federation.size(k, "train") >= 1
    for a, attribute in enumerate(federation.attributes):
        codes = federation.groups[:, a].numpy()
        assert ((codes >= 0) & (codes < len(attribute.levels))).all()
        assert len(set(attribute.levels)) == len(attribute.levels)
    if federation.classes:
        assert len(set(federation.labels)) == federation.classes >= 2
        assert set(federation.y.tolist()) <= set(range(federation.classes))
    else:
        assert np.isfinite(federation.y.numpy()).all()


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    tables=clients(),
    protected=st.sampled_from([(), ("g",), ("g",)]),
    bins=st.sampled_from([None, None, 2, (0.0, 1.0)]),
    more=st.fixed_dictionaries(
        {},
        optional={
            "impute": st.sampled_from(["median", "zero"]),
            "indicate": st.just(True),
            "rare": st.integers(1, 3),
            "keep_protected": st.just(True),
            "categorical": st.just(("g",)),
            "task": st.sampled_from(["classification", "regression"]),
        },
    ),
    seed=st.integers(0, 3),
)
def test_any_table_is_a_federation_or_a_sentence(tables, protected, bins, more, seed):
    roles = {"label": "y", "protected": protected, "scale": "none", **more}
    if bins is not None and protected:
        roles["bins"] = {"g": bins}
    found = attempt(tables, "csv", roles)
    other = attempt(tables, "parquet", roles)
    if isinstance(found, tuple):
        event("refused")
        assert found == other
        kind, said = found
        assert kind in (ConfigError, DataError)
        assert said.rstrip().endswith((".", "?"))
        assert len(said) < 600
        return
    event("a federation")
    assert not isinstance(other, tuple), other
    hold_together(found, tables)
    same(found, other)
    assert found.warnings == other.warnings
    # the order of columns changes the order of features and nothing else
    rng = np.random.default_rng(seed)
    mixed = [{name: t[name] for name in rng.permutation(list(t)).tolist()} for t in tables]
    moved = attempt(mixed, "csv", roles)
    assert sorted(moved.features) == sorted(found.features)
    where = [moved.features.index(name) for name in found.features]
    np.testing.assert_array_equal(moved.x[:, where].numpy(), found.x.numpy())
    np.testing.assert_array_equal(moved.y.numpy(), found.y.numpy())
    np.testing.assert_array_equal(moved.groups.numpy(), found.groups.numpy())
    # which client comes first changes who is drawn and not how many
    turned = attempt(tables, "parquet", roles, order=lambda k, count: count - 1 - k)
    for split in SPLITS:
        assert turned.sizes(split).flip(0).tolist() == found.sizes(split).tolist()


# fmt: off
LINES = st.sampled_from(
    ["1,0", "2.5,1", "NA,1", '"3",0', '4,"1"', "5;0", "", "é,1", "ÿ,0", '"6\n",0', " 7 ,1",
     "inf,0", "8", "9,0,1", '"10,1', '11,"0', '12"",0', '"13" ,0', "x,y", '"",""', ",",
     '"a ""b""\nc",1']
)
# fmt: on
PLAIN = st.sampled_from(["1,0", "2.5,1", "NA,1", '"3",0', '4,"1"', "", " 7 ,1", "-1e3,0"])


@settings(max_examples=150)
@given(
    lines=st.lists(PLAIN, max_size=6) | st.lists(PLAIN | LINES, max_size=6),
    header=st.sampled_from([*["a,y"] * 5, "a;y", "", '"a",y', "y", "a,", ",y", 'a,"y']),
    end=st.sampled_from(["\n", "\n", "\r\n", "\r"]),
    encoding=st.sampled_from(["utf-8", "latin-1"]),
)
def test_any_text_is_a_table_or_a_sentence(lines, header, end, encoding):
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "a.csv").write_bytes(end.join([header, *lines]).encode("latin-1"))
        (Path(place) / "b.csv").write_bytes(b"a,y\n" + b"1,0\n2,1\n" * 5)
        found = one_of(lambda: own(place, Roles(label="y"), encoding=encoding))
        if found is not None:
            assert np.isfinite(found.x.numpy()).all()
            held = [line for line in lines if line.strip()]
            assert len(found.y) <= 10 + len(held)


def one_of(make):
    """What is made; None where it is refused with a sentence."""
    try:
        found = make()
    except IsonomyError as error:
        found, said = None, str(error)
    event("refused" if found is None else "a federation")
    assert found is not None or said.rstrip().endswith((".", "?"))
    return found


@settings(max_examples=100)
@given(data=st.data())
def test_any_damage_to_a_file_is_a_sentence_or_harmless(data):
    table = {"a": [0.5, None, 2.0] * 4, "t": ["x", "yé", None] * 4, "y": [0, 1, 1] * 4}
    form = data.draw(st.sampled_from(["csv", "parquet"]))
    raw = bytearray({"csv": as_csv, "parquet": as_parquet}[form](table))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        cut = data.draw(st.integers(0, 12))
        raw[at : at + cut] = data.draw(st.binary(max_size=12))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / f"a.{form}").write_bytes(bytes(raw))
        (Path(place) / "b.csv").write_bytes(as_csv(table))
        one_of(lambda: own(place, Roles(label="y")))
