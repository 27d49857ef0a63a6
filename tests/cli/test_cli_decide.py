"""`isonomy decide` on the command line: yes, no, and what is refused."""

from __future__ import annotations

import json

SHORT = ("--methods", "fedavg", "--trials", "1", "--jobs", "1", "--to", "out")


def test_a_yes_ends_with_0_and_a_model(cli, place):
    result = cli("decide", "tiny.toml", "--require", "accuracy >= 0.01", *SHORT)
    assert "Yes: FedAvg, trial 0" in result.output
    assert (place / "out" / "model").is_dir()
    facts = json.loads((place / "out" / "decision.json").read_text())
    assert facts["asked"]["requirements"] == ["accuracy >= 0.01"]
    assert facts["repeat"]["command"].startswith("isonomy")


def test_a_no_ends_with_3_without_a_model_and_names_the_nearest(cli, place):
    cli("decide", "tiny.toml", "--require", "accuracy >= 0.01", *SHORT)
    result = cli("decide", "tiny.toml", "--require", "accuracy >= 0.99", *SHORT, code=3)
    assert "No: none of the" in result.output
    assert "Trade-off: FedAvg" in result.output
    assert not (place / "out" / "model").exists()


def test_requirements_of_the_config_are_used_and_can_be_replaced(cli, place):
    text = (place / "tiny.toml").read_text()
    (place / "tiny.toml").write_text(text + '\n[decide]\nrequire = ["accuracy >= 0.99"]\n')
    assert "accuracy >= 0.99" in cli("decide", "tiny.toml", *SHORT, code=3).output
    cli("decide", "tiny.toml", "--require", "accuracy >= 0.01", *SHORT)


def test_mistakes_are_refused_before_anything_runs(cli, place):
    for words, message in [
        ((), "no requirement was given"),
        (("--require", "fairness <= 1"), "unknown quantity 'fairness'"),
        (("--require", "accuracy >= 0.5", "--maximise", "demographic_parity"), "use minimise"),
        (("--require", "epsilon >= 4"), "less epsilon is better"),
        (("--require", "epsilon <= 4", "--maximise", "epsilon"), "not maximised"),
        (("--require", "epsilon <= 4", "--require", "loss <= 1"), "losses have no bound"),
    ]:
        result = cli("decide", "tiny.toml", *words, *SHORT, code=2)
        assert message in result.output
    assert not (place / "out").exists()


def test_a_budget_that_is_no_time_is_refused(cli, place):
    words = ("--require", "accuracy >= 0.5", "--methods", "fedavg", "--to", "out")
    result = cli("decide", "tiny.toml", *words, "--budget", "soon", code=2)
    assert "give a time such as 90s" in result.output


def test_a_folder_with_other_files_is_refused_and_left_alone(cli, place):
    asked = ("decide", "tiny.toml", "--require", "accuracy >= 0.01", *SHORT[:-2])
    for name in ("model", "clients", "trials"):
        folder = place / "mine" / name
        folder.mkdir(parents=True)
        (folder / "table.csv").write_text("a,b")
    result = cli(*asked, "--to", "mine", code=2)
    assert "is not empty and not a decision (it holds 'clients')" in result.output
    assert "holds 'clients'" in cli(*asked, "--to", "mine", "--overwrite", code=2).output
    (place / "mine" / "clients" / "table.csv").rename(place / "mine" / "table.csv")
    (place / "mine" / "clients").rmdir()
    (place / "mine" / "table.csv").unlink()
    assert "holds 'model'" in cli(*asked, "--to", "mine", code=2).output
    assert (place / "mine" / "model" / "table.csv").read_text() == "a,b"


def test_a_file_put_beside_an_exported_model_is_not_deleted(cli, place):
    asked = ("decide", "tiny.toml", "--require", "accuracy >= 0.01", *SHORT)
    cli(*asked)
    cli(*asked)  # replaces the model
    (place / "out" / "model" / "notes.txt").write_text("mine")
    assert "'notes.txt'" in cli(*asked, code=2).output
    assert (place / "out" / "model" / "notes.txt").read_text() == "mine"
