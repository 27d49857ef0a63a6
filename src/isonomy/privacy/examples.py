"""Example-level differential privacy: clients train with DP-SGD (Abadi et al. 2016).

`PrivateExamples` is client-side middleware. A phase sees no example of its client: features and
losses are NaN, labels are numbers of steps, groups 0. Its only access to the data is the gradient
of `task.loss` on a batch of the client's plan, and this gradient is private:

    g = (sum of the examples' gradients, each clipped to C, + N(0, (z C)^2)) / expected batch

`task.examples_mean` gives, in the same way, the gradient of another function of single examples
together with the mean of a statistic of norm at most 1. The two are one Gaussian mechanism: the
statistic has the share `STATISTIC` of it, so its sum gets noise N(0, z^2 / STATISTIC), and the sum
of the gradients N(0, (z C)^2 / (1 - STATISTIC)).

So everything that a phase computes, replies or stores is private, whatever it does with it. A phase
that needs more than this, such as a loss, replies NaN, and is refused before training
(`isonomy.privacy.example_plan`).

In every step each example is in the batch with probability batch / size, independently of the
others ("poisson"). A batch holds at most `limit(batch)` examples; if more were drawn, a random part
of them is used, and the accountant counts just that. With "passes", batches are shuffled passes
over the data, every example is used once in a pass, and no sampling is counted.

The draws of batches and noise follow from a secret key by AES (`isonomy.privacy.stream`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.batches import Plan, counts
from isonomy.core.client import Client, Message, Pool, Reply, State
from isonomy.core.cohort import Ask
from isonomy.core.phase import Phase
from isonomy.core.task import Batch, Each, Params, Task
from isonomy.core.tree import Tree
from isonomy.privacy.gradients import clipped_sum, clipped_sums
from isonomy.privacy.noise import Key
from isonomy.privacy.stream import key_tensor, secret_normal, secret_uniform

STATISTIC = 0.1  # the share of a statistic in the mechanism that it forms with a gradient
_STEP = 2**32  # the number of a step, above the number of a row
_CALLS = 64  # draws of one step: gradients, then statistics, and last the sample of examples
_GRADIENTS = 31  # at most, and as many statistics
_STEPS = 2**25  # steps of one client in one exchange; with clients below 2^32, places are unique
Batches = Literal["poisson", "passes"]

_calls = [0]  # gradients asked of the current batch; reset by every batch
_most = [0]  # the most of them; see `most_calls`
_peeks: list[int] | None = None  # batches that are not of the plan, while they are counted


def most_calls(*, reset: bool = False) -> int:
    """The most gradients that were asked of one batch since the last reset."""
    found = _most[0]
    if reset:
        _most[0] = 0
    return found


@contextmanager
def counted_peeks() -> Iterator[list[int]]:
    """Inside, and outside of vmap, batches that are not of a client's plan are counted."""
    global _peeks
    _peeks = [0]
    try:
        yield _peeks
    finally:
        _peeks = None


def limit(batch: int) -> int:
    """The most examples in a Poisson batch: its expected number and 3 standard deviations.

    >>> limit(10)
    20
    """
    return batch + math.ceil(3 * math.sqrt(batch))


class HiddenPool(NamedTuple):
    """In place of a client's examples: batches that only tell which step they are for."""

    x: Tensor
    y: Tensor
    groups: Tensor

    @classmethod
    def of(cls, pool: Pool) -> HiddenPool:
        """The examples, hidden."""
        nan = torch.full((1,) * pool.x.ndim, math.nan)
        return cls(
            nan.expand(pool.x.shape), torch.zeros_like(pool.y[:1]).expand(pool.y.shape),
            torch.zeros_like(pool.groups[:1]).expand(pool.groups.shape),
        )  # fmt: skip

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """A batch without examples; `y` are the codes of step and row."""
        _calls[0] = 0
        if _peeks is not None and bool((rows < _STEP).any()):
            _peeks[0] += 1
        x = torch.full((1,) * self.x.ndim, math.nan).expand(*rows.shape, *self.x.shape[1:])
        return Batch(x, rows, torch.zeros(*rows.shape, self.groups.shape[1]).long(), weight)


@dataclass(frozen=True, eq=False)
class HiddenClient(Client):
    """A client whose plan holds the numbers of its steps."""

    batches: Batches = "poisson"

    @property
    def plan(self) -> Plan:
        """The steps of this round: codes in place of rows."""
        steps = 1 + torch.arange(self.steps).unsqueeze(1)
        if self.batches == "passes":
            made = Client.plan.fget(self)  # type: ignore[attr-defined]
            return Plan(made.rows + _STEP * steps, made.weight, made.count)
        count = counts(self.work, self.sizes[0], self.widths[0])[1]
        width = limit(self.work.batch) if self.work.batch else self.widths[0]
        rows = (_STEP * steps).expand(self.steps, width)
        return Plan(rows, torch.ones(self.steps, width), count)


@dataclass(frozen=True, eq=False)
class PrivateTask(Task):
    """A task whose loss has a private gradient, and NaN as its value."""

    inner: Task = None  # type: ignore[assignment]
    pool: Pool = None  # type: ignore[assignment]
    start: Tensor = None  # type: ignore[assignment]
    size: Tensor = None  # type: ignore[assignment]
    key: Tensor = None  # type: ignore[assignment]
    place: Tensor = None  # type: ignore[assignment]
    width: int = 0
    batch: int = 0
    clip: float = 1.0
    noise: float = 1.0
    batches: Batches = "poisson"

    def __post_init__(self) -> None:
        object.__setattr__(self, "net", self.inner.net)
        object.__setattr__(self, "pools", self.inner.pools)

    def each_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """NaN: the loss of single examples is not private."""
        return outputs[..., 0] + math.nan

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """NaN; its gradient is private, if the batch is one of the client's plan."""
        place, data, weight, share = self._drawn(batch)
        fixed = tree.tmap(lambda t: t.detach(), params)
        total = clipped_sum(self.inner, fixed, data, weight, self.clip, share)
        return self._with_slope(total, params, place, self.noise * self.clip * share)

    def examples_mean(self, each: Each, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        """NaN with a private gradient, and the private mean of the statistic."""
        place, data, weight, share = self._drawn(batch)
        fixed = tree.tmap(lambda t: t.detach(), params)
        total, statistic = clipped_sums(self.inner, each, fixed, data, weight, self.clip, share)
        scale = self.noise * share / math.sqrt(STATISTIC)
        drawn = secret_normal(self.key, place + _GRADIENTS, scale, statistic.numel())
        noisy = statistic + drawn.reshape(statistic.shape)
        scale = self.noise * self.clip * share / math.sqrt(1 - STATISTIC)
        return self._with_slope(total, params, place, scale), noisy

    def _drawn(self, batch: Batch) -> tuple[Tensor, Batch, Tensor, Tensor]:
        """The place of the noise, the examples of the batch, their weights, 1 / expected number."""
        call = _calls[0]
        if call >= _GRADIENTS:
            raise RuntimeError(f"a phase asks for more than {_GRADIENTS} gradients of one batch")
        _calls[0] += 1
        _most[0] = max(_most[0], _calls[0])
        step = batch.y[0] // _STEP
        place = self.place + step * _CALLS + call
        rows, weight, expected = self._sampled(batch, step)
        share = torch.where(step > 0, 1 / expected, math.nan)  # NaN: not a batch of the plan
        return place, self.pool.batch(rows, weight), weight, share

    def _with_slope(self, total: Tree, params: Params, place: Tensor, scale: Tensor) -> Tensor:
        """NaN, whose gradient is the total with noise of this scale."""
        sizes = [t.numel() for t in tree.leaves(params)]
        drawn = secret_normal(self.key, place, scale, sum(sizes))
        pieces = iter(torch.split(drawn, sizes))
        slope = tree.tmap(lambda t: t + next(pieces).reshape(t.shape), total)
        return tree.dot(slope, params) + math.nan

    def _sampled(self, batch: Batch, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of a batch, their weights (0: not drawn), and the expected number of rows."""
        if self.batches == "passes":
            expected = self.size.clamp(max=self.batch) if self.batch else self.size
            return batch.y % _STEP, batch.weight, expected.to(torch.float32)
        size = self.size.to(torch.float32)
        expected = size.clamp(max=float(self.batch)) if self.batch else size
        u = secret_uniform(self.key, self.place + step * _CALLS + _CALLS - 1, self.width)
        real = torch.arange(self.width) < self.size
        u = torch.where(real, u, 2.0)
        count = min(batch.y.shape[0], self.width)
        least = torch.topk(u, count, largest=False, sorted=False)
        inside = least.values < expected / size  # all of them if the batch is the whole data
        rows = self.start + torch.where(inside, least.indices, 0)
        return rows, inside.to(torch.float32), expected


class PrivateExamples:
    """Client side: phases see private gradients in place of examples."""

    def __init__(self, key: Key, *, clip: float, noise: float, batches: Batches) -> None:
        self.key, self.clip, self.noise, self.batches = key, clip, noise, batches

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase."""
        about = self.key.derived("examples", ask.round, ask.exchange, ask.final)
        key = key_tensor(about)

        def wrapped(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            private = PrivateTask(
                build=task.build,
                loss_name=task.loss_name,
                classes=task.classes,
                levels=task.levels,
                attributes=task.attributes,
                inner=task,
                pool=client.pool,
                start=client.starts[0],
                size=client.sizes[0],
                key=key,
                place=client.id * (_STEPS * _CALLS),
                width=client.widths[0],
                batch=client.work.batch,
                clip=self.clip,
                noise=self.noise,
                batches=self.batches,
            )
            values: dict[str, Any] = {
                field.name: getattr(client, field.name) for field in dataclasses.fields(Client)
            }
            values["pool"] = HiddenPool.of(client.pool)
            return phase(private, message, HiddenClient(**values, batches=self.batches))

        return _declared(wrapped, phase)


def _declared(wrapped: Callable[..., Any], phase: Phase) -> Phase:
    for name in ("declaration", "__name__"):
        if hasattr(phase, name):
            setattr(wrapped, name, getattr(phase, name))
    return wrapped
