"""Reference models for the best attainable loss, for excess risk and FAA.

FOCUS measures a client's excess loss: its test loss minus the least loss that any model could have
for this client. That minimum is not known. A surrogate takes its place: the best of several central
models, chosen on held-out examples for each cluster of clients. A single model trained for a fixed
number of steps, as in the paper, would decide the answer by its length: after few steps it is worse
than the method's own model, and after many that of a small cluster overfits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from isonomy.algorithms.personal.local import Local
from isonomy.blocks.descent import along, start, step
from isonomy.core import tree
from isonomy.core.capabilities import FindsClusters
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.examples import Split
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.batched.engine import Batched
from isonomy.engines.states import States
from isonomy.metrics import client_loss
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_all

HELD = 10  # without validation examples, one training example in ten is held out
PAGE = 4096  # examples at a time

Floats = NDArray[np.float64]
Trained = Literal["own", "all", "both"]
"""What a surrogate was trained on: its cluster's examples, all clients' examples, or first all and
then its cluster's.
"""


@dataclass(frozen=True)
class Choice:
    """The surrogate of one cluster, as it was chosen on held-out examples."""

    cluster: int
    trained: Trained
    steps: int  # on the cluster's examples, or on all if only those were used
    averaged: bool  # whether it is the mean of the models between two checkpoints
    held_out: int  # examples that it was chosen on
    loss: float | None  # on those examples; None if there are none
    last: bool  # whether it is the last checkpoint, so that longer training might be better


@dataclass(frozen=True, eq=False)
class Reference:
    """The surrogates of all clusters, and their losses on the evaluated examples.

    `losses[k]` are those of each of client k's examples under the surrogate of its cluster.
    `by_length` [checkpoints, clients] is the mean loss of each client under a surrogate that is
    trained on its cluster alone and not chosen, after `lengths` steps.
    """

    clusters: tuple[int, ...]  # each client's cluster
    work: Work
    lengths: tuple[int, ...]
    choices: tuple[Choice, ...]
    losses: tuple[Floats, ...]
    by_length: Floats


def clusters(setting: Setting, server: Tree = None) -> tuple[int, ...] | None:
    """Each client's cluster by the config's rule; None if there is no excess risk to measure.

    The rule "found" uses the clusters that the algorithm found, given its last state `server`.
    """
    federation, rule = setting.clean, rule_of(setting)
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


def rule_of(setting: Setting) -> str:
    """The rule that says which clients have a surrogate in common."""
    rule = setting.config.excess.clusters
    if rule == "auto":
        return "own" if setting.clean.clusters is None else "true"
    return rule


def reference(setting: Setting, found: tuple[int, ...]) -> Reference:
    """The surrogates for these clusters; the same for all methods with the same data and seed."""
    config = setting.config
    excess, local = config.excess, config.local
    count = min(excess.checkpoints, excess.steps)
    lr = local.lr if excess.lr is None else excess.lr
    work = replace(local, steps=excess.steps // count, batch=excess.batch, lr=lr)
    return _reference(
        setting.clean, setting.task, found, work, count, config.evaluate.split, config.seed
    )


@lru_cache(maxsize=16)
def _reference(
    federation: Federation,
    task: Task,
    found: tuple[int, ...],
    work: Work,
    count: int,
    split: Split,
    seed: int,
) -> Reference:
    """Trained once for all methods of a comparison, because it does not depend on the method."""
    number = {c: i for i, c in enumerate(sorted(set(found)))}
    lane = torch.tensor([number[c] for c in found])
    train = partial(_train, task, work=work, count=count, seed=seed)
    own, by_length = Batched(task, federation, seed=seed), []

    def watch(params: Params) -> None:
        assert isinstance(own.states, States)
        own.states.stacked = {"params": tree.take(params, lane)}
        own.states.empty = False
        local = Local()
        made = local.init_server(task, task.init(seed), len(federation))
        by_length.append(client_loss(count_all(local, made, own, split)))

    pooled = _pooled(federation, found, split)
    best = train(pooled, task.init(seed), round=0, watch=watch)
    trained = np.zeros(len(number), np.int64)  # 0: own, 1: all and then own
    if len(number) > 1:
        common = train(_pooled(federation, (0,) * len(found), split), task.init(seed), round=count)
        tuned = train(pooled, tree.take(common["best"], 0), round=2 * count)
        better = torch.tensor(
            [_clearly_better(task, pooled, i, best["best"], tuned["best"]) for i in number.values()]
        )
        best = tree.tmap(lambda a, b: torch.where(_like(better, a), b, a), best, tuned)
        trained = better.numpy().astype(np.int64)
        common_at = int(common["at"][0])
    held = pooled.sizes("validation").tolist()
    choices = []
    for cluster, i in number.items():
        at, kind = int(best["at"][i]), ("own", "both")[trained[i]]
        if kind == "both" and at == 0:
            at, kind = common_at, "all"
        loss = float(best["loss"][i])
        choices.append(
            Choice(
                cluster=cluster,
                trained=kind,  # type: ignore[arg-type]
                steps=(at + 1) // 2 * int(work.steps or 0),
                averaged=at % 2 == 1,
                held_out=int(held[i]),
                loss=loss if np.isfinite(loss) else None,
                last=(at + 1) // 2 == count,
            )
        )
    losses = tuple(
        losses_of(
            task,
            federation,
            k,
            split,
            partial(task.outputs, tree.take(best["best"], number[cluster])),
        )
        for k, cluster in enumerate(found)
    )
    lengths = tuple(int(work.steps or 0) * (i + 1) for i in range(count))
    return Reference(found, work, lengths, tuple(choices), losses, np.array(by_length))


def _clearly_better(task: Task, pooled: Federation, lane: int, own: Params, tuned: Params) -> bool:
    """Whether the model that also saw all clients' data is better than that of the cluster alone.

    It must be so by more than the standard error, on the cluster's held-out examples; without any,
    the cluster is too small for a model of its own.
    """
    losses = [
        losses_of(task, pooled, lane, "validation", partial(task.outputs, tree.take(model, lane)))
        for model in (own, tuned)
    ]
    gain = losses[0] - losses[1]
    if not len(gain):
        return True
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return bool(gain.mean() > error)


def losses_of(
    task: Task, federation: Federation, client: int, split: Split, outputs: Any
) -> Floats:
    """The loss of each of a client's examples, given a function from features to outputs."""
    x, y = (t[federation.rows(client, split)] for t in (federation.x, federation.y))
    with torch.no_grad():
        found = [
            task.each_loss(outputs(x[i : i + PAGE]), y[i : i + PAGE])
            for i in range(0, len(y), PAGE)
        ]
    return torch.cat([torch.zeros(0), *found]).numpy().astype(np.float64)


def _pooled(federation: Federation, found: tuple[int, ...], split: Split) -> Federation:
    """One client per cluster, with its members' training and held-out examples.

    Held out are the validation examples; at a client without any, or if the validation examples are
    those that losses are evaluated on, every tenth training example.
    """
    train: list[Tensor] = []
    held: list[Tensor] = []
    for cluster in sorted(set(found)):
        rows: tuple[list[Tensor], list[Tensor]] = ([], [])
        for k, own in enumerate(found):
            if own != cluster:
                continue
            first, second = federation.rows(k, "train"), federation.rows(k, "validation")
            used = torch.arange(first.start, first.stop)
            kept = torch.arange(second.start, second.stop)
            if not len(kept) or split == "validation":
                out = torch.arange(len(used)) % HELD == HELD - 1
                used, kept = used[~out], used[out]
            rows[0].append(used)
            rows[1].append(kept)
        train.append(torch.cat(rows[0]))
        held.append(torch.cat(rows[1]))
    return build(
        federation.x,
        federation.y,
        federation.groups,
        {"train": train, "validation": held},
        classes=federation.classes,
        attributes=federation.attributes,
        source=federation.source,
    )


# --- training, with a choice among checkpoints ----------------------------------------------------


def _train(
    task: Task,
    pooled: Federation,
    params: Params,
    *,
    work: Work,
    count: int,
    seed: int,
    round: int,
    watch: Any = None,
) -> dict[str, Any]:
    """Train a model on each cluster from `params` on; the best of all checkpoints by held-out loss.

    Checkpoint i has two models: the last one, number 2 i, and the mean of those since checkpoint
    i - 1, number 2 i - 1. Number 0 is `params` itself.
    """
    engine = Batched(task, pooled, seed=seed)
    zero = torch.zeros((), dtype=torch.int64)
    engine.reset(
        {
            "params": params,
            "memory": start(work, params),
            "best": params,
            "loss": torch.tensor(torch.inf),
            "at": zero,
        }
    )
    everyone = engine.everyone()
    engine.cohort(everyone, work=work, round=round).gather(_begin, {})
    for i in range(count):
        cohort = engine.cohort(everyone, work=work, round=round + i)
        cohort.gather(_advance, {"checkpoint": torch.tensor(i + 1)})
        if watch is not None:
            watch(engine.states.stacked["params"])
    return dict(engine.states.stacked)


@phase("gather")
def _begin(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """The held-out loss of the initial model."""
    del message
    (loss,) = _held_out(task, [client.state["params"]], client)
    return {}, {**client.state, "loss": loss}


@phase("gather")
def _advance(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
    """Train up to the next checkpoint, and keep its model, or the mean model, if it is the best."""
    work, rate, state = client.work, client.rate, client.state

    def one(carry: Tree, batch: Batch) -> Tree:
        now, memory, total = carry
        now, memory = step(work, rate, now, memory, grad(task.loss)(now, batch))
        return now, memory, tree.add(total, now)

    begin = (state["params"], state["memory"], tree.zeros_like(state["params"]))
    params, memory, total = along(one, begin, client)
    mean = tree.scale(total, 1 / int(work.steps or 1))
    best, loss, at = state["best"], state["loss"], state["at"]
    models = (mean, params)
    places = (2 * message["checkpoint"] - 1, 2 * message["checkpoint"])
    for model, place, found in zip(models, places, _held_out(task, models, client), strict=True):
        better = found < loss
        best = tree.tmap(lambda a, b, is_better=better: torch.where(is_better, a, b), model, best)
        loss, at = torch.where(better, found, loss), torch.where(better, place, at)
    return {}, {"params": params, "memory": memory, "best": best, "loss": loss, "at": at}


def _held_out(task: Task, models: Sequence[Params], client: Client) -> list[Tensor]:
    """Each model's mean loss on the held-out examples.

    It is infinite if there are none, or if it is not a number.
    """
    pages = [
        [(task.losses(params, page) * page.weight).sum() for params in models]
        for page in client.pages("validation")
    ]
    means = [
        torch.stack(sums).sum() / client.sizes[1].clamp(min=1) for sums in zip(*pages, strict=True)
    ]
    return [torch.where((client.sizes[1] > 0) & ~m.isnan(), m, torch.inf) for m in means]


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (values.dim() - 1))
