"""An exported model is the run's model: same outputs, same metrics, and every change is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import BASE

import isonomy
from isonomy.deploy.card import CARD, WEIGHTS
from isonomy.errors import ConfigError, DataError, IsonomyError, RunError
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "local": {},
    "apfl": {},
    "finetune": {},
    "equifl": {},
    "focus": {"models": 2, "start": "independent"},
    "lft_ensemble": {},
    "hetpfl": {"fusion_steps": 10, "preferences": 4, "shown": 50, "select": 10},
    "praffl": {"preferences": 4, "select": 10},
}
OWN = ("local", "apfl", "finetune", "equifl", "focus", "praffl")  # every client has its model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, options in ALGORITHMS.items():
        made[name] = tmp_path_factory.mktemp("export") / name
        isonomy.run(isonomy.make_config(**BASE, algorithm={"name": name, **options}), made[name])
    return made


@pytest.fixture
def model(runs: dict[str, Path], tmp_path: Path) -> Path:
    isonomy.export(runs["fedavg"], tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_exported_model_is_the_one_that_was_measured(
    runs: dict[str, Path], name: str, tmp_path: Path
) -> None:
    """Outputs are the algorithm's own (`predict`), and metrics those of the record of the run."""
    data = build(RunFolder(runs[name]).config()).federation
    record = isonomy.load(runs[name])[0]
    last = max(record.clients["round"])
    for k in range(3):
        x = data.x[data.rows(k, "test")]
        isonomy.export(runs[name], tmp_path / str(k), client=k)
        loaded = isonomy.load_model(tmp_path / str(k))
        want = isonomy.predictor(runs[name], k)
        assert torch.equal(loaded.outputs(x), want.outputs(x))
        own, everyone = loaded.card.measured
        at = next(
            i
            for i, (r, c) in enumerate(
                zip(record.clients["round"], record.clients["client"], strict=True)
            )
            if r == last and c == k
        )
        assert own.clients == (f"client {k}",)
        assert own.rows == len(x) == record.clients["size"][at]
        assert own.metrics["accuracy"] == pytest.approx(record.clients["accuracy"][at], abs=1e-12)
        assert own.metrics["loss"] == pytest.approx(record.clients["loss"][at], rel=1e-5)
        assert everyone.rows == int(data.sizes("test").sum())
        assert loaded.card.origin.client == f"client {k}"


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in OWN])
def test_the_model_of_all_clients(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    isonomy.export(runs[name], tmp_path / "model")
    loaded = isonomy.load_model(tmp_path / "model")
    data = build(RunFolder(runs[name]).config()).federation
    want = isonomy.predictor(runs[name])
    assert torch.equal(loaded.outputs(data.x), want.outputs(data.x))
    assert loaded.card.origin.client is None
    (figures,) = loaded.card.measured
    metrics = isonomy.load(runs[name])[0].metrics
    if name == "hetpfl":  # the run's metrics are of clients' own models; the front has these
        return
    for key in ("accuracy", "group.z.demographic_parity", "group.z.equal_opportunity"):
        assert figures.metrics[key] == pytest.approx(metrics[key], abs=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_a_client_has_to_be_chosen(runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--client: client 0, client 1, client 2"):
        isonomy.export(runs[name], tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_an_ensemble_keeps_all_members_with_a_weight(runs: dict[str, Path], tmp_path: Path) -> None:
    isonomy.export(runs["lft_ensemble"], tmp_path / "model")
    card = json.loads((tmp_path / "model" / CARD).read_text())
    data = build(RunFolder(runs["lft_ensemble"]).config()).federation
    sizes = data.sizes("train").double()
    assert card["architecture"]["shares"] == pytest.approx((sizes / sizes.sum()).tolist())
    assert len(load_file(tmp_path / "model" / WEIGHTS)) == 3 * 4 + 1


def test_an_algorithm_that_overrides_only_predict_cannot_be_exported(runs: dict[str, Path]) -> None:
    from dataclasses import replace as changed

    class Odd(isonomy.FedAvg):  # type: ignore[name-defined,misc]
        def predict(self, task: Any, server: Any, state: Any, x: torch.Tensor) -> torch.Tensor:
            return -super().predict(task, server, state, x)

    with pytest.raises(RunError, match="overrides `predict` but not `model`"):
        changed(isonomy.predictor(runs["fedavg"], 0).model, algorithm=Odd()).weights()


# --- on a front ------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [None, "client 1"])
def test_a_preference_is_one_model(
    runs: dict[str, Path], client: str | None, tmp_path: Path
) -> None:
    """Its metrics are points of the front of the run, and its weights those of a plain network."""
    run = runs["hetpfl"]
    columns = isonomy.load(run)[0].front
    data = build(RunFolder(run).config()).federation
    for i in (0, 7, 20):
        lam = (i / 20, 1 - i / 20)
        isonomy.export(
            run, tmp_path / "m", client=client, preference=lam, force=True, overwrite=True
        )
        loaded = isonomy.load_model(tmp_path / "m")
        assert loaded.card.origin.preference == pytest.approx({"error": lam[0], "dp": lam[1]})
        assert set(load_file(tmp_path / "m" / WEIGHTS)) == {
            f"linear{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias")
        }
        want = isonomy.predictor(run, client, preference=lam, force=True)
        assert torch.equal(loaded.outputs(data.x), want.outputs(data.x))
        who = -1 if client is None else 1
        rows = zip(columns["split"], columns["client"], columns["preference.0"], strict=True)
        (at,) = [
            j
            for j, (s, k, p) in enumerate(rows)
            if s == "test" and k == who and abs(p - lam[0]) < 1e-6
        ]
        assert loaded.card.measured[0].metrics["error"] == pytest.approx(columns["error"][at])
        gap = loaded.card.measured[0].metrics["group.z.demographic_parity_overall"]
        assert gap == pytest.approx(columns["dp.z"][at])


def test_a_limit_becomes_a_preference(runs: dict[str, Path], tmp_path: Path) -> None:
    """Without a margin; with one, so few validation examples are not enough."""
    from isonomy.report import front_choice, front_parts

    run = runs["hetpfl"]
    made = isonomy.load(run)[0]
    there = front_parts.parts(made.front, "validation")[-1]
    bound = float(np.median(there.points[front_parts.undominated(there), 1]))
    isonomy.export(run, tmp_path / "m", limits={"dp": bound}, force=True)
    card = isonomy.load_model(tmp_path / "m").card
    wanted = front_choice.choose(made.front, limits={"dp": bound}, force=True)
    assert card.origin.preference is not None
    assert tuple(card.origin.preference.values()) == pytest.approx(wanted.preference)
    assert card.measured[0].metrics["error"] == pytest.approx(wanted.measured[0])
    assert card.origin.limits == {"dp": bound}
    (measured,) = card.bounds
    assert measured.metric == "group.z.demographic_parity_overall"
    assert measured.evaluated_value == pytest.approx(card.measured[0].metrics[measured.metric])
    least = float(there.points[front_parts.undominated(there), 1].min())
    with pytest.raises(RunError, match=r"with 95% confidence.*--force"):
        isonomy.export(run, tmp_path / "n", limits={"dp": least})
    with pytest.raises(ConfigError, match="dp = -1 cannot be met"):
        isonomy.export(run, tmp_path / "n", limits={"dp": -1})


@pytest.mark.parametrize(
    ("preference", "said"),
    [
        ((0.7, 0.4), r"0\.7,0\.4 sums to 1\.1, not 1; give e\.g\. 0\.636,0\.364"),
        ((0.5, 0.3, 0.2), "one number for each of error, dp"),
        ((1.0,), "one number for each of error, dp"),
        ((-0.5, 1.5), "numbers of at least 0"),
        ((float("nan"), 1.0), "numbers of at least 0"),
    ],
)
def test_preferences_that_are_refused(
    runs: dict[str, Path], preference: tuple[float, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        isonomy.export(runs["hetpfl"], tmp_path / "m", preference=preference)
    assert not list(tmp_path.iterdir())


def test_what_else_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    fed, front, to = runs["fedavg"], runs["hetpfl"], tmp_path / "m"
    refused: list[tuple[dict[str, Any], str]] = [
        ({"folder": fed, "preference": (0.5, 0.5)}, "none: the run learnt one model"),
        ({"folder": fed, "limits": {"dp": 0.1}}, "learnt one model, not a front"),
        ({"folder": fed, "client": "nobody"}, "unknown client 'nobody': use one of client 0"),
        ({"folder": fed, "client": 3}, "no client 3; give 0 to 2"),
        ({"folder": front, "limits": {"dp": 1}, "client": "x"}, "unknown client 'x'"),
        ({"folder": front, "limits": {"odd": 1}}, "unknown coordinate"),
        ({"folder": front, "limits": {"dp": 1}, "preference": (1, 0)}, "give only one of them"),
        ({"folder": runs["praffl"], "limits": {"dp": 1}}, "--client: client 0"),
        ({"folder": tmp_path}, "not a run's folder"),
        ({"folder": fed, "also": ["pickle"]}, "unknown format 'pickle'"),
    ]
    for asked, said in refused:
        with pytest.raises(IsonomyError, match=said):
            isonomy.export(to=to, **asked)
    half = tmp_path / "half"
    shutil.copytree(fed, half)
    (half / "summary.json").unlink()
    with pytest.raises(RunError, match="unfinished"):
        isonomy.export(half, to)
    broken = tmp_path / "broken"
    shutil.copytree(fed, broken)
    weights = broken / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RunError, match="its checksum does not match"):
        isonomy.export(broken, to)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken", "half"]


# --- the folder ------------------------------------------------------------------------------


def test_the_card(model: Path, runs: dict[str, Path]) -> None:
    card = isonomy.load_model(model).card
    assert card.architecture.name == "mlp"
    assert card.architecture.options == {"hidden": [4], "activation": "relu"}
    assert (card.architecture.inputs, card.architecture.outputs) == ((3,), 2)
    assert card.architecture.parameters == 3 * 4 + 4 + 4 * 2 + 2
    assert card.attributes == {"z": ("0", "1")}
    assert card.origin.algorithm == "fedavg"
    assert (card.origin.round, card.origin.seed, card.origin.clients) == (2, 1, 3)
    assert card.origin.versions["isonomy"] == isonomy.__version__
    assert card.data.name == "synthetic"
    assert sum(card.data.sizes.values()) == 600
    assert card.data.digest.startswith("blake2b:")
    assert set(card.files) == {WEIGHTS}
    again = runs["fedavg"].parent / "again"
    isonomy.export(runs["fedavg"], again)
    assert (again / CARD).read_bytes() == (model / CARD).read_bytes()  # the same, whenever


def test_a_changed_file_is_refused(model: Path, tmp_path: Path) -> None:
    whole = {path.name: path.read_bytes() for path in model.iterdir()}
    seal = isonomy.load_model(model).card.seal
    for name, content in whole.items():
        for at in (0, len(content) // 2, len(content) - 2):
            changed = bytearray(content)
            changed[at] ^= 1
            (model / name).write_bytes(changed)
            with pytest.raises(RunError, match=r"was changed|cannot be read"):
                isonomy.load_model(model)
        (model / name).unlink()
        with pytest.raises(RunError, match=r"missing|not an exported model"):
            isonomy.load_model(model)
        (model / name).write_bytes(content)
    card = json.loads(whole[CARD])
    card["measured"][0]["metrics"]["error"] = 0.0  # a lie about it
    (model / CARD).write_text(json.dumps(card))
    with pytest.raises(RunError, match="its seal does not match"):
        isonomy.load_model(model)
    (model / CARD).write_bytes(whole[CARD])
    assert isonomy.load_model(model, seal=seal).card.seal == seal
    with pytest.raises(RunError, match=f"has the seal {seal}, not the expected one"):
        isonomy.load_model(model, seal="0" * 64)


def test_weights_of_another_model_are_refused(model: Path) -> None:
    """With a new, valid seal the weights still have to fit the card."""
    from isonomy.deploy.card import read, sha256

    tensors = load_file(model / WEIGHTS)
    tensors["linear1.weight"] = torch.zeros(5, 3)
    save_file(tensors, model / WEIGHTS)
    card = json.loads((model / CARD).read_text())
    made = isonomy.deploy.card.Card.model_validate({**card, "seal": ""})  # type: ignore[attr-defined]
    (model / CARD).write_text(made.sealed({WEIGHTS: sha256(model / WEIGHTS)}).dump())
    read(model)
    with pytest.raises(RunError, match="do not fit their card"):
        isonomy.load_model(model)


def test_nothing_is_lost_or_left_half_written(
    model: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    with pytest.raises(RunError, match="--overwrite"):
        isonomy.export(runs["lft_ensemble"], model)
    from isonomy.deploy import folder

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder.cards, "sha256", full)
        with pytest.raises(RunError, match="No space left on device"):
            isonomy.export(runs["lft_ensemble"], model, overwrite=True)
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["model"]
    isonomy.export(runs["lft_ensemble"], model, overwrite=True)
    assert isonomy.load_model(model).card.origin.algorithm == "lft_ensemble"
    assert [path.name for path in model.parent.iterdir()] == ["model"]
    (model / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds a model and also 'thesis\.txt'"):
        isonomy.export(runs["fedavg"], model, overwrite=True)
    with pytest.raises(RunError, match="not an exported model"):
        isonomy.export(runs["fedavg"], runs["fedavg"], overwrite=True)


# --- predictions -----------------------------------------------------------------------------


def test_rows_in_every_form(model: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    loaded = isonomy.load_model(model)
    x = np.array([[0.5, -1.0, 1.0], [2.0, 0.25, 0.0]], dtype=np.float32)
    want = loaded.predict(x)
    assert want.values == [loaded.labels[k] for k in loaded.outputs(torch.tensor(x)).argmax(1)]
    columns = {"z": x[:, 2], "spare": ["a", "b"], "x1": x[:, 0], "x2": x[:, 1]}
    (tmp_path / "a.csv").write_text("z,spare,x1,x2\n1,a,0.5,-1\n0,b,2,0.25\n")
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "a.npz", x=x, y=x[:, 0])
    for rows in (
        tmp_path / "a.csv",
        str(tmp_path / "a.parquet"),
        tmp_path / "a.npy",
        tmp_path / "a.npz",
        torch.tensor(x),
        columns,
        pa.table(columns),
    ):
        got = loaded.predict(rows)
        assert got.values == want.values
        np.testing.assert_array_equal(got.probabilities, want.probabilities)
    assert loaded.predict(columns).notes == ("the model does not use column spare.",)
    assert want.csv().splitlines()[0] == "prediction,p(0),p(1)"
    assert len(loaded.predict({"x1": [], "x2": [], "z": []})) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x1,x2\n1,2\n", "has no column 'z'"),
        ("x1,x2,Z\n1,2,3\n", "a column 'Z'.*'z'; rename it"),
        ("x1,x2,z\n1,2,0\n1,two,0\n", "column 'x2' of .*row 2.*'two'"),
        ("x1,x2,z\n1,2,0\n1,,0\n", "column 'x2' of .* has no number in row 2"),
        ("x1,x2,z\n1,inf,0\n", "an infinite number in row 1"),
        ("", "is empty"),
    ],
)
def test_rows_that_cannot_be_predicted(model: Path, text: str, said: str) -> None:
    path = model.parent / "rows.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        isonomy.load_model(model).predict(path)


def test_arrays_that_cannot_be_predicted(model: Path, tmp_path: Path) -> None:
    loaded = isonomy.load_model(model)
    with pytest.raises(DataError, match=r"shape \[4\].*features \[n, 3\]"):
        loaded.predict(np.zeros(4))
    with pytest.raises(DataError, match=r"row 2 of the array .*not finite"):
        loaded.predict(np.array([[0, 0, 0], [0, np.nan, 0]]))
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as an array"):
        loaded.predict(tmp_path / "o.npy")
    with pytest.raises(DataError, match="rows of type int"):
        loaded.predict(3)


# --- graphs for other programs ---------------------------------------------------------------


@pytest.mark.parametrize(("name", "client"), [("fedavg", None), ("focus", 1), ("hetpfl", None)])
def test_torch_export(runs: dict[str, Path], name: str, client: int | None, tmp_path: Path) -> None:
    isonomy.export(runs[name], tmp_path / "m", client=client, also=["pt2"])
    loaded = isonomy.load_model(tmp_path / "m")
    graph = torch.export.load(tmp_path / "m" / "model.pt2").module()
    for rows in (1, 2, 77):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        np.testing.assert_allclose(graph(x), loaded.predict(x).probabilities, atol=1e-6)
    (tmp_path / "m" / "model.pt2").write_bytes(b"other")
    with pytest.raises(RunError, match=r"model\.pt2' was changed"):
        isonomy.load_model(tmp_path / "m")


@pytest.mark.parametrize(("name", "client"), [("fedavg", None), ("focus", 1), ("lft_ensemble", 0)])
def test_onnx(runs: dict[str, Path], name: str, client: int | None, tmp_path: Path) -> None:
    """Another program, onnxruntime, computes the same."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    isonomy.export(runs[name], tmp_path / "m", client=client, also=["onnx"])
    loaded = isonomy.load_model(tmp_path / "m")
    session = runtime.InferenceSession(str(tmp_path / "m" / "model.onnx"))
    for rows in (1, 2, 77):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
        (got,) = session.run(None, {"features": x})
        np.testing.assert_allclose(got, loaded.predict(x).probabilities, atol=1e-6)


def test_onnx_names_the_missing_package(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isonomy.deploy import network

    monkeypatch.setattr(network.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install 'isonomy\[onnx\]'"):
        isonomy.export(runs["fedavg"], tmp_path / "m", also=["onnx"])
