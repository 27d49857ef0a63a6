"""Runs on packed data, with states on disk and metrics of some clients."""

import pyarrow.parquet as pq
import pytest
import torch

import isonomy
from isonomy.config.schema import parse
from isonomy.core import tree
from isonomy.data.datasets import load
from isonomy.errors import ConfigError
from isonomy.runs import client_counts
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import run

BASE = {
    "rounds": 4,
    "data": {"name": "devices", "clients": 30, "largest": 60, "features": 4},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": "fmtl",
    "local": {"batch": 8},
    "cohort": {"size": 6},
    "evaluate": {"every": 2, "bootstrap": 10},
    "checkpoint": {"every": 2},
    "excess": "none",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, run(parse(BASE), folder)


def test_packed_data_and_states_on_disk_change_nothing(tmp_path, whole, monkeypatch):
    isonomy.pack(
        load("devices", clients=30, options={"largest": 60, "features": 4}), tmp_path / "d"
    )
    data = {"name": "packed", "path": str(tmp_path / "d")}
    monkeypatch.setattr(client_counts, "AT_ONCE", 7)  # evaluated in several parts
    made = run(parse({**BASE, "data": data, "engine": {"states": "disk"}}), tmp_path / "run")
    assert made.metrics == whole[1].metrics
    for name in ("rounds.jsonl", "clients.parquet"):
        assert (tmp_path / "run" / name).read_bytes() == (whole[0] / name).read_bytes()
    dense, sparse = RunFolder(whole[0]).model(), RunFolder(tmp_path / "run").model()
    assert dense.sparse is None
    assert 6 <= len(sparse.sparse.ids) < 30
    for a, b in zip(tree.leaves(dense.clients), tree.leaves(sparse.states()), strict=True):
        assert torch.equal(a, b)
    for k in range(30):
        for a, b in zip(tree.leaves(dense.state(k)), tree.leaves(sparse.state(k)), strict=True):
            assert torch.equal(a, b)
    who = int(sparse.sparse.ids[0])
    one, two = (isonomy.predictor(f, client=who) for f in (whole[0], tmp_path / "run"))
    x = torch.ones(2, 4)
    assert torch.equal(one.outputs(x), two.outputs(x))


def test_some_clients_are_evaluated(tmp_path, whole):
    given = {**BASE, "evaluate": {**BASE["evaluate"], "clients": 9}}
    made = run(parse(given), tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "clients.parquet").to_pylist()
    everyone = pq.read_table(whole[0] / "clients.parquet").to_pylist()
    assert len(table) == 2 * 9
    chosen = {row["client"] for row in table}
    assert len(chosen) == 9  # the same in both rounds
    shown = ("round", "client", "size", "accuracy", "loss")
    assert [[row[k] for k in shown] for row in table] == [
        [row[k] for k in shown] for row in everyone if row["client"] in chosen
    ]
    last = [row for row in table if row["round"] == 4]
    right = sum(row["accuracy"] * row["size"] for row in last if row["size"])
    assert made.metrics["accuracy"] == pytest.approx(right / sum(row["size"] for row in last))
    assert made.metrics["client.number"] == 9
    assert any("Metrics are those of 9 of 30 clients" in note for note in made.notes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"excess": "own"}, "excess risk is measured of all clients"),
        (
            {"algorithm": "fedavg", "privacy": {"level": "client", "epsilon": 5.0}},
            "differential privacy counts the predictions of all clients",
        ),
        ({"algorithm": "hetpfl"}, "the fronts of 'hetpfl' are measured of all clients"),
    ],
)
def test_where_all_clients_are_needed(changes, words):
    with pytest.raises(ConfigError, match=words):
        run(parse({**BASE, "evaluate": {"clients": 3}, **changes}))
