"""Draws the pictures of the documentation from new runs: `make pictures`.

Each picture is a function that runs what it shows and returns nothing; it writes one small SVG
beside this file. `python docs/pictures/make.py front faa` draws some of them.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

import isonomy

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, GREY = "#3b7dd8", "#d9822b", "#2e9e6b", "#8a8f98"
STYLE = {
    "svg.hashsalt": "isonomy",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib; browsers use their own, see _save
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "figure.constrained_layout.use": True,
}


def trade_off() -> None:
    """The picture on the page that `isonomy decide quickstart` writes."""
    from isonomy.report.decision_figure import trade_off as drawn

    with tempfile.TemporaryDirectory() as place:
        isonomy.decide("quickstart", Path(place) / "decision")
        facts = json.loads((Path(place) / "decision" / "decision.json").read_text())
    text = re.sub(r"<title>.*?</title>", "", drawn(facts, 0))
    style = (
        "<style>text{font:13px Helvetica,Arial,sans-serif;fill:#1c1f24}.soft{fill:#5b636e}"
        ".grid{stroke:#d6dbe1}.area{fill:#0b6b3a1a}.chosen{fill:none;stroke:#1c1f24;stroke-width:2}"
        ".bound{stroke:#0b6b3a;stroke-width:1.5;stroke-dasharray:5 4}</style>"
        '<rect width="100%" height="100%" fill="#fff"/>'
    )
    opening = re.match(r"<svg[^>]*>", text)
    assert opening is not None
    head = (
        opening[0]
        if "xmlns=" in opening[0]
        else f'{opening[0][:-1]} xmlns="http://www.w3.org/2000/svg">'
    )
    (HERE / "trade-off.svg").write_text(head + style + text[opening.end() :] + "\n")


def client_fairness() -> None:
    """The accuracy of every client, with one model for all and with fairer methods."""
    config = isonomy.make_config(
        data={"name": "adult", "clients": 10, "partition": {"name": "dirichlet", "beta": 0.3}},
        model={"name": "mlp", "hidden": [32]},
        local={"batch": 128},
        rounds=15,
        excess={"clusters": "none"},
        seed=0,
    )
    figure, axes = plt.subplots(figsize=(7, 3.2))
    shown = [
        ("fedavg", "FedAvg", BLUE),
        ("fedeba", "FedEBA+", ORANGE),
        ("fmtl", "FMTL (Ditto)", GREEN),
    ]
    order: list[int] = []
    for name, label, colour in shown:
        record = isonomy.run(config.model_copy(update={"algorithm": _algorithm(name)}))
        values = _last(record, "accuracy")
        order = order or sorted(range(len(values)), key=lambda k: values[k])
        worst, spread = min(values), record.metrics["client.accuracy.std"]
        axes.plot(
            range(len(values)),
            [values[k] for k in order],
            marker="o",
            linestyle=":",
            color=colour,
            label=f"{label}: worst {worst:.2f}, standard deviation {spread:.3f}",
        )
    axes.set_xticks(range(len(order)), [f"{k}" for k in order])
    axes.set_xlabel("client, in the order of FedAvg's accuracy")
    axes.set_ylabel("accuracy on its test examples")
    axes.legend(frameon=False, fontsize=9)
    _save(figure, "client-fairness")


def group_fairness() -> None:
    """The rates at which women and men are predicted positive, and how far they are apart."""
    config = isonomy.make_config("quickstart", "excess.clusters=none")
    figure, axes = plt.subplots(figsize=(7, 2.8))
    shown = {"fedavg": "FedAvg", "fedfb": "FedFB", "equifl": "EquiFL"}
    for row, name in enumerate(shown):
        record = isonomy.run(config.model_copy(update={"algorithm": _algorithm(name)}))
        gap = record.metrics["group.sex.demographic_parity"]
        rates = _rates(record, "sex")
        (low, a), (high, b) = sorted((value, key) for key, value in rates.items())
        axes.plot([low, high], [-row, -row], color=GREY, linewidth=3, zorder=0)
        for value, group in ((low, a), (high, b)):
            axes.scatter([value], [-row], color=BLUE if group == "Female" else ORANGE, s=50)
        text = f"gap {gap:.3f}, accuracy {record.metrics['accuracy']:.3f}"
        axes.annotate(text, (high, -row), (8, -3), textcoords="offset points", fontsize=9)
    axes.set_yticks([-row for row in range(len(shown))], list(shown.values()))
    axes.set_ylim(-len(shown) + 0.4, 0.6)
    axes.set_xlim(0, 0.45)
    axes.set_xlabel("share predicted to earn more than $50,000")
    for colour, group in ((BLUE, "women"), (ORANGE, "men")):
        axes.scatter([], [], color=colour, label=group)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    _save(figure, "group-fairness")


def faa() -> None:
    """The excess risk of every client; FAA is the largest difference between two of them."""
    figure, axes = plt.subplots(figsize=(7, 3))
    config = isonomy.make_config(
        data={
            "name": "linear", "clients": 10, "d": 10, "n": 1000, "n_test": 1000,
            "sigma": 0.1, "R": 1.0, "r": 0.01, "outliers": 1,
        },
        model="linear",
        local={"steps": 10, "batch": 0, "lr": 0.1},
        rounds=60,
        excess={"clusters": "auto", "steps": 500, "batch": 0},
        seed=0,
    )  # fmt: skip
    width = 0.38
    for number, (name, label, colour) in enumerate(
        [("fedavg", "FedAvg", BLUE), ("focus", "FOCUS", GREEN)]
    ):
        record = isonomy.run(config.model_copy(update={"algorithm": _algorithm(name)}))
        values = record.excess["excess"]
        axes.bar(
            [k + (number - 0.5) * width for k in range(len(values))],
            values,
            width,
            color=colour,
            label=f"{label}: FAA {record.metrics['faa']:.3f}",
        )
    axes.set_xticks(range(10))
    axes.set_xlabel("client (one of the ten is unlike the others)")
    axes.set_ylabel("loss minus the loss that\nwas within reach")
    axes.legend(frameon=False, fontsize=9)
    _save(figure, "faa")


def front() -> None:
    """All trade-offs that one training of HetPFL learnt, and the choice for a bound."""
    with tempfile.TemporaryDirectory() as place:
        config = isonomy.make_config(
            "quickstart", "algorithm=hetpfl", "local.optimiser=adam", "local.lr=0.005",
            "excess.clusters=none",
        )  # fmt: skip
        record = isonomy.run(config, Path(place) / "run")
    other = isonomy.run(isonomy.make_config("quickstart", "excess.clusters=none"))
    columns = record.front
    rows = [
        i
        for i in range(len(columns["client"]))
        if columns["client"][i] == -1 and columns["split"][i] == "test"
    ]
    points = sorted((columns["error"][i], columns["dp.sex"][i]) for i in rows)
    best = _nondominated(points)
    figure, axes = plt.subplots(figsize=(7, 3.4))
    axes.scatter(
        [x for x, _ in points[::5]],
        [y for _, y in points[::5]],
        s=8,
        color=GREY,
        label="every fifth preference",
    )
    axes.plot(
        [x for x, _ in best],
        [y for _, y in best],
        color=BLUE,
        label="the front: no other point is better in both",
    )
    bound = 0.05
    inside = [p for p in best if p[1] <= bound]
    axes.axhspan(0, bound, color=GREEN, alpha=0.12)
    axes.axhline(bound, color=GREEN, linestyle="--", linewidth=1)
    axes.annotate(
        "bound 0.05",
        (max(x for x, _ in points), bound),
        (-2, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    if inside:
        chosen = min(inside)
        axes.scatter(
            *chosen,
            s=90,
            facecolors="none",
            edgecolors="black",
            label="least error within the bound",
            zorder=3,
        )
    error = 1 - other.metrics["accuracy"]
    gap = other.metrics["group.sex.demographic_parity_overall"]
    axes.scatter(
        [error], [gap], marker="x", color=ORANGE, label="FedAvg: one model, one point", zorder=3
    )
    axes.set_xlabel("error")
    axes.set_ylabel("largest distance of a group's\nrate from the overall rate")
    axes.set_ylim(0)
    axes.legend(frameon=False, fontsize=9)
    _save(figure, "front")


def certificate() -> None:
    """The losses of two groups under bounds that can be met and that cannot."""
    base = isonomy.make_config(
        data={
            "name": "compas", "clients": 20, "rows": "all", "protected": ["sex"], "races": "all",
            "age_cat": True, "fractions": [0.7, 0.0, 0.3],
            "partition": {"name": "dirichlet", "beta": 0.5},
        },
        model="logistic",
        local={"steps": 5, "batch": 0, "lr": 1.0},
        rounds=300,
        evaluate={"every": 300, "bootstrap": 0},
        excess={"clusters": "none"},
        seed=0,
    )  # fmt: skip
    figure, axes = plt.subplots(figsize=(7, 2.6))
    bounds = (0.65, 0.63, 0.60)
    labels = []
    for row, zeta in enumerate(bounds):
        algorithm = _algorithm("pffl", zeta=zeta, B=20.0)
        record = isonomy.run(base.model_copy(update={"algorithm": algorithm}), keep=True)
        assert record.verdict is not None
        for group, values in _cells(record).items():
            axes.scatter(
                [values], [-row], s=50, color=BLUE if "Female" in group else ORANGE, zorder=2
            )
        axes.plot([zeta, zeta], [-row - 0.3, -row + 0.3], color=GREEN, linewidth=2)
        least = record.verdict["facts"].get("least_violation")
        if least:
            axes.plot([zeta + least] * 2, [-row - 0.3, -row + 0.3], color="#a3231b", linestyle=":")
        labels.append(f"bound {zeta:.2f}: {record.verdict['status']}")
    axes.set_yticks([-row for row in range(len(bounds))], labels)
    axes.set_ylim(-len(bounds) + 0.4, 0.6)
    axes.set_xlabel("mean loss of a group on the training examples (COMPAS)")
    axes.plot([], [], color=GREEN, linewidth=2, label="the bound")
    axes.plot([], [], color="#a3231b", linestyle=":", label="proved: no linear model is below")
    axes.scatter([], [], color=BLUE, label="women")
    axes.scatter([], [], color=ORANGE, label="men")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    _save(figure, "certificate")


def path_of_a_run() -> None:
    """The diagram on the page on architecture; nothing is run for it."""
    from diagram import drawn

    (HERE / "path-of-a-run.svg").write_text(drawn())


def _algorithm(name: str, **options: Any) -> Any:
    return isonomy.make_config(algorithm={"name": name, **options}).algorithm


def _last(record: Any, column: str) -> list[float]:
    """A column of the clients at the last evaluation on test examples, in the clients' order."""
    columns = record.clients
    last = max(columns["round"])
    rows = [
        i
        for i, (t, split) in enumerate(zip(columns["round"], columns["split"], strict=True))
        if t == last and split == "test"
    ]
    return [columns[column][i] for i in sorted(rows, key=lambda i: columns["client"][i])]


def _rates(record: Any, attribute: str) -> dict[str, float]:
    """The share predicted positive of each group."""
    start = f"group.{attribute}.positive_rate."
    return {
        name.removeprefix(start): value
        for name, value in record.metrics.items()
        if name.startswith(start) and ":" not in name
    }


def _cells(record: Any) -> dict[str, float]:
    """The training loss of each group in the verdict's constraints."""
    facts = record.verdict["facts"]
    return {one["constraint"]: one["loss"] for one in facts["constraints"]}


def _nondominated(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    best: list[tuple[float, float]] = []
    for point in points:
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best


def _save(figure: Any, name: str) -> None:
    path = HERE / f"{name}.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")
    plt.close(figure)
    text = re.sub(r"'DejaVu Sans'", "Helvetica, Arial, sans-serif", path.read_text())
    # shorter coordinates; the numbers in texts stay
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


PICTURES: dict[str, Callable[[], None]] = {
    "trade-off": trade_off,
    "client-fairness": client_fairness,
    "group-fairness": group_fairness,
    "faa": faa,
    "front": front,
    "certificate": certificate,
    "path-of-a-run": path_of_a_run,
}

if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        for chosen in sys.argv[1:] or PICTURES:
            PICTURES[chosen]()
            print(f"docs/pictures/{chosen}.svg")
