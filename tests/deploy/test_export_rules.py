"""A model with a rule of decisions: predicted, exported and loaded, it decides alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pacsv
import pytest
import torch

import isonomy
from isonomy.errors import DataError, RunError
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder


def write_rows(path: Path) -> Path:
    """A table of two sites whose label depends on a feature and on the group."""
    rng = np.random.default_rng(0)
    size = 1200
    sex, site = rng.integers(0, 2, size), rng.integers(0, 2, size)
    x = rng.normal(size=(size, 2)) + np.stack([1.2 * sex, site], 1)
    label = (x[:, 0] + 0.3 * x[:, 1] + rng.logistic(size=size) > 0.8).astype(int)
    lines = ["x1,x2,sex,site,hired"] + [
        f"{a:.4f},{b:.4f},{'FM'[s]},s{k},{('no', 'yes')[y]}"
        for (a, b), s, k, y in zip(x, sex, site, label, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv")


def config(table: Path) -> isonomy.Config:
    return isonomy.make_config(
        rounds=2,
        data={
            "path": str(table),
            "label": "hired",
            "positive": "yes",
            "protected": ["sex"],
            "client": "site",
        },
        model={"name": "mlp", "hidden": [4]},
        local={"epochs": 2, "batch": 64, "optimiser": "adam", "lr": 0.02},
        evaluate={"every": 2, "bootstrap": 0},
        excess={"clusters": "none"},
        engine="loop",
    )


@pytest.fixture(scope="module")
def runs(table: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    isonomy.run(config(table), place / "plain")
    for name in ("logofair", "fair_lp", "fedfact"):
        options = {"notion": "dp", "budget": 0.02, "local_budget": 0.05}
        isonomy.postprocess_run(place / "plain", place / name, name, **options)
    return {path.name: path for path in place.iterdir()}


@pytest.mark.parametrize("name", ["logofair", "fair_lp", "fedfact"])
def test_an_exported_model_decides_as_the_run_did(
    runs: dict[str, Path], table: Path, tmp_path: Path, name: str
) -> None:
    data = build(RunFolder(runs[name]).config()).federation
    record = isonomy.load(runs[name])[0]
    at = {
        who: i
        for i, (who, end) in enumerate(
            zip(record.clients["name"], record.clients["round"], strict=True)
        )
        if end == 2
    }
    for k, client in enumerate(("s0", "s1")):
        exported = isonomy.export(runs[name], tmp_path / client, client=client)
        model = isonomy.load_model(tmp_path / client)
        own = isonomy.predictor(runs[name], client)
        rows = data.rows(k, "test")
        x, groups = data.x[rows], data.groups[rows][:, 0]
        decided = own.predict(x, groups)
        assert model.predict(x, groups=groups).values == [own.labels[c] for c in decided]
        # the card's metrics, the run's, and those of these decisions are the same
        right = float((decided == data.y[rows]).double().mean())
        assert record.clients["accuracy"][at[client]] == pytest.approx(right)
        metrics = exported.card.measured[0].metrics
        assert metrics["error"] == pytest.approx(1 - right)
        gap = record.clients["group.sex.demographic_parity"][at[client]]
        assert metrics["group.sex.demographic_parity"] == pytest.approx(gap)
        # raw rows, in another order, as a file and in memory
        whole = model.predict(table)
        assert own.predict_rows(table).values == whole.values
        rows_in_memory = pacsv.read_csv(table)
        part = rows_in_memory.take(np.arange(300)[::-1])
        assert model.predict(part).values == whole.values[:300][::-1]
        assert not any("sex" in note and "not use" in note for note in whole.notes)


def test_a_new_client_uses_the_rule_of_all(
    runs: dict[str, Path], table: Path, tmp_path: Path
) -> None:
    exported = isonomy.export(runs["logofair"], tmp_path / "model")
    assert exported.card.rule is not None
    assert exported.card.rule["attribute"] == "sex"
    assert any("for a client that was not in training" in note for note in exported.card.notes)
    model, plain = isonomy.load_model(tmp_path / "model"), isonomy.predictor(runs["plain"])
    rows = pacsv.read_csv(table).to_pydict()
    found, before = model.predict(table), plain.predict_rows(table)
    np.testing.assert_array_equal(found.probabilities, before.probabilities)
    sex = np.array(rows["sex"])

    def gap(values: Any) -> float:
        yes = np.array(values) == "yes"
        return abs(float(yes[sex == "F"].mean() - yes[sex == "M"].mean()))

    assert gap(before.values) > 0.2
    assert gap(found.values) < 0.08


def test_rows_without_the_attribute_are_refused(
    runs: dict[str, Path], table: Path, tmp_path: Path
) -> None:
    isonomy.export(runs["fair_lp"], tmp_path / "model")
    model = isonomy.load_model(tmp_path / "model")
    rows = pacsv.read_csv(table).drop_columns(["sex"])
    with pytest.raises(DataError, match="has no column 'sex', but decisions of 'fair_lp' depend"):
        model.predict(rows)
    with pytest.raises(DataError, match="has no column 'sex'"):
        isonomy.predictor(runs["fair_lp"]).predict_rows(rows)
    x = torch.zeros(2, 2)
    with pytest.raises(DataError, match="an array does not name it"):
        model.predict(x)
    with pytest.raises(DataError, match="1 groups for 2 rows"):
        model.predict(x, groups=["F"])
    with pytest.raises(DataError, match="row 2: 'X' is not a group of 'sex'; give one of F, M"):
        model.predict(x, groups=["F", "X"])
    by_name, by_number = model.predict(x, groups=["F", "M"]), model.predict(x, groups=[0, 1])
    assert by_name.values == by_number.values
    with pytest.raises(DataError, match="do not depend on them"):
        isonomy.predictor(runs["plain"]).predict_rows(x, groups=[0, 1])


def test_a_graph_cannot_hold_a_rule(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"a graph \(pt2\) gives probabilities"):
        isonomy.export(runs["logofair"], tmp_path / "model", also=["pt2"])
    assert not (tmp_path / "model").exists()


def test_named_features_need_a_column_of_the_attribute(tmp_path: Path) -> None:
    """Without a preprocessing, the group is the column that has the attribute's name."""
    made = isonomy.make_config(
        rounds=1,
        data={"name": "synthetic", "examples": 600, "clients": 2, "seed": 0},
        model={"name": "mlp", "hidden": [4]},
        evaluate={"bootstrap": 0},
        excess={"clusters": "none"},
        postprocess={"name": "thresholds", "budget": 0.0},
    )
    isonomy.run(made, tmp_path / "run")
    own = isonomy.predictor(tmp_path / "run")
    data = build(made).federation
    x, groups = data.x[:50], data.groups[:50, 0]
    columns = {name: x[:, i].numpy() for i, name in enumerate(data.features)}
    columns["z"] = columns["z"].astype(np.int64)
    expected = [own.labels[c] for c in own.predict(x, groups)]
    assert own.predict_rows(columns).values == expected
