"""What is known about examples without their values: splits, attributes, the shape of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Attribute:
    """One protected attribute and the names of its groups."""

    name: str
    levels: tuple[str, ...]


@dataclass(frozen=True)
class DataShape:
    """The description of the data that a task is made from; it holds no examples.

    `inputs` is the shape of one row of features, such as (14,) or (3, 32, 32). `classes` is 0
    where a number is predicted. `source` names the data in messages.
    """

    inputs: tuple[int, ...]
    classes: int
    attributes: tuple[Attribute, ...] = ()
    source: str = ""
