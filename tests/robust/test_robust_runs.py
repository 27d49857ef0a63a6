"""Attacks and defences from a config: results, what they say, resuming, refusals."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from isonomy import api
from isonomy.config.schema import parse
from isonomy.errors import ConfigError
from isonomy.report import page
from isonomy.report.tables import comparison, everything
from isonomy.robust import combiners
from isonomy.robust.combiners import COMBINERS
from isonomy.runs.build import build, engine_of
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, method_label, resume, run
from isonomy.studies.sweep import grid

SMALL = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 10, "examples": 600, "seed": 0},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"batch": 16, "lr": 0.1},
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "checkpoint": {"every": 1},
}


def config(**changes):
    return parse({**SMALL, **changes})


A3 = {"attack": {"name": "replacement", "fraction": 0.2, "labels": "auto"}}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robust") / "run"
    made = config(**A3, defence={"name": "krum", "expected": "attack"})
    return folder, run(made, folder)


def test_metrics_are_of_benign_clients(attacked):
    folder, record = attacked
    table = pq.read_table(folder / "clients.parquet").to_pydict()
    last = [i for i, r in enumerate(table["round"]) if r == 4]
    bad = np.array([table["malicious"][i] for i in last])
    right = np.array([table["accuracy"][i] for i in last])
    sizes = np.array([table["size"][i] for i in last])
    assert bad.sum() == 2
    assert record.metrics["client.number"] == 8
    assert record.metrics["client.accuracy.std"] == pytest.approx(right[~bad].std())
    weighted = (right * sizes)[~bad].sum() / sizes[~bad].sum()  # right ones / examples
    assert record.metrics["accuracy"] == pytest.approx(weighted)
    assert record.facts["malicious"] == np.flatnonzero(bad).tolist()


def test_every_output_says_so(attacked):
    folder, record = attacked
    summary = json.loads((folder / "summary.json").read_text())
    assert any("benign clients only: 2 of 10" in note for note in summary["notes"])
    assert any("server saw every client's update" in note for note in summary["notes"])
    table = comparison([record])
    for text in (table.text(), table.markdown(), table.latex(), table.csv()):
        assert "benign clients" in text
    assert "benign clients" in everything([record]).text()
    html = page.render([record])
    assert html.count("benign clients") >= 2
    assert record.label == "fedavg + krum (expected=attack)"


def test_rounds_tell(attacked):
    _, record = attacked
    assert all(line["attacked"] == 2 and line["combined"] == 1 for line in record.rounds)


def test_resumed_it_is_the_same(attacked, tmp_path):
    folder, record = attacked

    class Halt(Listener):
        def round(self, done, rounds, metrics):
            if done == 2:
                raise KeyboardInterrupt

    made = config(**A3, defence={"name": "krum", "expected": "attack"})
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "run", listeners=[Halt()])
    again = resume(tmp_path / "run")
    assert again.rounds == record.rounds
    assert again.notes == record.notes
    for name in ("model/model.safetensors", "clients.parquet", "rounds.jsonl", "summary.json"):
        assert (tmp_path / "run" / name).read_bytes() == (folder / name).read_bytes(), name
    assert RunFolder(tmp_path / "run").config().attack.labels == "auto"


def test_the_loop_engine_gives_the_same(attacked):
    _, record = attacked
    made = config(**A3, defence={"name": "krum", "expected": "attack"}, engine="loop")
    assert run(made).metrics["loss"] == pytest.approx(record.metrics["loss"], rel=1e-4)


def test_labels_of_malicious_clients_only():
    setting = build(config(attack={"name": "labels", "clients": [3]}))
    assert setting.malicious.tolist() == [3]
    assert setting.clean is not setting.federation
    changed = (setting.clean.y != setting.federation.y).nonzero().squeeze(-1)
    rows = setting.clean.rows(3, "train")
    assert changed.tolist() == list(range(rows.start, rows.stop))  # two classes: all are flipped
    assert build(config(attack={"name": "labels", "clients": [3]})).federation is setting.federation
    assert build(config(attack="gaussian")).federation is setting.clean
    assert build(config(attack="gaussian")).task is setting.task


@pytest.mark.parametrize("what", ["nan", "shape"])
def test_rejected_clients_are_named(what, tmp_path):
    made = config(attack={"name": "broken", "clients": [2, 7], "what": what}, rounds=2)
    record = run(made, tmp_path / "run")
    assert [set(line["rejected"]) for line in record.rounds] == [{"2", "7"}] * 2
    assert [line["answered"] for line in record.rounds] == [8, 8]
    (note,) = [n for n in record.notes if "rejected" in n]
    assert note.startswith("4 replies were rejected")
    assert "client 2, client 7" in note
    assert note in page.render([record]).replace("&#x27;", "'")
    # the same as if they had not been in the round
    setting = build(made)
    clean = [k for k in range(10) if k not in (2, 7)]
    engine = engine_of(setting)
    server = setting.algorithm.init_server(setting.task, setting.params, 10)
    for r in range(2):
        cohort = engine.cohort(torch.tensor(clean), work=made.local, round=r)
        server = setting.algorithm.round(server, cohort)
    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, value in server.params.items():
        torch.testing.assert_close(saved[f"server/params/{name}"], value, rtol=1e-5, atol=1e-6)


def test_a_defence_helps_where_the_mean_is_lost():
    """Two of ten send loud noise: the mean is lost in it, what the rules combine is not."""
    attack = {"name": "gaussian", "clients": [0, 1], "scale": 3000.0}
    equal = {"name": "fedavg", "weight": "equal"}  # these two are small
    lost = run(config(attack=attack, algorithm=equal)).metrics["loss"]
    for name in COMBINERS:
        kept = run(config(attack=attack, algorithm=equal, defence=name)).metrics["loss"]
        assert kept < 0.6 < 1.2 < lost, (name, kept, lost)


def test_an_attack_with_nothing_to_change_says_so():
    record = run(config(attack="gaussian", algorithm="local", rounds=1))
    assert any("The attack changed no reply" in note for note in record.notes)
    clean = run(config(attack={"name": "gaussian", "fraction": 0.0}, rounds=1))
    assert any("no client was malicious" in note for note in clean.notes)
    assert clean.metrics["client.number"] == 10
    assert "attack" not in comparison([clean]).csv()


def test_too_few_updates_are_told():
    made = config(defence={"name": "krum", "expected": 3}, cohort={"size": 5}, rounds=1)
    assert any("too few updates" in note for note in run(made).notes)


def test_expected_attack_is_the_number_in_the_cohort(monkeypatch):
    """Not the configured share: 3 of 10 clients attack, 5 take part, and f changes by round."""
    seen = []
    scores = combiners.krum_scores
    monkeypatch.setattr(
        combiners, "krum_scores", lambda apart, f: seen.append(f) or scores(apart, f)
    )
    attack = {"name": "gaussian", "fraction": 0.3}
    made = config(
        attack=attack, defence={"name": "krum", "expected": "attack"}, cohort={"size": 5}, rounds=8
    )
    record = run(made)
    assert seen == [line["attacked"] for line in record.rounds]
    assert len(set(seen)) > 1
    assert not any("malicious than" in note for note in record.notes)


def test_a_defence_that_expects_fewer_attackers_warns():
    told = []
    attack = {"name": "gaussian", "fraction": 0.5}
    made = config(attack=attack, defence="krum", rounds=2)
    build(made, told.append)
    assert any("'krum' expects 2 malicious clients among 10" in text for text in told)
    assert any("In 2 of 2 rounds, more of the combined" in note for note in run(made).notes)
    for enough in ({"expected": 0.5}, {"expected": 5}, {"expected": "attack"}):
        told.clear()
        build(config(attack=attack, defence={"name": "krum", **enough}), told.append)
        assert not any("expects" in text for text in told)


def test_compare_and_sweep_take_both_sections():
    base = config(
        compare={
            "methods": [
                {"algorithm": "fedavg"},
                {"algorithm": "fedavg", "defence": "median"},
                {"algorithm": "fedavg", "defence": {"name": "krum", "expected": 1}},
            ]
        }
    )
    labels = [m.label for m in api.methods(base)]
    assert labels == ["fedavg", "fedavg + median", "fedavg + krum (expected=1)"]
    found = grid(config(attack="gaussian"), ["attack.fraction=0,0.3", "defence=median,krum"])
    assert [(m.config.attack.fraction, m.config.defence.name) for m in found] == [
        (0, "median"),
        (0, "krum"),
        (0.3, "median"),
        (0.3, "krum"),
    ]
    other = api.make_config(None, "attack=gaussian", "attack.fraction=0.5", "attack=labels")
    assert (other.attack.name, other.attack.fraction) == ("labels", 0.5)
    assert method_label(config()) == "fedavg"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attack": "gausian"}, "unknown attack 'gausian'"),
        ({"attack": {"name": "none", "scale": 2}}, "attack.scale is set, but attack.name is"),
        ({"attack": {"name": "gaussian", "fraction": 1.0}}, "attack.fraction = 1.0"),
        ({"attack": {"name": "gaussian", "clients": [10]}}, "numbers from 0 to 9"),
        ({"attack": {"name": "labels", "labels": "none"}}, "attack.labels = 'none'"),
        ({"defence": "media"}, "unknown defence 'media'"),
        ({"defence": {"expected": 1, "name": "none"}}, "defence.expected is set"),
        ({"defence": "krum", "algorithm": "local"}, "'local' shares no model"),
        ({"defence": "krum", "algorithm": "term"}, "'term' weighs clients"),
        ({"defence": "krum", "algorithm": "fedeba"}, "'fedeba' weighs clients"),
        ({"defence": "krum", "algorithm": "fedfv"}, "'fedfv' combines replies itself"),
        ({"defence": {"name": "krum", "expected": "attack"}}, "no attack"),
    ],
)
def test_refusals_are_one_sentence(changes, words):
    with pytest.raises(ConfigError, match=words):
        build(config(**changes))
