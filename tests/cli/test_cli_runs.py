"""The verbs that run experiments: what they print, write and reuse."""

import csv
import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys

import pytest

import isonomy
from isonomy.config.overrides import merge
from isonomy.studies import reproduce


def test_run_in_its_default_folder(place, cli):
    result = cli("run", "tiny.toml", "seed=3")
    folder = place / "runs" / "synthetic-fedavg-seed3"
    assert (folder / "summary.json").exists()
    assert (folder / "report.html").exists()
    assert "fedavg, seed 3: 2 rounds" in result.stdout
    assert "  round 2/2: accuracy 0." in result.stdout
    assert "\x1b" not in result.output
    summary = json.loads((folder / "summary.json").read_text())
    assert f"{summary['metrics']['accuracy']:.3f}" in result.stdout


def test_run_under_the_configs_name_without_a_report(place, cli):
    cli("run", "tiny.toml", 'name="My run"', "rounds=1", "--no-report", "--quiet")
    folder = place / "runs" / "my-run"
    assert (folder / "summary.json").exists()
    assert not (folder / "report.html").exists()


def test_a_packaged_config_by_name(place, cli):
    cli("run", "quickstart", "rounds=1", "data=synthetic", "excess.clusters=none", "--no-report")
    text = (place / "runs" / "quickstart" / "config.toml").read_text()
    assert "rounds = 1\n" in text


def test_resume_of_a_complete_run_says_so(place, cli):
    cli("run", "tiny.toml", "--to", "out", "--no-report")
    before = {p: p.stat().st_mtime_ns for p in (place / "out").rglob("*")}
    result = cli("resume", "out")
    assert "complete; nothing to do" in result.output
    assert {p: p.stat().st_mtime_ns for p in (place / "out").rglob("*")} == before


def test_resume_and_compare_run_only_what_is_missing(place, cli):
    arguments = ("tiny.toml", "--algorithms", "fedavg,local", "--seeds", "2", "--to", "out")
    first = cli("compare", *arguments)
    assert "[4/4] local, seed 1: 2 rounds" in first.stdout
    whole = {p: p.read_bytes() for p in (place / "out").rglob("summary.json")}
    assert len(whole) == 4
    unfinished = place / "out" / "local" / "seed-1"
    (unfinished / "summary.json").unlink()
    shutil.rmtree(unfinished / "model")
    result = cli("resume", "out")
    assert result.stdout.count("continues after") == 1
    assert {p: p.read_bytes() for p in (place / "out").rglob("summary.json")} == whole
    again = cli("compare", *arguments)
    assert "seed 1:" not in again.stdout
    assert again.stdout.splitlines() == first.stdout.splitlines()[-len(again.stdout.splitlines()) :]


def test_compare_refuses_a_folder_of_another_config(place, cli, refused):
    cli("compare", "tiny.toml", "--to", "out")
    assert "--overwrite" in refused("compare", "tiny.toml", "rounds=1", "--to", "out")
    cli("compare", "tiny.toml", "rounds=1", "--to", "out", "--overwrite")


def test_compare_formats(place, cli):
    base = (
        "compare",
        "tiny.toml",
        "--algorithms",
        "fedavg,fedprox",
        "--seeds",
        "4,7",
        "--to",
        "out",
    )
    cli(*base)
    text = cli(*base).stdout
    assert "fedprox" in text
    assert "±" in text
    markdown = cli(*base, "--format", "markdown").stdout
    assert any(line.startswith("| fedavg | ") for line in markdown.splitlines())
    assert r"\begin{tabular}" in cli(*base, "--format", "latex").stdout
    columns = "accuracy,group.z.demographic_parity,client.loss.mean"
    rows = list(
        csv.DictReader(io.StringIO(cli(*base, "--format", "csv", "--columns", columns).stdout))
    )
    records = isonomy.load("out")
    assert [row["method"] for row in rows] == ["fedavg", "fedprox", "constant prediction"]
    for row in rows[:2]:
        ours = [r.metrics for r in records if r.label == row["method"]]
        for name in columns.split(","):
            assert float(row[name]) == pytest.approx(sum(m[name] for m in ours) / 2)
            assert row[f"{name} n"] == "2"
    assert (place / "out" / "report.html").exists()


def test_a_format_keeps_the_output_stream_for_the_table(place, cli):
    result = cli("compare", "tiny.toml", "--format", "csv", "--to", "out")
    assert result.stdout.startswith("method,")
    assert len(result.stdout.splitlines()) == 3  # names, FedAvg, the constant prediction
    assert "fedavg, seed 0: 2 rounds" in result.stderr


@pytest.mark.parametrize(
    ("name", "start"),
    [("t.md", "**"), ("t.tex", r"\begin"), ("t.csv", "method,"), ("t.txt", "Comp")],
)
def test_the_format_follows_from_the_name_of_the_file(place, cli, name, start):
    cli("compare", "tiny.toml", "rounds=1", "--to", "out", "--out", f"sub/{name}")
    assert (place / "sub" / name).read_text().startswith(start)


def test_compare_of_several_configs_and_their_own_methods(place, cli):
    more = '[[compare.methods]]\nlabel = "Alone"\nalgorithm = "local"\n'
    more += '[[compare.methods]]\nlabel = "Near"\nalgorithm = { name = "fedprox", mu = 1.0 }\n'
    text = (place / "tiny.toml").read_text() + "[compare]\nseeds = 2\n" + more
    (place / "own.toml").write_text(text)
    result = cli("compare", "tiny.toml", "own.toml", "rounds=1", "--seeds", "1")
    assert {r.label for r in isonomy.load("runs/tiny-own-compare")} == {"fedavg", "Alone", "Near"}
    assert "[3/3] Near, seed 0: 1 rounds" in result.stdout
    result = cli("compare", "own.toml", "rounds=1", "--algorithms", "local", "--to", "one")
    assert [r.label for r in isonomy.load("one")] == ["Alone", "Alone"]


def test_sweep(place, cli):
    cli(
        "sweep", "tiny.toml", "rounds=1", "algorithm.mu=0,1", "local.lr=0.05,0.2",
        "--algorithms", "fedprox", "--to", "out", "--format", "csv",
    )  # fmt: skip
    records = isonomy.load("out")
    found = {(r.config["algorithm"]["mu"], r.config["local"]["lr"]) for r in records}
    assert found == {(0, 0.05), (0, 0.2), (1, 0.05), (1, 0.2)}
    assert all(r.config["rounds"] == 1 for r in records)
    assert len({r.label for r in records}) == 4


def test_a_list_of_toml_is_one_value_of_a_sweep(place, cli):
    cli("sweep", "tiny.toml", "rounds=1,2", "model.hidden=[4,4]", "--to", "out")
    assert {tuple(r.config["model"]["hidden"]) for r in isonomy.load("out")} == {(4, 4)}


def test_report_on_runs_and_comparisons(place, cli):
    cli("run", "tiny.toml", "--to", "one", "--no-report")
    cli("compare", "tiny.toml", "--algorithms", "local", "--to", "many")
    result = cli("report", "one", "many", "--out", "pages/both.html")
    assert "local" in result.stdout
    assert "fedavg" in (place / "pages" / "both.html").read_text()
    cli("report", "one")
    assert (place / "one" / "report.html").exists()


# --- reproduce ---


def test_reproduce_puts_our_numbers_beside_the_papers(place, cli, monkeypatch):
    preset = reproduce.find("focus-synthetic")
    small = {"rounds": 2, "data": {"n": 20, "n_test": 20}, "excess": {"steps": 5}}
    smaller = dataclasses.replace(
        preset,
        config=merge(preset.config, small),
        scales={"quick": reproduce.Scale("quick", "One round.", 1, {"rounds": 1})},
        methods=preset.methods[:2],
    )
    monkeypatch.setattr(reproduce, "find", lambda name: smaller)
    arguments = ("reproduce", "focus-synthetic", "--json", "rows.json")
    result = cli(*arguments, "--seeds", "2")
    rows = json.loads((place / "rows.json").read_text())
    assert [(r["method"], r["setting"], r["metric"], r["paper"]) for r in rows] == [
        ("FedAvg", "equal weights", "client.loss.mean", 0.108),
        ("FedAvg", "equal weights", "faa", 0.958),
        ("FedProx", "mu = 1", "client.loss.mean", None),
        ("FedProx", "mu = 1", "faa", None),
    ]
    for row in rows:
        assert set(row) >= {"preset", "ours", "spread", "seeds", "note"}
        assert row["seeds"] == 2
        assert row["spread"] > 0
    assert "[4/4] FedProx mu = 1, seed 1: 2 rounds" in result.stdout
    assert "0.958" in result.stdout
    assert "0.046" in result.stdout
    assert "FAA: largest minus smallest excess test loss" in result.stdout
    assert "Surrogate, seed 1: Chosen by cluster: 0: " in result.stdout
    alone = cli("reproduce", "focus-synthetic", "--seeds", "2", "--only", "fedprox mu = 1")
    assert "FedProx" in alone.stdout.partition("FAA: ")[0]
    assert "FedAvg" not in alone.stdout.partition("FAA: ")[0].partition("Closed form")[0]
    quick = cli(*arguments, "--quick")
    assert (place / "runs" / "focus-synthetic-quick").exists()
    assert "Scale full: " in result.stdout
    assert "ours, scale quick" in quick.stdout
    assert "Scale quick: One round." in quick.stdout
    assert "[2/2] FedProx mu = 1, seed 0: 1 round" in quick.stdout
    assert json.loads((place / "rows.json").read_text())[0]["spread"] is None


def test_the_focus_presets_fedavg_is_near_its_closed_form():
    """With equal weights, E = 10, R = 1, r = 0: FAA is 0.8 and the mean loss 0.1."""
    preset = reproduce.find("focus-synthetic")
    values = merge(preset.config, {"rounds": 30, "evaluate": {"bootstrap": 0, "every": 50}})
    values = merge(values, {"data": {"n_test": 4000, "r": 0.0}, "excess": {"steps": 200}})
    result = isonomy.run(isonomy.make_config(**values, algorithm=preset.methods[0]["algorithm"]))
    assert result.metrics["faa"] == pytest.approx(0.8, abs=0.04)
    assert result.metrics["client.loss.mean"] == pytest.approx(0.1, abs=0.005)


def test_every_preset_is_sound():
    for preset in reproduce.presets().values():
        labels = {(m["label"], m.get("setting", "")) for m in preset.methods}
        assert len(labels) == len(preset.methods)
        for expected in preset.expected:
            assert (expected["method"], expected.get("setting", "")) in labels
            assert expected["metric"] in preset.metrics
        for scale in (None, reproduce.FULL, *preset.scales):
            assert reproduce.methods_of(preset, scale)


# --- progress ---


@pytest.mark.skipif(sys.platform == "win32", reason="no such terminals")
def test_bars_on_a_terminal(place):
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "isonomy.cli", "compare", "tiny.toml", "rounds=20"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*command, "--seeds", "2"], stdout=subprocess.PIPE, stderr=follower, env=environment
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            block = os.read(leader, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        seen += block
    os.close(leader)
    out, _ = process.communicate()
    assert process.returncode == 0
    bars = seen.decode()
    assert "\x1b[" in bars
    assert "2 runs" in bars
    assert "fedavg, seed 0" in bars
    assert "accuracy 0." in bars
    assert out.decode().startswith("Comparison of methods")  # and no progress among it


def test_quiet_means_lines_on_a_terminal_too(monkeypatch):
    from isonomy.cli.progress import Bars, Job, Lines, show_progress

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with show_progress([Job("a", 0, 1)], quiet=True) as listener:
        assert isinstance(listener, Lines)
    with show_progress([Job("a", 0, 1)]) as listener:
        assert isinstance(listener, Bars)


def test_notes_are_printed_once_each(capsys):
    from isonomy.cli.progress import Job, Lines

    lines = Lines([Job("a", 0, 1), Job("a", 1, 1)])
    for _ in range(2):
        lines.note("the same\nthing.")
    lines.note("another.")
    assert capsys.readouterr().err == "Note: the same thing.\nNote: another.\n"


def test_progress_counts_the_planned_runs(capsys):
    from isonomy.cli.progress import Job, Lines

    lines = Lines([Job("a", 0, 5), Job("a", 7, 5), Job("b", 0, 5)])
    for label, seed in (("a", 0), ("a", 7), ("b", 0), ("unplanned", 0)):
        lines.begin(label, seed, 0, 5)
    assert capsys.readouterr().out.splitlines() == [
        "[1/3] a, seed 0: 5 rounds",
        "[2/3] a, seed 7: 5 rounds",
        "[3/3] b, seed 0: 5 rounds",
        "[4/3] unplanned, seed 0: 5 rounds",
    ]
