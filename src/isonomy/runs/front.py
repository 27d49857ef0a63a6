"""Measuring fronts: the models of many preferences, for each client and for all together.

Every algorithm has a front. An algorithm that learns a front is asked for its model at each of a
grid of preferences, the same for all algorithms; any other has the one point of its model. Clients
count on their own examples, as for every other metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from isonomy.blocks.preferences import grid
from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.capabilities import FusesFronts, LearnsFront, LearnsSampling, objectives
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import NoReplies
from isonomy.core.examples import Attribute, Split
from isonomy.core.phase import Phase, phase
from isonomy.core.preference import preference_of, ray_of
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError
from isonomy.metrics import Counts
from isonomy.metrics.counts import Floats
from isonomy.metrics.front import compared, coordinates, points, volume
from isonomy.models.hypernet import features, head_of
from isonomy.runs.build import Setting
from isonomy.runs.progress import Progress

PAGE = 256  # examples at a time
FEW = 100  # preferences, minus one, among which clients choose before the last round
MANY = 2**24  # outputs at a time
SHOWN = 50  # preferences, minus one, at which fusion weights are recorded
TOGETHER = -1  # stands for the front on all clients' examples


@dataclass(frozen=True, eq=False)
class Fronts:
    """The measured points of one split.

    `preferences` are [R, m], [1, 0] for an algorithm with one model. `local` [K, R, c] are the
    points of clients `ids` on their own examples; `whole` [F, R, c] those on everyone's, one front
    of all together or one per client, None if it was not measured. `counts` [K, R, 1 + G, C, C] are
    those of `local` and `joint` [R, 1 + G, C, C] those of the front of all together, for an
    algorithm that learns a front.
    """

    split: Split
    names: tuple[str, ...]
    ids: list[int]
    preferences: NDArray[np.float32]
    local: Floats
    whole: Floats | None
    attributes: tuple[Attribute, ...] = ()
    counts: NDArray[np.int64] | None = None
    joint: NDArray[np.int64] | None = None

    @property
    def volumes(self) -> Floats:
        """Every client's hypervolume; NaN for a client without examples."""
        return np.array([volume(at) for at in self.local])

    def metrics(self) -> dict[str, float]:
        """`hv.local` and, where it was measured, `hv.global`."""
        found = {"hv.local": _mean(self.volumes)}
        if self.whole is not None:
            found["hv.global"] = _mean(np.array([volume(at) for at in self.whole]))
        return found

    def best(self, coordinate: int) -> NDArray[np.intp]:
        """Each client's preference with the least of a coordinate, and then of the others.

        A preference with more error than a constant prediction is not taken, unless all have more;
        then it is the one of least error. -1 for a client without examples.
        """
        order = [coordinate, *(j for j in range(len(self.names)) if j != coordinate)]
        found = []
        for k, at in enumerate(self.local):
            useful = np.ones(len(at), np.bool_)
            if self.counts is not None and "error" in self.names:
                labels = self.counts[k, 0, 0].sum(-1)
                error = at[:, self.names.index("error")]
                most = 1 - labels.max() / max(int(labels.sum()), 1)
                useful = error <= max(most, error.min())
            keys = [at[:, j] for j in order[::-1]]
            found.append(int(np.lexsort([*keys, ~useful])[0]))
        known = ~np.isnan(self.local[:, :, coordinate]).all(1)
        return np.where(known, np.array(found, np.intp), -1)

    def point(self, chosen: NDArray[np.intp], clients: NDArray[np.bool_]) -> Floats | None:
        """The point on all examples of some clients together, each at its chosen preference."""
        at = [k for k in np.flatnonzero(clients) if chosen[k] >= 0]
        if self.counts is None or not at:
            return None
        counts = np.stack([self.counts[k, chosen[k]] for k in at]).sum(0)
        return points(counts, self.attributes, self.names)

    def columns(self) -> dict[str, Any]:
        """One row per client and preference, and for all together (client -1).

        If every client has its own front, there is none of all together. The columns `count.NAME`
        are the counts that the coordinate NAME was computed from (`isonomy.metrics.front.compared`)
        as a flat list, and `count.label` is the number of examples of each class.
        """
        parts = list(zip(self.ids, self.local, strict=True))
        if self.whole is not None and len(self.whole) == 1:
            parts.append((TOGETHER, self.whole[0]))
        count = len(self.preferences)
        where = np.concatenate([at for _, at in parts])
        out: dict[str, Any] = {
            "split": [self.split] * len(where),
            "client": np.repeat([k for k, _ in parts], count).tolist(),
        }
        for j in range(self.preferences.shape[1]):
            out[f"preference.{j}"] = np.tile(self.preferences[:, j], len(parts)).tolist()
        out |= {name: where[:, j].tolist() for j, name in enumerate(self.names)}
        if self.counts is None:
            return out
        counts = [*self.counts, *([] if self.joint is None else [self.joint])]
        flat = np.concatenate(counts)
        out["count.label"] = flat[:, 0].sum(-1).tolist()
        for name in self.names:
            out[f"count.{name}"] = (
                compared(flat, self.attributes, name).reshape(len(flat), -1).tolist()
            )
        return out


def names_of(setting: Setting) -> tuple[str, ...] | None:
    """The coordinates that the config asks for; None if there is nothing to measure."""
    config, federation = setting.config.front, setting.federation
    if not config.rays or not federation.classes:
        return None
    wanted = config.objectives or objectives(setting.algorithm)
    if not wanted and not federation.attributes:
        return None
    found = coordinates(wanted or ("error", "dp"), federation.attributes)
    if len(found) < 2:
        raise ConfigError(f"front.objectives = {list(wanted)}: give at least two.")
    return found


def few_of(config: Config, *, last: bool) -> int | None:
    """The number of preferences, minus one, among which clients choose; None: the config's own."""
    return None if last and config.front.rays else min(config.front.rays or FEW, FEW)


def preferences_of(config: Config, algorithm: LearnsFront, rays: int | None = None) -> Tensor:
    """The preferences at which a front is measured [R, objectives]; `rays` replaces the config's.

    With two objectives they are ordered by rising share of the first.
    """
    most = config.front.rays if rays is None else rays
    return preference_of(grid(most, len(algorithm.objectives)).flip(0))


def measured(
    setting: Setting,
    server: Tree,
    engine: Engine,
    counts: Counts,
    ids: list[int],
    done: int,
    *,
    last: bool,
) -> Fronts | None:
    """The fronts on the split that is evaluated; `counts` are those of `ids` after `done` rounds.

    Every client's front on everyone's examples takes one pass per client, so it is measured at
    the end only.
    """
    names = names_of(setting)
    if names is None:
        return None
    split = setting.config.evaluate.split
    if isinstance(setting.algorithm, LearnsFront):
        return learnt(setting, server, engine, split, names, done, others=last)
    local = points(counts.counts[:, None], counts.attributes, names)
    whole = points(counts.pooled().counts[:, None], counts.attributes, names)
    return Fronts(split, names, ids, np.zeros((1, 0), np.float32), local, whole)


def learnt(
    setting: Setting,
    server: Tree,
    engine: Engine,
    split: Split,
    names: tuple[str, ...],
    done: int,
    *,
    others: bool,
    rays: int | None = None,
) -> Fronts | None:
    """The fronts of an algorithm that learns them, on a split; None if a client does not reply.

    If states are on the clients' machines, a client's front is not measured on others' examples.
    `rays` replaces the number in the config.
    """
    algorithm, federation = setting.algorithm, setting.federation
    if not isinstance(algorithm, LearnsFront):
        return None
    wanted = preferences_of(setting.config, algorithm, rays)
    message = {"model": algorithm.deployed(server), "rays": ray_of(wanted)}
    own = counted(algorithm, engine, split, message, "own", done)
    whole: Floats | None = None
    together: NDArray[np.int64] | None = None
    if own is None:
        return None
    if algorithm.joint(message["model"]):
        joint = None
        if rays is None:
            joint = counted(algorithm, engine, split, message, "joint", done)
        if joint is not None:
            together = joint.sum(0)
            whole = points(together[None], federation.attributes, names)
    elif others and not engine.remote:
        each = []
        states = engine.all_states()
        for k in range(len(federation)):
            state = tree.take(states, k)
            given = {**message, "state": state}
            sums = counted(algorithm, engine, split, given, "given", done)
            assert sums is not None  # all clients of a simulation reply
            each.append(points(sums.sum(0), federation.attributes, names))
        whole = np.stack(each)
    local = points(own, federation.attributes, names)
    return Fronts(
        split=split,
        names=names,
        ids=list(range(len(federation))),
        preferences=wanted.numpy(),
        local=local,
        whole=whole,
        attributes=federation.attributes,
        counts=own,
        joint=together,
    )


def counted(
    algorithm: LearnsFront, engine: Engine, split: Split, message: Message, whose: str, done: int
) -> NDArray[np.int64] | None:
    """Every client's counts [K, R, 1 + G, C, C], some clients at a time to save memory.

    In a simulation, clients with many rows are asked alone: side by side with smaller ones, these
    would be filled up to as many rows.
    """
    everyone, rays, sizes = engine.everyone(), len(message["rays"]), engine.federation.sizes(split)
    rows = min(PAGE, max(int(sizes.max()), 1))
    lanes = max(1, MANY // (rays * rows * max(engine.task.classes, 1)))
    large = (sizes > 4 * PAGE) & (not engine.remote)
    chunks = [*torch.split(everyone[~large], lanes), *torch.split(everyone[large], 1)]
    out, asked = [], []
    for ids in chunks:
        if not len(ids):
            continue
        cohort = engine.cohort(ids, work=Work(steps=1), round=done)
        try:
            replies = cohort.gather(front_counts(algorithm, split, whose), message)
        except NoReplies:
            return None
        if len(replies.ids) < len(ids):
            return None
        out.append(replies.value["counts"])
        asked.append(ids)
    order = torch.cat(asked).argsort()
    return torch.cat(out)[order].numpy().astype(np.int64)


def front_counts(algorithm: LearnsFront, split: Split, whose: str) -> Phase:
    """The phase in which a client counts the predictions of the models of all rays.

    `whose` chooses the state: the client's "own", none ("joint"), or the "given" one.
    """

    @phase("gather", name=f"measure:{split}:{whose}", counts="group statistic")
    def counts_of(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        model, rays = message["model"], message["rays"]
        states = {"own": client.state, "joint": None, "given": message.get("state")}
        state = states[whose]
        same = _common(algorithm.at(task, model, state, rays[0]), model, state)

        def own(ray: Tensor) -> Params:
            made = algorithm.at(task, model, state, ray)
            return {name: t for name, t in made.items() if name not in same}

        made = vmap(own)(rays)  # once for all pages
        total: Any = 0
        for page in client.pages(split, PAGE):
            cells = _cells(task, page)
            chosen = task.decide(_outputs(task, same, made, page.x))  # [R, n]
            later = [(chosen == c).to(cells.dtype) @ cells for c in range(1, task.classes)]
            total = total + torch.stack([cells.sum(0) - sum(later), *later], -1)
        shape = (len(rays), -1, task.classes, task.classes)
        return {"counts": total.reshape(shape).round().to(torch.int64)}, client.state

    return counts_of


def _outputs(task: Task, same: Params, made: Params, x: Tensor) -> Tensor:
    """The outputs [R, n, o] of the models of all rays.

    If the models differ in the last layer only, its inputs are computed once, and all outputs are
    one product of matrices. Else each model is evaluated.
    """
    where = head_of(task)
    if set(made) != {where.weight, where.bias}:
        found: Tensor = vmap(lambda own: task.outputs({**same, **own}, x))(made)
        return found
    weight, bias = made[where.weight], made[where.bias]
    flat: Tensor = weight.flatten(0, 1) @ features(task, same, x).T + bias.flatten().unsqueeze(-1)
    return flat.reshape(*bias.shape, -1).mT


def _common(params: Params, model: Tree, state: State | None) -> Params:
    """The parameters that are the same for every preference: tensors of the model or the state."""
    given = {id(t) for t in (*tree.leaves(model), *(tree.leaves(state) if state else ()))}
    return {name: t for name, t in params.items() if id(t) in given}


def _cells(task: Task, page: Batch) -> Tensor:
    """The cells (row, label) in which each example counts [n, (1 + G) C], 0 for padding.

    Sums of these are exact up to 2^24 examples per page.
    """
    member = [page.weight.unsqueeze(-1)]
    for column, levels in enumerate(task.levels):
        inside = page.groups[:, column].unsqueeze(-1) == torch.arange(levels)
        member.append(inside.to(page.weight.dtype) * page.weight.unsqueeze(-1))
    label = (page.y.unsqueeze(-1) == torch.arange(task.classes)).to(page.weight.dtype)
    return (torch.cat(member, -1).unsqueeze(-1) * label.unsqueeze(-2)).flatten(-2)


def _mean(volumes: Floats) -> float:
    known = volumes[~np.isnan(volumes)]
    return float(known.mean()) if len(known) else math.nan


def learnt_facts(setting: Setting, now: Progress) -> dict[str, Any]:
    """What a method learnt about preferences, for its figures.

    `preference_distributions` has each client's mixture of Dirichlet distributions of rays, and
    `fusion_weights` the weight of each client's hypernet at evenly spaced rays.
    """
    algorithm, out = setting.algorithm, {}
    if isinstance(algorithm, LearnsSampling) and not now.engine.remote:
        found = algorithm.preference_distributions(now.engine.all_states())
        out["preference_distributions"] = {k: v.tolist() for k, v in found.items()}
    if isinstance(algorithm, FusesFronts) and isinstance(algorithm, LearnsFront):
        rays = grid(SHOWN, len(algorithm.objectives))
        weights = algorithm.fusion_weights(setting.algorithm.deployed(now.server), rays)
        if weights is not None:
            out["fusion_weights"] = {"rays": rays.tolist(), "weights": weights.tolist()}
    return out


def stored(fronts: list[Fronts]) -> dict[str, list[Any]]:
    """The columns of several splits, one below the other."""
    parts = [one.columns() for one in fronts]
    return {name: [v for part in parts for v in part[name]] for name in parts[0]}
