"""The leaderboard: a page and a picture from the results of all methods on several federations."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

from isonomy.report.tables.best import half_width, p_value, tested
from isonomy.report.tables.cells import ABSENT
from isonomy.studies.board import NOTIONS, Board, choice, higher, title, validation_ranks
from isonomy.studies.ranking import Ranking
from isonomy.studies.results import origin

REFERENCES = ("fedavg", "local")

_TEXT = """\
# Leaderboard

Every method on {number}, each tuned with the same budget. This page and its numbers are made from
`results/leaderboard/*.json` by one command, which can be interrupted and continued:

    python benchmarks/leaderboard.py run --acs states.parquet
    python benchmarks/leaderboard.py show

The command has nine federations: German credit, COMPAS, ADULT, BANK, credit card, ACSIncome by
state, Fashion-MNIST, rotated MNIST and CIFAR-10. Those that were run to the end are here: {data}.

**How it was measured.** Every method gets {trials} trials on validation examples, the first with
its defaults; objectives are accuracy, the accuracy of the worst tenth of the clients and, where
people have groups, the demographic-parity gap of the first protected attribute. Of the trials
that no other trial of the method beats, the one nearest to the best value of each objective is
trained with other seeds, {seeds}, and measured on test examples. Tables have ten
clients with different shares of the groups (the census: states) and a network with one hidden layer
of 32 units; images have 7,000 examples and 64 hidden units. In the tables of the federations, ± is
half of the width of the 95 % interval of the mean over seeds (Student's t). With three seeds such
an interval is wide, 2.5 standard deviations to each side; with ten, 0.7. With {trials} trials, a
method with many hyper-parameters is not tuned to its best, and with few seeds, small differences
mean nothing.{constant}

Clients and the split into training, validation and test examples are the same in all runs
(`data.seed = 0`), so that no trial saw a test example. Intervals and p-values over seeds are
therefore those of training alone; what another split would change is seen over federations.

FAA is measured against surrogates for each client (rotated digits: for each true cluster).
"""


_CONSTANT = """
The constant predicts the most frequent class for everyone: it is fair between groups, and useless.\
"""


def page(board: Board) -> str:
    """The page as Markdown."""
    trials = max((row["trials"] for rows in board.rows.values() for row in rows), default=0)
    number = f"{len(board.rows)} federations"
    data, seeds = ", ".join(board.rows), _seeds(board)
    known = any("constant" in board.means(one, "accuracy") for one in board.rows)
    constant = _CONSTANT if known else ""
    parts = [_TEXT.format(number=number, trials=trials, data=data, seeds=seeds, constant=constant)]
    parts += [
        "![Mean ranks of the best methods, FedAvg and local training](pictures/leaderboard.svg)\n",
        _ranks(board),
    ]
    parts += [_fronts(board), _leads(board), *_combination(board), *_own_method(board)]
    parts += [_table(board, data) for data in board.rows]
    return "\n".join(parts)


def _seeds(board: Board) -> str:
    """How many seeds were run, and where.

    >>> rows = {name: [{"seed": seed} for seed in range(3)] for name in ("adult", "bank")}
    >>> _seeds(Board(rows)), _seeds(Board({**rows, "german": [{"seed": 9}, {"seed": 8}]}))
    ('3 on each federation', '3 on adult and bank, 2 on german')
    """
    where: dict[int, list[str]] = {}
    for data, rows in board.rows.items():
        where.setdefault(len({row["seed"] for row in rows}), []).append(data)
    if len(where) == 1:
        return f"{next(iter(where))} on each federation"
    return ", ".join(f"{n} on {_and(names)}" for n, names in sorted(where.items(), reverse=True))


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ranks(board: Board) -> str:
    """Mean ranks: one row per method, one column per notion."""
    found = {notion: made for notion in NOTIONS if (made := board.ranking(notion)) is not None}
    names = sorted({name for made in found.values() for name in made.ranks})
    lines = ["## Mean ranks", ""]
    lines.append("Rank 1 is the best. Methods that refuse a federation or diverge on it have none.")
    lines += ["", "| method | " + " | ".join(title(n) for n in found) + " |"]
    lines.append("| --- |" + " ---: |" * len(found))

    def order(name: str) -> float:
        return fmean(made.ranks.get(name, float(len(names))) for made in found.values())

    for name in sorted(names, key=lambda n: (order(n), n)):
        cells = [f"{m.ranks[name]:.1f}" if name in m.ranks else "–" for m in found.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    said = {
        "critical difference": [f"{m.critical:.1f}" for m in found.values()],
        "p (Friedman)": [f"{m.p:.2g}" for m in found.values()],
        "federations": [str(len(m.data)) for m in found.values()],
    }
    for label, texts in said.items():
        lines.append(f"| *{label}* | " + " | ".join(f"*{text}*" for text in texts) + " |")
    lines += [
        "",
        "Two methods whose mean ranks differ by less than the critical difference (Nemenyi's test, "
        "5 %) are not told apart. It is large, because many methods are compared on few "
        "federations.",
        "",
    ]
    return "\n".join(lines)


def _fronts(board: Board) -> str:
    """How often a method is on the front of accuracy and a notion."""
    notions = [notion for notion in NOTIONS if notion != "accuracy"]
    found = {notion: board.fronts(notion) for notion in notions}
    names = {name for one in found.values() for name in one}
    lines = ["## On the front of accuracy and fairness", ""]
    lines.append(
        "The number of federations where no other method has both a higher mean accuracy and a "
        "better mean value of the notion. Methods that predict one class for everyone are left out."
    )
    lines += ["", "| method | " + " | ".join(title(n) for n in notions) + " | sum |"]
    lines.append("| --- |" + " ---: |" * (len(notions) + 1))

    def total(name: str) -> int:
        return sum(len(one.get(name, ())) for one in found.values())

    for name in sorted(names, key=lambda n: (-total(n), n)):
        cells = [str(len(one.get(name, ())) or "") for one in found.values()]
        lines.append(f"| {name} | " + " | ".join([*cells, str(total(name))]) + " |")
    return "\n".join([*lines, ""])


def _leads(board: Board) -> str:
    """What wins where, with its difference to FedAvg and to local training and p-values."""
    lines = ["## What wins where", ""]
    lines += [_told_apart(board), *(_where_best(board, one) for one in REFERENCES), ""]
    lines.append(
        "The best mean of each notion, methods that predict one class for everyone left out, and "
        "how far the second best, FedAvg and local training are from it (two-sided paired t tests "
        "over the seeds; the best of many methods is chosen here, for which the p-values are not "
        "corrected)."
    )
    for data in board.rows:
        lines += ["", f"**{data}**", ""]
        for notion in NOTIONS:
            order, values = board.order(data, notion), board.values(data, notion)
            if not order:
                continue
            best, others = order[0], [*order[1:2], *(one for one in REFERENCES if one in order[2:])]
            said = [_behind(values[best], values[one], one) for one in others]
            mean = fmean(values[best].values())
            lines.append(f"- {title(notion)}: **{best}** {mean:.3f}" + "".join(said) + ".")
    return "\n".join([*lines, ""])


def _told_apart(board: Board) -> str:
    """The methods with a better mean rank than FedAvg's, by more than the critical difference."""
    ahead: dict[str, list[str]] = {}
    for notion in NOTIONS:
        made = board.ranking(notion)
        if made is None or "fedavg" not in made.ranks:
            continue
        limit = made.ranks["fedavg"] - made.critical
        ahead[title(notion)] = [name for name, own in made.ranks.items() if own < limit]
    if not ahead:
        return "FedAvg has no mean rank."
    none = [notion for notion, names in ahead.items() if not names]
    said = [f"ahead of it in {notion}: {_and(names)}" for notion, names in ahead.items() if names]
    if none:
        said.insert(0, f"no method is significantly better in {_and(none)}")
    return f"By mean ranks and Nemenyi's test (5 %), against FedAvg: {'; '.join(said)}."


def _where_best(board: Board, method: str) -> str:
    """The federations and notions in which a method has the best mean."""
    found: dict[str, list[str]] = {}
    for data, notion in product(board.rows, NOTIONS):
        if board.order(data, notion)[:1] == [method]:
            found.setdefault(data, []).append(title(notion))
    said = "; ".join(f"on {data} in {_and(notions)}" for data, notions in found.items())
    return f"{method} has the best mean {said or 'nowhere'}."


def _behind(best: Mapping[int, float], other: Mapping[int, float], name: str) -> str:
    seeds = sorted(best.keys() & other.keys())
    gaps = [other[seed] - best[seed] for seed in seeds]
    p = f", {tested(gaps)}" if len(gaps) > 1 else ""
    return f"; {name} {fmean(other.values()):.3f}{p}"


_COMBINATION = """\
## A combination

Training methods and rules that are fitted after training can be combined. {number} combinations of
a training method and a rule with its default budget were tuned like every method, **on validation
examples only**
(`python benchmarks/leaderboard.py choose`). Rules are fitted on the same validation examples, so
their gaps are too small here, for all combinations alike. The one with the least mean rank over
the three objectives, **{chosen}**, was then measured once on test examples:
"""


def _combination(board: Board) -> list[str]:
    """How a combination was chosen on validation examples, and its ablation on test examples."""
    chosen = choice(board.choices)
    if chosen is None:
        return []
    ranks = validation_ranks(board.choices)
    names = sorted({row["method"] for row in board.choices})
    lines = [_COMBINATION.format(number=len(names), chosen=chosen)]
    lines += ["| mean rank on validation examples | " + " | ".join(map(title, ranks)) + " | mean |"]
    lines.append("| --- |" + " ---: |" * (len(ranks) + 1))

    def own(name: str) -> list[float]:
        return [one.ranks[name] for one in ranks.values() if name in one.ranks]

    full = [name for name in names if len(own(name)) == len(ranks)]
    for name in sorted(full, key=lambda n: (fmean(own(n)), n)):
        cells = [f"{value:.1f}" for value in (*own(name), fmean(own(name)))]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    data = [d for d in board.rows if chosen in board.means(d, "accuracy")]
    if not data:
        return ["\n".join([*lines, "", "It has not been measured on test examples yet.", ""])]
    algorithm, rule = chosen.split(" + ")
    parts = list(dict.fromkeys([algorithm, f"fedavg + {rule}", "fedavg"]))
    return ["\n".join([*lines, "", *_ablation(board, chosen, parts, data), ""])]


_OWN = """\
## A method of our own

**{ours}** ([how it works](algorithms/{ours}.md)) was made after the published methods had been
measured: of these, fine-tuning has the best mean rank in accuracy, and FedFV is among the best
without personal models. Its parts and defaults were chosen on validation examples of German credit,
COMPAS, ADULT, Fashion-MNIST, rotated MNIST and CIFAR-10. It was then measured on test examples
once, tuned with the same budget as every method.
"""
OURS, ITS_PARTS = "blend", ("finetune", "fedfv", "fedavg")


def _own_method(board: Board) -> list[str]:
    """The method of Isonomy's own, and its ablation on test examples."""
    data = [d for d in board.rows if OURS in board.means(d, "accuracy")]
    if not data:
        return []
    lines = [_OWN.format(ours=OURS), *_ablation(board, OURS, ITS_PARTS, data), ""]
    ranks = {n: made for n in NOTIONS if (made := board.ranking(n)) and OURS in made.ranks}
    best = [title(n) for n, made in ranks.items() if next(iter(made.ranks)) == OURS]
    lines.append(
        f"It has the best mean rank of all methods in {_and(best) if best else 'nothing'}:"
    )
    lines += ["", "| | mean rank | best other | its mean rank | critical difference |"]
    lines.append("| --- | ---: | --- | ---: | ---: |")
    for notion, made in ranks.items():
        other = next(name for name in made.ranks if name != OURS)
        cells = [
            f"{made.ranks[OURS]:.1f}",
            other,
            f"{made.ranks[other]:.1f}",
            f"{made.critical:.1f}",
        ]
        lines.append(f"| {title(notion)} | " + " | ".join(cells) + " |")
    return ["\n".join([*lines, ""])]


def _ablation(board: Board, ours: str, parts: Sequence[str], data: Sequence[str]) -> list[str]:
    """A method minus its parts, on how many fronts it is, and which differences are shown."""
    lines = [f"{ours} minus its parts on test examples, mean over {len(data)} federations "]
    lines[-1] += "(two-sided paired t test over federations):"
    lines += ["", "| minus | " + " | ".join(title(n) for n in NOTIONS) + " |"]
    lines.append("| --- |" + " --- |" * len(NOTIONS))
    for part in parts:
        cells = [_difference(board, ours, part, data, notion) for notion in NOTIONS]
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    fronts = {
        n: ([d for d in board.fronts(n).get(ours, []) if d in data], known)
        for n in NOTIONS[1:]
        if (known := [d for d in data if board.metric(d, n) is not None])
    }
    said = ", ".join(f"{title(n)} {len(f)} of {len(of)}" for n, (f, of) in fronts.items())
    lines += ["", f"Federations where it is on the front of accuracy and: {said}."]
    most = [title(n) for n, (found, known) in fronts.items() if 2 * len(found) > len(known)]
    lines.append(
        f"It is on the front of most federations for {_and(most) if most else 'no notion'}."
    )
    lines.append(_verdict(board, ours, parts, data))
    return lines


def _verdict(board: Board, ours: str, parts: Sequence[str], data: Sequence[str]) -> str:
    """Which differences from the parts have a p-value below 0.05, and in which direction."""
    better: list[str] = []
    worse: list[str] = []
    for part, notion in product(parts, NOTIONS):
        gaps = _gaps(board, ours, part, data, notion)
        if len(gaps) > 1 and p_value(gaps) < 0.05:
            ahead = (fmean(gaps) > 0) == higher(notion)
            (better if ahead else worse).append(f"{title(notion)} (minus {part})")
    if not better and not worse:
        return "No difference has a p-value below 0.05: no lead over its parts is shown."
    said = f"Better with p < 0.05: {', '.join(better) or 'nothing'}; worse: "
    said += (", ".join(worse) or "nothing") + "."
    return said if better else said + " No lead over its parts is shown."


def _gaps(board: Board, ours: str, other: str, data: Sequence[str], notion: str) -> list[float]:
    """The differences of two methods' means, of federations where both were measured."""
    means = [board.means(one, notion) for one in data]
    return [own[ours] - own[other] for own in means if ours in own and other in own]


def _difference(board: Board, ours: str, other: str, data: Sequence[str], notion: str) -> str:
    gaps = _gaps(board, ours, other, data, notion)
    if len(gaps) < 2:
        return ABSENT
    return f"{fmean(gaps):+.3f}, {tested(gaps)}"


def _table(board: Board, data: str) -> str:
    """All methods of a federation."""
    rows = board.rows[data]
    notions = [n for n in NOTIONS if board.metric(data, n) is not None]
    lines = [f"## {data}", ""]
    lines += ["| method | " + " | ".join(title(n) for n in notions) + " |"]
    lines.append("| --- |" + " --- |" * len(notions))
    found = {notion: board.values(data, notion) for notion in notions}
    for name in sorted(found["accuracy"], key=lambda m: -fmean(found["accuracy"][m].values())):
        cells = [_mean(found[notion].get(name, {})) for notion in notions]
        mark = " (one class)" if name in board.one_class(data) else ""
        lines.append(f"| {name}{mark} | " + " | ".join(cells) + " |")
    lines += ["", origin(rows, _INTERVAL), ""]
    refused: dict[str, list[str]] = {}
    for row in rows:
        if not row["complete"] and row["why"]:
            refused.setdefault(re.sub(r"\s+", " ", row["why"]), []).append(row["method"])
    for why, names in refused.items():
        lines += [f"{', '.join(sorted(set(names)))}: {why}", ""]
    return "\n".join(lines)


_INTERVAL = "half of the width of the 95 % interval of the mean over seeds"


def _mean(own: Mapping[int, float]) -> str:
    if not own:
        return ABSENT
    values = list(own.values())
    spread = f" ± {half_width(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"


# --- the picture ---------------------------------------------------------------------------------


_PER_LINE = 3  # panels beside each other, so that the text is legible on a page
_SHOWN = 15  # methods in a panel, besides the references


def picture(board: Board) -> str:
    """Mean ranks as an SVG: one panel per notion, with the best methods and the references."""
    found = [(n, made) for n in NOTIONS if (made := board.ranking(n)) is not None]
    width, high, top = 270, 15, 64
    tall = top + (_SHOWN + len(REFERENCES)) * high + 10
    parts = [
        _panel(notion, made, (i % _PER_LINE) * width, (i // _PER_LINE) * tall, width, high, top)
        for i, (notion, made) in enumerate(found)
    ]
    lines = -(-len(found) // _PER_LINE)
    size = f'viewBox="0 0 {width * min(max(len(found), 1), _PER_LINE)} {tall * max(lines, 1)}"'
    style = (
        "text{font:11px sans-serif;fill:#444}.h{font-weight:bold;font-size:13px}"
        ".n{text-anchor:end}.cd{fill:#4477aa;opacity:.15}circle{fill:#4477aa}"
    )
    label = (
        f"Mean ranks of the {_SHOWN} best methods, FedAvg and local training; methods in the "
        "shaded band are not told apart from the best"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
        f"<style>{style}</style>" + "".join(parts) + "</svg>\n"
    )


def _panel(
    notion: str, made: Ranking, left: int, down: int, width: int, high: int, top: int
) -> str:
    """The ranks of one notion, with a band as wide as the critical difference."""
    names = list(made.ranks)
    drawn = [n for i, n in enumerate(names) if i < _SHOWN or n in REFERENCES]
    least, last = made.ranks[names[0]], made.ranks[names[-1]]
    scale = (width - 160) / max(last - 1, 1e-9)

    def at(value: float) -> float:
        return left + 150 + (value - 1) * scale

    note = f"mean rank of {len(names)} on {len(made.data)} federations"
    end = min(least + made.critical, last)
    parts = [
        f'<text x="{left + 8}" y="{down + 20}" class="h">{html.escape(title(notion))}</text>',
        f'<text x="{left + 8}" y="{down + 36}">{note}</text>',
        f'<rect x="{at(least):.1f}" y="{down + top - 16}" width="{at(end) - at(least):.1f}" '
        f'height="{len(drawn) * high + 16}" class="cd"/>',
    ]
    for i, name in enumerate(drawn):
        y = down + top + i * high
        parts.append(f'<text x="{left + 142}" y="{y + 4}" class="n">{html.escape(name)}</text>')
        parts.append(f'<circle cx="{at(made.ranks[name]):.1f}" cy="{y}" r="3.4"/>')
    return "".join(parts)
