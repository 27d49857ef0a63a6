"""A client that was not in training: its labelled examples, and its own state from them.

A method that gives clients a state of their own says how a new client finds it
(`isonomy.core.capabilities.Adapts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import Adapts, FindsClusters, LearnsFront
from isonomy.core.client import State
from isonomy.core.examples import Attribute
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation, build
from isonomy.data.tables.columns import Table
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.deploy.rows import prepared, read
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError, DataError, RunError

if TYPE_CHECKING:
    from isonomy.data.preparation import Preparation

Examples = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
"""A new client's features, labels and, for a method that learns a front, groups [n, A]."""


LEVEL = 0.01  # probability that a client of a cluster is said not to fit it
RATIO = 2.0  # of losses, where no cluster has two members to calibrate with


def state_of_new_client(
    algorithm: Algorithm,
    task: Task,
    server: Tree,
    config: Config,
    examples: Examples | None,
    steps: int = 1,
) -> State:
    """The state of a client that was not in training, from its own labelled examples.

    The method's step for a new client is repeated `steps` times, each from the state before.
    """
    if steps < 1:
        raise ConfigError(f"{steps} steps of a new client: give 1 or more.")
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
    for i in range(steps):
        cohort = engine.cohort(engine.everyone(), work=config.local, round=config.rounds + i)
        cohort.gather(algorithm.adapt, {"model": server})
    return tree.take(engine.all_states(), 0)


def misfit(
    algorithm: Algorithm,
    task: Task,
    server: Tree,
    state: State,
    examples: Examples,
    clients: Mapping[str, list[Any]],
) -> str:
    """A warning if a new client fits none of the clusters that the method found, or needs further
    steps to find its own; else empty.

    `clients` is the run's table of clients at its last evaluation. The client's loss under the
    model of its nearest cluster is compared with those of the cluster's members, as logarithms,
    because losses differ by factors. The threshold follows from how members of one cluster differ
    from each other (pooled over clusters) and from the client's own number of examples, so a
    further client of the cluster is warned about with a probability of about 1 %.
    """
    shares = isinstance(state, dict) and "pi" in state
    if not (isinstance(algorithm, FindsClusters) and shares and "cluster" in clients):
        return ""
    x, y = examples[:2]
    target = y.to(torch.int64 if task.classes else torch.float32)
    pi = state["pi"]
    cluster = int(pi.argmax())
    alone = {**state, "pi": torch.nn.functional.one_hot(pi.argmax(), len(pi)).to(pi.dtype)}
    with torch.no_grad():
        mixed, own = (
            task.each_loss(algorithm.predict(task, server, at, x), target).double().numpy()
            for at in (state, alone)
        )
    clusters = _losses_by_cluster(clients)
    members = clusters.get(cluster, np.zeros(0))
    if not len(members) or not own.mean() > 0:
        return ""
    logs = [np.log(at) for at in clusters.values() if len(at) > 1]
    freedom = sum(len(at) - 1 for at in logs)
    typical = float(np.exp(np.log(members).mean()))
    above = float(np.log(own.mean()) - np.log(members).mean())
    most = float(np.log(RATIO))
    if freedom:
        between = sum(float(((at - at.mean()) ** 2).sum()) for at in logs) / freedom
        noise = float(own.var(ddof=1)) / len(own) / float(own.mean()) ** 2 if len(own) > 1 else 1.0
        scale = math.sqrt(between * (1 + 1 / len(members)) + noise)
        from scipy.special import stdtrit  # imports scipy, which is slow

        most = float(stdtrit(freedom, 1 - LEVEL)) * scale
    if above <= most:
        if np.log(mixed.mean()) - np.log(members).mean() <= most:
            return ""
        return (
            f"this client's share in cluster {cluster}, its nearest, is only "
            f"{float(pi.max()):.2f}, so its loss is {mixed.mean():.3g} instead of "
            f"{own.mean():.3g}; repeat its step with --steps 20, or steps=20 in Python."
        )
    how = f"up to {typical * math.exp(most):.3g} would be usual for its members"
    if not freedom:
        how = "no cluster has two members to compare with, so twice the loss is the limit"
    return (
        f"this client fits none of the clusters: its loss is {own.mean():.3g} in cluster "
        f"{cluster}, the nearest, whose members have {typical:.3g} ({how}); do not rely on this "
        "model for it, and train with this client instead."
    )


def _losses_by_cluster(clients: Mapping[str, list[Any]]) -> dict[int, np.ndarray]:
    """The members' losses at the last evaluation, by cluster."""
    found: dict[int, list[float]] = {}
    rows = zip(clients["round"], clients["cluster"], clients["loss"], strict=True)
    for round, cluster, loss in rows:
        if round == max(clients["round"]) and loss is not None and loss > 0:
            found.setdefault(int(cluster), []).append(float(loss))
    return {cluster: np.array(at) for cluster, at in found.items()}


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
