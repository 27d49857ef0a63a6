"""The figures of an exported model: measured anew on the run's data, else those of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from isonomy.core import tree
from isonomy.core.examples import SPLITS, Split
from isonomy.core.task import Batch, Task
from isonomy.data.federation import Federation
from isonomy.data.tables.federate import fingerprint
from isonomy.deploy.card import Measured
from isonomy.deploy.model import Model
from isonomy.deploy.predictor import Predictor
from isonomy.errors import DataError, IsonomyError
from isonomy.metrics import Counts, count, summarise
from isonomy.runs import build
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import record

PAGE = 4096  # rows at a time


def measured(place: RunFolder, found: Predictor, made: Model, client: str | int | None) -> Model:
    """The model with its figures on the run's data, or the run's own where data are not at hand."""
    config, card = place.config(), made.card
    split = config.evaluate.split
    try:
        setting = build.build(config)
        _same(place, setting)
    except IsonomyError as error:
        note = f"the data could not be had again ({error}); figures are the run's"
        figures = _recorded(place, found, split, client)
        notes = (*card.notes, note if figures else f"{note}, which has none of this preference")
        return replace(made, card=card.model_copy(update={"measured": figures, "notes": notes}))
    federation = setting.federation
    everyone = [k for k, benign in enumerate(setting.benign) if benign]
    groups = [everyone]
    if card.origin.client is not None:
        groups.insert(0, [_names(federation).index(card.origin.client)])
    figures = tuple(_figures(made, found.task, federation, who, split) for who in groups)
    data = card.data.model_copy(
        update={
            "digest": f"blake2b:{fingerprint(setting.clean)}",
            "sizes": {s: int(federation.sizes(s).sum()) for s in SPLITS},
        }
    )
    told = {"measured": figures, "data": data, "notes": (*federation.notes, *federation.warnings)}
    return replace(made, card=card.model_copy(update=told))


def _same(place: RunFolder, setting: build.Setting) -> None:
    """Refuse tables that are not those of the run."""
    rounds = place.checkpoints()
    kept = place.load_checkpoint(rounds[0])[1].get("data") if rounds else None
    if kept is not None and kept != setting.fingerprint:
        raise DataError("the tables are not those of the run any more")


def _names(federation: Federation) -> list[str]:
    return [federation.name(k) for k in range(len(federation))]


def _figures(
    model: Model, task: Task, federation: Federation, who: Sequence[int], split: Split
) -> Measured:
    total: Any = None
    for k in who:
        rows = torch.arange(federation.x.shape[0])[federation.rows(k, split)]
        for at in torch.split(rows, PAGE) if len(rows) else ():
            batch = Batch(
                federation.x[at], federation.y[at], federation.groups[at], torch.ones(len(at))
            )
            page = count(task, model.outputs(batch.x), batch)
            total = page if total is None else tree.add(total, page)
    names = _names(federation)
    if total is None:
        return Measured(split=split, rows=0, clients=0, by="export", metrics={})
    counts = Counts.of(tree.tmap(lambda t: t.unsqueeze(0), total), federation.attributes)
    return Measured(
        split=split,
        rows=int(counts.sizes.sum()),
        clients=(names[who[0]],) if len(who) == 1 else len(who),
        by="export",
        metrics=_metrics(summarise(counts)),
    )


def _metrics(found: Mapping[str, float]) -> dict[str, float | None]:
    """Error, loss and gaps; what is undefined is null."""
    kept = {k: v for k, v in found.items() if not k.startswith(("client.", "hv.")) and ":" not in k}
    if "accuracy" in kept:
        kept = {"error": 1 - kept["accuracy"], **kept}
    return {k: None if v is None or math.isnan(v) else float(v) for k, v in kept.items()}


def _recorded(
    place: RunFolder, found: Predictor, split: Split, client: str | int | None
) -> tuple[Measured, ...]:
    """What the run measured of this model."""
    if found.preference:
        return ()
    made = record(place)
    columns = made.clients
    last = [i for i, r in enumerate(columns.get("round", [])) if r == max(columns["round"])]
    sizes = [int(columns["size"][i]) for i in last]
    if client is None:
        known = {
            k: v for k, v in made.metrics.items() if k in ("accuracy", "loss") or "group." in k
        }
        figures = Measured(
            split=split, rows=sum(sizes), clients=len(last), by="run", metrics=_metrics(known)
        )
        return (figures,)
    names = [columns["name"][i] for i in last]
    at = last[names.index(client) if client in names else int(client)]
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
