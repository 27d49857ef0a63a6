"""The metrics of an exported model: measured again on the run's data, or those of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.examples import SPLITS, Split
from isonomy.core.task import Batch, Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.data.tables.federate import fingerprint
from isonomy.deploy.card import Measured
from isonomy.deploy.loading import ClientModel
from isonomy.deploy.model import Model
from isonomy.errors import IsonomyError
from isonomy.metrics import Counts, count, summarise
from isonomy.metrics.errors import Errors, error_sums, has_errors
from isonomy.metrics.registry import POOLED
from isonomy.metrics.scores import Scores, has_scores, histogram
from isonomy.metrics.values import Values
from isonomy.runs import build
from isonomy.runs.finished import require_same_data
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import record

PAGE = 4096  # rows at a time


def measured(place: RunFolder, loaded: ClientModel, model: Model) -> Model:
    """The model with its metrics on the run's data on its card.

    If the data cannot be loaded again, the card gets the metrics that the run recorded.
    """
    config, card = loaded.config, model.card
    split = config.evaluate.split
    if config.privacy.level != "none" and "evaluation" not in config.privacy.allow:
        return _private(model, place, loaded, split)
    try:
        setting = build.build(config)
        require_same_data(place, setting)
    except IsonomyError as error:
        note = f"the data could not be loaded again ({error}); the metrics are those of the run"
        metrics = _recorded(place, loaded, split)
        notes = (*card.notes, note if metrics else f"{note}, which has none for this model")
        return replace(model, card=card.model_copy(update={"measured": metrics, "notes": notes}))
    federation = setting.federation
    everyone = [k for k, benign in enumerate(setting.benign) if benign]
    groups = [everyone]
    if card.origin.client is not None:
        groups.insert(0, [_names(federation).index(card.origin.client)])
    metrics = tuple(_measure(model, loaded.task, federation, who, split) for who in groups)
    data = card.data.model_copy(
        update={
            "digest": f"blake2b:{fingerprint(setting.clean)}",
            "sizes": {s: int(federation.sizes(s).sum()) for s in SPLITS},
        }
    )
    notes = (*card.notes, *federation.notes, *federation.warnings)
    update = {"measured": metrics, "data": data, "notes": notes}
    return replace(model, card=card.model_copy(update=update))


def _private(model: Model, place: RunFolder, loaded: ClientModel, split: Split) -> Model:
    """The model with the noisy metrics of its private run; nothing is measured without noise."""
    found = tuple(one for one in _recorded(place, loaded, split) if one.metrics)
    note = (
        f"trained with differential privacy of {loaded.config.privacy.level}s; "
        f"{'metrics have noise' if found else 'no metrics were measured with the model'}"
    )
    update = {"measured": found, "notes": (*model.card.notes, note)}
    return replace(model, card=model.card.model_copy(update=update))


def _names(federation: Federation) -> list[str]:
    return [federation.name(k) for k in range(len(federation))]


def _measure(
    model: Model, task: Task, federation: Federation, who: Sequence[int], split: Split
) -> Measured:
    """The model's metrics on the examples of some clients."""
    total: Tree = None
    rule = model.rule
    for k in who:
        rows = torch.arange(federation.x.shape[0])[federation.rows(k, split)]
        for at in torch.split(rows, PAGE) if len(rows) else ():
            batch = Batch(
                federation.x[at], federation.y[at], federation.groups[at], torch.ones(len(at))
            )
            outputs, decisions = model.outputs(batch.x), None
            if rule is not None:
                groups = batch.groups[:, rule.about.column]
                decisions = rule.decide(rule.row(), task, outputs, batch.x, groups)
            page = _counted(task, outputs, batch, decisions)
            total = page if total is None else tree.add(total, page)
    names = _names(federation)
    if total is None:
        return Measured(split=split, rows=0, clients=0, by="export", metrics={})
    found, named = tree.tmap(lambda t: t.unsqueeze(0), total), federation.attributes
    counts = Counts.of(found, named)
    values = Values(
        Scores(found["scores"].numpy(), named) if "scores" in found else None,
        Errors(found["errors"].numpy(), named) if "errors" in found else None,
    )
    return Measured(
        split=split,
        rows=int(counts.sizes.sum()),
        clients=(names[who[0]],) if len(who) == 1 else len(who),
        by="export",
        metrics=_metrics(summarise(counts, values)),
    )


def _counted(
    task: Task, outputs: Tensor, batch: Batch, decisions: Tensor | None
) -> dict[str, Tensor]:
    """What is counted of one page of examples."""
    page = count(task, outputs, batch, decisions=decisions)
    if has_scores(task):
        page["scores"] = histogram(task, outputs, batch)
    if has_errors(task):
        page["errors"] = error_sums(task, outputs, batch)
    return page


def _metrics(found: Mapping[str, float]) -> dict[str, float | None]:
    """Error, loss and gaps; None where a metric is undefined."""
    kept = {k: v for k, v in found.items() if not k.startswith(("client.", "hv.")) and ":" not in k}
    if "accuracy" in kept:
        kept = {"error": 1 - kept["accuracy"], **kept}
    return {k: None if v is None or math.isnan(v) else float(v) for k, v in kept.items()}


def _recorded(place: RunFolder, loaded: ClientModel, split: Split) -> tuple[Measured, ...]:
    """The metrics of this model that the run recorded."""
    if loaded.choice is not None or (loaded.rule is not None and loaded.client is None):
        return ()  # the run measured other preferences, or each client's own rule
    recorded = record(place)
    columns = recorded.clients
    last = [i for i, r in enumerate(columns.get("round", [])) if r == max(columns["round"])]
    sizes = [int(columns["size"][i]) for i in last]
    if loaded.client is None:
        known = {k: v for k, v in recorded.metrics.items() if k in POOLED or "group." in k}
        every = Measured(
            split=split, rows=sum(sizes), clients=len(last), by="run", metrics=_metrics(known)
        )
        return (every,)
    at = next((i for i in last if columns["name"][i] == loaded.client), None)
    if at is None:
        return ()  # a private run may have measured nothing of single clients
    skip = ("round", "client", "name", "split", "size", "malicious", "cluster", "hv")
    own = {k: v[at] for k, v in columns.items() if k not in skip and isinstance(v[at], float)}
    return (
        Measured(
            split=split,
            rows=int(columns["size"][at]),
            clients=(columns["name"][at],),
            by="run",
            metrics=_metrics(own),
        ),
    )
