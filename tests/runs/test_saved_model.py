"""The only reader and writer of a model: what is written is read back, and damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import isonomy
from isonomy.core.examples import Attribute, DataShape
from isonomy.errors import RunError
from isonomy.runs import saved_model
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder
from isonomy.runs.saved_model import ModelCard

CARD = ModelCard(
    algorithm={"name": "apfl", "alpha": 0.5},
    model={"name": "mlp", "hidden": [4]},
    loss="cross_entropy",
    classes=2,
    labels=["no", "yes"],
    features=["a", "b", "c"],
    inputs=[3],
    attributes={"sex": ["f", "m"]},
    clients=["north", "south"],
    data="toy",
    splits={"train": 8, "validation": 1, "test": 2},
    versions={"isonomy": "0"},
)
SERVER = {"params": {"w": torch.arange(3.0)}, "round": torch.tensor(4)}
CLIENTS = {"own": torch.eye(2), "moments": (torch.ones(2, 3), torch.zeros(2))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_model.write(tmp_path / "model", SERVER, CLIENTS, CARD, {"kind": "pixels"})
    return tmp_path / "model"


def test_what_is_written_is_read_back(folder: Path) -> None:
    assert saved_model.exists(folder)
    saved = saved_model.read(folder)
    assert saved.card == CARD
    assert saved.preprocessing == {"kind": "pixels"}
    assert torch.equal(saved.server["params"]["w"], SERVER["params"]["w"])
    assert int(saved.server["round"]) == 4
    assert torch.equal(saved.clients["own"], torch.eye(2))
    assert torch.equal(saved.clients["moments"][0], torch.ones(2, 3))
    assert sorted(p.name for p in folder.iterdir()) == sorted(saved_model.FILES)


def test_the_card_describes_the_data() -> None:
    sex = Attribute("sex", ("f", "m"))
    assert CARD.shape == DataShape((3,), 2, (sex,), "toy")


@pytest.mark.parametrize("damage", ["flip", "cut", "no tensors", "no card", "no checksum", "text"])
def test_a_damaged_model_is_refused(folder: Path, damage: str) -> None:
    tensors, card = folder / "model.safetensors", folder / "model.json"
    content = tensors.read_bytes()
    match damage:
        case "flip":
            tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut":
            tensors.write_bytes(content[:-4])
        case "no tensors":
            tensors.unlink()
        case "no card":
            card.unlink()
        case "no checksum":
            values = json.loads(card.read_text())
            card.write_text(json.dumps({k: v for k, v in values.items() if k != "sha256"}))
        case "text":
            card.write_text("not JSON")
    with pytest.raises(RunError, match="cannot be read"):
        saved_model.read(folder)


def test_a_runs_model_is_that_of_its_folder(tmp_path: Path) -> None:
    config = isonomy.make_config(
        data={"name": "synthetic", "examples": 60, "clients": 2},
        model={"name": "logistic"},
        rounds=1,
    )
    isonomy.run(config, tmp_path / "run")
    place = RunFolder(tmp_path / "run")
    setting = build(place.config())
    saved = place.model()
    assert saved.card == saved_model.card_of(setting.config, setting.task, setting.federation)
    assert saved.card.shape == setting.federation.shape
    place.reopen()
    with pytest.raises(RunError, match=r"is unfinished.*isonomy resume"):
        place.model()
