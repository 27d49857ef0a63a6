"""Batches of local work: which examples each local step of a client uses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isonomy.core import random
from isonomy.core.work import Work


class Plan(NamedTuple):
    """The examples of each local step: `rows` and `weight` [steps, batch], `count` real steps."""

    rows: Tensor
    weight: Tensor
    count: Tensor  # type: ignore[assignment]


def plan(work: Work, keys: Tensor, size: Tensor, width: int, steps: int, passes: int) -> Plan:
    """The batches of one client: shuffled passes over its examples, split into batches.

    `width`, `steps` and `passes` are the largest among the clients that run side by side; entries
    beyond the client's own numbers are padding with weight 0. The order depends on the key alone,
    so padding does not change it.
    """
    batch = work.width(width)
    order = random.permutation(keys, "batches", size, width, passes)
    per_pass, count = counts(work, size, width)
    step = torch.arange(steps)
    at = (step % per_pass).unsqueeze(-1) * batch + torch.arange(batch)
    real = (at < size) & (step < count).unsqueeze(-1)
    at = torch.where(real, at, 0)
    rows = order[(step // per_pass).clamp(max=passes - 1).unsqueeze(-1), at]
    return Plan(rows, real.to(torch.float32), count)


def counts(work: Work, size: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The number of steps in a pass over a client's examples, and in all of its work."""
    batch = work.width(width)
    full = size // batch
    per_pass = -(-size // batch)
    if work.last == "drop" and work.batch:
        per_pass = torch.where(full >= 1, full, per_pass)
    return per_pass, (
        per_pass * work.epochs if work.steps is None else torch.full_like(size, work.steps)
    )


def halves(whole: Plan, share: float) -> tuple[Plan, Plan]:
    """The first `share` of a plan's steps, and the rest.

    Unless the share is 0 or 1, each part has at least one step: a plan with a single step is used
    for both.
    """

    def first(count: Tensor) -> Tensor:
        return torch.floor(count * share + 0.5).clamp(min=int(share > 0)).to(count.dtype)

    steps = whole.rows.shape[0]
    early = first(whole.count)
    # as `first`, but a number of Python: reading a tensor would wait for its device
    most = max(int(np.floor(np.float32(steps) * np.float32(share) + np.float32(0.5))), share > 0)
    late = (whole.count - early).clamp(min=int(share < 1))
    longest = max(steps - most, 1)  # counts differ between clients; the longest has the most left
    at = ((whole.count - late).unsqueeze(-1) + torch.arange(longest)).clamp(max=steps - 1)
    begin = max(most, 1)
    before = Plan(whole.rows[:begin], whole.weight[:begin], early)
    return before, Plan(whole.rows[at], whole.weight[at], late)
