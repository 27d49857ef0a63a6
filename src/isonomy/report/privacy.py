"""The section on differential privacy: the promise of each run, and its ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isonomy.report.markup import escape, html_list, html_table
from isonomy.report.tables.cells import Cell, Column
from isonomy.report.tables.table import Table
from isonomy.runs.record import Record

_CLIENTS = 20  # that are listed, those with the largest epsilon first


def section(records: Sequence[Record]) -> str:
    """The section as HTML; empty if no run has differential privacy."""
    found = [(record, record.facts["privacy"]) for record in records if "privacy" in record.facts]
    if not found:
        return ""
    heads = (
        Column("method", "method", text=True),
        Column("seed", "seed", digits=0),
        Column("level", "protects", text=True),
        Column("epsilon", "epsilon", "an upper bound for everything that was released"),
        Column("delta", "delta", digits=7),
        Column("noise", "noise multiplier"),
        Column("status", "status", text=True),
    )
    rows = tuple(
        (
            Cell(record.label),
            Cell(float(record.seed)),
            Cell(f"{ledger['level']}s"),
            Cell(ledger["epsilon"]),
            Cell(ledger["delta"]),
            Cell(ledger["noise_multiplier"]),
            Cell(ledger["status"]),
        )
        for record, ledger in found
    )
    parts = [
        '<section id="privacy"><h2>Differential privacy</h2>',
        html_table(Table("Differential privacy", heads, rows), "One row per run."),
    ]
    for record, ledger in found:
        head = f"{record.label}, seed {record.seed}: what was released, and what is not covered"
        inside = html_list(_sentences(ledger)) + html_table(
            releases(ledger), "Releases, grouped by phase and part.", sortable=False
        )
        parts.append(f"<details><summary>{escape(head)}</summary>{inside}</details>")
    return "".join([*parts, "</section>"])


def _sentences(ledger: Mapping[str, Any]) -> list[str]:
    out = [f"Neighbouring data: {ledger['neighbours']}."]
    out += [f"Not covered: {text}." for text in ledger["not_covered"].values()]
    if ledger["left_out"]:
        out.append(f"Not measured: {', '.join(ledger['left_out'])}.")
    if ledger["stays_with_clients"]:
        out.append(f"Stays with clients: {ledger['stays_with_clients']}.")
    after = [f"round {one['round']}: {one['epsilon']}" for one in ledger["epsilon_after"]]
    if after:
        out.append(f"Epsilon so far, after {'; '.join(after)}.")
    each = list(ledger.get("clients", {}).items())
    if each:
        shown = ", ".join(f"client {k}: {v}" for k, v in each[:_CLIENTS])
        more = f", and {len(each) - _CLIENTS} more" if len(each) > _CLIENTS else ""
        out.append(f"Epsilon of each client, the largest first: {shown}{more}.")
    return out


def releases(ledger: Mapping[str, Any]) -> Table:
    """One row per phase and part: how often, and the range of sensitivity and noise."""
    found: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for entry in ledger["releases"]:
        parts = entry.get("parts") or {"gradients": {"of": entry.get("what", "")}}
        for name, part in parts.items():
            key = (str(entry["phase"]), str(name), str(part["of"]))
            found.setdefault(key, []).append({**part, "round": entry["round"]})
    rows = [
        (
            Cell(phase),
            Cell(name),
            Cell(of),
            Cell(float(len(some))),
            Cell(f"{some[0]['round']} to {some[-1]['round']}"),
            Cell(_range([one.get("sensitivity") for one in some])),
            Cell(_range([one.get("noise") for one in some])),
        )
        for (phase, name, of), some in found.items()
    ]
    heads = (
        Column("phase", "phase", text=True),
        Column("part", "part", text=True),
        Column("of", "noise is in", text=True),
        Column("count", "times", digits=0),
        Column("rounds", "rounds", text=True),
        Column("sensitivity", "sensitivity", text=True),
        Column("noise", "standard deviation of the noise", text=True),
    )
    return Table("Releases", heads, tuple(rows))


def _range(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
