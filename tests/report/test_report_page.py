from __future__ import annotations

import importlib
import json
import math
import os
import pkgutil
import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_records import METHODS, NAMES, plain, record, study

from isonomy.errors import RunError
from isonomy.report import figures
from isonomy.report.page import configuration, render, write
from isonomy.report.summary import sentences
from isonomy.report.svg import Band, Box, Line, Points
from isonomy.runs.record import Record

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Reads a page: its tags in balance, its attributes, the texts of some elements."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.errors: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        assert not self.errors

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
            for key in self._keys():
                self.texts.setdefault(key, []).append("")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            self.errors.append(f"</{tag}> at {self.getpos()} closes {self.open[-1:]}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        for key in self._keys():
            self.texts[key][-1] += data

    def _keys(self) -> list[str]:
        if not self.open:
            return []
        tag, attrs = self.open[-1]
        inside = [attrs.get("class") for tag, attrs in self.open if tag == "pre"]
        kind = attrs.get("type") or ""
        return [f"{tag} {kind}".strip(), *(f"pre {name}" for name in inside)]

    def scripts(self) -> list[str]:
        return self.texts["script"]

    def options(self, figure: str) -> list[str]:
        """The entries of a figure's menu."""
        inside, out = "", []
        texts = iter(self.texts.get("option", []))
        for tag, attrs in self.tags:
            if tag == "figure":
                inside = str(attrs["data-figure"])
            if tag == "option":
                text = next(texts)
                out += [text] if inside == figure else []
        return out

    def configs(self) -> list[dict[str, Any]]:
        texts = self.texts["pre config"][1::2]  # of <code> inside <pre>
        kinds = [attrs["data-language"] for tag, attrs in self.tags if attrs.get("data-language")]
        read = {"toml": tomllib.loads, "json": json.loads}
        return [read[str(kind)](text) for kind, text in zip(kinds, texts, strict=True)]


@pytest.fixture(scope="module")
def text() -> str:
    return render(study(), "Three methods")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def prose(text: str) -> str:
    """The page without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def test_nothing_comes_from_a_network(text: str, page: Page):
    for tag, attrs in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            at = attrs.get(name)
            assert at is None or at.startswith("#") or at == "data:,", (tag, name, at)
    assert "http://" not in prose(text)
    assert "https://" not in prose(text)
    style = "".join(page.texts["style"])
    assert "@import" not in style
    assert "url(" not in style
    assert "@font-face" not in style
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy


def test_only_the_known_scripts_run(page: Page):
    import base64
    import hashlib

    policy = next(str(a["content"]) for _, a in page.tags if a.get("http-equiv"))
    assert len(page.scripts()) == 1
    for script in page.scripts():
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]


def test_the_page_is_small(text: str):
    assert len(text.encode()) < 400_000
    many = [record(f"method {i}", s, rounds=50) for i in range(8) for s in range(3)]
    assert len(render(many).encode()) < 2_000_000


def test_all_figures_with_their_views(page: Page):
    names = [attrs["data-figure"] for tag, attrs in page.tags if tag == "figure"]
    assert names == ["tradeoff", "groups", "clients", "curves", "holdings", "costs"]
    views = [attrs for tag, attrs in page.tags if attrs.get("class") == "view"]
    assert sum("hidden" not in attrs for attrs in views) == len(names)
    menus = {name: page.options(str(name)) for name in names}
    assert sum(max(len(menu), 1) for menu in menus.values()) == len(views)
    assert max(map(len, menus.values())) <= 12
    for title in (title for menu in menus.values() for title in menu):
        assert "_" not in title
        assert "group." not in title


def test_the_head_says_what_was_run(text: str):
    head = prose(text)
    for said in ("3: FedAvg, q-FFL, FairFed", "adult", "9, with seeds 0, 1, 2", "torch 2.13.0"):
        assert said in head


def test_table_headers_and_tooltips(page: Page):
    heads = [attrs for tag, attrs in page.tags if tag == "th" and attrs.get("scope") == "col"]
    tips = [str(attrs["title"]) for attrs in heads if attrs.get("title")]
    assert any("between the groups of sex" in tip for tip in tips)
    assert [tag for tag, attrs in page.tags if attrs.get("role") == "img"] == ["svg"] * sum(
        attrs.get("class") == "view" for _, attrs in page.tags
    )
    assert all(attrs.get("aria-label") for _, attrs in page.tags if attrs.get("role") == "img")


def test_configs_are_the_records(page: Page):
    assert page.configs() == [run.config for run in study()]
    assert [t for t in page.texts["pre command"] if t] == ["isonomy run config.toml"] * 9


def test_a_config_that_toml_cannot_hold_is_json():
    config = {"a": None, "b": [1, {"c": EVIL}]}
    kind, text = configuration(config)
    assert kind == "json"
    assert json.loads(text) == config
    run = replace(plain(accuracy=0.5), config=config, facts={"command": "isonomy run x --seed 3"})
    page = Page(render([run]))
    assert page.configs() == [config]
    assert [t for t in page.texts["pre command"] if t] == ["isonomy run x --seed 3"]


def hostile() -> list[Record]:
    names = [EVIL, "</script><b>x</b>", "a & b \"q\" 'r'", '<a href="https://x.y">', "%{x}"]
    names += NAMES[5:]
    given: dict[str, Any] = {"attribute": f"<i>{EVIL}", "levels": (EVIL, "low"), "names": names}
    return [
        record("<img src=x onerror=alert(1)>", 0, notes=(EVIL,), **given),
        record(EVIL, 0, source=EVIL, **given),
        record("c", 0, complete=False, rounds=2, source=EVIL, **given),
    ]


def test_what_users_name_is_escaped_everywhere():
    text = render(hostile(), EVIL)
    page = Page(text)
    assert len(page.scripts()) == 1
    assert not {"img", "b", "i", "script "} & {tag for tag, _ in page.tags}
    assert EVIL not in text
    assert "</script><b>" not in text
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]
    assert page.configs() == [run.config for run in hostile()]
    assert any(EVIL in title for title in page.texts["title"][1:])  # of marks


def test_a_single_round_and_a_single_run_have_no_charts_of_one_point():
    names = [figure.name for figure in figures.all_figures([record(rounds=1)])]
    assert "curves" not in names
    assert "tradeoff" not in names


def test_unfinished_runs_are_noted():
    text = prose(render([record("FedAvg", 0), record("q-FFL", 0, rounds=7, complete=False)]))
    assert "q-FFL, seed 0: did not finish: 7 of 20 rounds." in text
    assert "7 of 20 rounds" in text


def test_an_unfinished_run_is_on_the_same_data_and_keeps_the_summary():
    # an unfinished run has not described its data
    stopped = replace(record("q-FFL", 0, rounds=7, complete=False), facts={})
    text = prose(render([record("FedAvg", 0), stopped, record("FairFed", 0)]))
    assert "different data" not in text
    assert "Demographic-parity gap: sex" in text
    assert "q-FFL on adult" not in text


def test_a_diverged_run_is_in_the_table_and_the_summary():
    about = {"round": 1, "cure": "lower local.lr (now 0.1)", "error": "..."}
    lost = replace(
        record("HetPFL", 0, complete=False), rounds=[], metrics={}, facts={"diverged": about}
    )
    text = prose(render([record("FedAvg", 0), lost]))
    assert "HetPFL, seed 0: diverged in round 1: lower local.lr (now 0.1)." in text
    assert '<th scope="row" data-value="HetPFL">HetPFL</th>' in text


def test_every_attribute_is_in_the_summary_the_worst_first():
    def run(label: str, male: float, race: float) -> Record:
        gaps = {"group.male.demographic_parity": male, "group.race.demographic_parity": race}
        return plain(label, **{"accuracy": 0.8, **gaps})

    records = [run("A", 0.006, 0.14), run("B", 0.01, 0.2)]
    said = sentences(records)
    assert said[0] == (
        "Demographic-parity gap, the worst attribute first: race 0.140 (A) to 0.200 (B); "
        "male 0.006 (A) to 0.010 (B)."
    )
    assert "Worse than A in the mean of every column but costs: B." not in said  # same accuracy
    assert "Gaps of every protected attribute" in render(records)


def test_notes_are_shown():
    assert "3 rows dropped" in prose(render([record(notes=("3 rows dropped",))]))


@pytest.mark.parametrize(
    "records",
    [
        [plain(accuracy=0.5)],
        [plain()],
        [plain(accuracy=math.nan, loss=math.inf)],
        [Record("a", 0, {}, [], {}, {}, complete=False)],
        [record(rounds=1)],
        [record(), record("x", source="b", attribute="race"), plain("y", accuracy=0.5)],
        [replace(record(), facts={"data": {"sizes": [1, 2]}})],
        [replace(record(), facts={"data": "adult"}, clients={})],
        [record(f"m{i}", s) for i in range(12) for s in range(2)],
        [record(names=[f"client {k}" for k in range(60)])],
        [replace(record(), rounds=[{"round": 1, "metrics": {"accuracy": None}}, {"round": 2}])],
    ],
)
def test_a_page_can_be_made_of_little_or_odd_runs(records: list[Record]):
    page = Page(render(records))
    assert page.configs() == [run.config for run in records]


def test_regression_has_no_accuracy():
    run = record()
    kept = [{**at, "metrics": _without_accuracy(at["metrics"])} for at in run.rounds]
    clients = {key: column for key, column in run.clients.items() if key != "accuracy"}
    run = replace(run, rounds=kept, clients=clients, metrics=_without_accuracy(run.metrics))
    text = render([run])
    Page(text)
    assert "accuracy" not in re.sub(r"<p>.*?</p>|Accuracy", "", prose(text))
    views = figures.trade_off.draw([run, replace(run, label="other")])
    assert {view.chart.y.title for view in views} == {"loss"}


def _without_accuracy(metrics: dict[str, float]) -> dict[str, float]:
    return {name: at for name, at in metrics.items() if "accuracy" not in name}


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    to = write([plain(accuracy=0.5)], tmp_path / "new" / "report.html", title="One")
    assert [at.name for at in to.parent.iterdir()] == ["report.html"]
    before = to.read_text(encoding="utf-8")
    assert before == render([plain(accuracy=0.5)], "One")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match="No space left on device"):
        write([plain(accuracy=0.7)], to)
    assert to.read_text(encoding="utf-8") == before
    assert [at.name for at in to.parent.iterdir()] == ["report.html"]


def test_the_page_is_the_same_each_time(text: str):
    assert render(study(), "Three methods") == text


def test_curves_have_the_mean_and_the_band():
    records = [
        Record(
            "a", s, {"seed": s}, [{"round": t, "metrics": {"loss": v + t}} for t in (1, 2)], {}, {}
        )
        for s, v in enumerate((1.0, 3.0))
    ]
    (view,) = figures.rounds.draw(records)
    band, line, _points = view.chart.marks
    assert isinstance(band, Band)
    assert isinstance(line, Line)
    assert list(line.x) == [1, 2]
    assert list(line.y) == [3.0, 4.0]
    spread = math.sqrt(2)
    assert list(band.high) == pytest.approx([3 + spread, 4 + spread])
    assert list(band.low) == pytest.approx([3 - spread, 4 - spread])


def test_what_methods_recorded_is_drawn_over_rounds():
    def run(label: str, seed: int, branches: list[str], top: float) -> Record:
        rounds = [
            {"round": t, "recorded": {"branch": b, "angle": t * top, "p": {"0": top, "3": 1 - top}}}
            for t, b in enumerate(branches, start=1)
        ]
        return Record(label, seed, {"method": label, "seed": seed}, rounds, {}, {})

    plain_run = Record("b", 0, {"method": "b", "seed": 0}, [{"round": 1}], {}, {})
    one, two = run("a", 0, ["x", "y"], 0.8), run("a", 1, ["x", "x"], 0.6)
    views = figures.recorded.draw([one, two, plain_run])
    titles = [view.title for view in views]
    assert titles == ["branch = x", "angle", "p, largest of a client", "branch = y"]
    lines = [mark for view in views for mark in view.chart.marks if isinstance(mark, Line)]
    assert [list(line.y) for line in lines] == [[1.0, 0.5], [0.7, 1.4], [0.7, 0.7], [0.0, 0.5]]
    assert figures.recorded.draw([plain_run]) == []


def test_clients_are_those_of_the_last_round_mean_over_seeds():
    def run(seed: int, values: list[float]) -> Record:
        clients = {
            "round": [1, 1, 2, 2, 2, 2],
            "client": [0, 1, 0, 1, 0, 1],
            "name": ["A", "B"] * 3,
            "split": ["test"] * 4 + ["train"] * 2,
            "size": [5, 0, 5, 0, 50, 50],
            "accuracy": [0.0, 0.0, *values, 1.0, 1.0],
        }
        return Record("a", seed, {"seed": seed}, [], clients, {})

    views = figures.clients.draw([run(0, [0.5, math.nan]), run(1, [0.75, math.nan])])
    box, points = views[0].chart.marks
    assert isinstance(box, Box)
    assert isinstance(points, Points)
    assert box.quarters == (0.625,) * 5
    assert list(points.y) == [0.625]
    assert points.tips == ["a\nA, 5 examples\n0.625 (seeds: 2)"]


def test_the_cluster_of_a_client_is_not_drawn_as_a_value_inside_it():
    clients = {
        "round": [1, 1],
        "client": [0, 1],
        "name": ["A", "B"],
        "split": ["test"] * 2,
        "size": [5, 5],
        "cluster": [0, 1],
        "group.sex.demographic_parity": [0.1, 0.2],
        "loss": [0.5, 0.25],
    }
    views = figures.clients.draw([Record("a", 0, {"seed": 0}, [], clients, {})])
    titles = [view.title for view in views]
    assert not [title for title in titles if "cluster" in title]
    assert "loss" in titles
    assert [title for title in titles if title.endswith(", inside each client")]


def test_tradeoff_marks_runs_and_their_mean():
    (view,) = figures.trade_off.draw(
        [plain(seed=s, accuracy=a, faa=f) for s, a, f in ((0, 0.5, 0.1), (1, 0.75, 0.3))]
    )
    points, mean = view.chart.marks
    assert isinstance(points, Points)
    assert isinstance(mean, Points)
    assert (list(points.x), list(points.y)) == ([0.1, 0.3], [0.5, 0.75])
    assert (list(mean.x), list(mean.y)) == ([0.2], [0.625])


def test_groups_show_each_rate_that_is_there():
    metrics = {
        "group.a.b.accuracy.x": 0.5,
        "group.a.b.positive_rate.x": 0.25,
        "group.a.b.max_loss": 1,
    }
    labels = [view.title for view in figures.groups.draw([plain(**metrics)])]
    assert labels == ["positive rate by a.b", "accuracy by a.b"]


def test_nothing_to_draw():
    assert figures.all_figures([plain(accuracy=0.5)]) == []


def test_every_figure_is_registered():
    modules = {name for _, name, _ in pkgutil.iter_modules(figures.__path__)} - {"drawing"}
    found = [importlib.import_module(f"isonomy.report.figures.{name}").FIGURE for name in modules]
    assert {kind.name for kind in found} == {kind.name for kind in figures.FIGURES}
    assert len(found) == len(figures.FIGURES)


def test_every_made_up_method_is_in_the_study():
    assert {run.label for run in study()} == set(METHODS)


def without_seconds(page: str) -> tuple[str, str]:
    """A page without its section on seconds, and that section."""
    before, mark, rest = page.partition('<section id="seconds">')
    section, end, after = rest.partition("</section>")
    return before + after, mark + section + end


def test_pages_on_equal_runs_differ_in_their_seconds_only() -> None:
    runs = study()
    again = [replace(run, seconds=run.seconds * 1.37 + 2) for run in runs]
    first, second = (without_seconds(render(records)) for records in (runs, again))
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert "only part of the page that differs" in first[1]
    untimed = render([replace(run, seconds=0.0) for run in runs])
    assert '"#seconds"' not in untimed
