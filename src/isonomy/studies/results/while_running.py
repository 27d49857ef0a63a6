"""Rows of results that are written while a preset's runs are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isonomy.runs.record import Record
from isonomy.studies.reproduce import Preset, run_labels
from isonomy.studies.results.rows import Row, keep, read, rows_of

SHARE = 20  # the time between two writes, in multiples of the time that the last one took


@contextmanager
def keeping(path: Path, preset: Preset, scale: str) -> Iterator[Callable[[Record], None]]:
    """A function that takes the record of each run that ends and adds its row to a results file.

    The file is written after a run ends, unless this would take more than a small share of the
    time, and at the end, also if the runs are interrupted. Runs that a row joins to one front
    make a row when all of them have ended.
    """
    read(path)  # so that a damaged file is reported before the runs are made
    together = {name: names for t in preset.methods for names in [run_labels(t)] for name in names}
    ended: dict[tuple[str, int], dict[str, Record]] = {}
    new: list[Row] = []
    next_write = 0.0

    def write() -> None:
        nonlocal next_write
        begun = time.monotonic()
        keep(path, preset.name, new)
        new.clear()
        now = time.monotonic()
        next_write = now + SHARE * (now - begun)

    def add(record: Record) -> None:
        names = together[record.label]
        own = ended.setdefault((names[0], record.seed), {})
        own[record.label] = record
        if len(own) == len(names):
            new.extend(rows_of(preset, scale, list(own.values())))
            del ended[names[0], record.seed]
        if new and time.monotonic() >= next_write:
            write()

    try:
        yield add
    finally:
        if new:
            write()
