"""Tables of what methods conclude about their own models: the verdict and each constraint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from isonomy.report.tables.cells import Cell, Column, optional
from isonomy.report.tables.table import Table
from isonomy.runs.record import Record

_DIGITS = {"examples": 0, "held_examples": 0, "multiplier": 2}


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
        "multiplier": "mean multiplier",
        "held_violation": "held out",
        "held_term": "held out, at most +",
        "held_examples": "held-out examples",
    }
    heads = [Column("constraint", "constraint", text=True)]
    for name, title in titles.items():
        heads.append(Column(name, title, digits=_DIGITS.get(name, 4)))
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


def outcomes(records: Sequence[Record]) -> str:
    """How many runs ended with each verdict, as "met 2, violated 1"; empty if none has one."""
    found = Counter(str(r.verdict.get("status")) for r in records if r.verdict is not None)
    return ", ".join(f"{status} {n}" for status, n in found.most_common())


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
        Column("least", "least attainable", digits=4),
        Column("gap", "duality gap", digits=4),
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
                Cell(optional(facts.get("least_violation")), signed=True),
                Cell(optional(facts.get("gap"))),
                Cell(max((at for at in held if at is not None), default=None), signed=True),
            )
        )
    notes = (
        "met: every constraint holds on the training examples. violated: one does not. infeasible: "
        "it is proved that no linear model meets them all; in each, some loss minus bound is at "
        "least the value in the column 'least attainable'. not converged: one does not hold, and "
        "the duality gap is too large to say more. not measured: there was no data of a group. "
        "Held out: the largest loss minus bound on the test examples.",
    )
    return Table("Verdicts", heads, tuple(rows), notes)
