"""Tables and sentences that are made from rows of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, stdev

from isonomy.errors import ConfigError
from isonomy.metrics.names import find_metric
from isonomy.report import robustness_grid
from isonomy.report.tables.best import tested
from isonomy.report.tables.cells import ABSENT, Cell, Column, digits_for, shown
from isonomy.report.tables.table import Table
from isonomy.studies.board import NOTIONS, Board, title
from isonomy.studies.ranking import Ranking
from isonomy.studies.reproduce import Preset
from isonomy.studies.results.rows import Row


def table(preset: Preset, rows: Sequence[Row], *, names: Sequence[str] = ()) -> Table:
    """One row per method and setting that was run: the paper's number and ours for each metric.

    `names` chooses metrics; empty means all of the preset's.
    """
    names = names or preset.metrics
    printed = {
        (e["method"], e.get("setting", ""), e["metric"]): e["value"] for e in preset.expected
    }
    judged = any(row["verdict"] for row in rows)
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    for name in names:
        title = find_metric(name).title
        if any(key[2] == name for key in printed):
            heads.append(Column(f"{name} paper", f"{title}, paper", text=True))
        heads.append(Column(name, f"{title}, ours" if printed else title, text=True))
    heads.append(Column("seeds", "seeds", digits=0))
    if judged:
        heads.append(Column("verdict", "verdict", text=True))
    body = []
    for entry in preset.methods:
        method, setting = entry["label"], entry.get("setting", "")
        own = [r for r in rows if (r["method"], r["setting"]) == (method, setting)]
        done = [r for r in own if r["complete"]]
        if not own:
            continue
        cells = [Cell(method), Cell(setting)]
        for name in names:
            values = [v for r in done if (v := r["metrics"].get(name)) is not None]
            if any(key[2] == name for key in printed):
                at = printed.get((method, setting, name))
                cells.append(Cell(ABSENT if at is None else f"{at:g}"))
            cells.append(Cell(_mean(values)))
        lost = len(own) - len(done)
        note = f"({lost} diverged)" if lost else ""
        cells.append(Cell(float(len(done)), note=note))
        if judged:
            cells.append(Cell(_counted([r["verdict"] for r in done])))
        body.append(tuple(cells))
    return Table("", tuple(heads), tuple(body))


def seeds(preset: Preset, rows: Sequence[Row], *, names: Sequence[str] = ()) -> Table:
    """One row per method, setting and seed, with the metrics; `names` chooses metrics.

    A run that diverged has no values.
    """
    names = names or preset.metrics
    judged = any(row["verdict"] for row in rows)
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column("seed", "seed", digits=0)]
    heads += [Column(name, find_metric(name).title) for name in names]
    heads += [Column("verdict", "verdict", text=True)] if judged else []
    body = []
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in rows if (r["method"], r["setting"]) == at]
        for row in sorted(own, key=lambda r: int(r["seed"])):
            note = "" if row["complete"] else "(diverged)"
            cells = [Cell(at[0]), Cell(at[1]), Cell(float(row["seed"]), note=note)]
            for name in names:
                value = row["metrics"].get(name)
                cells.append(Cell(value, digits=digits_for([value], [])))
            cells += [Cell(row["verdict"] or ABSENT)] if judged else []
            body.append(tuple(cells))
    return Table("", tuple(heads), tuple(body))


def grid(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and one column per setting: the mean and deviation of the `pair`."""
    assert preset.pair is not None
    found: list[Row] = []
    lost = []
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in rows if (r["method"], r["setting"]) == at]
        if diverged := sum(not r["complete"] for r in own):
            lost.append(f"{label(*at)} ({diverged} of {len(own)})")
        for metric in preset.pair if own else ():
            done = [r["metrics"].get(metric) for r in own if r["complete"]]
            values = [value for value in done if value is not None]
            found.append(
                {
                    "method": at[0],
                    "setting": at[1],
                    "metric": metric,
                    "ours": fmean(values) if values else None,
                    "spread": stdev(values) if len(values) > 1 else None,
                }
            )
    made = robustness_grid.grid(found, preset.pair, spreads=True)
    notes = (f"Runs that diverged are left out: {', '.join(lost)}.",) if lost else ()
    return Table("", made.columns, made.rows, (*made.footnotes, *notes))


def paper(preset: Preset, rows: Sequence[Row]) -> Table:
    """The grid of the numbers that the paper prints, of the settings that were run."""
    assert preset.pair is not None
    run = {row["setting"] for row in rows}
    found = [
        {**e, "setting": e.get("setting", ""), "paper": e["value"]}
        for e in preset.expected
        if e.get("setting", "") in run
    ]
    made = robustness_grid.grid(found, preset.pair, "paper")
    return Table("", made.columns, made.rows, made.footnotes)


def rounds(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: the mean over seeds of the `curve` after each round."""
    found = curves_of(preset, rows)
    count = max((len(one) for curves in found.values() for one in curves), default=0)
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(str(t + 1), str(t + 1)) for t in range(count)]
    body = []
    for (method, setting), curves in found.items():
        means = [
            fmean(values) if (values := [one[t] for one in curves if t < len(one)]) else None
            for t in range(count)
        ]
        body.append((Cell(method), Cell(setting), *(Cell(mean) for mean in means)))
    return Table("", tuple(heads), tuple(body))


def swings(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: extremes of the `curve`, and its changes between rounds."""
    names = ("smallest", "largest", "mean over rounds", "mean change", "largest change")
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(name, name) for name in names]
    heads += [Column("last", "last round", text=True), Column("seeds", "seeds", digits=0)]
    body = []
    for (method, setting), curves in curves_of(preset, rows).items():
        values = [value for one in curves for value in one]
        changes = [abs(b - a) for one in curves for a, b in pairwise(one)]
        numbers: list[float | None] = [min(values), max(values), fmean(values)]
        numbers += [fmean(changes), max(changes)] if changes else [None, None]
        last = Cell(_mean([one[-1] for one in curves]))
        seeds = Cell(float(len(curves)))
        body.append((Cell(method), Cell(setting), *(Cell(n) for n in numbers), last, seeds))
    return Table("", tuple(heads), tuple(body))


def surrogates(preset: Preset, rows: Sequence[Row]) -> Table:
    """One row per method and setting: FAA against surrogates of a fixed number of steps.

    The last column has FAA as it is reported, against the surrogate chosen on held-out examples.
    """
    known = [r for r in rows if r["complete"] and r.get("excess")]
    lengths = sorted({n for r in known for n in r["excess"]["lengths"]})
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(str(n), f"{n:,} steps") for n in lengths]
    heads += [Column("faa", "chosen", text=True), Column("seeds", "seeds", digits=0)]
    body = []
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in known if (r["method"], r["setting"]) == at]
        if not own:
            continue
        found = [
            dict(zip(r["excess"]["lengths"], r["excess"]["by_length"], strict=True)) for r in own
        ]
        cells = []
        for n in lengths:
            values = [v for one in found if (v := one.get(n)) is not None]
            cells.append(Cell(fmean(values) if len(values) == len(own) else None))
        chosen = [v for r in own if (v := r["metrics"].get("faa")) is not None]
        ends = (Cell(_mean(chosen)), Cell(float(len(own))))
        body.append((Cell(at[0]), Cell(at[1]), *cells, *ends))
    return Table("", tuple(heads), tuple(body))


def differences(
    preset: Preset, rows: Sequence[Row], against: str, *, names: Sequence[str] = ()
) -> Table:
    """One row per method and setting: each metric minus that of another method, with its p-value.

    `against` is a label, with its setting or alone; alone, it is the method of that label with
    the row's own setting, if there is one. Seeds that both have are paired.
    """
    names = names or preset.metrics
    keys = [(entry["label"], entry.get("setting", "")) for entry in preset.methods]
    body = []
    for key in keys:
        other = next((k for k in keys if label(*k) == against or k == (against, key[1])), None)
        if other is None:
            continue
        cells, seeds = [], set()
        for name in names:
            gaps = _gaps(rows, key, other, name)
            cells.append(Cell(_tested(list(gaps.values()))))
            seeds |= set(gaps)
        if key != other and len(seeds) > 1:
            body.append((Cell(key[0]), Cell(key[1]), *cells, Cell(float(len(seeds)))))
    heads = [Column("method", "method", text=True), Column("setting", "setting", text=True)]
    heads += [Column(name, find_metric(name).title, text=True) for name in names]
    heads += [Column("seeds", "seeds", digits=0)]
    return Table("", tuple(heads), tuple(body), (_about(f"Differences from {against}"),))


def difference_grid(preset: Preset, rows: Sequence[Row], against: str, name: str) -> Table:
    """One row per method and one column per setting: a metric minus that of another method."""
    keys = [(entry["label"], entry.get("setting", "")) for entry in preset.methods]
    keys = [key for key in keys if values_of(rows, key, name)]
    settings = list(dict.fromkeys(setting for _, setting in keys))
    body, seeds = [], set()
    for method in dict.fromkeys(method for method, _ in keys if method != against):
        each = [_gaps(rows, (method, s), (against, s), name) for s in settings]
        if any(len(gaps) > 1 for gaps in each):
            body.append((Cell(method), *(Cell(_tested(list(gaps.values()))) for gaps in each)))
            seeds |= {len(gaps) for gaps in each if len(gaps) > 1}
    heads = [Column("method", "method", text=True)]
    heads += [Column(s, s or "value", text=True) for s in settings]
    count = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)})) if seeds else "no"
    what = f"Differences in {find_metric(name).title} from {against}"
    return Table("", tuple(heads), tuple(body), (_about(what, f"{count} paired seeds"),))


def federations(board: Board, method: str, against: str) -> Table:
    """One row per federation of the leaderboard: a method's accuracy, and its differences.

    The last row has the method's mean ranks; federations without a result are in a footnote.
    """
    body: list[tuple[Cell, ...]] = []
    absent, constant = [], False
    for data in board.rows:
        own = board.values(data, "accuracy").get(method)
        if own is None:
            absent.append(data)
            continue
        cells = [_compared(board, data, notion, method, against) for notion in NOTIONS]
        useless = method in board.one_class(data)
        constant |= useless
        body.append(
            (Cell(data + " (one class)" * useless), Cell(f"{fmean(own.values()):.3f}"), *cells)
        )
    if not body:
        raise ConfigError(f"'{method}' is not on the leaderboard.")
    placed = (_place(board.ranking(notion), method) for notion in NOTIONS)
    body.append((Cell("mean rank"), Cell(""), *placed))
    heads = [Column("federation", "federation", text=True), Column("own", "accuracy", text=True)]
    heads += [Column(notion, f"{title(notion)}, difference", text=True) for notion in NOTIONS]
    used = [i for i in range(len(heads)) if any(row[i].value != ABSENT for row in body)]
    rows = tuple(tuple(row[i] for i in used) for row in body)
    notes = [_about(f"Differences from {against}")]
    if constant:
        notes.append("One class: with some seed the model predicts one class for everyone.")
    if absent:
        notes.append(f"Refused or diverged: {', '.join(absent)}.")
    return Table("", tuple(heads[i] for i in used), rows, tuple(notes))


def _place(ranking: Ranking | None, method: str) -> Cell:
    """A method's mean rank among how many."""
    if ranking is None or method not in ranking.ranks:
        return Cell(ABSENT)
    return Cell(f"{ranking.ranks[method]:.1f} of {len(ranking.ranks)}")


def _compared(board: Board, data: str, notion: str, method: str, against: str) -> Cell:
    """A difference on the leaderboard and its p-value; absent below two seeds that both have."""
    values = board.values(data, notion)
    ours, theirs = values.get(method, {}), values.get(against, {})
    gaps = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return Cell(f"{fmean(gaps):+.3f}; {tested(gaps)}" if len(gaps) > 1 else ABSENT)


def _gaps(
    rows: Sequence[Row], mine: tuple[str, str], other: tuple[str, str], name: str
) -> dict[int, float]:
    """The differences of a metric between two methods, by seeds that both have."""
    ours, theirs = values_of(rows, mine, name), values_of(rows, other, name)
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def _tested(gaps: Sequence[float]) -> str:
    """The mean difference and its p-value; absent below two seeds."""
    return f"{_difference(gaps)}; {tested(gaps)}" if len(gaps) > 1 else ABSENT


def _about(what: str, seeds: str = "paired seeds") -> str:
    return (
        f"{what} over {seeds}, with two-sided paired t tests; p-values are not corrected for the "
        "number of rows."
    )


def label(method: str, setting: str) -> str:
    """A method and its setting as one name."""
    return f"{method} {setting}".strip()


def values_of(rows: Sequence[Row], key: tuple[str, str], metric: str) -> dict[int, float]:
    """The metric of a method and setting by seed, of complete runs that have it."""
    return {
        row["seed"]: row["metrics"][metric]
        for row in rows
        if (row["method"], row["setting"]) == key
        and row["complete"]
        and row["metrics"].get(metric) is not None
    }


def _difference(gaps: Sequence[float]) -> str:
    digits = digits_for([fmean(gaps)], [stdev(gaps)])
    at = Cell(fmean(gaps), spread=stdev(gaps), digits=digits, signed=True)
    return shown(at, Column("", ""))


def curves_of(preset: Preset, rows: Sequence[Row]) -> dict[tuple[str, str], list[list[float]]]:
    """The curves of the complete runs of each method and setting, in the preset's order."""
    out = {}
    for entry in preset.methods:
        at = (entry["label"], entry.get("setting", ""))
        own = [r for r in rows if (r["method"], r["setting"]) == at and r["complete"]]
        if curves := [r["curve"] for r in own if r.get("curve")]:
            out[at] = curves
    return out


def _mean(values: Sequence[float]) -> str:
    if not values:
        return ABSENT
    spread = stdev(values) if len(values) > 1 else None
    digits = digits_for([fmean(values)], [spread])
    return shown(Cell(fmean(values), spread=spread, digits=digits), Column("", ""))


def _counted(statuses: Sequence[str | None]) -> str:
    found = [s for s in dict.fromkeys(statuses) if s]
    return ", ".join(f"{s} {statuses.count(s)}" for s in found)


def lead(rows: Sequence[Row], metric: str, ours: str, other: str) -> str:
    """A sentence on the difference of two methods over the seeds that both have, with its test."""

    def values(wanted: str) -> dict[int, float]:
        keys = {(r["method"], r["setting"]) for r in rows}
        found = [values_of(rows, key, metric) for key in sorted(keys) if label(*key) == wanted]
        if not any(found):
            raise ConfigError(f"no results of '{wanted}' with metric '{metric}'; run it first.")
        return next(filter(None, found))

    mine, theirs = values(ours), values(other)
    seeds = sorted(mine.keys() & theirs.keys())
    gaps = [mine[s] - theirs[s] for s in seeds]
    if len(gaps) < 2:
        raise ConfigError(
            f"'{ours}' and '{other}' have {len(gaps)} seeds in common; run two or more."
        )
    return (
        f"{find_metric(metric).title} of {ours} minus that of {other}: {_difference(gaps)} "
        f"over {len(gaps)} paired seeds, {tested(gaps)} (two-sided paired t test)."
    )


LAYOUTS: dict[str, Callable[[Preset, Sequence[Row]], Table]] = {
    "grid": grid,
    "paper": paper,
    "rounds": rounds,
    "swings": swings,
    "surrogates": surrogates,
    "seeds": seeds,
}
