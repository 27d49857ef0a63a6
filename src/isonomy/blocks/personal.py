"""Personal models: pulls to a common model, and a last stage in which clients tune it alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective
from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.task import Batch, Params
from isonomy.core.tree import Tree
from isonomy.core.work import Work


def pulled(objective: Objective, anchor: Params, lam: float, scale: Tree = None) -> Objective:
    """The objective plus (lam / 2) |v - anchor|^2, each square times its `scale` if there is one.

    Without pull it is the objective itself, so that an anchor of any size changes nothing.
    """
    if not lam:
        return objective

    def total(params: Params, batch: Batch) -> Tensor:
        apart = tree.sub(params, anchor)
        if scale is None:
            return objective(params, batch) + 0.5 * lam * tree.sq_norm(apart)
        weighed = tree.tmap(torch.mul, scale, apart)
        return objective(params, batch) + 0.5 * lam * tree.dot(weighed, apart)

    return total


def nearer(params: Params, anchor: Params, pull: Tensor, scale: Tree = None) -> Params:
    """The minimum of |v - params|^2 + pull |v - anchor|^2, each coordinate's pull times its scale.

    A step's pull taken implicitly: it cannot overshoot, however strong.
    """
    if scale is None:
        return tree.mix(params, anchor, pull / (1 + pull))
    return tree.tmap(
        lambda v, a, c: v + (a - v) * (pull * c / (1 + pull * c)), params, anchor, scale
    )


def check_pull(name: str, value: float) -> None:
    """Refuse a strength that is negative or not finite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} = {value}: give a number of at least 0.")


# --- the second of two stages ---------------------------------------------------------------------


def untuned(params: Params) -> State:
    """A client's state before it has a model of its own."""
    return {"params": params, "own": torch.zeros(())}


def tuned(params: Params) -> State:
    """A client's state with a model of its own."""
    return {"params": params, "own": torch.ones(())}


def served(state: State, common: Params) -> Params:
    """The client's own model, or, as long as it has none, the common one."""
    return tree.tmap(lambda v, w: torch.where(state["own"] > 0, v, w), state["params"], common)


def tuning(work: Work, epochs: int, steps: int | None, lr: float | None) -> Work:
    """The local work of the last stage: so many epochs (or steps), at the run's rate or its own."""
    rate = work.lr if lr is None else lr
    return replace(work, epochs=epochs, steps=steps, lr=rate, schedule="constant")


def check_tuning(options: Any) -> None:
    """Refuse a last stage of no work."""
    if options.epochs < 1:
        raise ValueError(f"epochs = {options.epochs}: give 1 or more.")
    if options.steps is not None and options.steps < 1:
        raise ValueError(f"steps = {options.steps}: give 1 or more.")
    if options.lr is not None and not 0 < options.lr < math.inf:
        raise ValueError(f"lr = {options.lr}: give a number above 0.")
