"""The state that a run begins with or continues from, and its checkpoints."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine, Note
from isonomy.engines.states import Known
from isonomy.errors import RunError
from isonomy.runs import private
from isonomy.runs.build import Setting
from isonomy.runs.checkpoints import Checkpoint
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.runs.progress import Progress
from isonomy.runs.saved_model import restored, saved

MakeEngine = Callable[[Setting, Note], Engine]


def begin(
    setting: Setting, place: RunFolder | None, listener: Listener, make: MakeEngine
) -> Progress:
    """The state to begin with: that of a checkpoint, or the initial one."""
    algorithm, task, params = setting.algorithm, setting.task, setting.params
    server = algorithm.init_server(task, params, len(setting.federation))
    engine = make(setting, listener.note)
    engine.scratch = None if place is None else place.path / "checkpoint"
    initial = algorithm.init_client(task, params)
    engine.reset(initial)
    found = _found(setting, place, listener, initial)
    if place is not None:
        if found is not None:
            place.prune_checkpoints(setting.config.checkpoint.keep)
        engine.settled(min(place.checkpoints(), default=0))
        place.rewind(0 if found is None else found.round)
    start = engine.everywhere(None if found is None else found.state)[0]
    store = None if found is None else found.store
    if place is not None and engine.states.sparse and store is None:
        store = place.state_store(initial)
    kept = private.start(setting, place, engine)
    engine.guard = private.guard_of(setting, kept)
    if start is None:
        return Progress(server, engine, private=kept, store=store)
    round, packed, extra = start
    trees = tree.unpack(*packed)
    engine.restore(extra["engine"])
    if engine.everywhere(found is not None and found.store is not None)[0]:
        known = iter(()) if found is None or found.store is None else found.store.states()
        engine.load_some(known)
        engine.settle_states()
    else:
        engine.load(() if found is None else found.shards)
    faults = Counter(extra.get("faults", {}))
    rule = restored(trees, extra)
    server = tree.like(server, trees["server"])
    if kept is not None:
        kept.ledger.restore(extra["privacy"])
        engine.guard = private.guard_of(setting, kept)  # counts from here
    return Progress(server, engine, round, extra["lost"], faults, rule, kept, store)


def _found(
    setting: Setting, place: RunFolder | None, listener: Listener, initial: State
) -> Checkpoint | None:
    """The newest checkpoint of the folder; raises RunError if it is that of another run."""
    found = place.newest(initial) if place is not None else None
    if place is None or found is None:
        return None
    extra = found.extra
    for text in found.damaged:
        listener.note(text)
    if extra.get("config", setting.config.digest) != setting.config.digest:
        raise RunError(
            f"'{place.path / 'config.toml'}' was changed after the run had begun, so it would not "
            "describe the result; undo the change, or run the changed config in another folder."
        )
    if extra.get("data", setting.fingerprint) != setting.fingerprint:
        path = setting.config.data.options.get("path")
        raise RunError(
            f"{f'the tables at {path!r}' if path else 'the data'} are not those that "
            f"'{place.path}' began with; put them back, or start again with --overwrite."
        )
    return found


def save(place: RunFolder | None, now: Progress, setting: Setting) -> None:
    """Write a checkpoint; a process without the folder sends its clients' states."""
    if setting.federation.pages is not None:
        setting.federation.pages.release()
    sparse = now.engine.states.sparse
    shards: Iterator[Tree] = iter(()) if sparse else now.engine.shards()
    known: Iterator[Known] = now.engine.some_states("changed") if sparse else iter(())
    if place is None:
        for _ in itertools.chain(shards, known):
            pass
        now.engine.settle_states()
        return
    parts, about = saved(now.rule)
    trees = {"server": now.server, **parts}
    extra: dict[str, Any] = {"lost": now.lost, "engine": now.engine.saved(), **about}
    extra["config"] = setting.config.digest
    if now.faults:
        extra["faults"] = dict(now.faults)
    if setting.fingerprint:
        extra["data"] = setting.fingerprint
    if now.private is not None:
        extra["privacy"] = now.private.ledger.saved()
    changed = None if now.store is None or not sparse else (now.store, known)
    keep = setting.config.checkpoint.keep
    place.save_checkpoint(now.round, trees, extra, keep, shards, changed)
    now.engine.settle_states()
    now.engine.settled(min(place.checkpoints()))
