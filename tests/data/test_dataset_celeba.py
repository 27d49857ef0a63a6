"""On small files in LEAF's and CelebA's form: the pictures are for their authors to give."""

import importlib
import json

import numpy as np
import pytest
import torch

from isonomy.data import load
from isonomy.data.datasets import celeba
from isonomy.errors import ConfigError, DataError, FetchError

Image = pytest.importorskip("PIL.Image")

CELEBRITIES = {"12": range(1, 8), "7": range(8, 14), "99": range(14, 20)}
COLUMNS = ["Bald", "Male", "Smiling", "Young"]


def value(picture: int, column: str) -> int:
    """Made up: who is 12 is no man, and so on."""
    return {
        "Bald": -1,
        "Male": -1 if picture < 8 else 1,
        "Smiling": 1 if picture % 2 else -1,
        "Young": 1 if picture % 3 else -1,
    }[column]


def name(picture: int) -> str:
    return f"{picture:06d}.jpg"


def leaf(pictures):
    """As LEAF's metadata_to_json.py writes it: labels 0.0 and 1.0."""
    data = {
        user: {
            "x": [name(p) for p in mine],
            "y": [(value(p, "Smiling") + 1) / 2 for p in mine],
        }
        for user, mine in pictures.items()
    }
    return {
        "users": list(data),
        "num_samples": [len(d["y"]) for d in data.values()],
        "user_data": data,
    }


@pytest.fixture
def folder(tmp_path):
    raw = tmp_path / "raw" / "img_align_celeba"
    raw.mkdir(parents=True)
    lines = ["19", " ".join(COLUMNS)]
    for picture in range(1, 20):
        colour = (10 * picture, 255 - 10 * picture, 128)
        Image.new("RGB", (178, 218), colour).save(raw / name(picture), quality=95)
        lines.append(" ".join([name(picture), *(f"{value(picture, c):2d}" for c in COLUMNS)]))
    (tmp_path / "raw" / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    for part, cut in (("train", slice(0, -2)), ("test", slice(-2, None))):
        (tmp_path / part).mkdir()
        held = {user: list(pictures)[cut] for user, pictures in CELEBRITIES.items()}
        (tmp_path / part / f"all_data_{part}.json").write_text(json.dumps(leaf(held)))
    return tmp_path


def test_celebrities_are_clients(folder):
    made = load("celeba", options={"path": str(folder), "fractions": [0.8, 0.0, 0.2]})
    assert made.names == ("12", "7", "99")
    assert made.x.shape == (19, 3, 84, 84)
    assert made.sizes("train").tolist() == [5, 4, 4]
    assert made.sizes("test").tolist() == [2, 2, 2]
    assert made.labels == ("not Smiling", "Smiling")
    assert made.attributes[0].name == "Male"
    assert made.attributes[0].levels == ("not Male", "Male")
    for k, (first, last) in enumerate(((1, 7), (8, 13), (14, 19))):
        start, stop = int(made.ranges[k].min()), int(made.ranges[k].max())
        for row, picture in zip(range(start, stop), range(first, last + 1), strict=True):
            red, green, blue = (float(made.x[row, c].mean()) * 255 for c in range(3))
            assert red == pytest.approx(10 * picture, abs=3)
            assert green == pytest.approx(255 - 10 * picture, abs=3)
            assert blue == pytest.approx(128, abs=3)
            assert int(made.y[row]) == picture % 2
            assert int(made.groups[row, 0]) == int(picture >= 8)


def test_other_attributes_and_sizes(folder):
    options = {"path": str(folder), "protected": ["Young", "Male*Young", "Smiling"], "side": 8}
    made = load("celeba", clients=2, seed=2, options=options)
    assert len(made) == 2
    assert made.x.shape[1:] == (3, 8, 8)
    assert made.attributes[1].levels == (
        "not Male & not Young",
        "not Male & Young",
        "Male & not Young",
        "Male & Young",
    )
    assert torch.equal(made.groups[:, 1] % 2, made.groups[:, 0])
    assert torch.equal(made.groups[:, 2], made.y)
    none = load("celeba", options={"path": str(folder), "protected": [], "side": 4})
    assert none.groups.shape == (19, 0)


def test_pictures_are_upright_and_in_colour(folder):
    """Rows first, then columns; red, green, blue."""
    picture = np.zeros((218, 178, 3), dtype=np.uint8)
    picture[:109, :, 0] = 255  # the upper half is red
    picture[:, :89, 2] = 255  # the left half is blue as well
    Image.fromarray(picture).save(folder / "raw" / "img_align_celeba" / name(1), quality=95)
    (out,) = celeba.pictures(folder / "raw" / "img_align_celeba", [name(1)], 84)
    assert out[0, 10, 70] > 240
    assert out[0, 70, 70] < 15
    assert out[2, 70, 10] > 240
    assert out[2, 10, 70] < 15
    assert out[1].max() < 60


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda f: picture(f, 3).unlink(), DataError, "cannot read the picture"),
        (lambda f: picture(f, 3).write_bytes(picture(f, 3).read_bytes()[:300]), DataError,
         "cannot read the picture"),
        (lambda f: picture(f, 3).write_bytes(b"no picture"), DataError, "cannot read the picture"),
        (lambda f: table(f).unlink(), DataError, "put CelebA's list_attr_celeba.txt there"),
        (lambda f: table(f).write_text(table(f).read_text()[:-90]), DataError,
         "for the picture 0000"),
        (lambda f: table(f).write_text(table(f).read_text().replace(" 1\n", " 2\n")), DataError,
         "attributes of -1 or 1 for the picture"),
        (lambda f: table(f).write_text(table(f).read_text().replace("Male", "Man")), ConfigError,
         "unknown attribute of CelebA 'Male'"),
        (lambda f: table(f).write_text(table(f).read_text().replace("Smiling Young",
         "Young Smiling")), DataError, "labels are not CelebA's 'Smiling'"),
    ],
)  # fmt: skip
def test_damaged_folders(folder, change, kind, words):
    change(folder)
    with pytest.raises(kind, match=words) as error:
        load("celeba", options={"path": str(folder)})
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def picture(folder, number):
    return folder / "raw" / "img_align_celeba" / name(number)


def table(folder):
    return folder / "raw" / "list_attr_celeba.txt"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": 0}, "side is 0"),
        ({"protected": ["Mal"]}, "Did you mean 'Male'"),
        ({"protected": ["Male", "Male"]}, "name every attribute once"),
    ],
)
def test_bad_options(folder, options, words):
    with pytest.raises(ConfigError, match=words):
        load("celeba", options={"path": str(folder), **options})


def test_numbers_instead_of_pictures(folder):
    for path in folder.glob("*/*.json"):
        value = json.loads(path.read_text())
        for user in value["user_data"].values():
            user["x"] = [[1.0] for _ in user["x"]]
        path.write_text(json.dumps(value))
    with pytest.raises(DataError, match="examples are not names of pictures"):
        load("celeba", options={"path": str(folder)})


def test_without_pillow(folder, monkeypatch):
    real = importlib.import_module

    def missing(what, *args):
        if what.startswith("PIL"):
            raise ImportError(what)
        return real(what, *args)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"`pip install 'isonomy\[images\]'`"):
        load("celeba", options={"path": str(folder)})


def test_what_to_do_without_files(tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    with pytest.raises(FetchError, match=r"https://github\.com/TalwalkarLab/leaf") as error:
        load("celeba")
    text = str(error.value)
    assert "./preprocess.sh -s niid --sf 1.0 -k 5 -t sample" in text
    assert "list_attr_celeba.txt" in text
    assert "\n" not in text
    assert text.endswith(".")
