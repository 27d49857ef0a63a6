"""Read files in the format of LEAF: JSON with `users`, `num_samples` and `user_data`.

LEAF (Caldas et al., 2018, https://github.com/TalwalkarLab/leaf) writes its data sets as

    {"users": ["u1", ...], "num_samples": [2, ...],
     "user_data": {"u1": {"x": [[0.1, ...], ...], "y": [3, ...]}, ...}}

in one or more files in the folders `train` and `test`, or, before they are split, in `all_data`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isonomy.core.examples import SPLITS, Split
from isonomy.core.options import Option
from isonomy.data.partition import Partition, generator, split
from isonomy.errors import DataError, FetchError

Array = NDArray[Any]

NATURAL = Partition(
    "natural",
    "one client per user; with a number of clients, so many users drawn at random",
    {"minimum": Option(1, "smallest number of training examples of a user who becomes a client")},
    counts=True,
)


class Examples(NamedTuple):
    """One user's examples: `x` [n, ...] float32, or [n] texts; `y` [n] float64."""

    x: Array
    y: Array


def leaf_files(folder: Path) -> dict[Split, list[Path]]:
    """Return the JSON files in a folder that LEAF wrote, sorted by name.

    These are the files in `train` and `test`; without these two, those in `all_data` or in the
    folder itself, all under "train". Empty if there are none.
    """
    train, test = (_json(folder / name) for name in ("train", "test"))
    if train and test:
        return {"train": train, "test": test}
    if train or test:
        has, lacks = ("train", "test") if train else ("test", "train")
        raise DataError(
            f"{folder} has LEAF's files in '{has}' but none in '{lacks}'; run LEAF's preprocess.sh "
            "with '-t sample' again, or remove both folders and keep all_data."
        )
    whole = _json(folder / "all_data") or _json(folder)
    return {"train": whole} if whole else {}


def read_leaf(
    paths: Iterable[Path], convert: Callable[[Array], Array] | None = None
) -> dict[str, Examples]:
    """Return the examples of every user, in the order of the files.

    `convert` is applied to a user's `x` as soon as it is read, because Python lists need many times
    the memory of an array.
    """
    out: dict[str, Examples] = {}
    for path in paths:
        for user, examples in _users(path):
            if user in out:
                raise DataError(
                    f"{path}: user '{user}' is also in an earlier file; keep the output of only "
                    "one run of LEAF's preprocess.sh."
                )
            x, y = examples
            out[user] = Examples(x if convert is None else convert(x), y)
    return out


def locate(folder: Path, how: str) -> dict[Split, list[Path]]:
    """Return LEAF's files in a folder or its `data`; if there are none, say how to make them."""
    files = leaf_files(folder) or leaf_files(folder / "data")
    if not files:
        raise FetchError(f"{folder} contains no files made by LEAF: {how}.")
    return files


def natural(
    train: Mapping[str, Examples],
    test: Mapping[str, Examples] | None,
    clients: int,
    minimum: int,
    fractions: Sequence[float],
    seed: int,
) -> tuple[list[str], dict[Split, list[Tensor]]]:
    """Return the users who become clients, and their rows in the order of `concatenate`.

    Users with fewer than `minimum` training examples are not used. Of the others, `clients` are
    drawn (0: all), in the order of the files. If LEAF's test examples are given, the others are
    split by the first two fractions. The test rows of a user come after its other rows.
    """
    _same_users(train, test)
    users = [user for user, held in train.items() if len(held.y) >= minimum]
    if not users or clients > len(users):
        raise DataError(
            f"{len(users)} users have {minimum} or more training examples, too few for "
            f"{max(clients, 1)} clients; use a lower minimum or fewer clients."
        )
    if clients:
        drawn = generator("users", seed).permutation(len(users))[:clients]
        users = [users[i] for i in np.sort(drawn)]
    parts: dict[Split, list[Tensor]] = {name: [] for name in SPLITS}
    at = 0
    for k, user in enumerate(users):
        labels = train[user].y.astype(np.int64)
        many, more = len(labels), 0 if test is None else len(test[user].y)
        shares = fractions if test is None else _without_test(fractions)
        pieces = split(torch.arange(many), labels, None, shares, (seed, k))
        if test is not None:
            pieces["test"] = torch.arange(many, many + more)
        for name in SPLITS:
            parts[name].append(at + pieces[name])
        at += many + more
    return users, parts


def concatenate(
    users: Iterable[str], train: Mapping[str, Examples], test: Mapping[str, Examples] | None
) -> Examples:
    """Concatenate the examples of users, in the order that `natural` expects."""
    held = [one[user] for user in users for one in (train, test) if one is not None]
    return Examples(np.concatenate([h.x for h in held]), np.concatenate([h.y for h in held]))


def _same_users(train: Mapping[str, Examples], test: Mapping[str, Examples] | None) -> None:
    if test is not None and set(test) != set(train):
        odd = sorted(set(test) ^ set(train))[0]
        raise DataError(
            f"user '{odd}' has only training or only test examples, so LEAF divided users instead "
            "of examples; run its preprocess.sh with '-t sample'."
        )


def _without_test(fractions: Sequence[float]) -> Sequence[float]:
    """Scale the first two fractions so that they add up to one; `split` checks invalid ones."""
    both = sum(fractions[:2])
    if len(fractions) != 3 or not both > 0 or not abs(sum(fractions) - 1) <= 1e-6:
        return fractions
    return fractions[0] / both, fractions[1] / both, 0.0


def _users(path: Path) -> Iterator[tuple[str, Examples]]:
    try:
        with path.open(encoding="utf-8") as stream:
            content = json.load(stream)
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); check the path.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not a complete JSON file ({error}); it may be cut off, so write or copy it "
            "again."
        ) from error
    users, counts, data = _parts(path, content)
    for user, count in zip(users, counts, strict=True):
        if user not in data:
            raise _wrong(path, f"user '{user}' is listed but has no entry in user_data")
        examples = _examples(path, user, data.pop(user))  # pop, so that its lists are freed
        if count is not None and count != len(examples.y):
            raise _wrong(path, f"user '{user}' has {len(examples.y)} examples, not {count}")
        yield user, examples
    for user, entry in data.items():  # LEAF leaves an empty entry for users that it dropped
        if not isinstance(entry, Mapping) or entry.get("y"):
            raise _wrong(path, f"user_data contains '{user}', who is not in users")


def _parts(path: Path, content: Any) -> tuple[list[str], Sequence[Any], dict[str, Any]]:
    """Return the users, the number of examples of each (None if not given), and the data."""
    if not isinstance(content, dict):
        raise _wrong(path, "it is not a JSON object")
    for key, kind in (("users", list), ("user_data", dict)):
        if not isinstance(content.get(key), kind):
            raise _wrong(path, f"it has no '{key}' ({'list' if kind is list else 'object'})")
    users = content["users"]
    if not users or not all(isinstance(user, str) for user in users):
        raise _wrong(path, "'users' is empty or contains something other than names")
    if len(set(users)) < len(users):
        twice = next(user for user in users if users.count(user) > 1)
        raise _wrong(path, f"user '{twice}' is listed twice")
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise _wrong(path, "'num_samples' does not have one number per user")
    return users, counts, content["user_data"]


def _examples(path: Path, user: str, entry: Any) -> Examples:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(k), list) for k in ("x", "y")):
        raise _wrong(path, f"user '{user}' has no lists 'x' and 'y'")
    x, y = entry["x"], entry["y"]
    if len(x) != len(y):
        raise _wrong(path, f"user '{user}' has {len(x)} examples and {len(y)} labels")
    if not x:
        raise _wrong(path, f"user '{user}' has no examples")
    if all(isinstance(value, str) for value in x):
        features: Array = np.array(x)
    else:
        features = _numbers(path, user, "x", x, np.float32)
    labels = _numbers(path, user, "y", y, np.float64)
    if labels.size != len(y):
        raise _wrong(path, f"user '{user}' has labels with several numbers")
    return Examples(features, labels.reshape(len(y)))


def _numbers(path: Path, user: str, key: str, values: list[Any], kind: Any) -> Array:
    try:
        out: Array = np.asarray(values, dtype=kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(path, f"'{key}' of user '{user}' is not an array of numbers") from error
    if not np.isfinite(out).all():
        raise _wrong(path, f"'{key}' of user '{user}' contains a number that is not finite")
    return out


def _wrong(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} is not in LEAF's format: {what}; give a file written by LEAF's preprocess.sh."
    )


def _json(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.is_file())
