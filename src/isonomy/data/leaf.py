"""Files in LEAF's form: JSON with `users`, `num_samples` and `user_data`, users' examples inside.

LEAF (Caldas et al., 2018, https://github.com/TalwalkarLab/leaf) writes its data sets as

    {"users": ["u1", ...], "num_samples": [2, ...],
     "user_data": {"u1": {"x": [[0.1, ...], ...], "y": [3, ...]}, ...}}

in one or more files in the folders `train` and `test`, or, before its split, in `all_data`.
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
    "a client for each user, or for as many users as there are to be clients, drawn at random",
    {"minimum": Option(1, "fewest training examples of a user who is to be a client")},
    counts=True,
)


class Examples(NamedTuple):
    """One user's examples: `x` [n, ...] float32, or [n] texts; `y` [n] float64."""

    x: Array
    y: Array


def leaf_files(folder: Path) -> dict[Split, list[Path]]:
    """The JSON files of a folder that LEAF wrote, in order of their names.

    Those of `train` and `test`; without these two, those of `all_data` or of the folder itself,
    all of them under "train". Empty when there are none.
    """
    train, test = (_json(folder / name) for name in ("train", "test"))
    if train and test:
        return {"train": train, "test": test}
    if train or test:
        has, lacks = ("train", "test") if train else ("test", "train")
        raise DataError(
            f"{folder} has LEAF's files in '{has}' and none in '{lacks}'; run LEAF's preprocess.sh "
            "with '-t sample' to the end, or take both folders away and keep all_data."
        )
    whole = _json(folder / "all_data") or _json(folder)
    return {"train": whole} if whole else {}


def read_leaf(
    paths: Iterable[Path], convert: Callable[[Array], Array] | None = None
) -> dict[str, Examples]:
    """Every user's examples, users in the order of the files.

    `convert` is applied to a user's `x` as it is read: a file is held as Python's lists, many
    times its size as an array, so keep no more than needed of each.
    """
    out: dict[str, Examples] = {}
    for path in paths:
        for user, examples in _users(path):
            if user in out:
                raise DataError(
                    f"{path}: user '{user}' is in an earlier file too; keep the output of one "
                    "run of LEAF's preprocess.sh only."
                )
            x, y = examples
            out[user] = Examples(x if convert is None else convert(x), y)
    return out


def locate(folder: Path, how: str) -> dict[Split, list[Path]]:
    """LEAF's files in a folder or its `data`; without any, an error that says how to make them."""
    files = leaf_files(folder) or leaf_files(folder / "data")
    if not files:
        raise FetchError(f"{folder} holds no files that LEAF made: {how}.")
    return files


def natural(
    train: Mapping[str, Examples],
    test: Mapping[str, Examples] | None,
    clients: int,
    minimum: int,
    fractions: Sequence[float],
    seed: int,
) -> tuple[list[str], dict[Split, list[Tensor]]]:
    """Users who become clients, and their rows when each user's examples follow one another.

    Users with fewer than `minimum` training examples are left out. Of the others `clients` are
    drawn (0: all are taken), in the order of the files. With LEAF's test examples only the rest
    is split, by the first two fractions. A user's test rows come after the user's others.
    """
    _same_users(train, test)
    users = [user for user, held in train.items() if len(held.y) >= minimum]
    if not users or clients > len(users):
        raise DataError(
            f"{len(users)} users have {minimum} or more training examples, too few for "
            f"{max(clients, 1)} clients; take a lower minimum or fewer clients."
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


def together(
    users: Iterable[str], train: Mapping[str, Examples], test: Mapping[str, Examples] | None
) -> Examples:
    """Those users' examples one after the other, as `natural` numbers them."""
    held = [one[user] for user in users for one in (train, test) if one is not None]
    return Examples(np.concatenate([h.x for h in held]), np.concatenate([h.y for h in held]))


def _same_users(train: Mapping[str, Examples], test: Mapping[str, Examples] | None) -> None:
    if test is not None and set(test) != set(train):
        odd = sorted(set(test) ^ set(train))[0]
        raise DataError(
            f"user '{odd}' has training or test examples only, so LEAF divided users and not their "
            "examples; run its preprocess.sh with '-t sample'."
        )


def _without_test(fractions: Sequence[float]) -> Sequence[float]:
    """The first two, made to add up to one; `split` says what is wrong with others."""
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
            f"{path} is no whole JSON file ({error}); it may have been cut off, so write or copy "
            "it again."
        ) from error
    users, counts, data = _parts(path, content)
    for user, count in zip(users, counts, strict=True):
        if user not in data:
            raise _wrong(path, f"user '{user}' is listed and has no entry in user_data")
        examples = _examples(path, user, data.pop(user))  # so that its lists can be let go
        if count is not None and count != len(examples.y):
            raise _wrong(path, f"user '{user}' has {len(examples.y)} examples, not {count}")
        yield user, examples
    for user, entry in data.items():  # LEAF leaves an empty entry of users that it dropped
        if not isinstance(entry, Mapping) or entry.get("y"):
            raise _wrong(path, f"user_data holds '{user}', who is not among the users")


def _parts(path: Path, content: Any) -> tuple[list[str], Sequence[Any], dict[str, Any]]:
    """Users, how many examples each has (None where that is not said), and the data."""
    if not isinstance(content, dict):
        raise _wrong(path, "it holds no object")
    for key, kind in (("users", list), ("user_data", dict)):
        if not isinstance(content.get(key), kind):
            raise _wrong(path, f"it has no '{key}' ({'list' if kind is list else 'object'})")
    users = content["users"]
    if not users or not all(isinstance(user, str) for user in users):
        raise _wrong(path, "'users' is empty or holds something else than names")
    if len(set(users)) < len(users):
        twice = next(user for user in users if users.count(user) > 1)
        raise _wrong(path, f"user '{twice}' is listed twice")
    counts = content.get("num_samples", [None] * len(users))
    if not isinstance(counts, list) or len(counts) != len(users):
        raise _wrong(path, "'num_samples' does not hold one number a user")
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
        raise _wrong(path, f"user '{user}' has labels of several numbers")
    return Examples(features, labels.reshape(len(y)))


def _numbers(path: Path, user: str, key: str, values: list[Any], kind: Any) -> Array:
    try:
        out: Array = np.asarray(values, dtype=kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise _wrong(path, f"'{key}' of user '{user}' is no table of numbers") from error
    if not np.isfinite(out).all():
        raise _wrong(path, f"'{key}' of user '{user}' holds a number that is not finite")
    return out


def _wrong(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} is not in LEAF's form: {what}; give a file as LEAF's preprocess.sh writes it."
    )


def _json(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.is_file())
