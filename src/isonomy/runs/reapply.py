"""Fit a rule of decisions to the model of a finished run, and write the result as a new run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isonomy.config.schema import PostprocessConfig
from isonomy.errors import RunError
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder, rounds_of
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.record import Record
from isonomy.runs.training import train


def postprocess_run(
    folder: str | Path,
    to: str | Path,
    name: str,
    options: Mapping[str, Any],
    *,
    overwrite: bool = False,
    listeners: Sequence[Listener] = (),
) -> Record:
    """Write a run with the rounds of a finished one and a rule for its model; nothing is trained.

    The new run is the one that the config with this `postprocess` would have given: the clients
    report their statistics, the rule is fitted, and the last round is evaluated again.
    """
    source, target = RunFolder(folder), RunFolder(to)
    config = source.config()
    if source.served:
        raise RunError(
            f"'{source.path}' is the run of a real federation, whose examples are not here; a rule "
            "can be fitted in simulations only."
        )
    if not source.complete:
        raise RunError(
            f"'{source.path}' is unfinished; continue it with `isonomy resume {source.path}` first."
        )
    if config.postprocess.name != "none":
        raise RunError(
            f"'{source.path}' already has the rule of '{config.postprocess.name}'; give a run "
            "without postprocess."
        )
    if source.path.resolve() == target.path.resolve():
        raise RunError(f"'{target.path}' is the run itself; choose another folder with --to.")
    table = PostprocessConfig(name=name, **options)
    label = f"{config.label} + {name}" if config.label else None
    setting = build(
        config.model_copy(update={"postprocess": table, "label": label}), Listeners(listeners).note
    )
    found = source.newest()
    lines = source.lines("rounds.jsonl")
    if found is None or found.round != len(lines):
        raise RunError(
            f"'{source.path}' has no checkpoint of its last round; make the run again with "
            "--overwrite."
        )
    round, trees, extra = found.round, found.trees, found.extra
    target.create(setting.config, overwrite=overwrite)
    with target.locked():
        for stream in ("rounds.jsonl", "timing.jsonl"):
            for line in source.lines(stream):
                target.append(stream, line)
        clients = source.clients()
        if clients is not None and round > 1:
            early = clients.take(rounds_of(clients) < round)
            if len(early):
                target.write_clients(round - 1, early.columns)
        told = {**extra, "config": setting.config.digest}
        shards = (read() for read in found.shards)
        target.save_checkpoint(round, trees, told, setting.config.checkpoint.keep, shards)
    return train(setting, target, listeners)
