import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import credit_card
from isonomy.data.download.fetch import fetch
from isonomy.errors import DataError, FetchError


@pytest.fixture(scope="session")
def path():
    try:
        return fetch(*credit_card.FILES)[0].path
    except FetchError as error:
        pytest.skip(f"CREDIT CARD is neither cached nor available here: {error}")


def test_facts(path):
    table = credit_card.parse([path])
    check_facts("CREDIT CARD", credit_card._facts(table))
    assert len(table.names) == 25
    education = table["EDUCATION"].listed()
    assert [education.count(f"code {k}") for k in (0, 5, 6)] == [14, 280, 51]
    assert table["MARRIAGE"].listed().count("code 0") == 54
    with pytest.raises(DataError, match="29,999 rows instead of 30,000"):
        check_facts("CREDIT CARD", credit_card._facts(table.take(slice(1, None))))


def test_an_unknown_sex(path, tmp_path):
    lines = path.read_text().splitlines()
    row = lines[1].split(",")
    lines[1] = ",".join([*row[:2], "3", *row[3:]])
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="SEX is code 3 or female or male in this file"):
        credit_card.parse([tmp_path / "a.csv"])


@pytest.mark.usefixtures("path")
def test_by_default():
    it = load("credit_card")
    assert it.x.shape[0] == 30_000
    assert it.labels == ("paid", "default")
    assert int(it.y.sum()) == 6_636
    assert it.attributes[0].levels == ("female", "male")
    assert torch.bincount(it.groups[:, 0]).tolist() == [18_112, 11_888]
    assert {"ID", "SEX=female"}.isdisjoint(it.features)
    assert {"PAY_0", "AGE", "MARRIAGE=code 0"} <= set(it.features)
    both = load("credit_card", options={"protected": ["SEX*MARRIAGE", "AGE"]})
    assert len(both.attributes[0].levels) == 8
    assert both.attributes[1].levels == ("below 25", "25 to below 61", "61 and above")
    assert "AGE" not in both.features
