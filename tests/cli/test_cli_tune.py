"""`isonomy tune`: what it prints and writes, and what it refuses."""

import json
import sys


def test_tune_prints_a_table_and_writes_a_config(place, cli):
    made = cli("tune", "tiny.toml", "--methods", "fedavg,fedprox", "--trials", "2", "--to", "out")
    assert "[4/4] fedprox, trial 1, seed 0: 2 rounds" in made.stdout
    assert "Tuned on validation examples: 2 trials per method, 2 rounds each" in made.stdout
    assert "isonomy compare out/tuned.toml" in made.stderr
    again = cli("tune", "tiny.toml", "--methods", "fedavg,fedprox", "--trials", "2", "--to", "out",
                "--json")  # fmt: skip
    told = json.loads(again.stdout)  # nothing is run, and nothing else is printed
    assert [row["method"] for row in told["trials"]] == ["fedavg"] * 2 + ["fedprox"] * 2
    assert told["objectives"] == ["accuracy"]
    compared = cli("compare", "out/tuned.toml", "--to", "compared")
    assert "fedprox" in compared.stdout
    cli("tune", "tiny.toml", "--methods", "fedavg", "--trials", "1", "--to", "out",
        "--format", "csv", "--out", "table.csv")  # fmt: skip
    assert (place / "table.csv").read_text().startswith("method,complete,pruned,failed")


def test_mistakes_are_one_sentence(place, refused):
    assert "unknown algorithm 'fedavgg'" in refused("tune", "tiny.toml", "--methods", "fedavgg")
    assert "Did you mean 'accuracy'" in refused("tune", "tiny.toml", "--objective", "acuracy")
    assert "is a cost of a run" in refused("tune", "tiny.toml", "--objective", "seconds")
    assert "unknown key to fix 'local.lrr'" in refused("tune", "tiny.toml", "--fix", "local.lrr")
    assert "--seeds x" in refused("tune", "tiny.toml", "--seeds", "x")
    assert "unknown format" in refused("tune", "tiny.toml", "--format", "word")
    assert "unknown metric of fedavg" in refused(
        "tune", "tiny.toml", "--objective", "group.sex.demographic_parity"
    )


def test_without_optuna_the_extra_is_named(place, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "pip install 'isonomy[tune]'" in refused("tune", "tiny.toml")


def test_a_folder_of_another_study_is_refused(place, cli, refused):
    cli("tune", "tiny.toml", "--trials", "1", "--to", "out")
    assert "holds a search with another config" in refused(
        "tune", "tiny.toml", "rounds=3", "--trials", "1", "--to", "out"
    )
    cli("tune", "tiny.toml", "rounds=1", "--trials", "1", "--to", "out", "--overwrite")


def test_show_prints_the_search_space(cli):
    text = cli("show", "fedprox").stdout
    assert "Search space of isonomy tune" in text
    for words in ("algorithm.mu", "0.001, 0.01, 0.1, 1.0", "local.lr", "0.001 to 1, logarithmic"):
        assert words in text
