"""Tables of what methods conclude about their own models: the verdict and each constraint."""

from __future__ import annotations

from collections.abc import Sequence

from isonomy.report.tables.cells import Cell, Column, optional
from isonomy.report.tables.table import Table
from isonomy.runs.record import Record


def verdict_table(record: Record) -> Table | None:
    """One row per constraint of a method's verdict; None if the verdict lists none."""
    each = ((record.verdict or {}).get("facts") or {}).get("constraints")
    if not each:
        return None
    titles = {
        "zeta": "bound",
        "loss": "training loss",
        "violation": "loss minus bound",
        "examples": "examples",
        "held_violation": "held out",
        "held_term": "held out, at most +",
        "held_examples": "held-out examples",
    }
    heads = [Column("constraint", "constraint", text=True)]
    for name, title in titles.items():
        heads.append(Column(name, title, digits=0 if name.endswith("examples") else 4))
    rows = []
    for one in each:
        numbers = [optional(one.get(name)) for name in titles]
        signed = [name.endswith("violation") for name in titles]
        cells = [Cell(at, signed=mark) for at, mark in zip(numbers, signed, strict=True)]
        rows.append((Cell(str(one["constraint"])), *cells))
    note = (
        "Held out: loss minus bound on the test examples. At most +: how much larger it may be in "
        "the population that these examples were drawn from, with 95 % confidence for all "
        "constraints together (approximate, corrected for skewness); empty if there are too few "
        "examples."
    )
    return Table(f"Constraints of {record.label}", tuple(heads), tuple(rows), (note,))


def verdicts(records: Sequence[Record]) -> Table | None:
    """One row per run that has a verdict; None if no run has one."""
    found = [record for record in records if record.verdict is not None]
    if not found:
        return None
    heads = (
        Column("method", "method", text=True),
        Column("seed", "seed", digits=0),
        Column("verdict", "verdict", text=True),
        Column("worst", "worst constraint", text=True),
        Column("violation", "loss minus bound", digits=4),
        Column("limit", "certified up to", digits=4),
        Column("held", "held out", digits=4),
    )
    rows = []
    for record in found:
        verdict = record.verdict or {}
        facts = verdict.get("facts") or {}
        held = [optional(one.get("held_violation")) for one in facts.get("constraints") or ()]
        rows.append(
            (
                Cell(record.label),
                Cell(float(record.seed)),
                Cell(str(verdict.get("status", ""))),
                Cell(str(facts.get("worst", ""))),
                Cell(optional(facts.get("violation")), signed=True),
                Cell(optional(facts.get("bound"))),
                Cell(max((at for at in held if at is not None), default=None), signed=True),
            )
        )
    notes = (
        "satisfied: on the training examples, no constraint is violated by more than the value in "
        "the column 'certified up to'. null: not certified, so the model is withheld. no claim: "
        "the numbers are reported without a certificate.",
    )
    return Table("Verdicts", heads, tuple(rows), notes)
