"""Trade-off fronts of fabricated runs, by hand."""

from __future__ import annotations

import pytest

from isonomy.config.schema import parse
from isonomy.report import figures, fronts, page
from isonomy.report.svg import Points
from isonomy.runs.record import Record
from isonomy.studies.reproduce import _expanded
from isonomy.studies.sweep import grid

LOSS, GAP = "group.sex.max_loss", "group.sex.demographic_parity"


def run(series: str | None, label: str, seed: int, error: float, loss: float, gap: float) -> Record:
    status = "violated" if label == "c" else "met"
    return Record(
        label=f"{series} {label}",
        seed=seed,
        config={
            "algorithm": {"name": "pffl", "B": label},
            **({"series": series} if series else {}),
        },
        rounds=[],
        clients={},
        metrics={"accuracy": 1 - error, "loss": loss, LOSS: loss, GAP: gap},
        verdict={"status": status, "text": "x", "facts": {}},
    )


RECORDS = [
    run("one", "a", 0, 0.4, 0.6, 0.1),
    run("one", "a", 1, 0.4, 0.6, 0.1),
    run("one", "b", 0, 0.2, 0.8, 0.2),
    run("one", "b", 1, 0.2, 0.8, 0.2),
    run("one", "c", 0, 0.5, 0.8, 0.3),
    run("one", "c", 1, 0.5, 0.8, 0.3),
    run("two", "a", 0, 0.3, 0.7, 0.4),
    run("two", "a", 1, 0.5, 0.7, 0.4),
]


def test_points_and_volumes_by_hand() -> None:
    found = fronts.fronts(RECORDS)
    assert [front.notion for front in found] == [LOSS, GAP]
    loss = found[0]
    assert loss.reference == pytest.approx((0.55, 0.88))
    one, two = loss.curves
    assert [(p.method.label, p.on_front) for p in one.points] == [
        ("one a", True),
        ("one b", True),
        ("one c", False),
    ]
    # two boxes: (.15 x .28) and (.35 x .08), less their common part (.15 x .08)
    assert one.volume.mean == pytest.approx(0.15 * 0.28 + 0.35 * 0.08 - 0.15 * 0.08)
    assert one.volume.spread == pytest.approx(0.0)
    assert two.volume.mean == pytest.approx((0.25 * 0.18 + 0.05 * 0.18) / 2)  # seed by seed
    assert two.points[0].error.spread == pytest.approx(0.1 * 2**0.5)
    assert one.points[2].unmet == 2


def test_tables_figure_and_page() -> None:
    found = fronts.fronts(RECORDS)
    rows = fronts.points_table(found).rows
    assert [str(row[2].value) for row in rows if row[0].value == "worst group loss (sex)"] == [
        "one a",
        "one b",
        "two a",
    ]
    views = figures.setting_fronts.draw(RECORDS)
    marks = [mark for mark in views[0].chart.marks if isinstance(mark, Points)]
    assert [(list(mark.x), mark.hollow) for mark in marks] == [
        ([0.8], True),
        ([0.6, 0.8], False),
        ([0.7], False),
    ]
    assert len(views) == 2
    text = page.render(RECORDS)
    assert "Pareto points" in text
    assert "Hypervolume" in text


def test_no_front_without_several_settings() -> None:
    alone = [run(None, "a", 0, 0.4, 0.6, 0.1), run(None, "b", 0, 0.3, 0.7, 0.1)]
    assert fronts.fronts(alone) == []
    assert figures.setting_fronts.draw(alone) == []


def test_a_sweep_and_a_presets_grid_name_their_series() -> None:
    config = parse({"algorithm": {"name": "pffl"}})
    made = grid(config, ["algorithm.B=0,5", "algorithm.zeta=0.6,0.7"])
    assert {m.config.series for m in made} == {"pffl"}
    assert len(made) == 4
    table = {
        "label": "PFFL",
        "setting": "BGL",
        "algorithm": {"name": "pffl", "beta": 1.0},
        "grid": {"B": [1.0, 5.0], "zeta": [0.6]},
    }
    one, other = _expanded(table)
    assert one["series"] == "PFFL BGL"
    assert one["setting"] == "BGL, B=1.0, zeta=0.6"
    assert other["algorithm"] == {"name": "pffl", "beta": 1.0, "B": 5.0, "zeta": 0.6}
