"""Participants in one process with secure aggregation, and everything that they send."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy import api
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.federation import organiser
from isonomy.federation.flower import codec
from isonomy.federation.participant import Participant
from isonomy.runs import saved_model
from isonomy.runs.folder import RunFolder

SECURE = ["secure=true"]


def prepared(folder: Path) -> Path:
    """The folder, with tables and a config."""
    write_tables(folder / "tables")
    (folder / "config.toml").write_text(CONFIG)
    return folder


class Wire(Room):
    """Participants in this process; every message and reply is kept, and may be changed.

    `change` receives the participant's name, the header of the message, the message and the reply,
    and returns what arrives, or None if nothing does.
    """

    def __init__(
        self, members: dict[str, Participant], change: Callable[..., bytes | None] | None = None
    ) -> None:
        self.kept: list[tuple[str, dict[str, Any], bytes, bytes]] = []

        def spoil(name: str, request: bytes, reply: bytes) -> bytes | None:
            head = codec.header(request)
            self.kept.append((name, head, request, reply))
            return reply if change is None else change(name, head, request, reply)

        super().__init__(members, spoil)

    def masked(self) -> list[torch.Tensor]:
        """Every masked reply that arrived."""
        return [
            codec.unpack(reply)[1]["masked"]
            for _, head, _, reply in self.kept
            if "secure" in head and codec.header(reply).get("ok") is True
        ]


def serve(here: Path, overrides: list[str], room: Room | None = None, notes: Any = None) -> Any:
    plan = organiser.begin(read(here / "config.toml", overrides), here / "served", NAMES)
    room = room or Room(members(here))
    listeners = [] if notes is None else [Notes(notes)]
    return organiser.conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0, listeners=listeners)


class Notes:
    """A listener that keeps the notes."""

    def __init__(self, kept: list[str]) -> None:
        self.kept = kept

    def note(self, text: str) -> None:
        self.kept.append(text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


def members(here: Path, **options: Any) -> dict[str, Participant]:
    return {name: participant(here, name, **options) for name in NAMES}


def simulate(here: Path, overrides: list[str], name: str = "simulated") -> Any:
    return api.run(read(here / "config.toml", [*overrides, "engine=loop"]), here / name)


def server(folder: Path) -> Any:
    return saved_model.read(folder / "model").server


def rounds(folder: Path) -> list[dict[str, Any]]:
    return RunFolder(folder).lines("rounds.jsonl")


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(s, t) for s, t in zip(tree.leaves(a), tree.leaves(b), strict=True))
