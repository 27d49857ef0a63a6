"""Local work: how long a client trains in a round, with which batches and optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.core import random


@dataclass(frozen=True)
class Work:
    """The local training of every client in a round; the same for all methods of a comparison.

    Set `epochs` (passes over the client's examples) or `steps`. `batch = 0` means all examples of
    the client at once. The last, short batch of a pass is kept, or dropped with `last = "drop"`
    (a client with fewer examples than a batch still uses all of them). The learning rate of round
    t = 0, 1, ... is lr times: 1 ("constant"), decay^t ("exponential"), decay^floor(t / every)
    ("step"), 1/sqrt(1 + t) ("inverse_sqrt"), or half a cosine over the run ("cosine").
    """

    epochs: int = 1
    steps: int | None = None
    batch: int = 32
    last: Literal["keep", "drop"] = "keep"
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Literal["constant", "exponential", "step", "inverse_sqrt", "cosine"] = "constant"
    decay: float = 0.99
    every: int = 1

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round."""
        match self.schedule:
            case "exponential":
                return self.lr * self.decay**round
            case "step":
                return self.lr * self.decay ** (round // self.every)
            case "inverse_sqrt":
                return self.lr / math.sqrt(1 + round)
            case "cosine":
                return self.lr * 0.5 * (1 + math.cos(math.pi * round / max(rounds, 1)))
        return self.lr

    def width(self, size: int) -> int:
        """The number of examples in a batch of a client of this size."""
        return size if self.batch == 0 else self.batch

    def steps_a_pass(self, size: int) -> int:
        """The number of batches in one pass over this many examples."""
        width = self.width(size)
        if self.last == "drop" and size >= width:
            return size // width
        return -(-size // width)

    def count(self, size: int) -> int:
        """The number of local steps of a client of this size."""
        return self.epochs * self.steps_a_pass(size) if self.steps is None else self.steps

    def passes(self, size: int) -> int:
        """The number of passes, complete or not, that these steps make."""
        return -(-self.count(size) // self.steps_a_pass(size))


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
    full = size // batch
    per_pass = -(-size // batch)
    if work.last == "drop" and work.batch:
        per_pass = torch.where(full >= 1, full, per_pass)
    step = torch.arange(steps)
    at = (step % per_pass).unsqueeze(-1) * batch + torch.arange(batch)
    count = per_pass * work.epochs if work.steps is None else torch.full_like(size, work.steps)
    real = (at < size) & (step < count).unsqueeze(-1)
    at = torch.where(real, at, 0)
    rows = order[(step // per_pass).clamp(max=passes - 1).unsqueeze(-1), at]
    return Plan(rows, real.to(torch.float32), count)


def halves(whole: Plan, share: float) -> tuple[Plan, Plan]:
    """The first `share` of a plan's steps, and the rest.

    Unless the share is 0 or 1, each part has at least one step: a plan with a single step is used
    for both.
    """

    def first(count: Tensor) -> Tensor:
        return torch.floor(count * share + 0.5).clamp(min=int(share > 0)).to(count.dtype)

    steps = whole.rows.shape[0]
    early, most = first(whole.count), int(first(torch.tensor(steps)))
    late = (whole.count - early).clamp(min=int(share < 1))
    longest = max(steps - most, 1)  # counts differ between clients; the longest has the most left
    at = ((whole.count - late).unsqueeze(-1) + torch.arange(longest)).clamp(max=steps - 1)
    begin = max(most, 1)
    before = Plan(whole.rows[:begin], whole.weight[:begin], early)
    return before, Plan(whole.rows[at], whole.weight[at], late)
