import pytest
import torch

from isonomy.data import load
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import german
from isonomy.data.download.fetch import fetch
from isonomy.errors import DataError, FetchError


@pytest.fixture(scope="session")
def path():
    try:
        return fetch(*german.FILES)[0].path
    except FetchError as error:
        pytest.skip(f"GERMAN is neither cached nor available here: {error}")


def test_facts(path):
    table = german.parse([path])
    check_facts("GERMAN", german._facts(table))
    assert len(table.names) == 22  # 21, and sex
    status, sex = table["personal_status"].listed(), table["sex"].listed()
    assert {s for s, g in zip(status, sex, strict=True) if g == "female"} == {
        "female, married, divorced or separated"
    }
    with pytest.raises(DataError, match="999 rows instead of 1,000"):
        check_facts("GERMAN", german._facts(table.take(slice(1, None))))


def test_every_code_has_a_word(path):
    assert [name for name in german.COLUMNS if name not in german.NUMBERS] == list(german.CODES)
    for meaning in german.CODES.values():
        assert len(set(meaning.values())) == len(meaning)
    table = german.parse([path])
    unused = {
        name: set(meaning.values()) - set(table[name].listed())
        for name, meaning in german.CODES.items()
    }
    assert {name: words for name, words in unused.items() if words} == {
        "purpose": {"vacation"},
        "personal_status": {"female, single"},
    }


def test_an_unknown_code(path, tmp_path):
    (tmp_path / "a").write_text(path.read_text().replace("A93", "A99", 1))
    with pytest.raises(DataError, match="row 1 has 'A99' for personal_status"):
        german.parse([tmp_path / "a"])


@pytest.mark.usefixtures("path")
def test_by_default():
    it = load("german")
    assert it.x.shape[0] == 1_000
    assert it.labels == ("bad", "good")
    assert int(it.y.sum()) == 700
    age, sex = it.attributes
    assert age.levels == ("below 26", "26 and above")
    assert torch.bincount(it.groups[:, 0]).tolist() == [190, 810]
    assert sex.levels == ("female", "male")
    assert torch.bincount(it.groups[:, 1]).tolist() == [310, 690]
    assert not [name for name in it.features if name.startswith(("personal_status", "sex", "age"))]
    assert "code table is disputed" in it.notes[0]


@pytest.mark.usefixtures("path")
def test_sex_and_personal_status_go_together():
    features = load("german", options={"protected": ["age"]}).features
    assert [name for name in features if name.startswith("personal_status")]
    assert not [name for name in features if name.startswith("sex")]
    features = load("german", options={"protected": ["personal_status"]}).features
    assert not [name for name in features if name.startswith(("personal_status", "sex"))]
    features = load("german", options={"keep_protected": True}).features
    assert {"sex=female", "personal_status=male, single", "age"} <= set(features)
