"""Surrogates of the best attainable loss, for excess risk and FAA.

FOCUS measures a client's excess loss: its test loss minus that of one central model trained on the
pooled training data of its cluster. The number depends on how long that model trains, so the
schedule is in the config and is stated wherever FAA is shown.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isonomy.algorithms.personal.local import Local
from isonomy.core import tree
from isonomy.core.capabilities import FindsClusters
from isonomy.core.examples import Split
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.batched.engine import Batched
from isonomy.metrics import client_loss
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_all


def clusters(setting: Setting, server: Tree = None) -> tuple[int, ...] | None:
    """Each client's cluster by the config's rule; None if there is no excess risk to measure.

    The rule "found" uses the clusters that the algorithm found, given its last state `server`.
    """
    federation, rule = setting.clean, _rule(setting)
    if rule == "found":
        algorithm = setting.algorithm
        if server is None or not isinstance(algorithm, FindsClusters):
            return None
        return tuple(algorithm.clusters(server).tolist())
    if rule == "none" or (rule == "true" and federation.clusters is None):
        return None
    if rule == "own":
        return tuple(range(len(federation)))
    return federation.clusters if rule == "true" else (0,) * len(federation)


def _rule(setting: Setting) -> str:
    rule = setting.config.excess.clusters
    if rule == "auto":
        return "own" if setting.clean.clusters is None else "true"
    return rule


def schedule(setting: Setting) -> Work:
    """How the surrogates train."""
    excess, local = setting.config.excess, setting.config.local
    lr = local.lr if excess.lr is None else excess.lr
    return replace(local, steps=excess.steps, batch=excess.batch, lr=lr)


def statement(setting: Setting, server: Tree = None) -> str:
    """The sentence that is shown with FAA, or the reason why there is none."""
    found, rule = clusters(setting, server), _rule(setting)
    if found is None:
        name = setting.config.algorithm.name
        return f"No FAA: '{name}' finds no clusters of clients." if rule == "found" else ""
    pooled = {
        "true": f"the pooled training data of each of the {len(set(found))} true clusters",
        "found": f"the pooled training data of each of the {len(set(found))} clusters that the "
        "method itself found",
        "own": "each client's own training data (no clusters are known)",
        "one": "all clients' pooled training data",
    }[rule]
    work = schedule(setting)
    batch = f"batch {work.batch}" if work.batch else "full batches"
    return (
        f"FAA: largest minus smallest excess test loss over a surrogate trained on {pooled}, "
        f"{work.steps} {work.optimiser} steps, {batch}, learning rate {work.lr:g}."
    )


def surrogate_losses(setting: Setting, server: Tree = None) -> NDArray[np.float64] | None:
    """Every client's test loss under its cluster's surrogate."""
    found = clusters(setting, server)
    if found is None:
        return None
    config = setting.config
    where = (setting.clean, setting.task, found, schedule(setting))
    return _losses(*where, config.evaluate.split, config.seed)


@lru_cache(maxsize=16)
def _losses(
    federation: Federation,
    task: Task,
    found: tuple[int, ...],
    work: Work,
    split: Split,
    seed: int,
) -> NDArray[np.float64]:
    """Trained once for all methods of a comparison, because they do not depend on the method."""
    algorithm = Local()
    params = task.init(seed)
    pooled = federation.merged(found)
    engine = Batched(task, pooled, seed=seed)
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, len(pooled))
    server = algorithm.round(server, engine.cohort(engine.everyone(), work=work, round=0))
    # each client now uses its cluster's model as if it were its own
    number = {c: i for i, c in enumerate(sorted(set(found)))}
    own = Batched(task, federation, seed=seed)
    own.states.stacked = tree.tmap(lambda t: t[[number[c] for c in found]], engine.states.stacked)
    own.states.empty = False
    counts = count_all(algorithm, server, own, split)
    return client_loss(counts)
