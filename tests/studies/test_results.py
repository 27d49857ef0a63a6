"""Results as data: kept by method, setting and seed, and the pages that are made from them."""

import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import pytest
import scipy.stats
from typer.testing import CliRunner

from isonomy import api
from isonomy.cli import app
from isonomy.cli.progress import Lines
from isonomy.errors import ConfigError, DataError
from isonomy.runs.listener import Listener
from isonomy.runs.record import Record
from isonomy.studies import results
from isonomy.studies.reproduce import _read, find, methods_of, reproduce
from isonomy.studies.results import figures, pages, tables, while_running

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
TYPED = "*Typed from an earlier run:*"


def row(method="FedAvg", setting="equal weights", seed=0, *, faa=0.8, complete=True, **more):
    made = {
        "scale": "full",
        "method": method,
        "setting": setting,
        "seed": seed,
        "metrics": {"loss": 0.1, "faa": faa},
        "verdict": None,
        "complete": complete,
        "seconds": 30.0,
        "versions": {"torch": "2.13.0"},
        "commit": "abc",
    }
    return {**made, **more}


def test_pages_have_what_the_results_say():
    """Fails if a page of the documentation and results/*.json differ: run `make tables`."""
    marked = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        marked += len(pages.BLOCK.findall(text))
        begun = sum(text.count(f"<!-- {kind}:") for kind in pages.KINDS)
        assert begun == len(pages.BLOCK.findall(text)), f"{page.name}: a mark without its end"
        assert pages.filled(text, ROOT / "results") == text, f"{page.name}: run `make tables`"
        for file, svg in pages.pictures(text, ROOT / "results").items():
            path = page.parent / file
            assert path.read_text(encoding="utf-8") == svg, f"{path}: run `make tables`"
    assert marked >= len(list((ROOT / "results").glob("*.json"))), "results that no page shows"


def test_kept_results_belong_to_presets():
    for path in sorted((ROOT / "results").glob("*.json")):
        preset = find(path.stem)
        known = {(t["label"], t.get("setting", "")) for t in preset.methods}
        for one in results.read(path):
            assert (one["method"], one["setting"]) in known, f"{path.name}: {one['method']}"


def test_rows_are_replaced_by_method_setting_scale_and_seed(tmp_path):
    path = tmp_path / "focus-synthetic.json"
    assert results.keep(path, "focus-synthetic", [row(), row(seed=1)]) == 2
    assert results.keep(path, "focus-synthetic", [row(faa=0.7), row(scale="quick")]) == 3
    found = {(r["scale"], r["seed"]): r["metrics"]["faa"] for r in results.read(path)}
    assert found == {("full", 0): 0.7, ("full", 1): 0.8, ("quick", 0): 0.8}
    before = path.read_bytes()
    results.keep(path, "focus-synthetic", [])
    assert path.read_bytes() == before  # the same rows, the same bytes
    path.write_text("{}")
    with pytest.raises(DataError, match="is not a file of results"):
        results.read(path)


def test_an_interrupted_run_is_not_a_row_and_one_that_diverged_is():
    """A killed run has metrics of an earlier round; it must not count as diverged."""
    preset = find("focus-synthetic")
    runs = [
        Record("FOCUS models found", 0, {}, [], {}, {"faa": 0.1}),
        Record("FOCUS models found", 1, {}, [], {}, {"faa": 0.9}, complete=False),
        Record("FOCUS models found", 2, {}, [], {}, {}, complete=False,
               facts={"diverged": {"round": 3}}),
    ]  # fmt: skip
    rows = results.rows_of(preset, "full", runs)
    assert [(one["seed"], one["complete"]) for one in rows] == [(0, True), (2, False)]
    made = tables.table(preset, rows, names=["faa"]).markdown()
    assert "| FOCUS | models found | 0.001 | 0.100 | 1 (1 diverged) |" in made


def test_a_number_of_the_verdict_is_a_metric_of_a_preset():
    preset = find("pffl-step")
    label = methods_of(preset)[0].label
    facts = {"violation": -0.01, "risk": 0.6, "gap": None, "worst": "sex = Male"}
    verdict = {"status": "met", "text": "", "facts": facts}
    run = Record(label, 0, {}, [], {}, {}, verdict=verdict)
    (row,) = results.rows_of(preset, "full", [run])
    assert row["metrics"] == {"verdict.violation": -0.01, "verdict.risk": 0.6, "verdict.gap": None}


def test_a_table_has_means_spreads_and_lost_runs(tmp_path):
    rows = [row(faa=0.8), row(seed=1, faa=0.9), row(seed=2, complete=False)]
    made = tables.table(find("focus-synthetic"), rows, names=["faa"]).markdown()
    assert "| FedAvg | equal weights | 0.958 | 0.850 ± 0.071 | 2 (1 diverged) |" in made
    assert "FedProx" not in made  # not run


def test_a_grid_has_means_and_deviations_by_setting(tmp_path):
    rows = [
        row(method, setting, seed, metrics={"accuracy": mean, "client.accuracy.std": spread})
        for method, setting, seed, mean, spread in (
            ("global", "clean", 0, 0.8, 0.1),
            ("global", "clean", 1, 0.9, 0.3),
            ("local", "clean", 0, 0.9, 0.1),
            ("local", "A1 20 %", 0, 0.7, 0.1),
        )
    ]
    assert find("fmtl-vehicle").pair == ("accuracy", "client.accuracy.std")
    results.keep(tmp_path / "fmtl-vehicle.json", "fmtl-vehicle", rows)
    page = "<!-- results: fmtl-vehicle layout=grid -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | clean | A1 20 % |" in made
    assert "| global | 0.850 ± .071 (.200) | – |" in made  # means over two seeds
    assert "| local | **0.900 (.100)** | **0.700 (.100)** |" in made  # the largest difference
    assert "FMTL" not in made  # not run
    assert "4 runs" in made
    assert "diverged" not in made
    lost = row("local", "clean", 1, metrics={}, complete=False)
    results.keep(tmp_path / "fmtl-vehicle.json", "fmtl-vehicle", [lost])
    assert "Runs that diverged are left out: local clean (1 of 2)." in pages.filled(page, tmp_path)
    printed = pages.filled(page.replace("layout=grid", "layout=paper"), tmp_path)
    assert "| method | clean | A1 20 % |" in printed  # the settings that were run
    assert "| global | 0.866 (.160) | 0.847 (.080) |" in printed
    assert "runs" not in printed
    for wrong in ("fmtl-vehicle layout=list", "focus-synthetic layout=grid"):
        with pytest.raises(ConfigError, match="grid"):
            pages.filled(page.replace("fmtl-vehicle layout=grid", wrong), tmp_path)


def test_curves_by_round_and_how_they_swing(tmp_path):
    rows = [
        row("PraFFL", "COMPAS", 0, metrics={"hv.local": 0.7}, curve=[0.5, 0.8, 0.7]),
        row("PraFFL", "COMPAS", 1, metrics={"hv.local": 0.8}, curve=[0.6, 0.6, 0.8]),
        row("HetPFL", "COMPAS", 0, metrics={"hv.local": 0.7}, curve=[0.7], complete=False),
    ]
    assert find("hetpfl-convergence").curve == "hv.local"
    results.keep(tmp_path / "hetpfl-convergence.json", "hetpfl-convergence", rows)
    page = "<!-- results: hetpfl-convergence layout=rounds -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | setting | 1 | 2 | 3 |" in made
    assert "| PraFFL | COMPAS | 0.550 | 0.700 | 0.750 |" in made
    assert "HetPFL" not in made.replace("hetpfl", "")  # it did not end
    made = pages.filled(page.replace("rounds", "swings"), tmp_path)
    # changes .3, .1 and 0, .2: mean .15, largest .3
    row_of = "| PraFFL | COMPAS | 0.500 | 0.800 | 0.667 | 0.150 | 0.300 | 0.750 ± 0.071 | 2 |"
    assert row_of in made
    for wrong in ("hetpfl-table1 layout=rounds", "hetpfl-convergence metrics=faa layout=swings"):
        with pytest.raises(ConfigError, match="of a preset with a `curve`"):
            pages.filled(page.replace("hetpfl-convergence layout=rounds", wrong), tmp_path)


def test_faa_by_the_length_of_the_surrogate(tmp_path):
    def excess(*values):
        return {"lengths": [100, 200], "by_length": values, "excess": [], "error": []}

    rows = [
        row(seed=0, faa=0.2, excess=excess(0.5, 0.3)),
        row(seed=1, faa=0.4, excess=excess(0.7, 0.5)),
        row("Local", "", excess=excess(0.5, None)),
        row("FOCUS", "models found"),  # kept before excess was
    ]
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", rows)
    page = "<!-- results: focus-synthetic layout=surrogates -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | setting | 100 steps | 200 steps | chosen | seeds |" in made
    assert "| FedAvg | equal weights | 0.600 | 0.400 | 0.300 ± 0.141 | 2 |" in made
    assert "| Local |  | 0.500 | – | 0.800 | 1 |" in made
    assert "FOCUS" not in made.replace("focus", "")
    with pytest.raises(ConfigError, match="of a preset with FAA"):
        pages.filled(page.replace("focus-synthetic", "hetpfl-table1"), tmp_path)


def test_one_row_per_seed(tmp_path):
    rows = [
        row(seed=10, faa=0.25),
        row(seed=9, faa=0.123456),
        row(seed=11, complete=False, metrics={}),
        row("Local", "", 9, faa=None),
    ]
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", rows)
    spec = "focus-synthetic layout=seeds metrics=loss,faa"
    page = f"<!-- results: {spec} -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | setting | seed | loss | FAA |" in made
    lines = [line for line in made.splitlines() if line.startswith(("| FedAvg", "| Local"))]
    assert lines == [
        "| FedAvg | equal weights | 9 | 0.100 | 0.123 |",
        "| FedAvg | equal weights | 10 | 0.100 | 0.250 |",
        "| FedAvg | equal weights | 11 (diverged) | – | – |",
        "| Local |  | 9 | 0.100 | – |",
    ]
    assert "4 runs" in made
    assert "±" not in made
    made = pages.filled(page.replace(" metrics=loss,faa", ""), tmp_path)
    assert "| method | setting | seed | mean client loss | FAA |" in made  # the preset's metrics
    rows = [row(verdict="accepted"), row(seed=1)]
    table = tables.seeds(find("focus-synthetic"), rows, names=["loss"]).markdown()
    assert "| method | setting | seed | loss | verdict |" in table
    assert "| FedAvg | equal weights | 0 | 0.100 | accepted |" in table
    assert "| FedAvg | equal weights | 1 | 0.100 | – |" in table


def test_seeds_are_chosen_in_any_layout(tmp_path):
    rows = [row(seed=s, faa=0.1 * s) for s in (1, 2, 3)]
    rows += [row("FOCUS", "models found", seed=s, faa=0.3 * s) for s in (1, 2, 3)]
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", rows)

    def filled(options):
        mark = f"<!-- results: focus-synthetic {options} -->\n<!-- end of results -->\n"
        return pages.filled(mark, tmp_path)

    made = filled("metrics=faa seeds=1,3")
    assert "| FedAvg | equal weights | 0.958 | 0.200 ± 0.141 | 2 |" in made
    assert "4 runs" in made
    made = filled("layout=seeds metrics=faa methods=FOCUS seeds=3")
    assert "| FOCUS | models found | 3 | 0.900 |" in made
    assert made.count("models found") == 1
    made = filled('metrics=faa against="FedAvg equal weights" seeds=1,2')
    assert "| FOCUS | models found | +0.300 ± 0.141;" in made
    with pytest.raises(ConfigError, match="seeds=1,7: no row has the seed '7'"):
        filled("seeds=1,7")


def test_a_lead_at_another_scale(tmp_path):
    rows = [
        row("FedAvg", "normal", s, metrics={"accuracy": 0.1 * s}, scale="short") for s in (1, 2)
    ]
    rows += [
        row("FedLF", "normal", s, metrics={"accuracy": 0.3 * s}, scale="short") for s in (1, 2)
    ]
    results.keep(tmp_path / "fedmdfg-fashion.json", "fedmdfg-fashion", rows)
    page = (
        '<!-- lead: fedmdfg-fashion accuracy of "FedLF normal" against "FedAvg normal" at short -->'
    )
    made = pages.filled(f"{page}\n<!-- end of lead -->\n", tmp_path)
    assert "+0.300 ± 0.141 over 2 paired seeds" in made
    with pytest.raises(ConfigError, match="no results of 'FedLF normal'"):
        pages.filled(page.replace(" at short", "") + "\n<!-- end of lead -->\n", tmp_path)


def typed_tables(text):
    """The tables of a page with six or more decimal numbers outside of the marks, and what is
    written before each."""
    text = pages.BLOCK.sub("", text)
    for found in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE):
        if len(re.findall(r"(?<![\d.])0?\.\d\d+", found[0])) >= 6:
            yield text[: found.start()].rstrip().rpartition("\n")[2], found[0].partition("\n")[0]


def test_tables_of_results_that_are_typed_say_so():
    """Results of presets are generated; an older table is marked until it is run again."""
    pages = [ROOT / "docs" / "presets.md", *sorted((ROOT / "docs" / "algorithms").glob("*.md"))]
    for page in pages:
        for before, head in typed_tables(page.read_text(encoding="utf-8")):
            assert before in (TYPED, "*Numbers of the paper:*"), f"{page.name}: {head}"


def test_a_lead_has_its_paired_test():
    values = {"FedAvg": (0.8, 0.9, 1.0), "FOCUS": (0.1, 0.1, 0.4)}
    rows = [
        row(method, setting, seed, faa=value)
        for method, setting in (("FedAvg", "equal weights"), ("FOCUS", "models found"))
        for seed, value in enumerate(values[method])
    ]
    text = tables.lead(rows, "faa", "FOCUS models found", "FedAvg equal weights")
    # differences -.7, -.8, -.6: mean -.7, standard error .1 / sqrt(3), t = -12.12 on 2 df
    assert "-0.700 ± 0.100 over 3 paired seeds, p = 0.0067" in text
    with pytest.raises(ConfigError, match="no results of 'Nobody'"):
        tables.lead(rows, "faa", "Nobody", "FedAvg equal weights")


def test_differences_from_a_method_have_their_paired_tests(tmp_path):
    values = {"FedAvg": (0.8, 0.9, 1.0), "FOCUS": (0.1, 0.1, 0.4), "Local": (0.5,)}
    settings = {"FedAvg": "equal weights", "FOCUS": "models found", "Local": ""}
    rows = [
        row(method, settings[method], seed, faa=value)
        for method in values
        for seed, value in enumerate(values[method])
    ]
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", rows)
    spec = 'focus-synthetic metrics=faa against="FedAvg equal weights"'
    page = f"<!-- results: {spec} -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | setting | FAA | seeds |" in made
    assert "| FOCUS | models found | -0.700 ± 0.100; p = 0.0067 | 3 |" in made
    assert "Local" not in made  # one seed in common
    assert "| FedAvg" not in made
    assert pages.filled(page.replace("metrics", 'methods="FOCUS" metrics'), tmp_path).count("|") > 9
    for wrong in ("Nobody", "Local"):
        with pytest.raises(ConfigError, match="no row has two seeds in common"):
            pages.filled(page.replace("FedAvg equal weights", wrong), tmp_path)
    with pytest.raises(ConfigError, match="goes with layout=grid"):
        pages.filled(page.replace("metrics=faa", "layout=surrogates"), tmp_path)


def test_differences_by_setting_as_a_grid(tmp_path):
    numbers = {
        ("global", "clean"): (0.80, 0.82, 0.84),
        ("local", "clean"): (0.90, 0.91, 0.95),
        ("global", "A1 20 %"): (0.5, 0.5),
        ("local", "A1 20 %"): (0.7,),
        ("fair", "clean"): (0.80, 0.82, 0.84),
    }
    rows = [
        row(method, setting, seed, metrics={"accuracy": value})
        for (method, setting), values in numbers.items()
        for seed, value in enumerate(values)
    ]
    results.keep(tmp_path / "fmtl-vehicle.json", "fmtl-vehicle", rows)
    spec = "fmtl-vehicle layout=grid metrics=accuracy against=global"
    page = f"<!-- results: {spec} -->\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "| method | clean | A1 20 % |" in made
    p = scipy.stats.ttest_1samp([0.10, 0.09, 0.11], 0).pvalue
    assert f"| local | +0.100 ± 0.010; p = {p:.2g} | – |" in made  # one seed in common under A1
    assert "| fair | +0.000 ± 0.000; p = 1 | – |" in made
    assert "| global" not in made
    assert "Differences in accuracy from global over 3 paired seeds" in made
    for wrong in ("", "metrics=accuracy,client.accuracy.std "):
        with pytest.raises(ConfigError, match="one metric"):
            pages.filled(page.replace("metrics=accuracy ", wrong), tmp_path)


def test_a_difference_is_within_the_setting():
    """A label without a setting is the method under the row's own setting."""
    numbers = {"PraFFL": {"BANK": 0.5, "ADULT": 0.2}, "HetPFL": {"BANK": 0.6, "ADULT": 0.5}}
    rows = [
        row(method, setting, seed, metrics={"hv.local": value + 0.01 * seed * (method == "HetPFL")})
        for method, found in numbers.items()
        for setting, value in found.items()
        for seed in (0, 1)
    ]
    preset = find("hetpfl-table1")
    made = tables.differences(preset, rows, "PraFFL", names=["hv.local"]).markdown()
    assert "| HetPFL | BANK | +0.105 ± 0.007; p = 0.03 | 2 |" in made
    assert "| HetPFL | ADULT | +0.305 ± 0.007; p = 0.01 | 2 |" in made


def test_a_checkout_with_changes_is_named_as_such():
    assert "commit abc, abc+." in results.origin([row(), row(seed=1, commit="abc+")])


def test_marks_are_filled_and_wrong_marks_are_refused(tmp_path):
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", [row(), row(seed=1)])
    page = "before\n<!-- results: focus-synthetic metrics=faa -->\nold\n<!-- end of results -->\n"
    made = pages.filled(page, tmp_path)
    assert "old" not in made
    assert made.startswith("before\n")
    assert "2 runs, 1 min in all; torch 2.13.0; commit abc." in made
    assert pages.filled(made, tmp_path) == made
    with pytest.raises(ConfigError, match="give metrics="):
        pages.filled(page.replace("metrics=faa", "colour=red"), tmp_path)


def test_reproduce_keeps_results_and_selects_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "focus-synthetic", "--quick", "--methods", "FedAvg", "--quiet"]
    done = CliRunner().invoke(app, [*words, "--seeds", "3-4", "--results", "kept"])
    assert done.exit_code == 0, done.output
    rows = json.loads(Path("kept/focus-synthetic.json").read_text())["rows"]
    assert [(r["method"], r["seed"], r["scale"]) for r in rows] == [
        ("FedAvg", 3, "quick"),
        ("FedAvg", 4, "quick"),
    ]
    assert all(0 < r["metrics"]["faa"] < 2 for r in rows)
    for one in rows:
        found = [value for value in one["excess"]["excess"] if value is not None]
        assert len(one["excess"]["clusters"]) == len(one["excess"]["excess"]) == 10
        assert max(found) - min(found) == pytest.approx(one["metrics"]["faa"], abs=2e-3)


class Interrupting(Listener):
    """Interrupts the user's command when it begins a run, after so many."""

    def __init__(self, after):
        self.left = after

    def begin(self, label, seed, done, rounds):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def seeds_by_method(path):
    found = {}
    for one in results.read(path):
        found.setdefault(one["method"], []).append(one["seed"])
    return found


def test_an_interrupted_command_has_kept_the_rows_of_finished_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "focus-synthetic", "--quick", "--methods", "FedAvg", "--quiet"]
    words += ["--seeds", "3-5", "--results", "kept"]
    begin = Lines.begin
    stop = Interrupting(after=2)

    def interrupted(lines, label, seed, done, rounds):
        begin(lines, label, seed, done, rounds)
        stop.begin(label, seed, done, rounds)

    monkeypatch.setattr(Lines, "begin", interrupted)
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    path = Path("kept/focus-synthetic.json")
    assert seeds_by_method(path) == {"FedAvg": [3, 4]}
    first = results.read(path)
    monkeypatch.setattr(Lines, "begin", begin)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert seeds_by_method(path) == {"FedAvg": [3, 4, 5]}
    assert results.read(path)[:2] == first


SWEPT = """
[preset]
title = "t"
paper = "p"
text = "x"
seeds = 2
metrics = ["hv.local", "hv.global"]

[config]
rounds = 2
data = { name = "synthetic", clients = 3 }
model = "logistic"
evaluate = { every = 2, bootstrap = 0 }
excess = { clusters = "none" }

[[methods]]
label = "EquiFL, swept"
algorithm = { name = "equifl" }
grid = { penalty = [0.0, 50.0] }
joined = true

[[methods]]
label = "FedAvg"
algorithm = "fedavg"
"""


def test_a_joined_row_is_kept_when_all_of_its_runs_have_ended(tmp_path):
    """The runs are made in the order: both seeds at the first penalty, then at the second."""
    preset = _read("swept", SWEPT)
    path = tmp_path / "kept" / "swept.json"
    kept = []
    for after in (2, 1, 2):
        with (
            contextlib.suppress(KeyboardInterrupt),
            results.keeping(path, preset, "full") as finished,
        ):
            reproduce(preset, tmp_path / "runs", listeners=[Interrupting(after)], finished=finished)
        kept.append(seeds_by_method(path))
    joined = "EquiFL, swept"
    assert kept == [{}, {joined: [0]}, {joined: [0, 1], "FedAvg": [0]}]
    whole = results.rows_of(preset, "full", api.load(tmp_path / "runs"))
    again = tmp_path / "again.json"
    results.keep(again, "swept", whole)
    assert again.read_bytes() == path.read_bytes()


def test_runs_at_once_are_kept_as_they_end(tmp_path):
    preset = _read("swept", SWEPT)
    path = tmp_path / "kept" / "swept.json"
    seen = []

    def finish(record):
        finished(record)
        seen.append((record.label, set(seeds_by_method(path))))

    with results.keeping(path, preset, "full") as finished:
        reproduce(preset, tmp_path / "runs", jobs=2, seeds=1, finished=finish)
    assert sorted(label for label, _ in seen) == [
        "EquiFL, swept penalty=0.0",
        "EquiFL, swept penalty=50.0",
        "FedAvg",
    ]
    for i, (_, kept) in enumerate(seen):
        ended = [label for label, _ in seen[: i + 1]]
        assert kept <= {"FedAvg", "EquiFL, swept"}
        assert "EquiFL, swept" not in kept or sum("swept" in label for label in ended) == 2
    assert seeds_by_method(path) == {"EquiFL, swept": [0], "FedAvg": [0]}


def test_rows_are_not_written_all_the_time(tmp_path, monkeypatch):
    """A write takes a second and a run two, so there is a write after every ten runs."""
    now = [100.0]
    monkeypatch.setattr(while_running.time, "monotonic", lambda: now[0])
    written = []

    def keep(path, name, rows):
        written.append(len(rows))
        now[0] += 1

    monkeypatch.setattr(while_running, "keep", keep)
    preset = find("focus-synthetic")
    with results.keeping(tmp_path / "x.json", preset, "full") as finished:
        for seed in range(25):
            finished(Record("Local", seed, {}, [], {}, {"loss": 0.1}))
            now[0] += 2
    assert written == [1, 10, 10, 4]


def test_two_processes_keep_their_rows_in_one_file(tmp_path):
    """Threads stand for processes: each reads, adds a row and writes, many times."""
    path = tmp_path / "focus-synthetic.json"

    def keep(method):
        for seed in range(30):
            results.keep(path, "focus-synthetic", [row(method, seed=seed)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(keep, ("FedAvg", "Local")))
    assert seeds_by_method(path) == {"FedAvg": list(range(30)), "Local": list(range(30))}


def test_a_damaged_file_is_reported_before_the_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()
    Path("kept/focus-synthetic.json").write_text("{}")
    words = ["reproduce", "focus-synthetic", "--quick", "--quiet", "--results", "kept"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "is not a file of results" in done.output
    assert not Path("runs").exists()


def test_settings_select_rows():
    preset = find("focus-synthetic")
    assert [m.label for m in methods_of(preset, "full", ["q-FFL"], ["q = 1"])] == ["q-FFL q = 1"]
    with pytest.raises(ConfigError, match="unknown setting of preset 'focus-synthetic' 'q = 7'"):
        methods_of(preset, "full", (), ["q = 7"])
    with pytest.raises(ConfigError, match="none of these methods with one of these settings"):
        methods_of(preset, "full", ["FedAvg"], ["q = 1"])


# --- pictures -------------------------------------------------------------------------------------


def drawn(svg, name):
    """The legend's names, and the places of the marks of one series, as percentages."""
    root = ElementTree.fromstring(svg)
    plot = next(at for at in root if at.get("class") == "plot")
    marks = [
        (float(at.get("x")[:-1]), float(at.get("y")[:-1]))
        for at in plot
        if at.get("x")
        and at.find(f"{SVG}path") is not None
        and name in at.find(f"{SVG}path").get("class")
    ]
    return [at.text for at in root if at.get("class") == "note"], marks


def test_a_picture_of_each_clients_excess():
    def clients(values, errors):
        return {"excess": values, "error": errors, "clusters": [0, 0], "lengths": []}

    rows = [
        row(seed=0, excess=clients([0.2, 0.5], [0.03, 0.04])),
        row(seed=1, excess=clients([0.4, 0.7], [0.04, 0.03])),
        row("FOCUS", "models found", excess=clients([0.0, None], [0.0, None])),
        row("FOCUS", "models found", 1, complete=False, excess=clients([9.0, 9.0], [0.0, 0.0])),
        row("FedProx", "mu = 1"),
    ]
    figure = figures.excess(find("focus-synthetic"), rows)
    names, marks = drawn(figure.svg, "c0")
    assert names == ["FedAvg equal weights", "FOCUS models found"]
    # means .3 and .6, at heights between 0 and .6 + 1.96 * .05 / 2, with 6 % on each side
    top = 0.6 + 1.96 * 0.05 / 2
    room = 0.06 * top
    for (_, y), mean in zip(marks, (0.3, 0.6), strict=True):
        assert y == pytest.approx(100 * (1 - (mean + room) / (top + 2 * room)), abs=0.01)
    assert len(drawn(figure.svg, "c1")[1]) == 1  # one client is unknown, one run is not complete
    assert figure.label.startswith("Excess risk of each of 2 clients with FedAvg equal weights")
    assert "2 seeds" in figure.label
    with pytest.raises(ConfigError, match="no row has the clients' excess risks"):
        figures.excess(find("focus-synthetic"), [row()])


def test_a_picture_of_a_plane_and_of_rounds():
    rows = [row(seed=s, metrics={"loss": 0.1 * s, "faa": 0.2 + s}) for s in range(3)]
    figure = figures.plane(find("focus-synthetic"), rows, x="loss", y="faa")
    # one point in the middle of its errors
    assert drawn(figure.svg, "c0") == (["FedAvg"], [(50.0, 50.0)])
    with pytest.raises(ConfigError, match="no row has both loss and accuracy"):
        figures.plane(find("focus-synthetic"), rows, x="loss", y="accuracy")
    with pytest.raises(ConfigError, match="x=METRIC"):
        figures.plane(find("focus-synthetic"), rows)
    curve = [row("HetPFL", "COMPAS", s, curve=[0.1 + s, 0.2 + s]) for s in range(2)]
    made = figures.rounds(find("hetpfl-convergence"), curve)
    assert drawn(made.svg, "c0")[0] == ["HetPFL"]
    assert 'd="M' in made.svg
    with pytest.raises(ConfigError, match="no row has a curve"):
        figures.rounds(find("focus-synthetic"), rows)


def test_a_picture_of_fronts():
    rows = [
        row("FedAvg", "SYNTHETIC", front=[[0.2, 0.4]]),
        row("HetPFL", "SYNTHETIC", front=[[0.1, 0.5], [0.3, 0.1]]),
        row("HetPFL", "SYNTHETIC", 1),  # points of the first seed only
    ]
    figure = figures.front(find("hetpfl-table1"), rows)
    names, single = drawn(figure.svg, "c0")
    assert names == ["FedAvg", "HetPFL"]
    # .2 is in the middle of .1 to .3, and .4 a quarter below the top of .1 to .5, with 6 % of room
    assert single == [(50.0, pytest.approx(100 * (0.06 + 0.25) / 1.12, abs=0.01))]
    assert len(drawn(figure.svg, "c1")[1]) == 2
    with pytest.raises(ConfigError, match="no row has a global front"):
        figures.front(find("hetpfl-table1"), rows[2:])


def test_pictures_are_written_beside_their_page(tmp_path, capsys):
    results.keep(tmp_path / "focus-synthetic.json", "focus-synthetic", [row(), row(seed=1)])
    page = tmp_path / "pages" / "methods" / "page.md"
    page.parent.mkdir(parents=True)
    mark = "figure: ../pictures/p.svg of focus-synthetic kind=plane x=loss y=faa"
    page.write_text(f"<!-- {mark} -->\n<!-- end of figure -->\n")
    assert pages.main([str(tmp_path / "pages"), str(tmp_path)]) == 0
    text = page.read_text()
    assert "](../pictures/p.svg)" in text
    svg = (tmp_path / "pages" / "pictures" / "p.svg").read_text()
    assert pages.pictures(text, tmp_path) == {"../pictures/p.svg": svg}
    page.write_text("<!-- results: focus-synthetic layout=pie -->\n<!-- end of results -->\n")
    assert pages.main([str(tmp_path / "pages"), str(tmp_path)]) == 2
    assert "layout=grid" in capsys.readouterr().err
    for wrong in ("p.svg of focus-synthetic kind=pie", "p.png of focus-synthetic kind=plane"):
        with pytest.raises(ConfigError, match=r"FILE\.svg of PRESET"):
            pages.filled(f"<!-- figure: {wrong} -->\n<!-- end of figure -->", tmp_path)
    with pytest.raises(ConfigError, match="x=METRIC"):
        pages.filled(
            "<!-- figure: p.svg of focus-synthetic kind=plane -->\n<!-- end of figure -->", tmp_path
        )
