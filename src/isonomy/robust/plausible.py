"""Whether the numbers of a client's reply are possible: counts of its rows, models of a usual size.

A reply of the right shape can hold numbers that no client computes: a negative count, more rows
than the client has, a model of 1e38. Such a reply is refused before anything is averaged or saved.
What a participant could have computed from other rows, or a model that is only somewhat too
large, is left to defences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.task import Task

GROWTH = 1e6  # how much larger than everything that was sent a trained number may be
WORST = 1e6  # the largest loss of a row, and of other statistics per row
COUNTS = frozenset(("count", "counts", "positive", "correct", "groups"))


def impossible(value: Any, ask: Ask, sizes: Mapping[str, int], task: Task) -> str | None:
    """What is wrong with one reply of a client whose splits have these sizes; None if nothing.

    The reply has the right shapes and is finite (`screen.fault`).
    """
    name = ask.declared.name
    if name.startswith("measure:") and "counts" in value:
        return _counted(value, sizes[name.split(":")[1]], task)
    sent = [t for t in tree.leaves((ask.message, ask.each or {})) if t.is_floating_point()]
    largest = GROWTH * max([1.0, *(float(t.abs().max()) for t in sent if t.numel())])
    rows = sum(sizes.values())
    for part, declared in ask.declared.parts.items():
        for path, leaf in pytree.tree_flatten_with_path(value[part])[0]:
            if not leaf.numel():
                continue
            where = f"{part}{pytree.keystr(path)}"
            top = float(leaf.abs().max())
            if part in ask.declared.trained:
                if top > largest * (rows if declared.kind == "gradient" else 1):
                    return f"{where} holds numbers of {top:.0e}, which no training gives"
            elif declared.kind == "examples":
                continue
            elif _last(path, part) in COUNTS and (top > rows or float(leaf.min()) < 0):
                return f"{where} counts what its {rows:,} rows cannot have"
            elif top > largest * WORST * max(rows, 1):
                return f"{where} holds numbers of {top:.0e}"
    return None


def _last(path: Any, part: str) -> str:
    """The innermost name of a leaf."""
    for key in reversed(path):
        found = getattr(key, "name", getattr(key, "key", None))
        if isinstance(found, str):
            return found
    return part


def _counted(value: Any, rows: int, task: Task) -> str | None:
    """What is wrong with an evaluation; cells that are withheld are 0."""
    counts: Tensor = value["counts"]
    if int(counts.min()) < 0:
        return "it counts fewer than 0 rows"
    everyone = counts.select(-3, 0)
    if int(everyone.sum((-1, -2)).max()) > rows:
        return f"it counts more than its {rows:,} rows"
    start = 1
    for levels in task.levels:
        slack = levels * counts.shape[-1]  # counts are rounded
        if bool((counts.narrow(-3, start, levels).sum(-3) > everyone + slack).any()):
            return "its groups have more rows than everyone together"
        start += levels
    if "loss" not in value:
        return None
    loss, held = value["loss"], counts.sum(-1)
    worst = WORST if task.classes else math.inf
    if bool((loss < 0).any()) or bool(
        (torch.where(held > 0, loss / held.clamp(min=1), 0) > worst).any()
    ):
        return "its losses are not possible"
    if bool(((held == 0) & (loss != 0)).any()):
        return "it has losses of rows that it does not count"
    return None
