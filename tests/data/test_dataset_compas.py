import numpy as np
import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import compas
from isonomy.data.download.fetch import fetch
from isonomy.errors import ConfigError, DataError, FetchError


@pytest.fixture(scope="session")
def path():
    try:
        return fetch(*compas.FILES)[0].path
    except FetchError as error:
        pytest.skip(f"COMPAS is neither cached nor available here: {error}")


@pytest.fixture(scope="session")
def table(path):
    return compas.parse([path])


def test_names_and_birth_dates_are_not_read(path, table):
    header = path.read_text().splitlines()[0].split(",")
    assert {"name", "first", "last", "dob", "c_case_number"} <= set(header)
    assert len(header) == 53
    assert table.names == list(compas.COLUMNS)
    first = path.read_text().splitlines()[1].split(",")[1]
    assert all(first not in str(values[0]) for values in table.listed().values())


def test_facts(table):
    check_facts("COMPAS", compas._facts(table))
    assert table["c_charge_desc"].listed().count(None) == 29
    with pytest.raises(DataError, match="7,213 rows instead of 7,214"):
        check_facts("COMPAS", compas._facts(table.take(slice(1, None))))


def test_the_filter_is_propublicas(path, table):
    """Against pandas, on all the columns that ProPublica's own analysis looks at."""
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(path)
    days = frame["days_b_screening_arrest"]
    keep = (days <= 30) & (days >= -30) & (frame["is_recid"] != -1)
    keep &= (frame["c_charge_degree"] != "O") & (frame["score_text"] != "N/A")
    mine = compas.filtered(table)
    assert len(mine) == int(keep.sum()) == 6_172
    np.testing.assert_array_equal(mine["age"].listed(), frame["age"][keep].to_numpy())
    assert sum(mine["two_year_recid"].listed()) == 2_809


@pytest.mark.usefixtures("path")
def test_by_default():
    it = load("compas")
    assert it.x.shape[0] == 6_172
    assert it.labels == ("not rearrested", "rearrested")
    assert int(it.y.sum()) == 2_809
    assert it.features == (
        "age",
        *compas.COUNTS,
        "c_charge_degree=F",
        "c_charge_degree=M",
        "c_charge_degree=other",
    )
    race, sex = it.attributes
    assert race.levels == ("African-American", "Caucasian", "Hispanic", "Other")
    assert torch.bincount(it.groups[:, 0]).tolist() == [3_175, 2_103, 509, 343 + 31 + 11]
    assert sex.levels == ("Female", "Male")
    assert torch.bincount(it.groups[:, 1]).tolist() == [1_175, 4_997]
    assert "ProPublica's filter keeps 6,172 of 7,214 rows." in it.notes


@pytest.mark.usefixtures("path")
def test_nothing_that_came_later_is_a_feature():
    it = load("compas", options={"charge": True, "rows": "all", "protected": ["sex"]})
    told = {name.split("=")[0].removesuffix(" is missing") for name in it.features}
    assert told == {"age", *compas.COUNTS, "race", "c_charge_degree", "c_charge_desc"}
    # no feature is the label in other words
    y = it.y.numpy()
    for column in it.x.numpy().T:
        if column.std():
            assert abs(np.corrcoef(column, y)[0, 1]) < 0.5


@pytest.mark.usefixtures("path")
def test_options():
    it = load("compas", options={"rows": "all", "races": "all", "protected": ["race", "age"]})
    assert it.x.shape[0] == 7_214
    assert len(it.attributes[0].levels) == 6
    assert it.attributes[1].levels == ("below 25", "25 to below 45", "45 and above")
    assert torch.bincount(it.groups[:, 1]).tolist() == [1_529, 4_109, 1_576]  # as age_cat has it
    assert "age" not in it.features
    old = load("compas", options={"protected": ["age_cat"]})
    assert "age" not in old.features
    assert len(load("compas", options={"charge": True}).features) > 50
    two = load("compas", options={"races": "two", "protected": ["race"]})
    assert two.attributes[0].levels == ("African-American", "Other")
    assert torch.bincount(two.groups[:, 0]).tolist() == [3_175, 2_997]  # of ProPublica's rows


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": "filterd"}, "Did you mean 'filtered'"),
        ({"races": "none"}, "unknown value of races 'none'"),
        ({"charge": "yes"}, "give true or false"),
    ],
)
def test_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        load("compas", options=options)
