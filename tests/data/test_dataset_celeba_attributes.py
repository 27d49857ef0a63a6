import io
import json
import zipfile

import numpy as np
import pytest
import torch

from isonomy.core.examples import SPLITS
from isonomy.data import load
from isonomy.data.dataset import Request, check_facts
from isonomy.data.datasets import celeba_attributes as celeba
from isonomy.data.download import fetch
from isonomy.data.partition import plan
from isonomy.errors import ConfigError, DataError, FetchError

NAMES = ["Bald", "Male", "Smiling", "Young"]


def answers(rows=120, seed=0):
    """1 and -1; who smiles is less often bald, so that something can be told apart."""
    rng = np.random.default_rng(seed)
    out = np.where(rng.random((rows, 4)) < 0.5, 1, -1)
    out[:, 0] = np.where(rng.random(rows) < 0.2, 1, -out[:, 2])
    return out


def pictures(rows):
    return [f"{i + 1:06d}.jpg" for i in range(rows)]


def official(rows):
    """As list_attr_celeba.txt: Windows line ends, a space after the names, columns aligned."""
    lines = [str(len(rows)), " ".join(NAMES) + " "]
    for picture, row in zip(pictures(len(rows)), rows, strict=True):
        lines.append(picture + " " + " ".join(f"{value:2d}" for value in row))
    return ("\r\n".join(lines) + "\r\n").encode()


def table(rows):
    lines = ["filename," + ",".join(NAMES)]
    for picture, row in zip(pictures(len(rows)), rows, strict=True):
        lines.append(picture + "," + ",".join(str(value) for value in row))
    return "\n".join(lines).encode()


def packed(content):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("celeba.csv", content)
    return out.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        official(answers()),
        official(answers()).replace(b"\r\n", b"\n"),
        table(answers()),
        table(np.maximum(answers(), 0)),  # as 0 and 1
        packed(table(answers())),
    ],
)
def test_all_forms_are_read_alike(tmp_path, content):
    (tmp_path / "some").write_bytes(content)
    columns, names = celeba.parse(tmp_path / "some")
    assert list(columns) == NAMES
    assert names == pictures(120)
    found = np.stack(list(columns.values()), 1)
    np.testing.assert_array_equal(found, answers() > 0)


def federate(columns, who=None, clients=3, partition="iid", **options):
    known = {name: option.default for name, option in celeba.DATASET.options.items()}
    chosen = plan(partition, celeba.DATASET.partitions)
    return celeba.federate(columns, who, Request(clients, 0, *chosen, {**known, **options}))


@pytest.fixture
def columns():
    return {name: (answers()[:, i] > 0).astype(np.int8) for i, name in enumerate(NAMES)}


def test_the_federation(columns):
    federation = federate(columns)
    assert federation.features == ("Bald", "Young")
    assert federation.labels == ("no", "yes")
    assert [(a.name, a.levels) for a in federation.attributes] == [("Male", ("no", "yes"))]
    order = np.lexsort([columns[name] for name in ("Bald", "Young", "Male", "Smiling")])
    expected = np.stack([columns[n] for n in ("Smiling", "Male", "Bald", "Young")], 1)[order]
    found = torch.cat([federation.y[:, None], federation.groups, federation.x], 1).numpy()
    found = found[np.lexsort([found[:, 2], found[:, 3], found[:, 1], found[:, 0]])]
    np.testing.assert_array_equal(found, expected)
    kept = federate(columns, keep_protected=True)
    assert {"Male=no", "Male=yes"} <= set(kept.features)
    other = federate(columns, label="Young", protected=("Male*Smiling",))
    assert other.features == ("Bald",)
    assert int(other.y.sum()) == int(columns["Young"].sum())
    assert other.attributes[0].levels == ("no & no", "no & yes", "yes & no", "yes & yes")


def test_celebrities_as_clients(columns, tmp_path):
    whose = [7 if i < 50 else 2880 if i < 110 else i for i in range(120)]
    lines = [f"{name} {who}" for name, who in zip(pictures(120), whose, strict=True)]
    lines.reverse()  # the order is of no matter
    path = tmp_path / "identity_CelebA.txt"
    path.write_text("\n".join(lines) + "\n")
    who = celeba.identities(path, pictures(120))
    assert who.tolist() == whose
    partition = {"name": "column", "column": "identity", "minimum": 5}
    federation = federate(columns, who, clients=0, partition=partition)
    assert federation.names == ("7", "2880", "other")
    assert sum(federation.sizes(split) for split in SPLITS).tolist() == [50, 60, 10]
    assert federation.features == ("Bald", "Young")
    first = slice(0, federation.rows(0, "test").stop)
    assert int(federation.y[first].sum()) == int(columns["Smiling"][:50].sum())
    with pytest.raises(ConfigError, match=r"option 'identities' to the path"):
        federate(columns, clients=0, partition=partition)
    path.write_text("000001.jpg 2880\n000002.jpg\n")
    with pytest.raises(DataError, match=r"line 2 of .* is not a picture and a number"):
        celeba.identities(path, pictures(2))
    with pytest.raises(DataError, match="cannot read"):
        celeba.identities(tmp_path / "nothing", pictures(2))
    path.write_text("000001.jpg 2880\n")
    with pytest.raises(DataError, match=r"has no identity for 000002\.jpg"):
        celeba.identities(path, pictures(2))


def lists(folder, train, test):
    """As the authors' lists of clients: file names and labels, in LEAF's format."""
    for name, users in (("train", train), ("test", test)):
        (folder / name).mkdir()
        data = {u: {"x": [pictures(120)[i] for i in at], "y": y} for u, (at, y) in users.items()}
        sizes = [len(each["y"]) for each in data.values()]
        content = {"users": list(data), "num_samples": sizes, "user_data": data}
        (folder / name / "some.json").write_text(json.dumps(content))


def test_the_papers_clients(columns, tmp_path):
    """Clients, training and test pictures are those listed; other pictures are not used."""
    smile = columns["Smiling"].tolist()
    whose = {"31": [[5, 3, 9, 40, 41, 42, 43, 44], [8]], "7": [[70, 71, 80, 90], [60, 61]]}
    lists(
        tmp_path,
        {u: (a, [smile[i] for i in a]) for u, (a, _) in whose.items()},
        {u: (b, [smile[i] for i in b]) for u, (_, b) in whose.items()},
    )
    known = {name: option.default for name, option in celeba.DATASET.options.items()}
    chosen = plan("paper", celeba.DATASET.partitions)

    def made(**options):
        request = Request(0, 0, *chosen, known | {"clients_path": str(tmp_path)} | options)
        return celeba.paper(columns, pictures(120), request)

    plain = made(fractions=(0.8, 0.0, 0.2))
    assert set(plain.names) == {"31", "7"}
    assert plain.features == ("Bald", "Young")
    for k, user in enumerate(plain.names):
        for split, at in zip(("train", "test"), whose[user], strict=True):
            rows = plain.rows(k, split)
            found = torch.cat([plain.y[rows, None], plain.x[rows]], 1).tolist()
            right = [[smile[i], columns["Bald"][i], columns["Young"][i]] for i in at]
            assert sorted(found) == sorted([float(v) for v in row] for row in right)
    held = made(fractions=(0.6, 0.2, 0.2))
    assert held.sizes("test").tolist() == plain.sizes("test").tolist()
    assert int(held.sizes("validation").sum()) == 3
    columns["Smiling"] = 1 - columns["Smiling"]
    with pytest.raises(DataError, match="labels of FMTL's clients are not the attribute Smiling"):
        made()
    with pytest.raises(DataError, match="no JSON files"):
        made(clients_path=str(tmp_path / "train"))


@pytest.mark.slow
def test_the_papers_clients_are_515():
    try:
        federation = load(
            "celeba_attributes", partition="paper", options={"fractions": (0.8, 0.0, 0.2)}
        )
    except FetchError as error:
        pytest.skip(f"the lists of clients are neither cached nor available here: {error}")
    sizes = {split: int(federation.sizes(split).sum()) for split in SPLITS}
    assert len(federation) == 515
    assert sizes == {"train": 9_060, "validation": 0, "test": 2_399}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot read .* as CelebA's attributes"),
        (table(answers()).replace(b"-1", b"-2"), "attribute 'Bald' .* values other than 1"),
        (table(answers()).replace(b"-1", b"no"), "attribute 'Bald' .* values other than 1"),
        (official(answers())[:-20], "cannot read .* as CelebA's attributes"),
        (packed(table(answers()))[:-30], "cannot read .* as CelebA's attributes"),
        (table(answers()), "it has 4 attributes instead of 40"),
    ],
)
def test_damaged_files(tmp_path, content, words):
    (tmp_path / "some").write_bytes(content)
    with pytest.raises(DataError, match=words) as error:
        load("celeba_attributes", options={"path": str(tmp_path / "some")})
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match=r"cannot read .*nothing"):
        load("celeba_attributes", options={"path": str(tmp_path / "nothing")})


def test_unknown_attributes(columns):
    with pytest.raises(ConfigError, match=r"unknown attribute of CelebA 'Smilling'.*Did you mean"):
        federate(columns, label="Smilling")
    with pytest.raises(ConfigError, match="unknown attribute of CelebA 'male'"):
        federate(columns, protected=("male",))
    with pytest.raises(ConfigError, match="'Smiling' is the label"):
        federate(columns, protected=("Smiling",))


@pytest.mark.slow
def test_facts():
    try:
        (file,) = fetch.fetch(*celeba.FILES)
    except FetchError as error:
        pytest.skip(f"CelebA's attributes are neither cached nor available here: {error}")
    check_facts("CelebA attributes", celeba.facts([file.path]))
    columns, names = celeba.parse(file.path)
    assert (names[0], names[-1]) == ("000001.jpg", "202599.jpg")
    assert columns["Male"].mean() == pytest.approx(0.4168, abs=5e-5)
    assert columns["Smiling"].mean() == pytest.approx(0.4821, abs=5e-5)
    federation = load("celeba_attributes")
    assert federation.x.shape == (202_599, 38)
    assert set(federation.x.unique().tolist()) == {0.0, 1.0}
    assert int(federation.y.sum()) == 97_669
    assert int(federation.groups.sum()) == 84_434
    rates = [float(federation.y[federation.rows(k)].float().mean()) for k in range(20)]
    assert np.std(rates) > 0.05  # clients differ
