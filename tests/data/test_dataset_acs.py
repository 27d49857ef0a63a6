import hashlib
import http.server
import io
import itertools
import threading
import zipfile

import numpy as np
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data import load
from isonomy.data.arrow_values import frame_of
from isonomy.data.datasets import acs
from isonomy.data.download import census_files
from isonomy.errors import ConfigError, DataError, FetchError

# The columns of psam_p06.csv, in its order, without flags and replicate weights.
_COLUMNS = """
RT SERIALNO DIVISION SPORDER PUMA REGION ST ADJINC PWGTP AGEP CIT CITWP COW DDRS DEAR DEYE
DOUT DPHY DRAT DRATX DREM ENG FER GCL GCM GCR HINS1 HINS2 HINS3 HINS4 HINS5 HINS6 HINS7 INTP
JWMNP JWRIP JWTR LANX MAR MARHD MARHM MARHT MARHW MARHYP MIG MIL MLPA MLPB MLPCD MLPE MLPFG
MLPH MLPI MLPJ MLPK NWAB NWAV NWLA NWLK NWRE OIP PAP RELP RETP SCH SCHG SCHL SEMP SEX SSIP SSP
WAGP WKHP WKL WKW WRK YOEP ANC ANC1P ANC2P DECADE DIS DRIVESP ESP ESR FOD1P FOD2P HICOV HISP
INDP JWAP JWDP LANP MIGPUMA MIGSP MSP NAICSP NATIVITY NOP OC OCCP PAOC PERNP PINCP POBP POVPIP
POWPUMA POWSP PRIVCOV PUBCOV QTRBIR RAC1P RAC2P RAC3P RACAIAN RACASN RACBLK RACNH RACNUM RACPI
RACSOR RACWHT RC SCIENGP SCIENGRLP SFN SFR SOCP VPS WAOB
"""
COLUMNS = _COLUMNS.split()
ANN = {
    "RT": "P", "SERIALNO": "2018HU0000001", "PUMA": "03701", "ST": "06", "PWGTP": "80",
    "AGEP": "40", "CIT": "1", "COW": "1", "DEAR": "2", "DEYE": "2", "DREM": "2", "FER": "2",
    "GCL": "2", "JWMNP": "25", "JWTR": "01", "MAR": "1", "MIG": "1", "MIL": "4", "RELP": "00",
    "SCHL": "21", "SEX": "2", "WKHP": "40", "ANC": "1", "DIS": "2", "ESR": "1", "NATIVITY": "1",
    "NAICSP": "611M1", "OCCP": "2310", "PINCP": "62000", "POBP": "006", "POVPIP": "501",
    "POWPUMA": "03700", "PUBCOV": "2", "RAC1P": "6", "SOCP": "252020",
}  # fmt: skip


def person(**other):
    return ANN | {name: str(value) for name, value in other.items()}


def table(rows, columns=COLUMNS):
    lines = [",".join(columns)]
    lines += [",".join(row.get(name, "") for name in columns) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def packed(name, content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr("ACS2018_PUMS_README.pdf", b"read me")
    return out.getvalue()


def crowd(count, seed):
    rng = np.random.default_rng(seed)
    return [
        person(
            AGEP=int(rng.integers(0, 95)),
            SEX=int(rng.integers(1, 3)),
            RAC1P=int(rng.choice([1, 1, 1, 2, 6, 8, 9])),
            SCHL=f"{rng.integers(1, 25):02d}",
            ESR=int(rng.choice([1, 6])),
            WKHP=str(rng.integers(1, 60)) if rng.random() < 0.7 else "",
        )
        for _ in range(count)
    ]


def asked(task, *people):
    """The labels of those who are asked, by age (ages tell people apart)."""
    from pyarrow import csv

    content = table(people)
    kinds = csv.ConvertOptions(column_types={"NAICSP": "string"})
    read = csv.read_csv(io.BytesIO(content), convert_options=kinds)
    found = acs.people(acs.TASKS[task], frame_of(read))
    return dict(zip(found["AGEP"].listed(), found["label"].listed(), strict=True))


def test_employment_by_hand():
    people = [
        person(AGEP=16),  # too young
        person(AGEP=17, ESR=6),
        person(AGEP=89, ESR=1),
        person(AGEP=90),  # too old
        person(AGEP=30, PWGTP=0),  # stands for nobody
        person(AGEP=31, ESR=2),  # has a job, not at work
        person(AGEP=32, ESR=4),  # in the armed forces
        person(AGEP=33, PWGTP=1),
        person(AGEP=3, ESR=""),
    ]
    no, yes = "not employed", "employed"
    assert asked("employment", *people) == {17: no, 89: yes, 31: no, 32: no, 33: yes}
    everybody = asked("employment_all", *people)
    assert len(everybody) == len(people)
    assert (everybody[16], everybody[90], everybody[30], everybody[3]) == (yes, yes, yes, no)


def test_income_by_hand():
    people = [
        person(AGEP=16),
        person(AGEP=17, PINCP=50_000),
        person(AGEP=18, PINCP=50_001),
        person(AGEP=19, PINCP=100),  # too little
        person(AGEP=20, PINCP=101),
        person(AGEP=21, PINCP=-5_000),
        person(AGEP=22, WKHP=""),  # did not work
        person(AGEP=94, WKHP=1, PWGTP=1),
        person(AGEP=24, PWGTP=0),
    ]
    less, more = acs.TASKS["income"].labels
    assert asked("income", *people) == {17: less, 18: more, 20: less, 94: more}


def test_public_coverage_by_hand():
    people = [
        person(AGEP=65, PINCP=0),  # has Medicare
        person(AGEP=64, PINCP=30_000, PUBCOV=1),
        person(AGEP=63, PINCP=30_001),
        person(AGEP=14, PINCP=""),  # children have no income on record
        person(AGEP=15, PINCP=-100, PUBCOV=2),
    ]
    assert asked("public_coverage", *people) == {64: "covered", 15: "not covered"}


def test_mobility_by_hand():
    people = [person(AGEP=18), person(AGEP=19, MIG=1), person(AGEP=34, MIG=3), person(AGEP=35)]
    assert asked("mobility", *people) == {19: "same address", 34: "moved"}


def test_travel_time_by_hand():
    people = [
        person(AGEP=16),
        person(AGEP=17, JWMNP=20),
        person(AGEP=18, JWMNP=21),
        person(AGEP=19, ESR=3),
        person(AGEP=20, PWGTP=0),
        person(AGEP=21, JWMNP=""),  # works at home
    ]
    less, more = acs.TASKS["travel_time"].labels
    assert asked("travel_time", *people) == {17: less, 18: more, 21: less}


@pytest.mark.parametrize(
    ("task", "count"),
    [
        ("income", 10),
        ("public_coverage", 19),
        ("mobility", 21),
        ("employment", 17),
        ("employment_all", 16),
        ("travel_time", 16),
    ],
)
def test_the_papers_number_of_features(task, count):
    features = acs.TASKS[task].features.split()
    assert len(set(features)) == len(features) == count
    assert set(acs.TASKS[task].columns) <= set(COLUMNS)
    assert acs.TASKS[task].target not in features


@pytest.fixture
def folder(tmp_path):
    """Two states as tables, one as a zip."""
    (tmp_path / "psam_p06.csv").write_bytes(table(crowd(300, 1)))
    (tmp_path / "psam_p48.csv").write_bytes(table(crowd(200, 2)))
    (tmp_path / "csv_pwy.zip").write_bytes(packed("psam_p56.csv", table(crowd(60, 3))))
    return tmp_path


STATES = ("WY", "CA", "TX")


def federation(folder, states=STATES, partition=None, clients=None, seed=0, **options):
    options = {"path": str(folder), "states": list(states), **options}
    return load("acs", options=options, partition=partition, clients=clients, seed=seed)


def test_states_are_clients(folder):
    found = federation(folder)
    assert found.names == ("CA", "TX", "WY")
    ages = [[int(row["AGEP"]) for row in crowd(n, s)] for n, s in ((300, 1), (200, 2), (60, 3))]
    sizes = sum(found.sizes(split) for split in SPLITS)
    assert sizes.tolist() == [sum(16 < age < 90 for age in each) for each in ages]
    assert found.labels == ("not employed", "employed")
    employed = [
        sum(16 < int(row["AGEP"]) < 90 and row["ESR"] == "1" for row in crowd(n, s))
        for n, s in ((300, 1), (200, 2), (60, 3))
    ]
    ends = [0, *np.cumsum(sizes.tolist()).tolist()]
    found_employed = [int(found.y[a:b].sum()) for a, b in itertools.pairwise(ends)]
    assert found_employed == employed
    assert found.attributes[0].name == "RAC1P"
    levels = ("Asian", "Black", "White", "other race", "two or more races")
    assert found.attributes[0].levels == levels
    assert not [name for name in found.features if name.startswith(("RAC1P", "state", "ESR"))]
    assert "SEX=female" in found.features
    assert found.features[0] == "AGEP"
    train = torch.cat([found.x[found.rows(k)] for k in range(3)])
    torch.testing.assert_close(train[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert torch.equal(found.x, federation(folder).x)


def test_tasks_and_options(folder):
    both = federation(folder, task="employment_all", protected=["SEX", "RAC1P*SEX"])
    assert int(sum(both.sizes(split).sum() for split in SPLITS)) == 560
    assert [len(attribute.levels) for attribute in both.attributes] == [2, 10]
    kept = federation(folder, keep_protected=True)
    assert "RAC1P=White" in kept.features
    ages = federation(folder, protected=["AGEP"], bins={"AGEP": [30, 60]})
    assert ages.attributes[0].levels == ("below 30", "30 to below 60", "60 and above")
    assert "AGEP" not in ages.features
    fewer = federation(folder, density=0.5)
    whole = federation(folder)
    assert fewer.x.shape[0] == sum(round(0.5 * int(n)) for n in _sizes(whole))
    assert not torch.equal(fewer.y, federation(folder, density=0.5, seed=1).y)
    dealt = federation(folder, partition={"name": "dirichlet", "beta": 1.0}, clients=4)
    assert len(dealt) == 4
    assert dealt.x.shape[0] == whole.x.shape[0]


def _sizes(federation):
    return sum(federation.sizes(split) for split in SPLITS)


def test_a_blank_number_is_zero_and_a_blank_category_one_of_its_own(tmp_path):
    kinds = [("10", "1"), ("", ""), ("50", "2")] * 20
    rows = [person(AGEP=20, WKHP=w, COW=c, MIG=i % 2 + 1) for i, (w, c) in enumerate(kinds)]
    (tmp_path / "psam_p06.csv").write_bytes(table(rows))
    found = federation(tmp_path, ["CA"], task="mobility", rare=1)
    hours = found.x[:, found.features.index("WKHP")]
    blank = found.x[:, found.features.index("COW is missing")] == 1
    one = found.x[:, found.features.index("COW=1")] == 1
    assert int(blank.sum()) == int(one.sum()) == 20
    train = slice(0, found.rows(0).stop)
    # 10, 0 and 50 hours in the training rows' own standard units
    real = torch.where(blank, 0.0, torch.where(one, 10.0, 50.0)).double()
    centre, spread = real[train].mean(), real[train].std(correction=0)
    torch.testing.assert_close(hours.double(), (real - centre) / spread, atol=1e-5, rtol=0)


def test_what_was_read_is_told_by_its_checksum(folder):
    content = table(crowd(60, 3))
    told = hashlib.sha256(content).hexdigest()
    assert federation(folder, ["WY"]).notes == (f"SHA-256 of the table read: {told}.",)
    (folder / "csv_pwy.zip").unlink()
    (folder / "psam_p56.csv").write_bytes(content)  # unpacked, it is the same
    assert told in federation(folder, ["WY"]).notes[0]
    assert "of the 3 tables read" in federation(folder).notes[0]


def test_other_years(tmp_path):
    later = [{"RELP": "RELSHIPP", "JWTR": "JWTRNS", "ST": "STATE"}.get(c, c) for c in COLUMNS]
    content = table(crowd(80, 4)).split(b"\n", 1)[1]
    old = tmp_path / "2016" / "1-Year"
    old.mkdir(parents=True)
    (old / "ss16pca.csv").write_bytes(table(crowd(80, 4)))
    (tmp_path / "psam_p06.csv").write_bytes(",".join(later).encode() + b"\n" + content)
    one = federation(tmp_path, ["CA"], year=2016)
    two = federation(tmp_path, ["CA"], year=2023)
    assert torch.equal(one.x, two.x)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "incom"}, "unknown task of data set 'acs' 'incom'.*Did you mean 'income'"),
        ({"states": ["CA", "ZZ"]}, "unknown state 'ZZ'"),
        ({"states": ["CA", "CA"]}, "name every state once"),
        ({"year": 2020}, "no ACS 1-Year sample of 2020"),
        ({"year": 2013}, "no ACS 1-Year sample of 2013"),
        ({"density": 0.0}, "density is 0.0"),
        ({"protected": ["RACE"]}, "no column 'RACE'"),
    ],
)
def test_refused(folder, options, words):
    with pytest.raises(ConfigError, match=words):
        federation(folder, **options)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("psam_p06.csv", b"", r"psam_p06\.csv has no column AGEP"),
        ("psam_p06.csv", table(crowd(9, 1), COLUMNS[:40]), "has no column SCHL; give the person"),
        (
            "psam_p06.csv",
            table(crowd(9, 1)) + b"1,2,3\n",
            "cannot read .* as the person file of CA",
        ),
        ("psam_p06.csv", table([person(AGEP="old")]), "cannot read .* as the person file of CA"),
        ("psam_p06.csv", table([person(RAC1P=0)]), "RAC1P is 0 in one row"),
        (
            "csv_pca.zip",
            packed("psam_p06.csv", b"")[:-40],
            "cannot read .* as the person file of CA",
        ),
        ("csv_pca.zip", packed("psam_p48.csv", b""), r"it does not contain psam_p06\.csv"),
        ("csv_ptx.zip", b"", r"contains neither psam_p06\.csv nor csv_pca\.zip"),
    ],
)
def test_damaged_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as error:
        federation(tmp_path, ["CA"])
    assert "\n" not in str(error.value)


@pytest.fixture
def bureau(tmp_path, monkeypatch):
    """A server on this machine with two states' files, and what it may do wrong."""
    files = {
        "/2018/csv_pwy.zip": packed("psam_p56.csv", table(crowd(60, 3))),
        "/2018/csv_pvt.zip": packed("psam_p50.csv", table(crowd(90, 5))),
    }
    said = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            said.append(self.path)
            content = files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(files.get("length", len(content))))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    port = server.server_address[1]
    monkeypatch.setattr(census_files, "ADDRESS", f"http://127.0.0.1:{port}/{{year}}/{{name}}")
    yield files, said, tmp_path / "cache" / "acs-2018"
    server.shutdown()
    thread.join()
    server.server_close()


def test_download(bureau):
    files, said, cache = bureau
    seen = []
    found = load("acs", options={"states": ["VT", "WY"]}, progress=lambda *a: seen.append(a))
    assert found.names == ("VT", "WY")
    assert found.origin.startswith("http://127.0.0.1")
    size = len(files["/2018/csv_pvt.zip"])
    assert ("csv_pvt.zip", size, size) in seen
    assert {path.name for path in cache.iterdir()} == {"csv_pvt.zip", "csv_pwy.zip", "SHA256SUMS"}
    digest = hashlib.sha256(files["/2018/csv_pvt.zip"]).hexdigest()
    assert f"{digest}  csv_pvt.zip\n" in (cache / "SHA256SUMS").read_text()
    again = load("acs", options={"states": ["VT", "WY"]})
    assert torch.equal(found.x, again.x)
    assert again.origin == "the local cache"
    assert len(said) == 2  # nothing was fetched twice
    (cache / "csv_pvt.zip").write_bytes(files["/2018/csv_pwy.zip"])
    with pytest.raises(DataError, match="is not what was downloaded"):
        load("acs", options={"states": ["VT"]})
    (cache / "csv_pvt.zip").unlink()
    assert len(load("acs", options={"states": ["VT"]})) == 1


def test_downloads_that_fail_leave_nothing(bureau):
    files, _, cache = bureau
    with pytest.raises(FetchError, match=r"cannot download csv_pca\.zip: tried .*HTTP status 404"):
        load("acs", options={"states": ["CA"]})
    whole = files["/2018/csv_pwy.zip"]
    files["length"] = len(whole) + 10
    with pytest.raises(FetchError, match=r"after [\d,]+ of [\d,]+ bytes"):
        load("acs", options={"states": ["WY"]})
    del files["length"]
    at = whole.find(b"psam_p56.csv") + 40
    files["/2018/csv_pwy.zip"] = whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    with pytest.raises(FetchError, match="not a complete zip"):
        load("acs", options={"states": ["WY"]})
    files["/2018/csv_pwy.zip"] = b"<html>Sorry</html>"
    with pytest.raises(FetchError, match="not a complete zip"):
        load("acs", options={"states": ["WY"]})
    assert list(cache.iterdir()) == []


def test_unreachable(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    monkeypatch.setattr(census_files, "ADDRESS", "http://127.0.0.1:9/{year}/{name}")
    with pytest.raises(FetchError, match="no connection") as error:
        load("acs", options={"states": ["WY"]})
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def prepared(path, count=400, **other):
    """People who were selected before, as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(4)
    names = acs.TASKS["income"].features.split()
    columns = {name: rng.integers(1, 3, count).astype(np.int16) for name in names}
    columns |= {"AGEP": rng.integers(17, 90, count), "RAC1P": rng.integers(1, 6, count)}
    columns |= {"STATE": rng.choice(["WY", "VT", "PR"], count), "PINCP": rng.random(count) < 0.4}
    pq.write_table(pa.table({k: v for k, v in (columns | other).items() if v is not None}), path)
    return columns


def test_one_table_of_selected_people(tmp_path):
    path = tmp_path / "people.parquet"
    columns = prepared(path)
    found = federation(path, states=[], task="income", protected=["SEX"], rare=1)
    assert found.names == ("PR", "VT", "WY")
    where, income = columns["STATE"], columns["PINCP"]
    assert _sizes(found).tolist() == [int((where == name).sum()) for name in found.names]
    ends = [0, *np.cumsum(_sizes(found).tolist()).tolist()]
    rich = [int(found.y[a:b].sum()) for a, b in itertools.pairwise(ends)]
    assert rich == [int(income[where == name].sum()) for name in found.names]
    assert found.labels == ("at most $50,000", "more than $50,000")
    assert found.attributes[0].levels == ("female", "male")
    assert [name for name in found.features if name.startswith("RAC1P")]  # codes without names
    assert not [name for name in found.features if "White" in name or name.startswith("SEX")]
    assert found.origin == "the file given"
    some = federation(path, states=["VT"], task="income", protected=["SEX"], density=0.5)
    assert _sizes(some).tolist() == [round(0.5 * int((where == "VT").sum()))]
    amounts = np.where(income, 70_000, 20_000)
    prepared(path, PINCP=amounts)
    again = federation(path, states=[], task="income", protected=["SEX"], rare=1)
    assert torch.equal(again.y, found.y)


def test_tables_of_selected_people_that_are_refused(tmp_path):
    path = tmp_path / "people.parquet"
    with pytest.raises(DataError, match=r"people\.parquet does not exist; give the path"):
        federation(path, states=[], task="income")
    prepared(path, WKHP=None)
    with pytest.raises(DataError, match=r"has no column WKHP; .* 'income' needs AGEP, COW"):
        federation(path, states=[], task="income")
    prepared(path)
    with pytest.raises(DataError, match=r"has no rows of CA; change data\.states"):
        federation(path, states=["CA", "VT"], task="income")
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        federation(path, states=[], task="income")
