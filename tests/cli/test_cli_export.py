"""`isonomy export` and `isonomy predict` as a user runs them."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isonomy

FRONT = """
rounds = 2
data = { name = "synthetic", examples = 300 }
model = { name = "mlp", hidden = [4] }
algorithm = { name = "hetpfl", fusion_steps = 5, preferences = 4, shown = 50, select = 5 }
local = { batch = 64, optimiser = "adam", lr = 0.01 }
evaluate = { every = 2, bootstrap = 0 }
excess = { clusters = "none" }
front = { rays = 10 }
"""


@pytest.fixture
def exported(place, cli):
    """A run on generated data, its model, and rows."""
    cli("run", "tiny.toml", "--to", "run", "--no-report")
    result = cli("export", "run", "--to", "model")
    (place / "rows.csv").write_text("z,who,x2,x1\n1,a,0.5,-2\n0,b,1.5,2\n")
    return result


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_what_export_prints(exported, place):
    assert "fedavg, seed 0: mlp, 26 parameters" in exported.stdout
    card = json.loads((place / "model" / "card.json").read_text())
    error = card["measured"][0]["metrics"]["error"]
    assert f"{error:.3f}" in exported.stdout
    assert "3 clients" in exported.stdout
    assert "model: model (card.json, model.safetensors)" in exported.stderr
    assert f"seal: {card['seal']}" in exported.stderr


def test_predictions(exported, place, cli):
    shown = cli("predict", "model", "rows.csv")
    assert "who" in shown.stderr
    got = rows(shown.stdout)
    loaded = isonomy.load_model("model").predict(np.array([[-2, 0.5, 1], [2, 1.5, 0]]))
    assert [row["prediction"] for row in got] == loaded.values
    shares = [[float(row["p(0)"]), float(row["p(1)"])] for row in got]
    np.testing.assert_allclose(shares, loaded.probabilities, rtol=1e-6)
    cli("predict", "model", "rows.csv", "--out", "out/p.csv")
    assert (place / "out" / "p.csv").read_text() == shown.stdout
    cli("predict", "model", "rows.csv", "--out", "p.parquet")
    table = pq.read_table("p.parquet")
    assert table.column_names == ["prediction", "p(0)", "p(1)"]
    assert table["prediction"].to_pylist() == loaded.values
    assert cli("predict", "run", "rows.csv").stdout == shown.stdout  # of the run itself
    seal = isonomy.load_model("model").card.seal
    assert cli("predict", "model", "rows.csv", "--seal", seal).stdout == shown.stdout


def test_on_a_front(place, cli, refused):
    (place / "front.toml").write_text(FRONT)
    (place / "rows.csv").write_text("z,x2,x1\n1,0.5,-2\n0,1.5,2\n")
    cli("run", "front.toml", "--to", "run", "--no-report")
    wanted = ("--preference", "0.7,0.3", "--client", "1", "--force")
    shown = cli("export", "run", *wanted, "--to", "a")
    assert "The model of client 1." in shown.stdout
    assert "Preference: error 0.7, dp 0.3." in shown.stdout
    file = place / "run" / "front.parquet"
    table = pq.read_table(file).to_pydict()
    table["error"] = [0.9] * len(table["error"])  # as if nothing useful had been learnt
    pq.write_table(pa.table(table), file)
    said = refused("export", "run", "--max-dp", "1", "--to", "b")
    assert "a constant prediction (error 0.429, dp.z 0.000) is at least as good" in said
    assert said == refused("predict", "run", "rows.csv", "--max-dp", "1")
    shown = cli("export", "run", "--max-dp", "1", "--constant", "--to", "b")
    assert "The prediction is constant: '1' for every row." in shown.stdout
    assert "group.z.demographic_parity_overall at most 1; it is 0.0000 on 21" in shown.stdout
    constant = isonomy.load_model("b")
    assert (constant.card.origin.limits, constant.card.origin.constant) == ({"dp": 1.0}, "1")
    assert constant.predict("rows.csv").values == ["1", "1"]
    by_run = cli("predict", "run", "rows.csv", *wanted).stdout
    assert by_run == cli("predict", "a", "rows.csv").stdout
    assert "1.1" in refused("export", "run", "--preference", "0.7,0.4", "--to", "c")
    assert "separated by commas" in refused("export", "run", "--preference", "x", "--to", "c")
    assert "NAME=VALUE" in refused("export", "run", "--at-most", "dp", "--to", "c")


def test_what_is_refused(exported, place, cli, refused):
    assert "--overwrite" in refused("export", "run", "--to", "model")
    assert "neither an exported model" in refused("predict", "run/model", "rows.csv")
    assert "--client" in refused("predict", "model", "rows.csv", "--client", "client 0")
    assert "--seal" in refused("predict", "run", "rows.csv", "--seal", "00")
    assert "Did you mean 'rows.csv'" in refused("predict", "model", "row.csv")
    (place / "few.csv").write_text("x1,x2\n1,2\n")
    assert "'z'" in refused("predict", "model", "few.csv")
    weights = place / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said = refused("predict", "model", "rows.csv")
    assert "model.safetensors'" in said
