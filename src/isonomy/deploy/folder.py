"""A model's folder: written aside, read back, and put in its place whole or not at all."""

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


def save(made: Model, target: Path, also: Sequence[str] = ()) -> Card:
    """Write a model, with its graphs in the forms `also`; returns the sealed card."""
    with _aside(target) as aside:
        card = _write(made, aside, also)
        _place(aside, target)
    return card


def _write(made: Model, folder: Path, also: Sequence[str]) -> Card:
    inputs = made.card.architecture.inputs
    (folder / WEIGHTS).write_bytes(save_tensors(packed(made.weights)))
    if "pt2" in also:
        network.save_pt2(made.network(), inputs, folder / GRAPHS["pt2"])
    if "onnx" in also:
        network.save_onnx(made.network(), inputs, folder / GRAPHS["onnx"])
    files = {path.name: cards.sha256(path) for path in sorted(folder.iterdir())}
    card = made.card.sealed(files)
    (folder / CARD).write_text(card.dump(), encoding="utf-8")
    again = load_model(folder, trust=True)
    x = torch.linspace(-2, 2, 8 * math.prod(inputs)).sin().reshape(8, *inputs)
    if not torch.equal(again.outputs(x), made.outputs(x)):
        raise RunError("the model reads back other than it was written; export it again.")
    if card.preprocessing is not None:
        preparation.of(card.preprocessing)
    return card


def free(target: Path, overwrite: bool) -> None:
    """Refuse a place that holds something."""
    if target.is_symlink() or target.is_file():
        raise RunError(f"'{target}' is no folder; choose another place with --to.")
    if not target.exists() or not any(target.iterdir()):
        return
    if not cards.is_model(target):
        raise RunError(
            f"'{target}' holds other things than a model; choose another folder with --to."
        )
    strange = [p.name for p in target.iterdir() if p.name not in (CARD, WEIGHTS, *GRAPHS.values())]
    if strange:
        raise RunError(
            f"'{target}' holds '{strange[0]}' beside a model; choose another folder with --to."
        )
    if not overwrite:
        raise RunError(
            f"'{target}' holds a model; choose another folder with --to, or replace it with "
            "--overwrite."
        )


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A folder beside the target that is gone afterwards, whatever happens."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise RunError(
            f"'{target}' cannot be made ({error.strerror or error}); choose another place with "
            "--to."
        ) from None
    try:
        inner = aside / "model"
        inner.mkdir()
        yield inner
    except OSError as error:
        raise RunError(
            f"'{target}' cannot be written ({error.strerror or error}); make room, or choose "
            "another place with --to."
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _place(made: Path, target: Path) -> None:
    """Put a whole folder where nothing, an empty folder or an older model is."""
    if target.exists() and any(target.iterdir()):
        old = made.parent / "old"
        os.rename(target, old)
        try:
            os.rename(made, target)
        except OSError:
            os.rename(old, target)
            raise
    else:
        os.rename(made, target)  # an empty folder gives way
