"""Exported models on every data set at hand: the model in memory, and raw rows as prepared ones.

A global, a personal, a clustered, an ensemble and a preference model each. Raw rows are those of
the published file; which of them a client's test rows are is known by their features, so every
test row's probabilities must be among those that the raw file's rows get.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from raw_files import raw

import isonomy
from isonomy.errors import FetchError
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder

MODELS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "local": {},
    "focus": {"models": 2, "start": "independent"},
    "lft_ensemble": {},
    "hetpfl": {"fusion_steps": 5, "preferences": 2, "shown": 20, "select": 5},
}
BASE: dict[str, Any] = {
    "rounds": 1,
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"steps": 5, "batch": 64, "optimiser": "adam", "lr": 0.01},
    "evaluate": {"every": 1, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "front": {"rays": 5},
}
SMALL: dict[str, dict[str, Any]] = {
    "german": {"name": "german", "clients": 3, "protected": ["age"]},
    "compas-paper": {"name": "compas", "partition": "paper"},
}
LARGE: dict[str, dict[str, Any]] = {
    "adult": {"name": "adult", "clients": 3},
    "adult-paper": {"name": "adult", "partition": "paper"},
    "bank": {"name": "bank", "clients": 3},
    "bank-paper": {"name": "bank", "partition": "paper"},
    "bank_additional": {"name": "bank_additional", "clients": 3},
    "compas": {"name": "compas", "clients": 3, "protected": ["sex"]},
    "credit_card": {"name": "credit_card", "clients": 3},
    "celeba_attributes": {"name": "celeba_attributes", "clients": 3},
}


def check(data: dict[str, Any], algorithm: str, to: Path) -> None:
    """Export from a short run; compare with the run's own model, and raw rows with prepared."""
    how = {"name": algorithm, **MODELS[algorithm]}
    try:
        isonomy.run(isonomy.make_config(**BASE, data=data, algorithm=how), to / "run")
    except FetchError as error:
        pytest.skip(str(error))
    client = None if algorithm in ("fedavg", "lft_ensemble", "hetpfl") else 1
    lam = (0.7, 0.3) if algorithm == "hetpfl" else ()
    force = bool(lam)  # after so few rounds a constant prediction may be better
    isonomy.export(to / "run", to / "model", client=client, preference=lam, force=force)
    loaded = isonomy.load_model(to / "model")
    used = isonomy.predictor(to / "run", client, preference=lam, force=force)
    federation = build(RunFolder(to / "run").config()).federation
    split = "train" if data.get("partition") == "paper" and data["name"] == "adult" else "test"
    x = torch.cat([federation.x[federation.rows(k, split)] for k in range(len(federation))])
    assert torch.equal(loaded.outputs(x), used.outputs(x))
    got = loaded.predict(raw(data["name"], to))
    prepared = loaded.predict(x)
    assert got.probabilities is not None
    assert prepared.probabilities is not None
    # rounding may differ with the number of rows in a matrix product
    known = np.sort(np.unique(got.probabilities[:, 1].astype(np.float64)))
    wanted = prepared.probabilities[:, 1].astype(np.float64)
    at = np.searchsorted(known, wanted).clip(1, len(known) - 1)
    away = np.minimum(np.abs(known[at] - wanted), np.abs(known[at - 1] - wanted))
    assert away.max() < 1e-6
    counts = [values.count(loaded.labels[1]) for values in (got.values, prepared.values)]
    assert counts[0] >= counts[1]  # the file's rows include these


@pytest.mark.parametrize("algorithm", MODELS)
@pytest.mark.parametrize("name", SMALL)
def test_a_small_data_set(name: str, algorithm: str, tmp_path: Path) -> None:
    check(SMALL[name], algorithm, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", MODELS)
@pytest.mark.parametrize("name", LARGE)
def test_a_large_data_set(name: str, algorithm: str, tmp_path: Path) -> None:
    check(LARGE[name], algorithm, tmp_path)


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "focus"])
def test_images(algorithm: str, tmp_path: Path) -> None:
    """Bytes in a file, however they are shaped, and the run's own features give the same."""
    from isonomy.data.datasets import fashion_mnist
    from isonomy.data.download.fetch import fetch
    from isonomy.data.images import parse_idx, subset

    data = {"name": "fashion_mnist", "examples": 200, "clients": 3, "normalise": True}
    how = {"name": algorithm, **MODELS[algorithm]}
    model = {"name": "cnn"} if algorithm == "fedavg" else {"name": "mlp", "hidden": [8]}
    changed = {**BASE, "model": model, "local": {"steps": 1, "batch": 8, "lr": 0.1}}
    try:
        isonomy.run(isonomy.make_config(**changed, data=data, algorithm=how), tmp_path / "run")
        found = parse_idx([f.path for f in fetch(*fashion_mnist.FILES)])
    except FetchError as error:
        pytest.skip(str(error))
    client = None if algorithm == "fedavg" else 2
    isonomy.export(tmp_path / "run", tmp_path / "model", client=client, also=["pt2"])
    loaded = isonomy.load_model(tmp_path / "model")
    used = isonomy.predictor(tmp_path / "run", client)
    federation = build(RunFolder(tmp_path / "run").config()).federation
    x = federation.x
    assert torch.equal(loaded.outputs(x), used.outputs(x))
    graph = torch.export.load(tmp_path / "model" / "model.pt2").module()
    want = loaded.predict(x[:50]).probabilities
    assert want is not None
    np.testing.assert_allclose(graph(x[:50]), want, atol=1e-5)
    some = found.pixels[subset(found, 200, 0)]
    np.save(tmp_path / "a.npy", some[:, 0])
    np.savez(tmp_path / "a.npz", images=np.moveaxis(some, 1, -1))
    by_file = [loaded.predict(tmp_path / name).probabilities for name in ("a.npy", "a.npz")]
    every = loaded.predict(x).probabilities
    assert every is not None
    for shares in by_file:
        assert shares is not None
        np.testing.assert_allclose(np.sort(shares, 0), np.sort(every, 0), atol=1e-5)
    with pytest.raises(isonomy.IsonomyError, match=r"\.npy or \.npz"):
        loaded.predict(tmp_path / "a.csv")
    with pytest.raises(isonomy.IsonomyError, match=r"shape \[2, 3\].* \[n, 1, 28, 28\]"):
        loaded.predict(np.zeros((2, 3)))


def test_texts(tmp_path: Path) -> None:
    from isonomy.data.datasets import snippets
    from isonomy.data.download.fetch import fetch

    data = {"name": "snippets", "words": 100}
    try:
        isonomy.run(isonomy.make_config(**BASE, data=data, algorithm="fedavg"), tmp_path / "run")
        paths = [f.path for f in fetch(*snippets.DATASET.files)]
    except FetchError as error:
        pytest.skip(str(error))
    isonomy.export(tmp_path / "run", tmp_path / "model")
    loaded = isonomy.load_model(tmp_path / "model")
    texts = list(snippets.parse(paths).texts[:50])
    direct = loaded.predict({"text": texts})
    quoted = "\n".join('"' + text.replace('"', '""') + '"' for text in texts)
    (tmp_path / "t.csv").write_text(f"text\n{quoted}\n")
    assert loaded.predict(tmp_path / "t.csv").values == direct.values
    with pytest.raises(isonomy.IsonomyError, match="no column 'text'"):
        loaded.predict({"txt": texts})
