"""Numbers that presets name: of the verdict, and means over rounds of what a method recorded."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from isonomy import api
from isonomy.config.schema import parse
from isonomy.runs.build import malicious_clients
from isonomy.runs.record import Record
from isonomy.studies.numbers import number
from isonomy.studies.reproduce import _read, find, reproduce
from isonomy.studies.results import rows_of, tables

TEXT = """
[preset]
title = "t"
paper = "p"
text = "x"
seeds = 1
metrics = ["accuracy"]
also = ["rounds.trusted", "rounds.chosen", "rounds.chosen.malicious"]

[config]
rounds = 4
data = { name = "synthetic", clients = 12 }
model = "logistic"
cohort = { size = 6 }
evaluate = { every = 4, bootstrap = 0 }
excess = { clusters = "none" }
front = { rays = 0 }

[[settings]]
name = "benign"
attack = { name = "foe", fraction = 0.0 }

[[settings]]
name = "flipped"
attack = { name = "f_flip", fraction = 0.4 }

[[methods]]
label = "FedAvg"
algorithm = "fedavg"

[[methods]]
label = "GuardFed"
algorithm = { name = "guardfed", tau = 5.0, gamma = 0.3 }
server_data = { share = 0.1 }
"""


def made(rounds: list[dict[str, Any]], clients: dict[str, list[Any]] | None = None) -> Record:
    lines = [{"round": i + 1, "recorded": entry} for i, entry in enumerate(rounds)]
    return Record("m", 0, {}, [*lines, {"round": 9}], clients or {}, {"accuracy": 0.5})


def test_means_over_rounds_by_hand() -> None:
    """Clients 1 and 3 are malicious; the last round recorded nothing."""
    clients = {"client": [0, 1, 2, 3], "malicious": [False, True, False, True]}
    rounds: list[dict[str, Any]] = [
        {"n": 2.0, "word": "a", "kept": {"0": 1.0, "1": 0.0}},
        {"n": 4.0, "word": "b", "kept": {"1": 1.0, "3": 1.0}},
        {"n": None, "word": "b", "kept": {"2": None, "0": 0.0}},
    ]
    record = made(rounds, clients)
    assert number(record, "rounds.n") == 3.0
    assert number(record, "rounds.kept") == pytest.approx(3 / 5)
    assert number(record, "rounds.kept.malicious") == pytest.approx(2 / 3)
    for name in ("n.malicious", "word", "kept.benign", "nothing", "nothing.malicious"):
        assert number(record, f"rounds.{name}") is None
    assert number(record, "accuracy") == 0.5
    # without an attack, or if a client was not evaluated, it is not known who is malicious
    assert number(made(rounds), "rounds.kept.malicious") is None
    few = {"client": [0, 1], "malicious": [False, True]}
    assert number(made(rounds, few), "rounds.kept.malicious") is None
    honest = {**clients, "malicious": [False] * 4}
    assert number(made(rounds, honest), "rounds.kept.malicious") is None


def test_who_is_trusted_by_guardfed(tmp_path: Path) -> None:
    """The kept numbers are those that each round's trust gives."""
    preset = _read("made", TEXT)
    assert preset is not None
    printed = reproduce(preset, tmp_path)
    assert {row["metric"] for row in printed} == {"accuracy"}
    records = api.load(tmp_path)
    rows = {(r["method"], r["setting"]): r["metrics"] for r in rows_of(preset, "full", records)}
    for setting in ("benign", "flipped"):
        assert rows["FedAvg", setting]["rounds.trusted"] is None
        (record,) = [r for r in records if r.label == f"GuardFed {setting}"]
        trust = [line["recorded"]["trust"] for line in record.rounds]
        assert len(trust) == 4
        counts = [sum(at > 0.3 for at in one.values()) for one in trust]
        got = rows["GuardFed", setting]
        assert got["rounds.trusted"] == pytest.approx(fmean(counts))
        assert got["rounds.chosen"] == pytest.approx(fmean(counts) / 6, rel=1e-5)
        bad = {str(k) for k in malicious_clients(parse(record.config), 12).tolist()}
        assert len(bad) == (0 if setting == "benign" else 5)
        of_bad = [at > 0.3 for one in trust for k, at in one.items() if k in bad]
        share = fmean(of_bad) if of_bad else None
        assert got["rounds.chosen.malicious"] == (share and pytest.approx(share, rel=1e-5))
    of_all = rows["GuardFed", "flipped"]["rounds.chosen"]
    assert 0 < of_all < 1
    assert rows["GuardFed", "flipped"]["rounds.chosen.malicious"] != of_all


def test_further_metrics_are_in_tables_that_name_them() -> None:
    preset = find("guardfed-adult")
    names = ["rounds.trusted", "rounds.chosen.malicious"]
    assert preset.also == tuple(names)
    row = {
        "method": "GuardFed",
        "setting": "FOE",
        "seed": 0,
        "metrics": {"accuracy": 0.8, "rounds.trusted": 7.1, "rounds.chosen.malicious": 0.25},
        "verdict": None,
        "complete": True,
    }
    assert "mean over rounds" not in tables.table(preset, [row]).markdown()
    table = tables.table(preset, [row], names=names).markdown()
    assert "chosen, malicious clients (mean over rounds), ours" in table
    assert "| GuardFed | FOE | 7.100 | 0.250 | 1 |" in table
