"""A simulation in which the clients answer that answered in a recorded run, and no others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from isonomy.config.schema import Config
from isonomy.core.cohort import Ask, ClientSide, Replies
from isonomy.engines.loop import Loop
from isonomy.runs.build import Setting, build, versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.record import Record
from isonomy.runs.training import train

Absent = Mapping[tuple[int, str], set[int]]  # by round, from 0, and phase


def absent(lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Absent:
    """Whose replies to which questions were not used, by the lines of rounds.jsonl."""
    out: dict[tuple[int, str], set[int]] = defaultdict(set)
    for line in lines:
        for fault in line.get("faults", ()):
            measures = fault["phase"].startswith("measure:")  # after the round has been counted
            at = line["round"] if measures else line["round"] - 1
            out[at, fault["phase"]].add(names.index(fault["client"]))
    return out


class Recorded(Loop):
    """The loop engine; clients that a recorded run had to leave out do not answer here either."""

    name = "loop, with recorded cohorts"

    def __init__(self, setting: Setting, away: Absent, around: tuple[ClientSide, ...] = ()) -> None:
        super().__init__(setting.task, setting.federation, seed=setting.config.seed)
        self.away, self.more = away, around

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """The replies of those that answered."""
        away = torch.tensor(sorted(self.away.get((ask.round, ask.declared.name), ())))
        here = ask.ids[~torch.isin(ask.ids, away)]
        if len(here):
            around = ask.around + (self.more if ask.declared.trained else ())
            yield from super().exchange(replace(ask.to(here), around=around))


def replay(
    config: Config,
    recorded: RunFolder | None,
    names: Sequence[str],
    to: Path,
    around: tuple[ClientSide, ...] = (),
) -> Record:
    """Simulate a config, with the cohorts of a recorded run if one is given.

    `around` is middleware of clients.
    """
    away = {} if recorded is None else absent(recorded.lines("rounds.jsonl"), names)
    setting = build(config.model_copy(update={"versions": versions()}))
    place = RunFolder(to)
    place.create(setting.config)
    return train(setting, place, (), lambda setting, _: Recorded(setting, away, around))
