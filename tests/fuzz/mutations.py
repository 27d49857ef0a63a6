"""Inputs that are nearly right: samples with damaged bytes, and JSON values with odd parts."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

ODD: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    10**30,
    -(10**30),
    0.5,
    -0.5,
    1e-300,
    1e300,
    "",
    "x",
    "1",
    "none",
    "auto",
    "nan",
    "\x1b[2J",
    "\u202e",
    "a\nb",
    "a\x00b",
    "../../x",
    "/etc/passwd",
    "os:system",
    "isonomy.errors:IsonomyError",
    "é" * 300,
    "=1+1",
    [],
    {},
    [[]],
    [0],
    [-1],
    ["x"],
    ["x", "x"],
    [None],
    {"": 0},
    {"name": "x"},
    {"name": None},
]
"""Values that a reader may not expect."""


# --- bytes ----------------------------------------------------------------------------------------


@st.composite
def damaged(
    draw: Any, samples: Sequence[bytes], tokens: Sequence[bytes] = (), most: int = 5
) -> bytes:
    """A sample with some bytes changed, removed, repeated or inserted."""
    content = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["byte", "flip", "cut", "remove", "repeat", "token", "other"]))
        length = draw(st.integers(1, 40))
        if kind == "byte" and content:
            content[at] = draw(st.integers(0, 255))
        elif kind == "flip" and content:
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at:]
        elif kind == "remove":
            del content[at : at + length]
        elif kind == "repeat":
            content[at:at] = content[at : at + length] * draw(st.integers(1, 4))
        elif kind == "token" and tokens:
            content[at:at] = draw(st.sampled_from(tokens))
        elif kind == "other":
            other = draw(st.sampled_from(samples))
            begin = draw(st.integers(0, max(0, len(other) - 1)))
            content[at:at] = other[begin : begin + length]
    return bytes(content)


# --- JSON values ----------------------------------------------------------------------------------


def edits(values: Sequence[Any] = (), most: int = 3) -> SearchStrategy[list[list[Any]]]:
    """Changes of a JSON value that `edited` makes: [which part, what to do, new value]."""
    odd = st.sampled_from([*ODD, *values])
    value = odd | st.integers(-(2**70), 2**70) | st.text(max_size=8)
    kind = st.sampled_from(["set", "set", "set", "delete", "add", "rename", "repeat"])
    one = st.tuples(st.integers(0, 10**6), kind, value).map(list)
    return st.lists(one, max_size=most)


def edited(value: Any, changes: Sequence[Sequence[Any]]) -> Any:
    """A copy of a JSON value with changes; parts are counted in the order of the document."""
    made = [copy.deepcopy(value)]
    for number, kind, new in changes:
        places = list(_places(made))
        holder, key = places[number % len(places)]
        part = holder[key]
        if kind == "set":
            holder[key] = copy.deepcopy(new)
        elif kind == "delete" and holder is not made:
            del holder[key]
        elif kind == "add" and isinstance(part, dict):
            part[str(new)[:20]] = copy.deepcopy(new)
        elif kind == "add" and isinstance(part, list):
            part.append(copy.deepcopy(new))
        elif kind == "rename" and isinstance(holder, dict):
            holder[str(new)[:20]] = holder.pop(key)
        elif kind == "repeat" and isinstance(holder, list) and holder is not made:
            holder.append(copy.deepcopy(part))
    return made[0]


def _places(holder: Any) -> Any:
    """Every part of a value, as the container that holds it and its key or place there."""
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    for key in keys:
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def as_json(value: Any) -> bytes:
    """A case whose parts are JSON values, as the bytes of a corpus file."""
    return json.dumps(value, indent=1).encode()
