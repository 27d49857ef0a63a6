"""Images: from files to pixels, to clients (whose images may be rotated), to a federation.

Pixels are kept as bytes until every client has its rows, and become float32 only in the tensor of
the federation, to save memory.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import Attribute, Split
from isonomy.core.options import Option
from isonomy.data.download import fetch
from isonomy.data.federation import Federation, arrange
from isonomy.data.partition import (
    IMAGE_PARTITIONS,
    PARTITIONS,
    Categories,
    Integers,
    Rows,
    generator,
    largest_remainders,
)
from isonomy.data.preparation import Pixels as Preparation
from isonomy.data.test_split import allocate_tested
from isonomy.errors import ConfigError, DataError

if TYPE_CHECKING:  # the data sets import this module, so it imports them when used
    from isonomy.data.dataset import Fact, Request

Pixels = NDArray[np.uint8]
Scale = tuple[Tensor, ...]
"""What is subtracted and what is divided by, for each channel or each pixel."""

UNDERSTOOD = PARTITIONS | IMAGE_PARTITIONS
"""The partitions of image data sets without natural clients."""

OPTIONS = {
    "validation": Option(0.1, "share of a client's training images for validation"),
    "examples": Option(
        0, "number of images to use, with proportional labels in training and test; 0: all"
    ),
    "normalise": Option(
        False, "whether to standardise pixels by mean and deviation of the training images"
    ),
    "pixelwise": Option(False, "whether to standardise each pixel by its own mean and deviation"),
    "path": Option(
        "", "a folder with the files of the data set, to read instead of downloading them"
    ),
}
_BLOCK = 4096  # images that are processed at a time


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels [n, channels, height, width] and labels [n]; the official test rows come last."""

    pixels: Pixels
    labels: Integers
    train: int


@dataclass(frozen=True)
class About:
    """What is known about a data set of images: names for messages, and what `facts` checks."""

    name: str
    source: str
    labels: tuple[str, ...]
    train: int
    test: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def obtain(
    about: About,
    files: Sequence[tuple[fetch.File, ...]],
    names: Sequence[str],
    parse: Callable[[Sequence[Path]], Images],
    request: Request,
) -> Federation:
    """Find and read the files, and build the federation.

    Downloaded files are verified by checksums; the facts of files given by the user are checked.
    """
    from isonomy.data.dataset import check_facts

    if request.options["path"]:
        folder = Path(request.options["path"]).expanduser()
        images, origin = parse([_given(about, folder, name) for name in names]), "the folder given"
        check_facts(about.name, facts(about, images))
    else:
        fetched = fetch.fetch(*files, progress=request.progress)
        images, origin = parse([file.path for file in fetched]), fetched[0].source
    return federate(about, images, request, origin)


def _given(about: About, folder: Path, name: str) -> Path:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise DataError(
        f"{folder} does not contain {name}; give the folder with all files of {about.name}, or "
        "remove the option 'path' to download them."
    )


def facts(about: About, images: Images) -> list[Fact]:
    """Compute the known properties of the complete data set; means are of training images."""
    from isonomy.data.dataset import Fact

    test = len(images.labels) - images.train
    out = [
        Fact("training images", images.train, about.train),
        Fact("test images", test, about.test),
        Fact("labels", len(np.unique(images.labels)), len(about.labels)),
        Fact("channels", images.pixels.shape[1], len(about.mean)),
    ]
    if all(fact.holds for fact in out):
        for channel, known in enumerate(zip(about.mean, about.deviation, strict=True)):
            found = _moments(images.pixels[: images.train, channel])
            of = f" of channel {channel}" if len(about.mean) > 1 else ""
            out.append(Fact(f"mean pixel{of}", found[0], known[0], within=5e-5))
            out.append(Fact(f"pixels' deviation{of}", found[1], known[1], within=5e-5))
    return out


def balance(about: About, images: Images) -> list[Fact]:
    """Check that every label is equally frequent, in training and in test."""
    from isonomy.data.dataset import Fact

    out = []
    for what, labels, count in (
        ("training", images.labels[: images.train], about.train),
        ("test", images.labels[images.train :], about.test),
    ):
        each = np.bincount(labels, minlength=len(about.labels))
        out.append(Fact(f"{what} images of the rarest label", int(each.min()), count // len(each)))
    return out


def _moments(pixels: Pixels) -> tuple[float, float]:
    """Return mean and standard deviation in [0, 1], exact up to the last division."""
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(pixels), _BLOCK):
        counts += np.bincount(pixels[start : start + _BLOCK].reshape(-1), minlength=256)
    levels = np.arange(256) / 255
    mean = float(counts @ levels / counts.sum())
    return mean, math.sqrt(float(counts @ (levels - mean) ** 2 / counts.sum()))


def pixel_moments(pixels: Pixels) -> Scale:
    """Return each pixel's mean and standard deviation in [0, 1] over some images.

    A thousandth of a grey level is added to deviations, as in the public code of FMTL, to avoid
    division by zero for constant pixels.
    """
    total = np.zeros(pixels.shape[1:])
    squares = np.zeros(pixels.shape[1:])
    for start in range(0, len(pixels), _BLOCK):
        block = pixels[start : start + _BLOCK].astype(np.float64) / 255
        total += block.sum(0)
        squares += np.square(block).sum(0)
    mean = total / len(pixels)
    deviation = np.sqrt(np.maximum(squares / len(pixels) - mean**2, 0)) + 0.001 / 255
    return torch.from_numpy(mean).float(), torch.from_numpy(deviation).float()


def federate(about: About, images: Images, request: Request, origin: str = "") -> Federation:
    """Build the requested federation of images with official test rows."""
    options = request.options
    keep = subset(images, options["examples"], request.seed)
    train = int((keep < images.train).sum())
    labels = images.labels[keep]
    parts, names = allocate_tested(
        Rows(labels[:train], None, {"label": Categories(labels[:train], about.labels)}),
        Rows(labels[train:]),
        request.partition,
        request.partition_options,
        request.clients,
        request.seed,
        options["validation"],
    )
    angles = request.partition.angles
    if options["normalise"] and options["pixelwise"]:
        raise ConfigError("normalise and pixelwise are both set; remove one of them.")
    scale: Scale | None = None
    if options["normalise"]:
        scale = tuple(torch.tensor(v)[:, None, None] for v in (about.mean, about.deviation))
    elif options["pixelwise"]:
        scale = pixel_moments(images.pixels[keep[:train]])
    kept = torch.from_numpy(keep)
    return compose(
        torch.from_numpy(images.pixels),
        torch.from_numpy(images.labels),
        torch.zeros(len(images.labels), 0, dtype=torch.int64),
        {name: [kept[piece] for piece in pieces] for name, pieces in parts.items()},
        names=names,
        labels=about.labels,
        angles=None if angles is None else angles(**request.partition_options),
        scale=scale,
        source=about.source,
        origin=origin,
    )


def subset(images: Images, count: int, seed: int) -> Integers:
    """Return `count` rows (0: all), ascending, with proportional labels in training and test.

    A larger count includes the rows of a smaller one, except for rounding of shares.
    """
    total = len(images.labels)
    if count == 0 or count == total:
        return np.arange(total)
    if not 0 < count < total:
        raise ConfigError(f"examples is {count:,}; set it to 1 to {total:,}, or 0 for all.")
    cells = images.labels * 2 + (np.arange(total) >= images.train)
    order = generator("subset", seed).permutation(total)
    stock = np.bincount(cells)
    wanted = largest_remainders(stock / total, count)
    return np.sort(
        np.concatenate([order[cells[order] == cell][:many] for cell, many in enumerate(wanted)])
    )


def compose(
    pixels: Tensor,
    y: Tensor,
    groups: Tensor,
    parts: dict[Split, list[Tensor]],
    *,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    attributes: tuple[Attribute, ...] = (),
    angles: tuple[float, ...] | None = None,
    scale: Scale | None = None,
    source: str = "",
    notes: tuple[str, ...] = (),
    origin: str = "",
) -> Federation:
    """Build the federation of byte images [n, channels, height, width].

    x is divided by 255, rotated by the client's angle, then scaled by mean and deviation of each
    channel [channels, 1, 1] or pixel [channels, height, width]. Clients with the same angle form
    one cluster.
    """
    rows, ranges = arrange(parts)
    x = torch.empty((len(rows), *pixels.shape[1:]))
    for start in range(0, len(rows), _BLOCK):
        block = x[start : start + _BLOCK]
        block[:] = pixels[rows[start : start + _BLOCK]]
        block /= 255
    for client, angle in enumerate(angles or ()):
        first, last = int(ranges[client].min()), int(ranges[client].max())
        for start in range(first, last, _BLOCK):
            block = x[start : min(start + _BLOCK, last)]
            block[:] = rotate(block, angle)
    if scale is not None:
        x.sub_(scale[0]).div_(scale[1])
    shift, size = ([], []) if scale is None else [part.flatten().tolist() for part in scale]
    kept = Preparation(
        shape=tuple(pixels.shape[1:]), shift=tuple(shift), scale=tuple(size), turned=bool(angles)
    )
    return Federation(
        x=x,
        y=y[rows],
        groups=groups[rows],
        ranges=ranges,
        classes=len(labels),
        attributes=attributes,
        names=names,
        labels=labels,
        clusters=None if angles is None else _clusters(angles),
        source=source,
        notes=notes,
        preprocessing=kept.model_dump(mode="json"),
        origin=origin,
    )


def _clusters(angles: Sequence[float]) -> tuple[int, ...]:
    known = list(dict.fromkeys(angles))
    return tuple(known.index(angle) for angle in angles)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Rotate square images [n, channels, side, side] counter-clockwise around their centre.

    Multiples of 90 degrees only move pixels. Other angles use bilinear interpolation, with zeros
    (black) outside of the image.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90).tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """
    if x.shape[-1] != x.shape[-2]:
        raise DataError(
            f"images of {x.shape[-2]} by {x.shape[-1]} pixels cannot be rotated; use square images."
        )
    if degrees % 90 == 0:
        return torch.rot90(x, int(degrees // 90) % 4, (-2, -1))
    return _between(x, degrees)


def _between(x: Tensor, degrees: float) -> Tensor:
    """Rotate with bilinear interpolation, from the position of each new pixel before rotation."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    back = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(x), 2, 3)
    size = [len(x), x.shape[1], x.shape[2], x.shape[3]]
    grid = torch.nn.functional.affine_grid(back, size, align_corners=False)
    return torch.nn.functional.grid_sample(
        x, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )


def read_idx(path: Path) -> Pixels:
    """Read an array of bytes in the IDX format of MNIST's files, gzipped or not."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        raw = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path} ({why}); get a complete copy of it.") from error
    sizes = struct.unpack_from(f">{raw[3]}I", raw, 4) if _is_idx(raw) else ()
    start = 4 + 4 * len(sizes)
    if not sizes or len(raw) - start != math.prod(sizes):
        raise DataError(
            f"{path} is not a complete IDX file of bytes: it may be cut off or another file, so "
            "get a complete copy of it."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(sizes)


def _is_idx(raw: bytes) -> bool:
    """Check the header: two zeros, the type (8: bytes), the number of dimensions, their sizes."""
    return len(raw) >= 4 and raw[:3] == b"\x00\x00\x08" and 0 < raw[3] <= (len(raw) - 4) // 4


IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def parse_idx(paths: Sequence[Path]) -> Images:
    """Read the four files of MNIST or in its format, in the order of IDX_NAMES."""
    arrays = [read_idx(path) for path in paths]
    for path, array, dimensions in zip(paths, arrays, (3, 1, 3, 1), strict=True):
        if array.ndim != dimensions:
            raise DataError(
                f"{path} has {array.ndim} dimensions, not {dimensions}; give images and labels in "
                "separate files."
            )
    if arrays[0].shape[1:] != arrays[2].shape[1:]:
        raise DataError(
            f"{paths[0]} and {paths[2]} contain images of different sizes; give both of one data "
            "set."
        )
    for i in (0, 2):
        if len(arrays[i]) != len(arrays[i + 1]):
            raise DataError(
                f"{paths[i + 1]} contains {len(arrays[i + 1]):,} labels for {len(arrays[i]):,} "
                "images; give both of one data set."
            )
    pixels = np.concatenate([arrays[0], arrays[2]])[:, None]
    labels = np.concatenate([arrays[1], arrays[3]]).astype(np.int64)
    return Images(pixels, labels, len(arrays[0]))
