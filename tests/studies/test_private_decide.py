"""Decisions with a bound on epsilon: what is released, counted, repeated and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import isonomy
from isonomy.cli import app
from isonomy.config.schema import parse
from isonomy.core.examples import Attribute
from isonomy.errors import ConfigError, RunError
from isonomy.metrics.scores import Scores
from isonomy.postprocess import fit
from isonomy.runs.build import build
from isonomy.studies.private_decide import bound_of, projected, spread, training_of
from privacy.private_tables import tables

BASE: dict[str, Any] = {
    "model": {"name": "logistic"},
    "rounds": 4,
    "local": {"steps": 5, "batch": 400, "lr": 0.5},
    "privacy": {"batches": "passes", "accountant": "rdp"},
}


@pytest.fixture(scope="module")
def sites() -> Any:
    frames = {name: pd.DataFrame(table) for name, table in tables(3, 3000).items()}
    return isonomy.federation(frames, label="ill", positive="yes", protected=["sex"])


def asked(sites: Any, folder: Path, *require: str, **options: Any) -> Any:
    privacy = options.pop("privacy", {})
    config = parse({**BASE, "privacy": BASE["privacy"] | privacy})
    given = {"methods": ["fedavg", "fedeba"], "trials": 1, **options}
    return isonomy.decide(config, folder, require=[*require, "epsilon <= 4"], data=sites, **given)


@pytest.fixture(scope="module")
def decided(sites, tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("decided")
    return asked(sites, folder / "one", "accuracy >= 0.6", "demographic_parity(sex) <= 0.3")


def test_a_model_is_found_within_the_bound(decided):
    facts = decided.facts
    found = facts["privacy"]
    assert decided.outcome == "met", decided.text()
    assert 3.5 < found["epsilon"] <= 4.0
    assert found["status"] == "met"
    assert found["level"] == "example"
    phases = [one["phase"] for one in found["releases"]]
    assert phases == [
        "preprocessing:values_held",
        "preprocessing:histograms",
        "preprocessing:moments",
        "training",
        "counts:validation",
        "scores:validation",
        "counts:validation",
        "counts:validation",
        "counts:validation",
        "counts:test",
    ]
    assert "needs the examples themselves" in facts["left_out"]["FedEBA"]
    assert not facts["proved"]
    assert any("epsilon <= 4: met" in line for line in decided.lines)
    page = (decided.folder / "decision.html").read_text()
    assert "Differential privacy" in page
    assert "predictions on validation examples" in page
    assert (decided.folder / "noise.key").stat().st_mode & 0o777 == 0o600
    assert decided.model is not None
    card = json.loads((decided.model / "card.json").read_text())
    assert card["measured"] == []  # export measures nothing without noise


def test_counts_have_noise_and_the_trials_ledger_agrees(decided):
    """No count of the decision is a whole number, and no metric was measured without noise."""
    for one in decided.selection.judged:
        cells = one.candidate.counts.counts
        assert (cells != np.rint(cells)).mean() > 0.99
    folders = sorted((decided.folder / "trials").glob("*/*/privacy.json"))
    ledgers = [json.loads(path.read_text()) for path in folders]
    assert len(ledgers) == 1
    assert not ledgers[0]["not_covered"]
    assert ledgers[0]["epsilon"] == pytest.approx(
        decided.facts["privacy"]["by_split"]["train"], rel=1e-3
    )
    lines = (folders[0].parent / "rounds.jsonl").read_text()
    assert "metrics" not in lines


def test_the_same_command_releases_nothing_new_and_another_is_refused(decided, sites):
    before = json.loads((decided.folder / "decision.json").read_text())
    again = asked(sites, decided.folder, "accuracy >= 0.6", "demographic_parity(sex) <= 0.3")
    for key in ("answers", "privacy", "candidates", "by_group"):
        assert again.facts[key] == before[key]
    with pytest.raises(RunError, match="other settings"):
        asked(sites, decided.folder, "accuracy >= 0.7")
    key = decided.folder / "noise.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(RunError, match="released again with other noise"):
        asked(sites, decided.folder, "accuracy >= 0.6", "demographic_parity(sex) <= 0.3")
    key.write_bytes(kept)


def test_with_few_clients_level_client_is_refused_before_training(sites, tmp_path):
    with pytest.raises(ConfigError, match="with 3 clients; with so few, protect examples"):
        asked(sites, tmp_path / "no", "accuracy >= 0.6", privacy=_client())
    assert not (tmp_path / "no").exists()
    with pytest.raises(ConfigError, match="fact about one client"):
        asked(sites, tmp_path / "no", "worst_client_accuracy >= 0.1", privacy=_client())


def _client() -> dict[str, Any]:
    known = {"ill": ["no", "yes"], "sex": ["f", "m"], "job": ["clerk", "driver", "nurse"]}
    ranges = {"age": [18.0, 80.0], "income": [0.0, 20_000.0]}
    return {"level": "client", "clip": 1.0, "categories": known, "ranges": ranges}


def test_level_client_with_many_clients(tmp_path):
    """No count of a single client is shown, and all splits of a client count together."""
    config = parse(
        {
            **BASE,
            "data": {"name": "synthetic", "clients": 150, "partition": "iid"},
            "privacy": {"level": "client", "clip": 0.5, "counted": 10, "seed": 1},
        }
    )
    found = isonomy.decide(
        config, tmp_path / "many", require=["epsilon <= 8"], methods=["fedavg"], trials=1
    )
    privacy = found.facts["privacy"]
    assert privacy["by_split"].keys() == {"all"}
    assert privacy["epsilon"] <= 8.0
    assert all(len(one.candidate.counts) == 1 for one in found.selection.judged)
    assert not found.facts["by_client"]
    assert found.facts["data"]["sizes"] is None
    assert "numbers of examples are not shown" in (found.folder / "decision.html").read_text()


@pytest.mark.parametrize(
    ("privacy", "text"),
    [
        ({"allow": ["evaluation"]}, "has no epsilon"),
        ({"noise": 1.0}, "decides the noise"),
        ({"epsilon": 2.0}, "differ"),
    ],
)
def test_contradictions_are_refused(sites, tmp_path, privacy, text):
    with pytest.raises(ConfigError, match=text):
        asked(sites, tmp_path / "no", "accuracy >= 0.5", privacy={"level": "example", **privacy})


def test_bounds_are_read():
    assert bound_of(["epsilon ≤ 2.5"]) == (2.5, [])
    assert bound_of(["accuracy >= 0.5"]) == (None, ["accuracy >= 0.5"])
    for text, why in (("epsilon <= 0", "above 0"), ("epsilon < 4", "write epsilon <= 4")):
        with pytest.raises(ConfigError, match=why):
            bound_of([text])


def test_a_model_of_every_client_is_exported_without_metrics(sites, tmp_path):
    found = asked(sites, tmp_path / "own", "accuracy >= 0.6", methods=["local"])
    assert found.outcome == "met", found.text()
    cards = [json.loads(path.read_text()) for path in found.model.glob("*/card.json")]
    assert [card["measured"] for card in cards] == [[], [], []]


def test_what_a_training_releases_is_what_its_ledger_counts(tmp_path):
    """The plan's events are those that a run's own ledger has at the end."""
    from isonomy import api
    from isonomy.privacy.example_ledger import ExampleLedger
    from isonomy.runs.folder import RunFolder

    config = parse(
        {
            **BASE,
            "data": {"name": "synthetic", "clients": 4},
            "cohort": {"size": 3},
            "privacy": {"level": "example", "clip": 1.0, "noise": 2.0, "evaluate": "never"},
        }
    )
    setting = build(config)
    api.run(config, tmp_path / "run")
    kept = RunFolder(tmp_path / "run").newest()
    assert kept is not None
    assert setting.privacy is not None
    ledger = ExampleLedger(
        setting.privacy, setting.federation.sizes(), calls=1, batches="poisson", still=frozenset()
    )
    ledger.restore(kept.extra["privacy"])
    assert ledger.events == list(training_of(setting)(2.0))


def test_rules_are_fitted_to_noisy_scores_as_to_exact_ones():
    """A projected histogram adds up, and gives nearly the same rule as without noise."""
    random, sex = np.random.default_rng(0), Attribute("sex", ("f", "m"))
    cells, noisy = np.zeros((3, 2, 1000)), np.zeros((3, 2, 1000))
    for g, shift in ((1, -0.1), (2, 0.1)):
        for y in (0, 1):
            score = random.beta(3 + 4 * y, 7 - 4 * y, 4000) + shift
            cells[g, y] = np.histogram(score.clip(0, 1), 1000, (0, 1))[0]
            coarse = cells[g, y].reshape(40, 25).sum(1) + 12 * random.standard_normal(40)
            found = projected(coarse, 4000.0)
            assert found.sum() == pytest.approx(4000)
            assert found.min() >= 0
            noisy[g, y] = spread(found, 1000)
            assert noisy[g, y].sum() == 4000
    both = []
    for one in (cells, noisy):
        whole = np.rint(one).astype(np.int64)
        whole[0] = whole[1:].sum(0)
        rule = fit("thresholds", Scores(whole[None], (sex,)), attribute="sex", notion="dp",
                   budget=0.05)  # fmt: skip
        exact = np.rint(cells).astype(np.int64)
        exact[0] = exact[1:].sum(0)
        found = rule.counts(Scores(exact[None], (sex,)))[0]
        rates = found[1:, :, 1].sum(-1) / found[1:].sum((-1, -2))
        both.append(abs(rates[0] - rates[1]))
    assert both[0] <= 0.051
    assert both[1] <= 0.08


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    for name, table in tables(2, 2500).items():
        pd.DataFrame(table).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    (tmp_path / "mine.toml").write_text(
        'rounds = 3\ndata = { path = "sites", label = "ill", positive = "yes", '
        'protected = ["sex"] }\nmodel = { name = "logistic" }\n'
        "local = { steps = 5, batch = 400, lr = 0.5 }\n"
        'privacy = { batches = "passes", accountant = "rdp" }\n'
    )
    words = ["decide", "mine.toml", "--require", "accuracy >= 0.55", "--require", "epsilon <= 4"]
    words += ["--methods", "fedavg", "--to", "out", "--jobs", "1", "--quiet"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "epsilon <= 4: met" in done.output
    assert "Yes: FedAvg" in done.output
    facts = json.loads((tmp_path / "out" / "decision.json").read_text())
    assert facts["asked"]["epsilon"] == "epsilon <= 4"
    assert facts["passes"] == 1
