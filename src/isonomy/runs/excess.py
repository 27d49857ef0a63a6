"""Excess risk and FAA of a run: measured at its end, or again from its folder.

A client's excess is its loss minus that of its surrogate (`isonomy.runs.surrogate`) on the same
examples, so its standard error follows from the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy.config.schema import parse
from isonomy.core import tree
from isonomy.core.capabilities import LearnsFront
from isonomy.core.preference import ray_of
from isonomy.core.tree import Tree
from isonomy.errors import RunError
from isonomy.metrics import Paired, faa, faa_interval, paired
from isonomy.runs import surrogate
from isonomy.runs.build import Setting, build
from isonomy.runs.folder import RunFolder
from isonomy.runs.surrogate import Reference


@dataclass(frozen=True)
class ExcessRisk:
    """The excess of each client with its standard error, FAA with an interval, and how they depend
    on the surrogate.

    `better` marks the clients whose model is better than the surrogate beyond chance; their excess
    is 0, because the model itself is their reference. `by_length` is the FAA that a surrogate of so
    many `lengths` would give if it was trained on its cluster alone and not chosen.
    """

    clients: list[str]
    clusters: list[int]
    surrogate_loss: list[float | None]
    excess: list[float | None]
    error: list[float | None]
    better: list[bool]
    faa: float | None
    low: float | None
    high: float | None
    lengths: list[int]
    by_length: list[float | None]
    choices: list[dict[str, Any]]
    schedule: str  # how the surrogates were trained, and chosen among
    chosen: str  # which were chosen

    @property
    def statement(self) -> str:
        """What FAA was measured against: shown wherever FAA is."""
        return f"{self.schedule} {self.chosen}{better_text(self.clients, self.better)}"

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "statement": self.statement}


def measured(
    setting: Setting,
    found: Reference,
    deployed: Any,
    states: Tree,
    ids: list[int],
    rays: Tensor | None = None,
) -> ExcessRisk:
    """The excess of these clients under a trained model, from the clients' states.

    `rays` [clients, objectives] are the points of their fronts at which clients predict.
    """
    task, algorithm, split = setting.task, setting.algorithm, setting.config.evaluate.split

    def model(k: int) -> Callable[[Tensor], Tensor]:
        state = tree.take(states, k)
        if rays is not None and isinstance(algorithm, LearnsFront):
            return partial(task.outputs, algorithm.at(task, deployed, state, rays[k]))
        return partial(algorithm.predict, task, deployed, state)

    losses = [surrogate.losses_of(task, setting.clean, k, split, model(k)) for k in ids]
    floor = [found.losses[k] for k in ids]
    result = paired(losses, floor)
    benign = setting.benign[ids]
    kept = Paired(*(at[benign] for at in result))
    low, high = faa_interval(kept)
    means = np.array([at.mean() if len(at) else math.nan for at in losses])
    curve = [faa((means - at[ids])[benign], kept.sizes) for at in found.by_length]
    return ExcessRisk(
        clients=[setting.clean.name(k) for k in ids],
        clusters=[found.clusters[k] for k in ids],
        surrogate_loss=_numbers([at.mean() if len(at) else math.nan for at in floor]),
        excess=_numbers(result.excess),
        error=_numbers(result.error),
        better=[bool(at) for at in result.better],
        faa=_number(faa(kept.excess, kept.sizes)),
        low=_number(low),
        high=_number(high),
        lengths=list(found.lengths),
        by_length=_numbers(curve),
        choices=[asdict(choice) for choice in found.choices],
        schedule=_schedule(setting, found),
        chosen=_chosen(found),
    )


def recompute(
    folder: str | Path,
    *,
    steps: int | None = None,
    checkpoints: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    clusters: str | None = None,
) -> ExcessRisk:
    """The excess of a finished run's model, against surrogates that are trained again.

    Unless given, the schedule and the clusters are those of the run's config.
    """
    place = RunFolder(folder)
    config = place.config()
    if place.served:
        raise RunError(
            f"'{place.path}' is the run of a real federation, whose examples are not here; excess "
            "risk can be measured in simulations only."
        )
    saved = place.model()
    given = {
        "steps": steps,
        "checkpoints": checkpoints,
        "batch": batch,
        "lr": lr,
        "clusters": clusters,
    }
    values = config.plain()
    values["excess"] |= {name: value for name, value in given.items() if value is not None}
    setting = build(parse(values))
    rule = surrogate.rule_of(setting)
    groups = _found(place) if rule == "found" else surrogate.clusters(setting)
    if groups is None:
        raise RunError(
            f"'{place.path}' has no clusters for the rule '{rule}'; choose another rule with "
            "--clusters: true, found, own or one."
        )
    ids = list(range(len(setting.federation)))
    found = surrogate.reference(setting, groups)
    return measured(setting, found, saved.server, saved.states(), ids, _rays(place))


def _rays(place: RunFolder) -> Tensor | None:
    """The points of their fronts at which the clients predicted; None without fronts."""
    table = place.clients()
    if table is None or "preference.0" not in table.names:
        return None
    rows = table.listed()
    last = max(rows["round"])
    names = sorted(name for name in rows if name.startswith("preference."))
    at = [
        [rows[name][i] for name in names] for i, round in enumerate(rows["round"]) if round == last
    ]
    found = torch.tensor(at)
    return None if bool(found.isnan().any()) else ray_of(found)


def _found(place: RunFolder) -> tuple[int, ...] | None:
    """The clusters that the method had found at the end of the run."""
    table = place.clients()
    if table is None or "cluster" not in table.names:
        return None
    rows = table.listed()
    last = max(rows["round"])
    at = {
        k: c
        for t, k, c in zip(rows["round"], rows["client"], rows["cluster"], strict=True)
        if t == last
    }
    return tuple(int(at[k]) for k in sorted(at))


def _schedule(setting: Setting, found: Reference) -> str:
    """How the surrogates were trained, and on what the choice among them was made."""
    number, work = len(found.choices), found.work
    pooled = {
        "true": f"each of the {number} true clusters",
        "found": f"each of the {number} clusters that the method itself found",
        "own": "each client (no clusters are known)",
        "one": "all clients together",
    }[surrogate.rule_of(setting)]
    whose = "its own" if number == len(found.clusters) else "the cluster's"
    where = f"{whose} data, on all clients' data, or on all and then {whose}"
    if number == 1:
        where = "the pooled training data"
    batch = f"batch {work.batch}" if work.batch else "full batches"
    split = setting.config.evaluate.split
    carved = split == "validation" or not bool((setting.clean.sizes("validation") > 0).all())
    held = "every tenth training example, not used to train it" if carved else "validation examples"
    return (
        f"FAA: largest minus smallest excess {split} loss over a surrogate for {pooled}: trained "
        f"on {where} for up to {found.lengths[-1]} {work.optimiser} steps, {batch}, learning rate "
        f"{work.lr:g}; the best of {len(found.lengths)} checkpoints on held-out examples ({held})."
    )


_TRAINED = {"own": "own data", "all": "all data", "both": "all, then own data"}


def _chosen(found: Reference) -> str:
    """Which checkpoints were chosen, each of a few or a summary, and whether they were the last."""
    choices, number = found.choices, len(found.choices)
    if number <= 5:
        each = (
            (f"{c.cluster}: {_TRAINED[c.trained]}, " if number > 1 else "")
            + f"{c.steps} steps{' (mean model)' * c.averaged}"
            for c in choices
        )
        text = f"Chosen{' by cluster' * (number > 1)}: {'; '.join(each)}."
    else:
        counts = {k: sum(c.trained == k for c in choices) for k in _TRAINED}
        kinds = ", ".join(f"{_TRAINED[k]} {n}" for k, n in counts.items() if n)
        steps = sorted(c.steps for c in choices)
        text = f"Chosen: {kinds}; {steps[0]} to {steps[-1]} steps."
    falling = sum(choice.last for choice in choices)
    if falling:
        of = "" if number == 1 else f" of {falling} of {number}"
        text += (
            f" The held-out loss{of} was still falling at the last checkpoint; more excess.steps "
            "may be better."
        )
    return text


def better_text(clients: list[str], better: list[bool]) -> str:
    """Where the method's own model is the reference, as a sentence after a space; or nothing."""
    names = [name for name, is_better in zip(clients, better, strict=True) if is_better]
    if not names:
        return ""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (
        f" The method's own model is better than the surrogate beyond chance at "
        f"{', '.join(names[:5])}{more}: there it is the reference itself, so the excess is 0."
    )


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(v)) for v in values]
