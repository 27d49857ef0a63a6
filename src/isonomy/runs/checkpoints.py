"""Checkpoints: the states after some rounds, in the folder `checkpoint/` of a run.

00000010.json           description and checksums; written last, so a checkpoint that has one
is complete
00000010.safetensors    the server's state and, with one share of clients, the clients' states
00000010-3.safetensors  the states of the clients of share 3, if there are several shares
states.rows, states.log the clients' states of all checkpoints, if they are many (`state_store`)
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from isonomy.core.tree import Tree, pack
from isonomy.engines.states import Known
from isonomy.runs.files import Description, decode, encode, write_atomically
from isonomy.runs.state_store import LOG, ROWS, StateStore

FILES = re.compile(r"\.?\d{8}(-\d+)?\.(json|safetensors)(\.partial)?|states\.(rows|log)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state that was saved after `round` rounds.

    `trees` are the server's state and the rule of decisions. `shards` read the clients' states
    share by share; with `store` they are in the store of states. `damaged` has a sentence for each
    newer checkpoint that cannot be used.
    """

    round: int
    trees: dict[str, Tree]
    extra: dict[str, Any]
    shards: list[Callable[[], Tree]]
    damaged: tuple[str, ...] = ()
    store: StateStore | None = None

    @property
    def state(self) -> tuple[int, tuple[dict[str, Tensor], Any], dict[str, Any]]:
        """What every process of a run needs of it, with the trees packed to be sent."""
        return self.round, pack(self.trees), self.extra


def rounds(folder: Path) -> list[int]:
    """The rounds that have a checkpoint, newest first."""
    found = folder.glob(f"{'[0-9]' * 8}.json")
    return sorted((int(p.stem) for p in found), reverse=True)


def save(
    folder: Path,
    round: int,
    trees: dict[str, Tree],
    extra: dict[str, Any],
    shards: Iterable[Tree],
    changed: tuple[StateStore, Iterable[Known]] | None = None,
) -> None:
    """Write a checkpoint; shards are made and written one at a time.

    With `changed`, clients' states are in a store, to which those that changed are added.
    """
    stem = folder / f"{round:08d}"
    about: dict[str, Any] = {"round": round}
    first, others = _first(shards) if changed is None else (None, None)
    if changed is not None:
        about["states"] = changed[0].save(changed[1], _oldest(folder, before=round))
    elif others is None:
        trees = {**trees, "clients": first}
    else:
        about["shards"] = []
        for number, shard in enumerate(itertools.chain([first], others)):
            content, description = encode({"clients": shard})
            write_atomically(_shard_file(stem, number), content)
            about["shards"].append(description)
    content, description = encode(trees)
    write_atomically(stem.with_suffix(".safetensors"), content)
    text = json.dumps({**about, **description, "extra": extra})
    write_atomically(stem.with_suffix(".json"), text.encode())


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest checkpoints, and what interrupted ones left.

    Descriptions first: if this is interrupted, no checkpoint is listed that lacks tensors.
    """
    kept = {f"{round:08d}" for round in rounds(folder)[:keep]}
    stored = {ROWS, LOG} if _oldest(folder) is not None else set()
    for file in sorted(folder.iterdir(), key=lambda file: file.suffix != ".json"):
        if FILES.fullmatch(file.name) and file.name[:8] not in kept and file.name not in stored:
            file.unlink(missing_ok=True)


def _oldest(folder: Path, before: int | None = None) -> int | None:
    """The entries of the store's log at the oldest checkpoint that has it; None without any."""
    if not (folder / LOG).exists():
        return None
    for round in sorted(rounds(folder)):
        if before is None or round < before:
            about = json.loads((folder / f"{round:08d}.json").read_text())
            if "states" in about:
                return int(about["states"]["entries"])
    return None


def load(folder: Path, round: int, initial: Tree = None) -> Checkpoint:
    """Read a checkpoint and verify all of its checksums; `initial` is a client's first state."""
    stem = folder / f"{round:08d}"
    about = json.loads(stem.with_suffix(".json").read_text())
    trees = decode(stem.with_suffix(".safetensors").read_bytes(), about)
    shards: list[Callable[[], Tree]]
    store = None
    if "states" in about:
        shards = []
        if initial is not None:
            store = StateStore.read(folder, initial, about["states"])
            for _ in store.states():
                pass  # raises an error if one is damaged
    elif "shards" in about:
        shards = [
            partial(_shard, _shard_file(stem, i), description)
            for i, description in enumerate(about["shards"])
        ]
        for shard in shards:
            shard()  # raises an error if it is damaged
    else:
        clients = trees.pop("clients")
        shards = [lambda: clients]
    return Checkpoint(round, trees, about["extra"], shards, store=store)


def _shard_file(stem: Path, number: int) -> Path:
    return stem.with_name(f"{stem.name}-{number}.safetensors")


def _shard(path: Path, description: Description) -> Tree:
    """The states of the clients of one share."""
    return decode(path.read_bytes(), description)["clients"]


def _first(shards: Iterable[Tree]) -> tuple[Tree, Iterator[Tree] | None]:
    """The first shard, and the others; None if there is only one."""
    each = iter(shards)
    first, second = next(each), next(each, _NONE)
    return first, None if second is _NONE else itertools.chain([second], each)


_NONE = object()
