"""Export of models with every loss, of users' own networks, and without a model or the data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import BASE

import isonomy
from isonomy.deploy.card import CARD
from isonomy.errors import ConfigError, RunError


@pytest.mark.parametrize(
    ("model", "data", "loss"),
    [
        ({"name": "logistic"}, {"name": "synthetic", "examples": 300}, "logistic"),
        ({"name": "svm"}, {"name": "synthetic", "examples": 300}, "hinge"),
        ({"name": "linear"}, {"name": "linear", "n": 50, "n_test": 20}, "squared"),
    ],
)
def test_every_loss(model: dict[str, Any], data: dict[str, Any], loss: str, tmp_path: Path) -> None:
    changed = {**BASE, "model": model, "data": data, "rounds": 1}
    isonomy.run(isonomy.make_config(**changed, algorithm="fedavg"), tmp_path / "run")
    isonomy.export(tmp_path / "run", tmp_path / "m", also=["pt2"])
    loaded, used = isonomy.load_model(tmp_path / "m"), isonomy.predictor(tmp_path / "run")
    assert loaded.card.architecture.loss == loss
    inputs = loaded.card.architecture.inputs
    x = torch.randn(5, *inputs, generator=torch.Generator().manual_seed(0))
    got, want = loaded.predict(x), used.predict(x)
    graph = torch.export.load(tmp_path / "m" / "model.pt2").module()(x)
    if loss == "squared":
        np.testing.assert_allclose(got.values, want)
        np.testing.assert_allclose(graph.squeeze(-1), want, rtol=1e-6)
        assert got.csv().splitlines()[0] == "prediction"
    else:
        assert got.values == [loaded.labels[k] for k in want]
        share = used.probabilities(x)
        assert (share is None) == (loss == "hinge")
        if share is not None:
            np.testing.assert_array_equal(got.probabilities, share)
            np.testing.assert_allclose(graph, share, atol=1e-6)
        else:
            np.testing.assert_allclose(graph.squeeze(-1), got.margins, rtol=1e-5)


def test_a_users_own_network_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, inputs, outputs):\n"
        "        super().__init__()\n"
        "        self.a = torch.nn.Linear(inputs, outputs)\n"
        "        self.register_buffer('shift', torch.full((outputs,), 0.5))\n"
        "    def forward(self, x):\n"
        "        return self.a(x) + self.shift\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ISONOMY_TRUST", "own_net:Net")
    changed = {**BASE, "model": {"name": "own_net:Net"}, "rounds": 1}
    isonomy.run(
        isonomy.make_config(
            **changed, algorithm={"name": "focus", "models": 2, "start": "independent"}
        ),
        tmp_path / "run",
    )
    isonomy.export(tmp_path / "run", tmp_path / "m", client=0)
    monkeypatch.setenv("ISONOMY_TRUST", "")  # a new process, in which it was not imported
    monkeypatch.delitem(sys.modules, "own_net")
    for use in (
        lambda: isonomy.load_model(tmp_path / "m"),
        lambda: isonomy.predictor(tmp_path / "run", 0),
        lambda: isonomy.export(tmp_path / "run", tmp_path / "n", client=0),
    ):
        with pytest.raises(ConfigError, match=r"'own_net:Net'.*--trust own_net:Net"):
            use()
    loaded = isonomy.load_model(tmp_path / "m", trust=True)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.outputs(x), isonomy.predictor(tmp_path / "run", 0).outputs(x))


def test_a_withheld_model_is_exported_only_if_it_is_kept(tmp_path: Path) -> None:
    bound = {"name": "pffl", "zeta": 1e-6}
    changed = {**BASE, "model": {"name": "logistic"}, "rounds": 1}
    record = isonomy.run(isonomy.make_config(**changed, algorithm=bound), tmp_path / "run")
    assert record.verdict is not None
    assert record.verdict["status"] == "infeasible"
    with pytest.raises(RunError, match=r"has no model.*verdict is 'infeasible'.*--keep"):
        isonomy.export(tmp_path / "run", tmp_path / "m")
    isonomy.run(isonomy.make_config(**changed, algorithm=bound), tmp_path / "kept", keep=True)
    isonomy.export(tmp_path / "kept", tmp_path / "m")
    verdict = isonomy.load_model(tmp_path / "m").card.origin.verdict
    assert verdict is not None
    assert verdict == f"infeasible: {record.verdict['text']}"


def test_without_the_data_the_metrics_are_those_of_the_run(tmp_path: Path) -> None:
    """The tables of a run may change or be deleted; the card then has a note."""
    rng = np.random.default_rng(0)
    sites = tmp_path / "sites"
    sites.mkdir()
    for k in range(2):
        rows = [f"{a:.2f},{'mf'[b]},{'ny'[int(a > 0)]}" for a, b in
                zip(rng.normal(size=80), rng.integers(0, 2, 80), strict=True)]  # fmt: skip
        (sites / f"s{k}.csv").write_text("\n".join(["age,sex,answer", *rows]) + "\n")
    data = {"path": str(sites), "label": "answer", "protected": ["sex"]}
    changed = {**BASE, "data": data}
    isonomy.run(isonomy.make_config(**changed, algorithm="fedavg"), tmp_path / "run")
    isonomy.export(tmp_path / "run", tmp_path / "with")
    isonomy.export(tmp_path / "run", tmp_path / "own", client="s1")
    shutil.copy(sites / "s0.csv", sites / "s1.csv")
    isonomy.export(tmp_path / "run", tmp_path / "other")
    shutil.rmtree(sites)
    isonomy.export(tmp_path / "run", tmp_path / "without")
    isonomy.export(tmp_path / "run", tmp_path / "own-without", client="s1")
    cards = {p.name: isonomy.load_model(p).card for p in tmp_path.iterdir() if (p / CARD).exists()}
    assert cards["with"].measured[0].by == "export"
    assert "tables were changed" in cards["other"].notes[-1]
    for name in ("other", "without"):
        assert cards[name].measured[0].by == "run"
        for key, value in cards["with"].measured[0].metrics.items():
            assert cards[name].measured[0].metrics[key] == pytest.approx(value, rel=1e-5), key
    for key, value in cards["own-without"].measured[0].metrics.items():
        assert cards["own"].measured[0].metrics[key] == pytest.approx(value, rel=1e-5), key
    assert str(tmp_path) not in cards["with"].dump()  # where tables lie is nobody's business
    got = isonomy.load_model(tmp_path / "without").predict({"age": [3.0, -3.0], "sex": ["m", "f"]})
    assert len(got) == 2
