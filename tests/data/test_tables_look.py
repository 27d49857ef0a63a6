"""Looking at a sample of tables, and guesses at whole tables as people have them."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isonomy.data.tables import guess as rules
from isonomy.data.tables.column_profile import one_to_one, profile_columns
from isonomy.data.tables.sample import Look, broken_lines, encoding_of, look_at, spread, text_kind
from isonomy.errors import DataError

# --- looking at files ----------------------------------------------------------------------------


def write(path, rows, header=None, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ([header] if header else []) + rows
    path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
    return path


def test_a_large_file_is_looked_at_along_its_length(tmp_path):
    rows = [f"{k},{i % 7},{i % 2}" for k in "abcdefgh" for i in range(2_000)]  # sorted
    path = write(tmp_path / "all.csv", rows, "site,x,died")
    look = look_at(path, most=16_000)
    (table,) = look.tables.values()
    assert 1_500 < table.rows < 3_000
    assert look.rows_text == "about 16,000"
    assert not look.whole
    assert look.rows == pytest.approx(16_000, rel=0.01)
    assert set(table.columns["site"].levels) == set("abcdefgh")
    assert table.columns["x"].values.max() == 6
    made = rules.guess(look)
    assert (made.client, made.why["client"]) == ("site", "8 values or more, and a typical name")
    more = rules.resized(made, 200, 16_000)
    assert more.why["client"] == "200 values, and a typical name"
    assert more.sizes.cohort == 20


def test_line_breaks_in_texts_keep_the_look_at_the_beginning(tmp_path):
    rows = [f'"said:\nnothing",{i % 2}' for i in range(5_000)]
    path = write(tmp_path / "all.csv", rows, "said,died")
    (table,) = look_at(path, most=8_000).tables.values()
    assert table.columns["said"].levels == ("said:\nnothing",)
    assert set(table.columns["died"].values.tolist()) == {0, 1}


def test_a_large_packed_file(tmp_path):
    rows = "\n".join(["site,died", *(f"{'ab'[i % 2]},{i % 3 % 2}" for i in range(40_000))])
    path = tmp_path / "all.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    look = look_at(path, most=10_000)
    (table,) = look.tables.values()
    assert table.rows == 2_497  # (10,000 - 10) // 4 whole lines
    assert (look.rows, look.whole) == (pytest.approx(40_000, rel=0.01), False)
    whole = look_at(path)
    assert (whole.rows, whole.whole) == (40_000, True)


def test_a_large_parquet_file(tmp_path, monkeypatch):
    monkeypatch.setattr("isonomy.data.tables.sample.ROWS", 800)
    table = pa.table({"bank": np.repeat(np.arange(8), 500), "y": np.arange(4_000) % 2})
    pq.write_table(table, tmp_path / "all.parquet", row_group_size=500)
    look = look_at(tmp_path / "all.parquet")
    (seen,) = look.tables.values()
    assert (seen.rows, look.rows, look.whole) == (800, 4_000, False)
    assert set(seen.columns["bank"].values.tolist()) == set(range(8))


def test_of_many_files_some_are_looked_into_and_all_headers(tmp_path):
    for k in range(30):
        more = ",extra" if k == 7 else ""
        rows = [f"{i},{i % 2}{',1' * bool(more)}" for i in range(50)]
        write(tmp_path / "in" / f"c{k:02d}.csv", rows, f"x,died{more}")
    look = look_at(tmp_path / "in", files=5)
    assert len(look.tables) == 5
    assert {0, 29} <= set(look.tables)
    assert look.rows == pytest.approx(1_500, rel=0.1)
    extra = next(one for one in profile_columns(look) if one.name == "extra")
    assert len(extra.absent) == 29
    assert spread(30, 5) == sorted(look.tables)


def test_a_folder_of_one_table_is_that_table(tmp_path):
    write(tmp_path / "in" / "all.csv", ["a,1", "b,0"] * 20, "bank,y")
    look = look_at(tmp_path / "in")
    assert not look.folder
    assert rules.guess(look).client == "bank"


def test_encodings(tmp_path):
    rows = ["Köln,1", "Ulm,0"] * 20
    old = write(tmp_path / "a.csv", rows, "city,y", "cp1252")
    plain = write(tmp_path / "b.csv", ["Bonn,1"], "city,y")
    new = write(tmp_path / "c.csv", rows, "city,y")
    assert encoding_of([old, plain], [0, 1]) == "cp1252"
    assert encoding_of([plain, new], [0, 1]) == "utf-8"
    with pytest.raises(DataError, match=r"a\.csv is not UTF-8 text but c\.csv is"):
        encoding_of([old, plain, new], [0, 1, 2])
    assert text_kind(b"\x81") == "latin-1"
    assert not broken_lines(b'"a","b"\n"c","d"\n')
    assert "cp1252" in " ".join(rules.guess(look_at(old)).doubts)


# --- what is seen --------------------------------------------------------------------------------


def tables(tmp_path, **texts) -> Look:
    for name, rows in texts.items():
        write(tmp_path / "in" / f"{name}.csv", rows[1:], rows[0])
    return look_at(tmp_path / "in")


def test_columns_over_all_tables(tmp_path):
    look = tables(
        tmp_path,
        a=["x,who,when,code,note,gone", *(f"{i},A,2020-01-01,{i % 3},t{i}," for i in range(9))],
        b=["who,x,when,code,note,gone", *(f"B,{i}.5,2020-01-02,V{i % 3},1," for i in range(9))],
    )
    seen = {one.name: one for one in profile_columns(look)}
    assert (seen["x"].kind, seen["x"].whole, seen["x"].distinct) == ("number", False, 18)
    assert seen["who"].names_client
    assert seen["when"].kind == "time"
    assert (seen["code"].kind, set(seen["code"].odd)) == ("mixed", {"V0", "V1", "V2"})
    assert seen["note"].distinct_share == pytest.approx(10 / 18)
    assert seen["gone"].kind == "empty"
    assert seen["gone"].last
    assert not seen["x"].numbers_rows


def test_columns_that_go_together(tmp_path):
    rows = [f"{'ab'[i % 2]},{i % 2},{i % 3}" for i in range(60)]
    look = tables(tmp_path, all=["letter,number,other", *rows])
    (table,) = look.tables.values()
    assert one_to_one([table], "letter", "number")
    assert not one_to_one([table], "letter", "other")


# --- whole tables --------------------------------------------------------------------------------


def people(count, seed=0, **more):
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        glucose = rng.normal(6, 1)
        row = {
            "sex": rng.choice(["f", "m"]),
            "age": int(rng.integers(18, 95)),
            "glucose": round(float(glucose), 2),
            "died": "yes" if glucose + rng.normal() > 6.5 else "no",
        }
        out.append(row | {k: v(rng) for k, v in more.items()})
    header = ",".join(out[0])
    return [header, *(",".join(str(v) for v in row.values()) for row in out)]


def test_columns_that_differ_by_a_letter_are_pointed_out(tmp_path):
    first, second = people(40), people(40, 1)
    second[0] = second[0].replace("glucose", "Glucose")
    made = rules.guess(tables(tmp_path, a=first, b=second))
    assert made.drop == {"glucose": "not in the table of b", "Glucose": "not in the table of a"}
    assert any("'glucose' and 'Glucose'" in doubt for doubt in made.doubts)


def test_files_that_are_parts_of_one_table_are_pointed_out(tmp_path):
    made = rules.guess(tables(tmp_path, train=people(40), test=people(40, 1)))
    assert any("called test, train" in doubt for doubt in made.doubts)


def test_a_table_without_a_line_of_names_is_pointed_out(tmp_path):
    rows = ["39, State-gov,Male,White", "50, Private,Male,White", "38,Private,Female,Black"] * 10
    made = rules.guess(tables(tmp_path, a=rows))
    assert any("looks like values (39, State-gov, Male and 1 more)" in d for d in made.doubts)
    pixels = [",".join(map(str, range(9))), *(",".join("5" * 9) for _ in range(9))]
    made = rules.guess(tables(tmp_path / "other", a=pixels))
    assert not any("looks like values" in doubt for doubt in made.doubts)


def test_what_tells_the_label_is_dropped(tmp_path):
    rows = people(60)
    rows = [rows[0] + ",state_at_end"] + [
        row + (",dead" if row.endswith("yes") else ",alive") for row in rows[1:]
    ]
    made = rules.guess(tables(tmp_path, a=rows, b=rows))
    assert made.label == "died"
    assert made.drop["state_at_end"].startswith("determines the label")


def test_what_names_the_client_twice_is_dropped(tmp_path):
    rows = people(90, site=lambda rng: rng.choice(["A", "B", "C"]))
    rows = [rows[0] + ",site_city"] + [
        row + "," + {"A": "Ulm", "B": "Bonn", "C": "Kiel"}[row[-1]] for row in rows[1:]
    ]
    made = rules.guess(tables(tmp_path, all=rows))
    assert (made.client, made.label) == ("site", "died")
    assert made.drop == {"site_city": "corresponds one to one to site"}
    assert made.features == ("glucose",)
    assert made.clients == 0


def test_a_habit_of_writing_missing_values_is_pointed_out(tmp_path):
    stays = lambda rng: rng.choice([0, 1, 2, 3, 999], p=[0.3, 0.3, 0.2, 0.1, 0.1])  # noqa: E731
    made = rules.guess(tables(tmp_path, a=people(90, stays=stays), b=people(90, 1, stays=stays)))
    assert any("'stays' is 999 in" in doubt for doubt in made.doubts)


def test_rows_of_one_table_without_clients_are_dealt_out(tmp_path):
    made = rules.guess(tables(tmp_path, all=people(300)))
    assert (made.client, made.clients) == ("", 6)
    assert "no column seems to identify clients" in made.why["client"]


def test_unknown_ages(tmp_path):
    rows = people(120)
    rows[5] = "f,unbekannt,6.1,no"
    made = rules.guess(tables(tmp_path, a=rows, b=people(120, 1)))
    assert made.missing == ("unbekannt",)
    assert made.protected == ("sex", "age")
    assert "age" in made.bins


def test_a_split_with_which_a_client_could_not_train_is_none(tmp_path):
    parts = lambda rng: rng.choice(["train", "test"])  # noqa: E731
    good, bad = people(40, part=parts), people(40, 1, part=lambda rng: "test")
    assert rules.guess(tables(tmp_path / "x", a=good, b=good)).split == "part"
    assert rules.guess(tables(tmp_path / "y", a=good, b=bad)).split == ""


def test_nothing_to_predict(tmp_path):
    rows = ["a,b,c", *(f"{i * 0.1:.1f},{i * i * 0.3:.1f},{i * 0.7:.1f}" for i in range(90))]
    made = rules.guess(tables(tmp_path, a=rows, b=rows))
    assert made.label == ""
    assert made.classes == ()
    assert made.sizes.hidden
