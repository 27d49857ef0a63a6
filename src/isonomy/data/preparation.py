"""How the input of a model becomes features: saved with the model as plain JSON.

Rows of tables have a `Preprocessing` (`isonomy.data.tables.preprocessing`), images `Pixels` and
texts `Texts` or `Sentences`. None of them contains examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from isonomy.errors import DataError

if TYPE_CHECKING:
    from isonomy.data.tables.preprocessing import Preprocessing

Preparation: TypeAlias = "Preprocessing | Pixels | Texts | Sentences"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pixels(_Model):
    """Images of bytes: divided by 255, then (value - shift) / scale by channel or pixel."""

    kind: Literal["pixels"] = "pixels"
    shape: tuple[int, ...]  # channels, height, width
    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    turned: bool = False  # whether images were rotated, by a different angle for each client

    def transform(self, images: NDArray[Any], place: str = "the images") -> NDArray[np.float32]:
        """Return the features of images [n, channels, height, width]; one channel may be omitted.

        Integers are pixels; real numbers are taken as features.
        """
        x = _shaped(images, self.shape, place)
        if x.dtype.kind not in "iu":
            return as_features(x, place)
        wrong = np.flatnonzero(((x < 0) | (x > 255)).reshape(len(x), -1).any(1))
        if len(wrong):
            raise DataError(
                f"image {wrong[0] + 1} of {place} contains a pixel outside 0 to 255; give bytes, "
                "or features as real numbers."
            )
        # in single precision and this order, as for the data set itself
        out: NDArray[np.float32] = x.astype(np.float32) / np.float32(255)
        if self.scale:
            whole = len(self.scale) > self.shape[0]
            like = self.shape if whole else (self.shape[0], 1, 1)
            shift, scale = (np.array(v, np.float32).reshape(like) for v in (self.shift, self.scale))
            out = (out - shift) / scale
        return out


class Texts(_Model):
    """Texts in a column of a table: TF-IDF of the words of the vocabulary."""

    kind: Literal["texts"] = "texts"
    column: str
    words: tuple[str, ...]
    idf: tuple[float, ...]

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the features [texts, words]."""
        from isonomy.data.text import Vocabulary, tokenise, weigh

        known = Vocabulary(self.words, np.array(self.idf, dtype=np.float64))
        return weigh(tokenise(texts), known)


class Sentences(_Model):
    """Texts in a column of a table: vectors of a public encoder, whose files have these SHA-256."""

    kind: Literal["sentences"] = "sentences"
    column: str
    length: int  # tokens of a text that are encoded
    weights: str
    tokens: str

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the features [texts, 384]; the encoder is downloaded if it is not cached."""
        from isonomy.data import sentences
        from isonomy.data.encoder import NAME, SIZE, TOKENIZER, WEIGHTS

        if (self.weights, self.tokens) != (WEIGHTS.sha256, TOKENIZER.sha256):
            raise DataError(
                f"the model was trained with another encoder than {NAME}, which this version of "
                "isonomy uses; predict with the version that trained it."
            )
        if not texts:
            return np.zeros((0, SIZE), np.float32)
        return sentences.encode_uncached(texts, self.length)


def _shaped(images: NDArray[Any], shape: tuple[int, ...], place: str) -> NDArray[Any]:
    """Return images as [n, *shape]; accepts one image, no channel, or the channel last."""
    channels, *size = shape
    if images.shape == shape or (channels == 1 and images.shape == tuple(size)):
        return images.reshape(1, *shape)
    several = images.shape[1:]
    if several == shape:
        return images
    if channels == 1 and several == tuple(size):
        return images[:, None]
    if several == (*size, channels):
        return np.moveaxis(images, -1, 1)
    raise DataError(
        f"{place} contains an array of shape {list(images.shape)} but the model expects images "
        f"[n, {', '.join(str(d) for d in shape)}]; reshape it."
    )


def as_features(x: NDArray[Any], place: str) -> NDArray[np.float32]:
    """Return an array of features; raise DataError if one is not finite."""
    if x.dtype.kind not in "iufb":
        raise DataError(f"{place} contains {x.dtype} instead of numbers; give an array of numbers.")
    out = x.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(out).reshape(len(out), -1).all(1))
    if len(wrong):
        raise DataError(
            f"row {wrong[0] + 1} of {place} contains a number that is not finite; fill or drop it."
        )
    return out


def of(values: Mapping[str, Any]) -> Preparation:
    """Build a preparation from plain values, as stored in a federation or a model card."""
    from isonomy.data.tables.preprocessing import Preprocessing

    kinds: dict[str, Any] = {"pixels": Pixels, "texts": Texts, "sentences": Sentences}
    made: Preparation = kinds.get(values.get("kind", ""), Preprocessing).model_validate(values)
    return made


def load(path: str | Path) -> Preparation:
    """Read a saved preparation."""
    try:
        return of(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); check the path.") from error
    except (ValidationError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path} is not a valid preprocessing file; use the one in the folder of the model."
        ) from error


def named(features: Sequence[str], label: str, classes: Sequence[str]) -> Preprocessing:
    """Return a preprocessing that uses the columns of a table unchanged."""
    from isonomy.data.tables.preprocessing import Label, Number, Preprocessing, Schema

    return Preprocessing(
        table=Schema(
            label=Label(name=label, classes=tuple(classes)),
            features=dict.fromkeys(features, "number"),
        ),
        encoders=tuple(Number(name=n, fill=None, shift=0.0, scale=1.0) for n in features),
    )
