import gzip

import numpy as np
import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import bank
from isonomy.data.download.fetch import fetch
from isonomy.errors import DataError, FetchError


@pytest.fixture(scope="session")
def path():
    try:
        return fetch(*bank.FILES)[0].path
    except FetchError as error:
        pytest.skip(f"BANK is neither cached nor available here: {error}")


@pytest.fixture(scope="session")
def table(path):
    return bank.parse([path])


def test_facts(table):
    check_facts("BANK", bank._facts(table))
    assert len(table.names) == 17
    assert (
        sum(values.count(None) for values in table.listed().values()) == 0
    )  # 'unknown' is a value
    with pytest.raises(DataError, match="45,210 rows instead of 45,211"):
        check_facts("BANK", bank._facts(table.take(slice(1, None))))


def test_the_original_form_is_read_too(path, table, tmp_path):
    """UCI's own file has semicolons, and quotes about words."""
    lines = gzip.decompress(path.read_bytes()).decode().split()
    quoted = [
        ";".join(v if v.lstrip("-").isdigit() else f'"{v}"' for v in line.split(","))
        for line in lines
    ]
    original = tmp_path / "bank-full.csv"
    original.write_text("\n".join(quoted) + "\n")
    assert original.read_text().startswith('"age";"job";')
    assert bank.parse([original]).listed() == table.listed()
    one = load("bank", options={"path": str(original)})
    assert one.origin == "the file given"
    assert torch.equal(one.x, load("bank").x)


@pytest.mark.usefixtures("path")
def test_by_default():
    it = load("bank")
    assert it.x.shape[0] == 45_211
    assert it.labels == ("no", "yes")
    assert int(it.y.sum()) == 5_289
    assert it.attributes[0].levels == ("below 25", "25 to below 61", "61 and above")
    assert torch.bincount(it.groups[:, 0]).tolist() == [809, 43_214, 1_188]
    assert "duration" not in it.features
    assert "age" not in it.features
    assert "education=unknown" in it.features
    # no earlier campaign is no number of days
    gone = it.x[:, it.features.index("pdays is missing")] == 1
    assert int(gone.sum()) == 36_954
    assert len(it.x[gone, it.features.index("pdays")].unique()) == 1
    assert any("duration is not used" in note for note in it.notes)


@pytest.mark.usefixtures("path")
def test_duration_leaks():
    """Why it is left out: alone it tells more of the label than any other number."""
    it = load("bank", options={"duration": True, "protected": ["marital"]})
    y = it.y.numpy()
    numbers = ["age", "balance", "day", "campaign", "previous", "duration"]
    told = {
        name: abs(np.corrcoef(it.x[:, it.features.index(name)].numpy(), y)[0, 1])
        for name in numbers
    }
    assert max(told, key=told.get) == "duration"
    assert told["duration"] > 3 * sorted(told.values())[-2]
    assert it.attributes[0].levels == ("divorced", "married", "single")
    assert not any("duration is not used" in note for note in it.notes)


@pytest.mark.usefixtures("path")
def test_clients_by_column():
    it = load("bank", partition={"name": "column", "column": "job"})
    assert len(it) == 12
    assert it.names[0] == "admin."
    sizes = sum(it.sizes(split) for split in ("train", "validation", "test"))
    assert int(sizes[it.names.index("unknown")]) == 288
