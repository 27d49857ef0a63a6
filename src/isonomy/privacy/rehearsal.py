"""A rehearsal: what an algorithm asks of its clients, found on random data before training.

The noise has to be known before the first release, and it depends on how many releases there will
be. So an algorithm runs two rounds and its last phase with four clients that hold random numbers of
the right shape. No example of the real clients is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.cohort import Ask, Exchange, NoReplies, Replies
from isonomy.core.phase import declared
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

CLIENTS = 4
ROWS = {"train": 24, "validation": 8, "test": 8}


@dataclass
class Rehearsed:
    """The releases of a round and after the last one, and whether they tell who took part."""

    releases: int = 0
    final: int = 0
    known: bool = False
    asks: list[Ask] = field(default_factory=list)  # one for each phase that replies something
    why: str = ""  # why the rehearsal did not work, if it did not

    def statistics(self) -> list[tuple[str, str]]:
        """The phase and the name of each part that is neither a model, an update nor a gradient."""
        return [
            (ask.declared.name, name)
            for ask in self.asks
            for name in ask.declared.parts
            if name not in ask.declared.trained
        ]


class _Recorder:
    """Records every exchange; combines replies as a cohort does without a release."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.known = False

    def __call__(self, exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            if ask.declared.parts:
                self.asks.append(ask)
                tells = ask.verb in ("gather", "weigh") or ask.each is not None
                self.known |= (tells or len(ask.ids) < ask.cohort) and not ask.final
            yield from exchange(ask)

        return wrapped

    def size_weights(self, ids: Tensor) -> Tensor:
        return torch.ones(len(ids), dtype=torch.float64)

    def mean(self, ask: Ask, folded: Tree, weights: Tensor, *, by_size: bool) -> Tree:
        del by_size
        self.known |= float(weights.max()) != float(weights.min()) and not ask.final
        total = float(weights.sum()) or 1.0
        return tree.tmap(lambda t: (t / total).to(torch.get_default_dtype()), folded)

    def sum(self, ask: Ask, folded: Tree) -> Tree:
        return folded

    def weighed(self, ask: Ask, name: str, folded: Tree, total: float, largest: float) -> Tree:
        del largest
        return tree.tmap(lambda t: (t / (total or 1.0)).to(torch.get_default_dtype()), folded)


def random_federation(like: Federation, clients: int = CLIENTS) -> Federation:
    """Clients with random numbers in the shape of a federation's examples."""
    generator = torch.Generator().manual_seed(0)
    total = sum(ROWS.values())
    rows = clients * total
    x = torch.randn(rows, *like.x.shape[1:], generator=generator)
    y: Tensor = torch.randn(rows, generator=generator)
    if like.classes:
        y = torch.randint(like.classes, (rows,), generator=generator)
    columns = [torch.randint(len(a.levels), (rows,), generator=generator) for a in like.attributes]
    groups = torch.stack(columns, 1) if columns else torch.zeros(rows, 0, dtype=torch.int64)
    parts: dict[Any, list[Tensor]] = {}
    first = 0
    for split, count in ROWS.items():
        parts[split] = [
            torch.arange(k * total + first, k * total + first + count) for k in range(clients)
        ]
        first += count
    return build(
        x, y, groups, parts, classes=like.classes, attributes=like.attributes, labels=like.labels
    )


def rehearse(algorithm: Algorithm, task: Task, like: Federation, work: Work) -> Rehearsed:
    """What the algorithm asks; if it cannot be rehearsed, what its phases declare at most."""
    out = Rehearsed()
    by_phase: dict[str, Ask] = {}
    engine = Loop(task, random_federation(like))
    params = task.init(0)
    work = replace(work, epochs=1, steps=min(work.steps or 2, 2))
    try:
        engine.reset(algorithm.init_client(task, params))
        server = algorithm.init_server(task, params, CLIENTS)
        for round in range(3):
            seen = _Recorder()
            final = round == 2
            cohort = engine.cohort(
                engine.everyone(), work=work, round=round, wrap=(seen,), final=final, release=seen
            )
            try:
                if final:
                    algorithm.finish(server, cohort)
                else:
                    server = algorithm.round(server, cohort)
            except NoReplies:
                pass
            by_phase |= {ask.declared.name: ask for ask in seen.asks}
            out.known |= seen.known
            if final:
                out.final = len(seen.asks)
            else:
                out.releases = max(out.releases, len(seen.asks))
    except ConfigError:
        raise
    except Exception as error:  # random data may break any method
        out.why = f"{type(error).__name__}: {error}"
        out.releases = sum(bool(one.parts) for one in declared(type(algorithm)).values())
        out.known = True
    out.known |= any(
        set(one.verbs) & {"gather", "weigh"} and one.parts
        for one in declared(type(algorithm)).values()
    )
    out.asks = list(by_phase.values())
    return out
