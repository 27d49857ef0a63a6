"""Two small ragged federations, the model and the local work that the contract is checked with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from isonomy.core.client import Pool
from isonomy.core.examples import SPLITS, Attribute, Split
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.models.linear import linear
from isonomy.models.mlp import mlp

FEATURES = 4
TRAIN = (9, 3, 40, 16, 5, 33, 8, 21)  # no order, two below a batch, one exactly a batch
VALIDATION = (2, 3, 5, 4, 2, 6, 3, 4)
TEST = (4, 2, 6, 3, 5, 4, 2, 3)
CLIENTS = len(TRAIN)


@dataclass(frozen=True, eq=False)
class World:
    """Everything an algorithm runs in."""

    task: Task
    federation: Federation
    work: Work
    params: dict[str, Tensor]
    cohorts: tuple[tuple[int, ...], ...]
    seed: int = 7
    server_data: Pool | None = None  # for algorithms whose server needs examples of its own

    def ids(self, round: int) -> Tensor:
        """The cohort of a round."""
        return torch.tensor(self.cohorts[round])


def with_model(where: World, build: Callable[[], nn.Module]) -> World:
    """The same federation with another network."""
    task = Task(build, classes=where.task.classes, levels=where.task.levels)
    return replace(where, task=task, params=task.init(3))


@cache
def linear_world() -> World:
    """A world whose model is linear."""
    return with_model(world(), lambda: linear((FEATURES,), 3))


@cache
def deep_world() -> World:
    """A world whose network has two hidden layers."""
    return with_model(world(), lambda: mlp((FEATURES,), 3, hidden=(5, 4)))


@cache
def partial_world() -> World:
    """The world with two clients in every round, always the same."""
    where = world()
    return replace(where, cohorts=((0, 1),) * len(where.cohorts))


@cache
def world(classes: int = 3) -> World:
    """A federation with `classes` classes whose clients differ in labels, groups and size."""
    generator = torch.Generator().manual_seed(20 + classes)
    centres = 1.5 * torch.randn(classes, FEATURES, generator=generator)
    xs, ys, groups = [], [], []
    parts: dict[Split, list[Tensor]] = {split: [] for split in SPLITS}
    rows = 0
    for k in range(CLIENTS):
        favour = torch.rand(classes, generator=generator) + 0.2
        for split, sizes in zip(SPLITS, (TRAIN, VALIDATION, TEST), strict=True):
            n = sizes[k]
            y = torch.multinomial(favour, n, replacement=True, generator=generator)
            group = (torch.rand(n, generator=generator) < 0.3 + 0.05 * k).to(torch.int64)
            x = centres[y] + torch.randn(n, FEATURES, generator=generator)
            x[:, 0] += 0.8 * group
            xs.append(x)
            ys.append(y)
            groups.append(group)
            parts[split].append(torch.arange(rows, rows + n))
            rows += n
    federation = build(
        torch.cat(xs),
        torch.cat(ys),
        torch.cat(groups).unsqueeze(-1),
        parts,
        classes=classes,
        attributes=(Attribute("group", ("a", "b")),),
        source="contract",
    )
    task = Task(lambda: mlp((FEATURES,), classes, hidden=(5,)), classes=classes, levels=(2,))
    return World(
        task=task,
        federation=federation,
        work=Work(batch=8, epochs=1, lr=0.1),
        params=task.init(3),
        cohorts=((0, 1, 2, 5), (1, 3, 4, 6, 7), (0, 2, 4, 7), (1, 2, 3, 6)),
        server_data=_server_data(federation),
    )


def _server_data(federation: Federation) -> Pool:
    """Examples of the clients' distribution: copies of their validation rows."""
    rows = federation.row_numbers(torch.arange(CLIENTS), "validation")
    return Pool(federation.x[rows], federation.y[rows], federation.groups[rows])
