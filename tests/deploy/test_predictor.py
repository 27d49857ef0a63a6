"""A finished run's model in use: by its clients, and by one that was never in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isonomy
from isonomy.core import tree
from isonomy.core.task import Batch
from isonomy.data.datasets.linear import parameters
from isonomy.errors import ConfigError, DataError, RunError
from isonomy.runs.build import build, engine_of
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Stopped

LINEAR: dict[str, Any] = {
    "rounds": 14,
    "data": {"name": "linear", "n": 200, "n_test": 50},
    "model": {"name": "linear"},
    "local": {"steps": 10, "batch": 0, "lr": 0.1},
    "evaluate": {"every": 14, "bootstrap": 0},
    "excess": {"clusters": "none"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in ("focus", "fedavg", "local"):
        made[name] = tmp_path_factory.mktemp("runs") / name
        isonomy.run(isonomy.make_config(**LINEAR, algorithm=name), made[name])
    return made


def examples(client: int, n: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """New examples of a client's distribution."""
    rng = np.random.default_rng(client)
    x = rng.normal(size=(n, 10))
    y = x @ parameters(10, 0)[client].numpy() + 0.1 * rng.normal(size=n)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


@pytest.mark.parametrize("name", ["focus", "fedavg", "local"])
def test_a_client_of_the_run_predicts_as_it_was_measured(runs: dict[str, Path], name: str) -> None:
    """The mean loss over every client's test rows is the one in the run's record."""
    setting = build(RunFolder(runs[name]).config())
    losses = []
    for k in (0, 9):
        at = setting.federation.rows(k, "test")
        who = setting.federation.name(k) if k else 0
        got = isonomy.predictor(runs[name], who).predict(setting.federation.x[at])
        losses.append(float((got - setting.federation.y[at]).square().mean()))
    table = isonomy.load(runs[name])[0].clients
    assert losses == pytest.approx([table["loss"][0], table["loss"][9]], rel=1e-5)
    engine_of(setting)  # the setting is the run's own


def test_a_new_client_of_focus_takes_one_e_step(runs: dict[str, Path]) -> None:
    """Its shares are softmax(-loss) of the models on its own examples; prediction mixes them."""
    for client in (0, 9):
        x, y = examples(client)
        new = isonomy.predictor(runs["focus"], examples=(x, y))
        models = new.model.server.models
        each = [new.task.outputs({k: v[m] for k, v in models.items()}, x)[:, 0] for m in (0, 1)]
        odds = np.exp([-float((out - y).square().mean()) for out in each])
        pi = odds / odds.sum()
        assert new.model.state["pi"][:2].tolist() == pytest.approx(pi.tolist(), rel=1e-4)
        assert int(pi.argmax()) == (client == 9)
        torch.testing.assert_close(new.predict(x), pi[0] * each[0] + pi[1] * each[1])


def test_a_new_client_without_what_is_needed(runs: dict[str, Path]) -> None:
    x, y = examples(0)
    new, third = isonomy.predictor(runs["fedavg"]), isonomy.predictor(runs["fedavg"], 3)
    assert torch.equal(new.predict(x), third.predict(x))
    with pytest.raises(RunError, match="needs labelled examples"):
        isonomy.predictor(runs["focus"])
    with pytest.raises(RunError, match="no model for a client that was not in training"):
        isonomy.predictor(runs["local"], examples=(x, y))
    with pytest.raises(RunError, match="Did you mean 'client 1'"):
        isonomy.predictor(runs["local"], "clent 1")
    with pytest.raises(ConfigError, match="0 to 9"):
        isonomy.predictor(runs["local"], 10)
    with pytest.raises(RunError, match="not made from tables"):
        isonomy.predictor(runs["focus"], examples="rows.csv")
    with pytest.raises(RunError, match="not a run's folder"):
        isonomy.predictor(runs["focus"].parent / "nothing")


def test_an_unfinished_run_has_no_model_yet(tmp_path: Path) -> None:
    class Impatient(isonomy.Listener):
        def round(self, done: int, rounds: int, metrics: Any) -> None:
            raise Stopped("enough", 2)

    with pytest.raises(Stopped):
        isonomy.run(isonomy.make_config(**LINEAR), tmp_path / "run", listeners=[Impatient()])
    with pytest.raises(RunError, match="unfinished"):
        isonomy.predictor(tmp_path / "run", 0)


# --- from tables ----------------------------------------------------------------------------------


def write_tables(folder: Path) -> None:
    """Six clients; the last two have the opposite labels."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for k in range(6):
        age, town = rng.normal(40, 10, 300), rng.choice(["north", "south"], 300)
        yes = (age > 40) ^ (k >= 4)
        rows = [
            f"{a:.2f},{t},{'yes' if b else 'no'}" for a, t, b in zip(age, town, yes, strict=True)
        ]
        (folder / f"site-{k}.csv").write_text("\n".join(["age,town,answer", *rows]) + "\n")


TABLES: dict[str, Any] = {
    "rounds": 12,
    "model": {"name": "logistic"},
    "algorithm": {"name": "focus"},
    "local": {"epochs": 3, "batch": 32, "lr": 0.5},
    "evaluate": {"every": 12, "bootstrap": 0},
    "excess": {"clusters": "found", "steps": 50},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder / "sites")
    data = {"path": str(folder / "sites"), "label": "answer", "positive": "yes"}
    record = isonomy.run(isonomy.make_config(**TABLES, data=data), folder / "run")
    assert record.clients["cluster"] == [0, 0, 0, 0, 1, 1]
    assert record.metrics["accuracy"] > 0.9
    (folder / "new.csv").write_text("town,age\nnorth,20\nsouth,60\n")
    (folder / "own.csv").write_text(
        "age,town,answer\n" + "\n".join(f"{a},north,{'no' if a > 40 else 'yes'}" for a in range(80))
    )
    return folder


def test_tables_in_python(tables: Path) -> None:
    """A client with the opposite labels: 20 is yes, 60 is no."""
    from isonomy.deploy.new_client import table_features as features

    usual, other = isonomy.predictor(tables / "run", "site-0"), isonomy.predictor(tables / "run", 5)
    new = isonomy.predictor(tables / "run", examples=tables / "own.csv")
    x, _ = features(new.model.preparation, tables / "new.csv")
    assert [new.labels[int(p)] for p in usual.predict(x)] == ["no", "yes"]
    assert [new.labels[int(p)] for p in other.predict(x)] == ["yes", "no"]
    assert [new.labels[int(p)] for p in new.predict(x)] == ["yes", "no"]
    shares = new.probabilities(x)
    assert shares is not None
    torch.testing.assert_close(shares.sum(1), torch.ones(2))
    assert new.model.state["pi"][1] > 0.5


def test_tables_that_are_refused(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'answer'"):
        isonomy.predictor(tables / "run", examples=tables / "new.csv")
    (tmp_path / "blank.csv").write_text("age,town,answer\n1,north,\n2,south,\n")
    with pytest.raises(DataError, match="has a label"):
        isonomy.predictor(tables / "run", examples=tmp_path / "blank.csv")
    with pytest.raises(DataError, match="folder"):
        isonomy.predictor(tables / "run", examples=tables / "sites")


# --- a new client that fits no cluster ------------------------------------------------------------


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression with two clusters, of nine clients and of one."""
    folder = tmp_path_factory.mktemp("lines") / "run"
    linear = {"name": "linear", "clients": 10, "n": 200, "n_test": 200, "sigma": 0.1}
    given: dict[str, Any] = {"rounds": 12, "data": linear, "model": {"name": "linear"}}
    given |= {"local": {"steps": 10, "batch": 0, "lr": 0.1}, "algorithm": {"name": "focus"}}
    given |= {"evaluate": {"every": 12, "bootstrap": 0}, "excess": {"clusters": "none"}}
    record = isonomy.run(isonomy.make_config(**given), folder)
    assert record.metrics["clusters"] == 2
    return folder


def examples_at(weight: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """100 examples of a line with the noise of the run."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(100, len(weight), generator=made)
    return x, x @ weight + 0.1 * torch.randn(100, generator=made)


def models_of(folder: Path) -> list[torch.Tensor]:
    """The weights of the models, without their small bias."""
    found = next(iter(isonomy.predictor(folder, 0).model.server.models.values()))
    return list(found.reshape(2, -1))


def test_a_client_that_fits_no_cluster_is_warned(lines: Path) -> None:
    first, second = models_of(lines)
    away = torch.zeros(len(first))
    away[3] = 3.0
    for weight, fits in ((first, True), (second, True), (first + away, False)):
        warned = [
            bool(isonomy.predictor(lines, examples=examples_at(weight, seed), steps=20).warnings)
            for seed in range(5)
        ]
        assert sum(warned) <= 1 if fits else all(warned)
    (text,) = isonomy.predictor(lines, examples=examples_at(first + away, 0)).warnings
    assert "fits none of the clusters" in text
    assert "would be usual for its members" in text


def test_further_e_steps_of_a_new_client(lines: Path) -> None:
    """With the squared loss of a regression, one E step decides little; twenty decide."""
    x, y = own = examples_at(models_of(lines)[0], 0)
    client = isonomy.predictor(lines, 0).model
    weight = torch.ones(len(y))
    gap = [
        float(client.task.loss(tree.take(client.server.models, m), Batch(x, y, x[:, :0], weight)))
        for m in (0, 1)
    ]
    for steps in (1, 20):
        new = isonomy.predictor(lines, examples=own, steps=steps)
        expected = 1 / (1 + np.exp(-steps * (gap[1] - gap[0])))
        assert float(new.model.state["pi"][0]) == pytest.approx(expected, abs=1e-5)
        assert bool(new.warnings) == (steps == 1)
    assert "--steps 20" in isonomy.predictor(lines, examples=own).warnings[0]
    with pytest.raises(ConfigError, match="1 or more"):
        isonomy.predictor(lines, examples=own, steps=0)


def test_a_client_of_a_cluster_is_rarely_warned() -> None:
    """The threshold's level is 1 %: members differ by factors, and their losses have errors."""
    from isonomy.algorithms.clustered.focus import Focus, Models
    from isonomy.deploy.new_client import misfit
    from isonomy.models import make_task

    rng = np.random.default_rng(0)
    federation = build(isonomy.make_config(**LINEAR)).federation
    task = make_task("linear", federation)
    zero = {name: torch.zeros(2, *p.shape) for name, p in task.init(0).items()}
    state = {"pi": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    width = federation.x.shape[1]

    def losses(n: int, shift: float = 0.0) -> torch.Tensor:
        """The targets of a client; with models of 0, its losses are their squares."""
        deviation = np.exp(rng.normal(shift, 0.2))
        return torch.from_numpy(rng.normal(0, deviation, size=n)).float()

    warned = {0.0: 0, 1.5: 0}
    for shift in warned:
        for _ in range(300):
            members = [float(losses(200).square().mean()) for _ in range(7)]
            table = {"round": [1] * 7, "cluster": [0] * 5 + [1] * 2, "loss": members}
            y = losses(100, shift)
            own = (torch.zeros(100, width), y)
            warned[shift] += bool(misfit(Focus(models=2), task, Models(zero), state, own, table))
    assert warned[0.0] <= 300 * 0.01 + 3 * np.sqrt(300 * 0.01)
    assert warned[1.5] >= 300 * 0.9
