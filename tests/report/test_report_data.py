"""Who holds what in a report: tables, warnings, the figure, runs from before there were any."""

import json
import math
from dataclasses import replace

import pytest
from report_records import plain, record
from test_report_page import EVIL, Page, prose

from isonomy.data import load
from isonomy.data.profile import describe
from isonomy.report import data, figures
from isonomy.report.page import render, render_data, write_data


@pytest.fixture(scope="module")
def facts():
    found = describe(load("synthetic", clients=6, options={"examples": 900})).facts()
    return json.loads(json.dumps(found))  # as a run's folder gives it back


def run(facts, label="FedAvg", seed=0):
    return replace(record(label, seed), facts={"data": facts})


def test_every_measure_is_a_row(facts):
    table = data.measures(facts)
    assert len(table.rows) == len(facts["measures"])
    shown = [(row[1].value, row[2].value) for row in table.rows]
    assert shown == [(at["name"], at["value"]) for at in facts["measures"]]
    assert [row[0].value for row in table.rows if row[0].value] == list(
        dict.fromkeys(at["about"] for at in facts["measures"])
    )
    text = table.text()
    assert "nan" not in text
    assert "None" not in text


def test_few_clients_are_all_there(facts):
    table = data.clients(facts)
    assert [row[0].value for row in table.rows] == facts["names"]
    heads = [column.title for column in table.columns]
    assert heads[:5] == ["client", "training rows", "test rows", "label 1", "z 1"]
    assert [row[3].value for row in table.rows] == [row[1] for row in facts["label_shares"]]
    assert not any("left out" in note for note in table.footnotes)


def test_of_many_clients_the_largest_most_unusual_and_smallest_are_shown():
    facts = {
        "names": [f"c{k}" for k in range(100)],
        "sizes": [100 + k for k in range(100)],
        "clients": {
            "label": [0.9 if k in (40, 41) else 0.0 for k in range(100)],
            "x": [None] * 100,
        },
    }
    table = data.clients(facts, 9)
    names = [row[0].value for row in table.rows]
    assert names[:3] == ["c99", "c98", "c97"]
    assert names[3:5] == ["c40", "c41"]
    assert names[-3:] == ["c2", "c1", "c0"]
    assert "91 are" in table.footnotes[0]


def test_of_many_levels_the_most_common_is_shown():
    facts = {
        "names": ["a", "b"],
        "sizes": [1, 2],
        "labels": list("uvwxyz"),
        "label_shares": [[0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]],
    }
    assert [row[2].value for row in data.clients(facts).rows] == ["u: 50 %", "w: 100 %"]


def test_the_page_has_figure_table_and_warnings(facts):
    text = render([run(facts)])
    page = Page(text)
    section = text[text.index('<section id="holdings">') : text.index('<section id="costs">')]
    assert section.count('<figure data-figure="holdings">') == 1
    assert "Cramér&#x27;s V with clients" in section
    assert facts["warnings"]
    for warning in facts["warnings"]:
        assert warning["text"].split("'")[0] in section
    assert f"{len(facts['warnings'])} warnings about the data: see" in prose(text)
    assert ("a", {"href": "#holdings"}) in page.tags


def test_grave_warnings_are_marked(facts):
    grave = {**facts, "warnings": [{"kind": "leak", "weight": 3, "text": "A leak."}]}
    assert "<strong>!</strong> A leak." in render([run(grave)])
    assert "<strong>!</strong>" not in render([run({**grave, "warnings": []})])


def test_runs_from_before_have_the_figure_only():
    old = record().facts["data"]
    assert data.held([record()]) == []
    text = prose(render([record()]))
    assert "Beware" not in text
    assert "warnings about the data" not in text
    assert figures.holdings.draw([record()])
    assert data.clients(old) is not None


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"warnings": None, "measures": None, "clients": None},
        {"names": ["a"], "sizes": []},
        {"measures": [{"about": "x", "name": "y", "value": None}]},
        {"warnings": [{"text": ""}, {"kind": "x"}]},
    ],
)
def test_little_or_odd_facts(given):
    Page(render([run(given)]))
    Page(render_data(given))


def test_a_note_says_if_seeds_distribute_rows_differently(facts):
    other = {**facts, "sizes": facts["sizes"][::-1]}
    (one,) = data.held([run(facts), run(other, seed=1)])
    assert "seed 0; other seeds" in one.note
    (one,) = data.held([run(facts), run(facts, seed=1)])
    assert one.note == ""


def test_data_alone_is_a_page_that_needs_no_network(facts, tmp_path):
    to = write_data(facts, tmp_path / "new" / "data.html", "Data: synthetic")
    text = to.read_text(encoding="utf-8")
    page = Page(text)
    assert [attrs["data-figure"] for tag, attrs in page.tags if tag == "figure"] == ["holdings"]
    assert "https://" not in prose(text)
    assert len(page.scripts()) == 1
    for said in ("Data: synthetic", "0: 4", "Warnings", "6 clients"):
        assert said in prose(text)


def test_names_are_escaped(facts):
    evil = {
        **facts,
        "names": [EVIL] * 6,
        "labels": [EVIL, "b"],
        "source": EVIL,
        "warnings": [{"kind": "x", "weight": 2, "text": EVIL}],
        "measures": [{"about": EVIL, "name": EVIL, "value": 1.0, "where": EVIL}],
    }
    for text in (render([run(evil)]), render_data(evil, EVIL)):
        assert EVIL not in text
        assert len(Page(text).scripts()) == 1


def titles(views):
    return [view.title for view in views]


def test_few_clients_have_rows_and_shares(facts):
    views = figures.holdings.draw([run(facts)])
    assert titles(views) == [
        "rows of each label", "share of each label", "rows of each z", "share of each z"
    ]  # fmt: skip
    first, second = views[0].chart.marks
    assert first.ends == second.starts
    for k in range(6):
        assert second.ends[k] == pytest.approx(facts["sizes"][k], rel=1e-4)


def test_many_clients_are_ordered_and_unnamed():
    names = [f"client {k}" for k in range(60)]
    views = figures.holdings.draw([record(names=names)])
    assert titles(views)[0] == "share of each label"
    assert titles(views)[-1] == "rows of each client"
    first = views[0].chart.marks[0].ends
    assert first == sorted(first, reverse=True)
    sizes = views[-1].chart.marks[0].ends
    assert sizes == sorted(sizes, reverse=True)
    assert "60" in views[-1].chart.x.title
    assert not views[-1].chart.x.names


def test_many_levels_are_a_map():
    shares = [[1 / 12] * 12, [0.0] * 11 + [1.0]]
    facts = {"names": ["a", "b"], "sizes": [3, 4], "labels": list("abcdefghijkl")}
    (view,) = figures.holdings.draw([run({**facts, "label_shares": shares})])
    (cells,) = view.chart.marks
    assert [row[1] for row in cells.shades] == shares[1]
    assert list(view.chart.y.names) == list("abcdefghijkl")


def test_regression_has_rows_only():
    (view,) = figures.holdings.draw([run({"names": ["a", "b"], "sizes": [3, 4], "groups": {}})])
    assert view.chart.marks[0].ends == [3, 4]


def test_p_values():
    shown = [data.p_value(p) for p in (0.2, 0.00099, 0.0, None, math.nan)]
    assert shown == ["0.200", "<0.001", "<0.001", "", ""]


def test_metrics_alone_hold_nothing():
    assert data.held([plain(accuracy=0.5)]) == []
