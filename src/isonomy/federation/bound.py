"""What binds a participant to its charter: each message is checked against it before any work.

Everything that decides how rows are used comes from the charter, and a message that says otherwise
is refused: the survey of tables, the preprocessing's form, phases, rounds, local work, learning
rates, seeds and splits.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from isonomy.core.work import Work
from isonomy.data.tables import phases, preprocessing
from isonomy.data.tables.columns import Table, Words, as_words
from isonomy.data.tables.phases import MOST
from isonomy.data.tables.preprocessing import OTHER, Category, Number, Preprocessing
from isonomy.errors import DataError
from isonomy.federation.charter import Charter, config_of, roles_of, schema_of
from isonomy.federation.flower import codec
from isonomy.federation.flower.codec import MalformedError
from isonomy.federation.flower.phase_runner import Terms
from isonomy.federation.ledger import Ledger
from isonomy.federation.network_shapes import NetworkShapes, shapes_of
from isonomy.federation.schedule import Schedule
from isonomy.runs.build import Setting

TABLE_PHASES = {"survey": phases.survey, "grid": phases.grid}


class Bound:
    """A charter that was agreed to, and what was answered under it."""

    def __init__(self, charter: Charter, place: Path | None) -> None:
        self.charter = charter
        self.config = config_of(charter)
        self.schema = schema_of(charter)
        self.roles = roles_of(self.config)[0]
        ledger = None if place is None else place / "answered.jsonl"
        self.ledger = Ledger(ledger, self.config.privacy.repeats)
        self.schedule: Schedule | None = None  # once the algorithm is built
        self.shapes = NetworkShapes([], 0)
        self.notes: list[str] = []  # what the participant should know of, since the last look

    def prepare(self, setting: Setting) -> None:
        """Derive the questions of the run."""
        self.schedule = Schedule(self.config, setting.algorithm)
        self.shapes = shapes_of(setting, len(self.charter["clients"]))

    # --- phases -----------------------------------------------------------------------------------

    def admit(self, head: codec.Header, terms: Terms, message: Any, content: str) -> None:
        """Check a phase's message and record it; raises MalformedError if it is refused."""
        assert self.schedule is not None
        name, round, exchange = str(head["phase"]), int(head["round"]), int(head["exchange"])
        slot = self.schedule.slot(name, round, final=head.get("final") is True)
        agreed = Terms(slot.work, slot.rate, self.config.seed)
        for what, own, given in zip(Terms._fields, agreed, terms, strict=True):
            if own != given:
                raise MalformedError(f"its {what} is not the charter's")
        settled = int(head.get("settled", 0))
        if not 0 <= settled <= self.config.rounds or exchange < 0:
            raise MalformedError("it names an unknown round")
        self.schedule.check_message(name, round, message)
        self.shapes.check(message)
        if self.ledger.admit(slot, name, exchange, content, settled):
            self.notes.append(
                f"{slot.position} is answered again, to another message, because the server has "
                "restarted."
            )

    # --- tables -----------------------------------------------------------------------------------

    def check_table(self, name: Any, message: Any, client: phases.Client) -> phases.Phase:
        """The phase of a question about the table; raises MalformedError if it is refused."""
        if name == "survey":
            if message != self.charter["survey"]:
                raise MalformedError("it asks for another survey of the table than the charter's")
            return phases.survey
        if name != "grid" or self.roles.impute != "median" or not isinstance(message, dict):
            raise MalformedError("the charter has no such question about the table")
        column = message.get("column")
        if self.schema.features.get(str(column)) != "number":
            raise MalformedError("it asks about a column that is not a numeric feature")
        low, high = message.get("low"), message.get("high")
        form = {"column": column, "low": low, "high": high, "least": self.config.privacy.cell}
        if message != form or not isinstance(low, float) or not isinstance(high, float):
            raise MalformedError("its marks are not the charter's")
        own = phases.survey(self.charter["survey"], client)[0]["numbers"][column]
        if own["count"] and not (low <= own["low"] and own["high"] <= high):
            raise MalformedError("its marks do not span the column")
        text = hashlib.sha256(json.dumps([low, high]).encode()).hexdigest()
        self.ledger.admit_table(f"grid {column}", text)
        return phases.grid

    def check_prepared(self, fitted: Any) -> Preprocessing:
        """The preprocessing; raises MalformedError unless it is one of the charter's columns."""
        try:
            found = preprocessing.of(fitted)
        except (KeyError, TypeError, ValueError, DataError):
            raise MalformedError("its preprocessing cannot be read") from None
        kinds: dict[str, type] = {"number": Number, "category": Category}
        names = [encoder.name for encoder in found.encoders]
        if found.table != self.schema or found.readings or names != list(self.schema.features):
            raise MalformedError("its preprocessing is of other columns than the charter's")
        for encoder, kind in zip(found.encoders, self.schema.features.values(), strict=True):
            if not isinstance(encoder, kinds[kind]):
                raise MalformedError("its preprocessing is of another kind than the charter's")
            if isinstance(encoder, Number) and not self._usual(encoder):
                raise MalformedError("its preprocessing has numbers that no table gives")
            if isinstance(encoder, Category) and not _plain(encoder):
                raise MalformedError("its preprocessing has other categories than tables report")
        text = json.dumps(fitted, sort_keys=True)
        self.ledger.admit_table("preprocessing", hashlib.sha256(text.encode()).hexdigest())
        return found

    def _usual(self, encoder: Number) -> bool:
        """Whether a numeric feature is filled in and scaled as the config says."""
        numbers = (encoder.fill, encoder.shift, encoder.scale)
        if not all(n is not None and math.isfinite(n) for n in numbers) or encoder.scale <= 0:
            return False
        plain = (encoder.shift, encoder.scale) == (0.0, 1.0)
        return (plain or self.roles.scale != "none") and (
            self.roles.indicate or not encoder.indicate
        )


def _plain(encoder: Category) -> bool:
    levels = encoder.levels
    few = len(levels) <= MOST and len(set(levels)) == len(levels)
    return few and encoder.other and encoder.gone is None


# --- limits ---------------------------------------------------------------------------------------


def rows_of_a_reply(work: Work, size: int) -> int:
    """How many training rows a client of this size uses in a round, each counted once."""
    width = work.width(size)
    whole = size // width * width if work.last == "drop" and size >= width else size
    return min(whole, work.count(size) * width)


def check_rows(charter: Charter, client: phases.Client) -> int:
    """The number of training rows; raises DataError if it is too small for the charter."""
    config = config_of(charter)
    kept = phases.survey(charter["survey"], client)[1]
    size, least = int((kept == 0).sum()), config.privacy.rows
    used = rows_of_a_reply(config.local, size)
    if used < least:
        raise DataError(
            f"a reply would be computed from {used} training rows of this table, but the charter "
            f"says that it is from at least {least}; add rows, or ask the organiser for more local "
            "steps, larger batches or another privacy.rows."
        )
    return size


def without_rare(table: Table, features: dict[str, str], kept: phases.Kept, least: int) -> Table:
    """The table with one common value for all values of a category that too few rows have.

    They were not named to the organiser, who could otherwise give one person's value a feature.
    """
    columns = dict(table.columns)
    for name, kind in features.items():
        if kind != "category" or least <= 1:
            continue
        words = as_words(columns[name])
        counts = Words(words.codes[kept == 0], words.levels).counts()
        rare = np.array([*(counts < least), False])  # the last entry is for missing values
        codes = np.where(rare[words.codes], len(words.levels), words.codes)
        columns[name] = Words(codes.astype(words.codes.dtype), (*words.levels, OTHER))
    return Table(columns, table.rows, table.place)
