"""A client that was not in training: its labelled examples, and its own state from them.

A method that gives clients a state of their own says how a new client finds it
(`isonomy.core.capabilities.Adapts`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import Adapts, LearnsFront
from isonomy.core.client import State
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation, build
from isonomy.data.tables.columns import Table
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.deploy.rows import prepared, read
from isonomy.engines.loop import Loop
from isonomy.errors import DataError, RunError

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation

Examples = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""A new client's features, labels and, for a method that learns a front, groups [n, A]."""


def state_of_new_client(
    algorithm: Algorithm, task: Task, server: Tree, config: Config, examples: Examples | None
) -> State:
    """The state of a client that was not in training, from its own labelled examples."""
    initial = algorithm.init_client(task, task.init(config.seed))
    if not tree.leaves(initial):
        return initial  # clients keep nothing: the server's state is all that is needed
    name = config.algorithm.name
    if not isinstance(algorithm, Adapts):
        raise RunError(
            f"'{name}' has no model for a client that was not in training; name a client that was."
        )
    if examples is None:
        raise RunError(
            f"with '{name}' a new client needs labelled examples; give some, or name a client that "
            "was in training."
        )
    federation = _one_client(algorithm, task, examples)
    engine = Loop(task, federation, seed=config.seed)
    engine.reset(initial)
    cohort = engine.cohort(engine.everyone(), work=config.local, round=config.rounds)
    cohort.gather(algorithm.adapt, {"model": server})
    return tree.take(engine.states.stacked, 0)


def _one_client(algorithm: Algorithm, task: Task, examples: Examples) -> Federation:
    """A federation of the new client alone; with its groups if the method learns a front."""
    x, y = examples[:2]
    groups = torch.zeros(len(y), 0, dtype=torch.int64)
    attributes: tuple[Attribute, ...] = ()
    if isinstance(algorithm, LearnsFront):
        if len(examples) < 3 or examples[2].shape[1] != len(task.levels):
            raise RunError(
                f"with '{algorithm.name}' a new client's examples need their groups; give (x, y, "
                f"groups), with a column for each of {', '.join(task.attributes)}, or a table that "
                "has these columns."
            )
        groups = examples[2]
        attributes = tuple(
            Attribute(name, tuple(str(level) for level in range(count)))
            for name, count in zip(task.attributes, task.levels, strict=True)
        )
    return build(
        x,
        y.to(torch.int64 if task.classes else torch.float32),
        groups,
        {"train": [torch.arange(len(y))]},
        classes=task.classes,
        attributes=attributes,
        source="a new client",
    )


def labelled_rows(preparation: Preparation | None, path: str | Path) -> Examples:
    """The examples of a table; rows without a label are left out."""
    x, table = table_features(preparation, path)
    assert isinstance(preparation, Preprocessing)  # `table_features` refuses others
    label = preparation.table.label.name
    if label not in table.columns:
        raise DataError(f"{path} has no column '{label}'; a new client's examples need labels.")
    target, known = preparation.table.target(table)
    at = torch.from_numpy(np.flatnonzero(known))
    if not len(at):
        raise DataError(f"no row of {path} has a label in '{label}'; give rows that have one.")
    kept = x[at], torch.from_numpy(target)[at]
    if not all(group.name in table.columns for group in preparation.table.groups):
        return kept
    return *kept, torch.from_numpy(preparation.table.group_codes(table))[at]


def table_features(preparation: Preparation | None, path: str | Path) -> tuple[Tensor, Table]:
    """A table's features, prepared as in training, and the table itself."""
    if not isinstance(preparation, Preprocessing):
        raise RunError(
            "this run was not made from tables, so it cannot read one; predict from Python with "
            "isonomy.predictor(RUN).predict(x)."
        )
    table = read(Path(path), preparation)
    return prepared(table, preparation).x, preparation.read(table)
