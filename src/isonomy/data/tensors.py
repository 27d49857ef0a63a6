"""From tensors, arrays and torch data sets to the parts of a federation.

The rows are ordered and split as those of files are, so that the same values give the same run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Attribute, Split
from isonomy.data.partition import FRACTIONS, split
from isonomy.errors import DataError


def parts_of_tensors(
    x: Any,
    y: Any,
    clients: Any,
    *,
    protected: Mapping[str, Any] | None = None,
    splits: Any = None,
    fractions: Sequence[float] = FRACTIONS,
    seed: int = 0,
    labels: Sequence[str] = (),
    features: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of `isonomy.data.federation.build`; see `Federation.from_tensors`."""
    inputs = _tensor(x, "x")
    if inputs.ndim < 2:
        raise DataError(f"x has the shape {tuple(inputs.shape)}; give one row of features per row.")
    rows = int(inputs.shape[0])
    target, classes = _target(y, rows, labels)
    codes, names = _named(clients, rows, "clients")
    found = [(name, *_named(values, rows, name)) for name, values in (protected or {}).items()]
    groups = np.stack([at for _, at, _ in found], axis=1) if found else np.zeros((rows, 0), int)
    strata = target.numpy() if classes else np.zeros(rows, np.int64)
    parts = _parts(codes, len(names), strata, groups, splits, fractions, seed)
    return {
        "x": inputs,
        "y": target,
        "groups": torch.from_numpy(groups),
        "parts": parts,
        "classes": classes,
        "attributes": tuple(Attribute(name, levels) for name, _, levels in found),
        "names": names,
        "labels": tuple(labels) or tuple(str(k) for k in range(classes)),
        "features": tuple(features),
        "source": "tensors in memory",
    }


def _tensor(values: Any, name: str) -> Tensor:
    try:
        found = values if isinstance(values, Tensor) else torch.from_numpy(np.asarray(values))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be a tensor ({error}); give numbers.") from None
    return found.detach().cpu()


def _target(y: Any, rows: int, labels: Sequence[str]) -> tuple[Tensor, int]:
    """The labels as classes or numbers, and the number of classes; 0 for numbers."""
    target = _tensor(y, "y")
    if target.shape != (rows,):
        raise DataError(
            f"y has the shape {tuple(target.shape)}, but x has {rows} rows; give one label per row."
        )
    if target.is_floating_point():
        if labels:
            raise DataError("y contains real numbers, so there are no labels; remove labels.")
        return target.to(torch.float32), 0
    target = target.to(torch.int64)
    most = int(target.max()) + 1 if rows else 0
    if rows and int(target.min()) < 0:
        raise DataError(f"y contains the class {int(target.min())}; number the classes from 0.")
    if labels and most > len(labels):
        raise DataError(
            f"y contains the class {most - 1}, but there are {len(labels)} labels; name every "
            "class."
        )
    classes = max(most, len(labels))
    if classes < 2:
        raise DataError("every label in y is 0, so there is nothing to learn; give two classes.")
    return target, classes


def _named(values: Any, rows: int, what: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Codes and names of the values of each row: numbers in their order, texts by name."""
    from isonomy.data.tables.columns import as_text, numbers_first

    held = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if held.shape != (rows,):
        raise DataError(
            f"{what} has the shape {held.shape}, but x has {rows} rows; give one value per row."
        )
    if held.dtype.kind == "b":
        held = held.astype(np.int64)
    if held.dtype.kind == "f" and not np.isfinite(held).all():
        raise DataError(f"{what} contains a value that is not finite; give every row a value.")
    if held.dtype.kind in "iuf":
        distinct, codes = np.unique(held, return_inverse=True)
        return codes.astype(np.int64), tuple(as_text(v) for v in distinct.tolist())
    texts = [str(value) for value in held.tolist()]
    names = sorted(set(texts))
    if all(name.replace(".", "", 1).lstrip("-").isdigit() for name in names):
        names.sort(key=numbers_first)
    at = {name: i for i, name in enumerate(names)}
    return np.array([at[text] for text in texts], dtype=np.int64), tuple(names)


def _parts(
    codes: NDArray[np.int64],
    clients: int,
    strata: NDArray[np.int64],
    groups: NDArray[np.int64],
    splits: Any,
    fractions: Sequence[float],
    seed: int,
) -> dict[Split, list[Tensor]]:
    """The rows of each client's splits, in their order."""
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    given = None if splits is None else _given(splits, len(codes))
    for k in range(clients):
        rows = np.flatnonzero(codes == k)
        if given is not None:
            for s, name in enumerate(SPLITS):
                parts[name].append(torch.from_numpy(rows[given[rows] == s]))
            continue
        first = groups[rows, 0] if groups.shape[1] else None
        inside = torch.arange(len(rows))  # a client counts its own rows, as in a table of its own
        pieces = split(inside, strata[rows], first, fractions, (seed, k))
        for name in SPLITS:
            parts[name].append(torch.from_numpy(rows[np.sort(pieces[name].numpy())]))
    return parts


def _given(splits: Any, rows: int) -> NDArray[np.int64]:
    from isonomy.data.tables.phases import part_of

    words = [str(word) for word in splits]
    if len(words) != rows:
        raise DataError(f"splits has {len(words)} values, but x has {rows} rows; give one per row.")
    known = {word: part_of(word) for word in set(words)}
    for word, s in known.items():
        if s < 0:
            raise DataError(f"splits contains '{word}'; write train, validation or test.")
    return np.array([known[word] for word in words], dtype=np.int64)


def stacked_datasets(data: Mapping[Any, Any], protected: Sequence[str]) -> dict[str, Any]:
    """The arguments of `Federation.from_tensors` for torch data sets by client.

    A client has one data set, or one per split. An example is (x, y), followed by one value for
    each protected attribute.
    """
    found: list[tuple[str, str, tuple[Any, ...]]] = []
    for name, given in data.items():
        by_split = given if isinstance(given, Mapping) else {"": given}
        for part, dataset in by_split.items():
            where = f"the data set of '{name}'" + (f" ({part})" if part else "")
            found.append((str(name), str(part), _columns(dataset, where, len(protected))))
    if not found:
        raise DataError("the dict of data sets is empty; give one data set per client.")
    parts = [part for _, part, _ in found]
    if any(parts) and not all(parts):
        raise DataError(
            "some clients have splits and others have not; give splits for all or none."
        )
    shapes = {tuple(columns[0].shape[1:]) for _, _, columns in found}
    if len(shapes) > 1:
        raise DataError(
            f"examples have different shapes ({', '.join(map(str, sorted(shapes)))}); give all "
            "clients examples of one shape."
        )
    sizes = [len(columns[1]) for _, _, columns in found]
    repeat = [
        (name, part) for (name, part, _), n in zip(found, sizes, strict=True) for _ in range(n)
    ]
    return {
        "x": torch.cat([columns[0] for _, _, columns in found]),
        "y": torch.cat([columns[1] for _, _, columns in found]),
        "clients": [name for name, _ in repeat],
        "protected": {
            name: np.concatenate([np.asarray(columns[2 + a]) for _, _, columns in found])
            for a, name in enumerate(protected)
        },
        "splits": [part for _, part in repeat] if all(parts) else None,
    }


def _columns(dataset: Any, where: str, attributes: int) -> tuple[Any, ...]:
    """The examples of a torch data set as columns: x, y and groups."""
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple):
        columns: list[Any] = list(tensors)
    else:
        try:
            examples = [dataset[i] for i in range(len(dataset))]
        except (TypeError, NotImplementedError):  # an iterable data set
            examples = list(dataset)
        if not examples:
            raise DataError(f"{where} is empty; give every client at least one example.")
        if not isinstance(examples[0], tuple | list):
            raise DataError(
                f"{where} gives {type(examples[0]).__name__} objects; an example has to be a tuple "
                "(x, y), followed by one value for each protected attribute."
            )
        columns = [list(column) for column in zip(*examples, strict=True)]
        columns[0] = torch.stack([torch.as_tensor(np.asarray(one)) for one in columns[0]])
        columns[1] = torch.as_tensor(np.asarray(columns[1]))
    if len(columns) != 2 + attributes:
        raise DataError(
            f"an example of {where} has {len(columns)} parts, but (x, y) and {attributes} "
            f"protected attributes make {2 + attributes}; name the attributes after y in "
            "protected, in their order."
        )
    return tuple(columns)


def holds_datasets(data: Any) -> bool:
    """Whether this is a dict of torch data sets, by client or by client and split."""
    if not isinstance(data, Mapping) or not data:
        return False
    first = next(iter(data.values()))
    if type(data) is dict and isinstance(first, Mapping) and first:
        first = next(iter(first.values()))
    return isinstance(first, torch.utils.data.Dataset)
