"""A column is the same whatever file held it, and no row is lost on the way."""

import csv
import itertools

import numpy as np
import pyarrow as pa
import pytest

from isonomy.data.arrow_values import from_arrow
from isonomy.data.tables import Roles, csv_files, files, own, parquet_files
from isonomy.data.tables.columns import Numbers, Other, Words, as_words, column
from isonomy.data.tables.files import read
from isonomy.data.tables.quantiles import _position, _real
from isonomy.data.tables.sources import Files, read_clients
from isonomy.errors import DataError

from .making import folder, people, text, write


def plain(of):
    """A column as a list: numbers, words, or its kind."""
    if isinstance(of, Other):
        return of.kind
    if isinstance(of, Numbers):
        return [None if v != v else v for v in of.values.astype(float).tolist()]
    return [of.levels[code] if code >= 0 else None for code in of.codes]


def in_csv(path, values):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([["v", "k"], *([value, "1"] for value in values)])
    return plain(read(path).columns["v"])


def in_parquet(path, values):
    return plain(read(write(path, {"v": values, "k": [1] * len(values)})).columns["v"])


# fmt: off
WORDS = [
    "1", "1.5", "-3", "+4", "1e5", "1E-3", ".5", "5.", "0x1F", "-0x1", "inf", "-Inf", "INFINITY",
    "nan", "NAN", "-nan", "true", "TRUE", "tRue", "false", "0", "t", "yes", "2020-01-01",
    "2020-01-01T10:00:00Z", "2020-01-01T10:00+02:00", "2020-13-01", "2020-02-30", "12:30",
    "25:00", "12:30:59", "2020-01", "20200101", "NA", "null", "Null", "?", "1_000", "1,5", "٣",
    "0b1", "1e400", "00012", "1f", "nan(1", "--", "9007199254740993", "", " 7", "8 ", " NA",
    "NA ", "\tNA", "2020-01-01 10:00", " true", "a\nb", 'a"b', "a,b",
]
# fmt: on


@pytest.mark.parametrize("word", WORDS)
def test_a_text_reads_alike_in_csv_and_in_parquet(tmp_path, word):
    for other in (word, "1", "x", "2020-01-01", "true", ""):
        values = [word, other, word]
        assert in_csv(tmp_path / "a.csv", values) == in_parquet(tmp_path / "a.parquet", values)


@pytest.mark.parametrize(
    ("words", "held"),
    [
        (["1", " 2.5", "NA"], [1, 2.5, None]),
        (["True", "false ", ""], [1, 0, None]),
        (["0x10", "3"], [16, 3]),
        (["nan", "NAN", "-nan"], "empty"),
        (["", "?"], "empty"),
        (["2020-01-01", "2020-01-02 10:00"], "time"),
        (["12:30", "09:15:00"], "time"),
        (["2020-13-01", "2020-01-02"], ["2020-13-01", "2020-01-02"]),
        (["1", "one"], ["1", "one"]),
        (["true", "maybe"], ["true", "maybe"]),
        (["é", " é", "é "], ["é", "é", "é"]),
    ],
)
def test_texts_are_what_all_of_them_read_as(tmp_path, words, held):
    assert plain(column(from_arrow(pa.array(words)))) == held
    assert plain(column(from_arrow(pa.array(words).dictionary_encode()))) == held
    assert in_csv(tmp_path / "a.csv", words) == held


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.int8()),
        pa.array([1, None, 3], pa.uint64()),
        pa.array([1, None, 3], pa.float16()),
        pa.array([1, None, 3], pa.decimal128(9, 3)),
        pa.array([1, None, 3], pa.decimal256(60, 3)),
        pa.array(["1", None, "3"], pa.large_string()),
        pa.array(["1", None, "3"], pa.string_view()),
        pa.array([b"1", None, b"3"]),
        pa.array([1, None, 3]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint8()), pa.array(["1", None, "3"])),
        pa.chunked_array(
            [pa.array(["1", None]).dictionary_encode(), pa.array(["3"]).dictionary_encode()]
        ),
        pa.chunked_array([[1, None], [3], []]),
    ],
    ids=lambda values: str(values.type),
)
def test_a_column_of_any_type_is_its_values(values):
    assert plain(column(from_arrow(values))) == [1, None, 3]


def test_what_is_neither_number_nor_text_is_left_alone():
    assert plain(column(from_arrow(pa.array([[1], [2]])))) == "other"
    assert plain(column(from_arrow(pa.array([{"a": 1}])))) == "other"
    assert plain(column(from_arrow(pa.array([b"\xff"])))) == "other"
    assert plain(column(from_arrow(pa.array([3600], pa.duration("s"))))) == "time"
    assert plain(column(from_arrow(pa.nulls(2)))) == "empty"
    assert plain(column(from_arrow(pa.array([np.nan, None])))) == "empty"
    assert plain(column(from_arrow(pa.chunked_array([], pa.string())))) == "empty"


def test_whole_numbers_beyond_reals_are_near_enough_when_one_is_missing():
    assert plain(column(from_arrow(pa.array([2**60 + 1, None])))) == [float(2**60), None]


def test_numbers_are_written_alike_whatever_type_held_them():
    """So that a class or a category of one client is that of another."""
    reals = np.array([0.1, 2.0, 1e18, -0.0])
    for kind in (np.float32, np.float64):
        levels = as_words(Numbers(reals.astype(kind))).levels
        assert levels[:3] == ("0", "0.1", "2")
    assert as_words(Numbers(np.array([10**18]))).levels == ("1" + "0" * 18,)
    assert as_words(Numbers(np.array([1e18]))).levels == ("1" + "0" * 18,)
    assert as_words(Numbers(np.array([1e300, np.inf]))).levels == ("1e+300", "inf")
    assert as_words(Words(np.array([0, -1]), ("x",))).codes.tolist() == [0, -1]


# --- files ---------------------------------------------------------------------------------------


def test_a_column_is_read_by_its_name_also_where_another_begins_like_it(tmp_path, monkeypatch):
    """ "a" must not be read as "a.b", which comes first."""
    columns = {"a.b": ["u", "v"], "a": [1.0, 2.0], "a.b.c": [3, 4]}
    path = write(tmp_path / "a.parquet", columns)
    for small in (parquet_files.SMALL, 0):  # at once, and one column at a time
        monkeypatch.setattr(parquet_files, "SMALL", small)
        table = read(path)
        assert {name: plain(values) for name, values in table.columns.items()} == columns


def test_the_numbers_that_pandas_gives_rows_are_no_column(tmp_path):
    path = write(tmp_path / "a.parquet", {"a": [1, 2], "__index_level_0__": [7, 9]})
    assert list(read(path).columns) == ["a"] == files.column_names(path)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("before", ["", "\ufeff", "\n\n", " \n\t\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_line_ends_blank_lines_and_delimiters(tmp_path, ending, before, delimiter):
    whole = before + text({"a": [1, 2], "b": ["x y", "z"]}, delimiter)
    path = tmp_path / "a.csv"
    path.write_bytes(whole.replace("\n", ending).encode())
    table = read(path)
    assert {name: plain(values) for name, values in table.columns.items()} == {
        "a": [1, 2],
        "b": ["x y", "z"],
    }
    assert files.column_names(path) == ["a", "b"]


def test_a_line_of_names_can_be_long(tmp_path):
    """Longer than what is looked at first, with letters of two bytes at its end."""
    names = [f"größe {i:06d} {'ö' * 20}" for i in range(3000)]
    path = write(tmp_path / "a.csv", ",".join(names) + "\n" + ",".join("1" * 3000) + "\n")
    assert path.stat().st_size > 2 * csv_files.PEEK
    assert list(read(path).columns) == names == files.column_names(path)


@pytest.mark.parametrize("shift", range(4))
def test_a_letter_is_not_cut_in_two(tmp_path, shift):
    """Lines without end that a first look must end within."""
    path = write(tmp_path / "a.csv", "a,b\r" + "x" * shift + "öü" * csv_files.PEEK + ",1\r")
    assert plain(read(path).columns["b"]) == [1]


def test_line_breaks_in_values_far_down(tmp_path):
    """The first quotation mark comes after what is looked at first, in a value of two blocks."""
    rows = "1.5,F\n2.5,M\n" * 20_000
    long = "line\n" * 300_000
    path = write(tmp_path / "a.csv", f'a,b\n{rows}3.5,"{long}"\n4.5,F\n')
    table = read(path)
    assert table.rows == 40_002
    assert table.columns["a"].values[-2:].tolist() == [3.5, 4.5]
    assert long.strip() in table.columns["b"].levels


@pytest.mark.parametrize(
    "value", ['"two\nlines"', '"a ""word"""', '"two ""quoted""\nlines"', '5" pipe', '""', '"a, b"']
)
def test_quotation_marks_that_are_right_are_let_through(tmp_path, value):
    wanted = next(
        csv.reader([value], strict=True)
        if "\n" not in value
        else csv.reader(value.splitlines(True))
    )[0]
    path = write(tmp_path / "a.csv", f"a,b\n1,{value}\n2,x\n3,{value}\n")
    assert plain(read(path).columns["b"]) == [wanted or None, "x", wanted or None]


@pytest.mark.parametrize(
    ("rows", "row"),
    [
        ('1,"x\n2,y\n3,z\n', 1),
        ('1,x\n2,"y\n3,z', 2),
        ('1,x\n2,"y\n3,"z"\n4,u\n', 2),
        ('1,"x\n"\n2,"y\n3,"z"\n', 2),
    ],
)
def test_a_quotation_mark_too_few_does_not_swallow_rows(tmp_path, rows, row):
    path = write(tmp_path / "a.csv", "a,b\n" + rows)
    with pytest.raises(DataError, match=f"row {row} of .*a.csv is not closed"):
        read(path)


def test_clients_of_one_table_are_told_by_a_column(tmp_path):
    path = write(tmp_path / "a.csv", "c,v\n10,1\n9,2\n10,3\n9,4\n100,5\n")
    pieces = read_clients(path, "c")
    assert pieces.names == ("9", "10", "100")
    held = [plain(pieces.open(k).columns["v"]) for k in range(3)]
    assert held == [[2, 4], [1, 3], [5]]
    assert [pieces.open(k).rows for k in range(3)] == [2, 2, 1]


def test_tables_that_are_not_kept_are_read_again(tmp_path):
    place = folder(tmp_path, {"a.csv": people(20), "b.csv": people(30, seed=1)})
    paths, _ = files.find(place)
    kept, fresh = Files(paths), Files(paths, keep=0)
    assert kept.open(1) is kept.open(1)
    assert fresh.open(1) is not fresh.open(1)
    assert plain(fresh.open(1).columns["age"]) == plain(kept.open(1).columns["age"])


def test_many_columns_take_no_time_to_agree_on(tmp_path):
    columns = {f"c{i}": [i, i + 1, i + 2] for i in range(1500)} | {"y": [0, 1, 1]}
    place = folder(tmp_path, {f"{k}.parquet": columns for k in range(3)})
    assert own(str(place), Roles(label="y"), fractions=(1, 0, 0)).x.shape == (9, 1500)


def test_reals_are_numbered_in_their_order():
    reals = [-3e38, -1.0, -5e-324, 0.0, 5e-324, 1e-300, 0.1, np.nextafter(0.1, 1), 1.0, 3e38]
    places = [_position(real) for real in reals]
    assert places == sorted(set(places))
    assert [_real(place) for place in places] == reals
    assert _position(-0.0) == _position(0.0) == 0
    assert all(_position(np.nextafter(r, np.inf)) == _position(r) + 1 for r in reals)
    assert [_real(p) for p in itertools.accumulate([1] * 3)] == [5e-324, 1e-323, 1.5e-323]
