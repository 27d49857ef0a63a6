"""Write an exported model's folder atomically: beside the target, checked, then renamed."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors

from isonomy.data import preparation
from isonomy.deploy import card as cards
from isonomy.deploy import network
from isonomy.deploy.card import CARD, WEIGHTS, Card
from isonomy.deploy.model import Model, load_model, packed
from isonomy.errors import RunError

GRAPHS = {"pt2": "model.pt2", "onnx": "model.onnx"}


def save(model: Model, target: Path, also: Sequence[str] = ()) -> Card:
    """Write a model, with graphs in the formats `also`; returns the sealed card."""
    with _aside(target) as aside:
        card = _write(model, aside, also)
        _move(aside, target)
    return card


def _write(model: Model, folder: Path, also: Sequence[str]) -> Card:
    inputs = model.card.architecture.inputs
    (folder / WEIGHTS).write_bytes(save_tensors(packed(model.weights)))
    if "pt2" in also:
        network.save_pt2(model.network(), inputs, folder / GRAPHS["pt2"])
    if "onnx" in also:
        network.save_onnx(model.network(), inputs, folder / GRAPHS["onnx"])
    files = {path.name: cards.sha256(path) for path in sorted(folder.iterdir())}
    card = model.card.sealed(files)
    (folder / CARD).write_text(card.dump(), encoding="utf-8")
    again = load_model(folder, trust=True)
    x = torch.linspace(-2, 2, 8 * math.prod(inputs)).sin().reshape(8, *inputs)
    if not torch.equal(again.outputs(x), model.outputs(x)):
        raise RunError("the written model gives different outputs; export it again.")
    if card.preprocessing is not None:
        preparation.of(card.preprocessing)
    return card


def check_target(target: Path, overwrite: bool) -> None:
    """Raise a RunError if the target holds anything but a model that may be overwritten."""
    if target.is_symlink() or target.is_file():
        raise RunError(f"'{target}' is not a folder; choose another target with --to.")
    if not target.exists() or not any(target.iterdir()):
        return
    if not cards.is_model(target):
        raise RunError(
            f"'{target}' is not empty and not an exported model; choose another folder with --to."
        )
    other = [p.name for p in target.iterdir() if p.name not in (CARD, WEIGHTS, *GRAPHS.values())]
    if other:
        raise RunError(
            f"'{target}' holds a model and also '{other[0]}'; choose another folder with --to."
        )
    if not overwrite:
        raise RunError(
            f"'{target}' holds a model; choose another folder with --to, or replace it with "
            "--overwrite."
        )


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A temporary folder beside the target."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise RunError(
            f"'{target}' cannot be created ({error.strerror or error}); choose another folder with "
            "--to."
        ) from None
    try:
        inner = aside / "model"
        inner.mkdir()
        yield inner
    except OSError as error:
        raise RunError(
            f"'{target}' cannot be written ({error.strerror or error}); free some space, or choose "
            "another folder with --to."
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _move(made: Path, target: Path) -> None:
    """Rename the folder to the target, which is absent, empty or an older model."""
    if target.exists() and any(target.iterdir()):
        old = made.parent / "old"
        os.rename(target, old)
        try:
            os.rename(made, target)
        except OSError:
            os.rename(old, target)
            raise
    else:
        os.rename(made, target)  # replaces an empty folder
