"""Personal models: penalties that pull to a common model, and a last stage of local fine-tuning."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isonomy.blocks.descent import Objective
from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.task import Batch, Params
from isonomy.core.tree import Tree
from isonomy.core.work import Work


def with_pull(objective: Objective, anchor: Params, lam: float, scale: Tree = None) -> Objective:
    """The objective plus (lam / 2) |v - anchor|^2, each square times its `scale` if given.

    With lam = 0 it is the objective itself, so even an anchor that is not finite has no effect.
    """
    if not lam:
        return objective

    def total(params: Params, batch: Batch) -> Tensor:
        apart = tree.sub(params, anchor)
        if scale is None:
            return objective(params, batch) + 0.5 * lam * tree.sq_norm(apart)
        scaled = tree.tmap(torch.mul, scale, apart)
        return objective(params, batch) + 0.5 * lam * tree.dot(scaled, apart)

    return total


def proximal_pull(params: Params, anchor: Params, pull: Tensor, scale: Tree = None) -> Params:
    """The minimiser of |v - params|^2 + pull |v - anchor|^2, each pull times its scale if given.

    This is an implicit step, which cannot overshoot, however strong the pull is.
    """
    if scale is None:
        return tree.mix(params, anchor, pull / (1 + pull))
    return tree.tmap(
        lambda v, a, c: v + (a - v) * (pull * c / (1 + pull * c)), params, anchor, scale
    )


def check_pull(name: str, value: float) -> None:
    """Raise a ValueError for a strength that is negative or not finite."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} = {value}: give a number of at least 0.")


# --- the second of two stages ---------------------------------------------------------------------


def untuned(params: Params) -> State:
    """The state of a client without a personal model."""
    return {"params": params, "own": torch.zeros(())}


def tuned(params: Params) -> State:
    """The state of a client with a personal model."""
    return {"params": params, "own": torch.ones(())}


def own_or_common(state: State, common: Params) -> Params:
    """The client's personal model, or the common one as long as it has none."""
    return tree.tmap(lambda v, w: torch.where(state["own"] > 0, v, w), state["params"], common)


def tuning_work(work: Work, epochs: int, steps: int | None, lr: float | None) -> Work:
    """The local work of the last stage; `lr` is the run's if it is None."""
    rate = work.lr if lr is None else lr
    return replace(work, epochs=epochs, steps=steps, lr=rate, schedule="constant")


def check_tuning(epochs: int, steps: int | None, lr: float | None) -> None:
    """Raise a ValueError for a last stage without work."""
    if epochs < 1:
        raise ValueError(f"epochs = {epochs}: give 1 or more.")
    if steps is not None and steps < 1:
        raise ValueError(f"steps = {steps}: give 1 or more.")
    if lr is not None and not 0 < lr < math.inf:
        raise ValueError(f"lr = {lr}: give a number above 0.")
