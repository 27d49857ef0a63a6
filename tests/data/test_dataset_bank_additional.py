import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import bank_additional
from isonomy.data.download.fetch import fetch
from isonomy.errors import DataError, FetchError


@pytest.fixture(scope="session")
def table():
    try:
        path = fetch(*bank_additional.FILES)[0].path
    except FetchError as error:
        pytest.skip(f"BANK-ADDITIONAL is neither cached nor available here: {error}")
    return bank_additional.parse([path])


def test_facts(table):
    check_facts("BANK-ADDITIONAL", bank_additional._facts(table))
    assert len(table.names) == 21
    counts = {name: values.count(None) for name, values in table.listed().items()}
    gone = {name: count for name, count in counts.items() if count}
    assert gone == {
        "job": 330,
        "marital": 80,
        "education": 1_731,
        "default": 8_597,
        "housing": 990,
        "loan": 990,
    }
    with pytest.raises(DataError, match="41,187 rows instead of 41,188"):
        check_facts("BANK-ADDITIONAL", bank_additional._facts(table.take(slice(1, None))))


@pytest.mark.usefixtures("table")
def test_by_default():
    it = load("bank_additional")
    assert it.x.shape[0] == 41_188
    assert int(it.y.sum()) == 4_640
    assert int((it.groups == 1).sum()) == 39_210
    assert "duration" not in it.features
    assert {"euribor3m", "default is missing", "pdays is missing"} <= set(it.features)
    gone = it.x[:, it.features.index("pdays is missing")]
    assert int(gone.sum()) == 39_673
    default = [at for at, name in enumerate(it.features) if name.startswith("default")]
    assert torch.equal(it.x[:, default].sum(1), torch.ones(41_188))
    assert "duration" in load("bank_additional", options={"duration": True}).features
