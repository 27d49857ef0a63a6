"""Batches of local work: which examples each local step of a client uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
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


Planner = Callable[[Work, Tensor, Tensor, int, int, int], "Plan | None"]

_planner: ContextVar[Planner | None] = ContextVar("planner", default=None)


@contextmanager
def planning(planner: Planner | None) -> Iterator[None]:
    """Inside the `with` block, ask `planner` for batches first; it may return None."""
    token = _planner.set(planner)
    try:
        yield
    finally:
        _planner.reset(token)


def plan(work: Work, keys: Tensor, size: Tensor, width: int, steps: int, passes: int) -> Plan:
    """The batches of one client: shuffled passes over its examples, split into batches.

    `width`, `steps` and `passes` are the largest among the clients that run side by side; entries
    beyond the client's own numbers are padding with weight 0. The order depends on the key alone,
    so padding does not change it.
    """
    planner = _planner.get()
    made = None if planner is None else planner(work, keys, size, width, steps, passes)
    return _plan(work, keys, size, width, steps, passes) if made is None else made


def _plan(
    work: Work,
    keys: Tensor,
    size: Tensor,
    width: int,
    steps: int,
    passes: int,
    *,
    plain: bool = False,
) -> Plan:
    """The batches of one client, or of several with an axis of their own in `keys` and `size`.

    `plain` says that these are on the CPU and under no transform.
    """
    batch = work.width(width)
    order = random.permutation(keys, "batches", size, width, passes, plain=plain)
    per_pass, count = counts(work, size, width)
    step, own = torch.arange(steps), per_pass.unsqueeze(-1)
    at = (step % own).unsqueeze(-1) * batch + torch.arange(batch)
    real = (at < size[..., None, None]) & (step < count.unsqueeze(-1)).unsqueeze(-1)
    at = torch.where(real, at, 0)
    if passes > 1:
        at = at + (width * (step // own).clamp(max=passes - 1)).unsqueeze(-1)
    rows = order.flatten(-2).gather(-1, at.flatten(-2)).reshape(at.shape)
    return Plan(rows, real.to(torch.float32), count)


SPARED = 30_000  # places of padding that take longer than a few more plans


def plans(work: Work, keys: Tensor, size: Tensor, width: int, steps: int, passes: int) -> Plan:
    """The batches of several clients, the largest first, with an axis for the clients.

    A place of padding costs as much as an example. So if some clients have many more examples than
    the others, clients of similar sizes are planned together.
    """
    # numbers of other devices, and of tensors without numbers, are not read
    plain = type(size) is Tensor and size.device.type == "cpu"
    sizes = size.tolist() if plain and work.batch > 0 else [width]
    cuts = bands(sizes)
    places = sum((last - first) * sizes[first] for first, last in cuts)
    if len(cuts) == 1 or passes * (len(sizes) * width - places) < SPARED:
        return _plan(work, keys, size, width, steps, passes, plain=plain)
    rows = torch.zeros(len(sizes), steps, work.batch, dtype=torch.int64)
    weight, count = torch.zeros(rows.shape), torch.empty_like(size)
    for first, last in cuts:
        most, least = sizes[first], sizes[last - 1]
        own = min(steps, work.count(most)), min(passes, work.passes(least))
        made = _plan(work, keys[first:last], size[first:last], most, *own, plain=plain)
        rows[first:last, : own[0]], weight[first:last, : own[0]] = made.rows, made.weight
        count[first:last] = made.count
    return Plan(rows, weight, count)


def bands(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where to cut clients so that the first of a band has at most twice as many examples as each.

    One band if they are not sorted, the largest first.

    >>> bands([900, 500, 400, 300, 20, 11, 9])
    [(0, 2), (2, 4), (4, 6), (6, 7)]
    """
    if any(a < b for a, b in pairwise(sizes)):
        return [(0, len(sizes))]
    starts = [0]
    for i, size in enumerate(sizes):
        if 2 * size < sizes[starts[-1]]:
            starts.append(i)
    return list(pairwise([*starts, len(sizes)]))


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
