"""FOCUS on rotated MNIST: the number of clusters, and the paper's numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import isonomy
from isonomy.algorithms.clustered.focus import Focus
from isonomy.core.work import Work
from isonomy.data.datasets import load
from isonomy.data.federation import Federation
from isonomy.engines.batched.engine import Batched
from isonomy.errors import FetchError
from isonomy.models import make_task
from isonomy.studies.reproduce import find, methods_of

pytestmark = pytest.mark.slow

TURNED = {
    0: {"degrees": [0.0], "counts": [10]},
    1: {"degrees": [0.0, 180.0], "counts": [9, 1]},
    3: {"degrees": [0.0, 90.0, 180.0], "counts": [7, 2, 1]},
    5: {"degrees": [0.0, 90.0, 180.0, 270.0], "counts": [5, 2, 2, 1]},
}


def rotated(outliers: int, seed: int) -> Federation:
    partition = {"name": "rotations", **TURNED[outliers]}
    try:
        return load("mnist", seed=seed, partition=partition, options={"validation": 0.0})
    except FetchError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("outliers", "clusters"), [(0, 1), (1, 2), (3, 3), (5, 4)])
def test_the_number_of_models_is_found(outliers: int, clusters: int, seed: int) -> None:
    federation = rotated(outliers, seed)
    task = make_task("mlp", federation, {"hidden": [200]})
    focus, params = Focus(), task.init(seed)
    engine = Batched(task, federation, seed=seed, chunk=4)
    engine.reset(focus.init_client(task, params))
    server: Any = focus.init_server(task, params, 10)
    work = Work(steps=10, batch=100, lr=0.1)
    for r in range(focus.warmup + 1):
        server = focus.round(server, engine.cohort(engine.everyone(), work=work, round=r))
    assert server.log_pi.shape == (10, clusters)
    assert federation.clusters is not None
    pairs = set(zip(focus.clusters(server).tolist(), federation.clusters, strict=True))
    assert len(pairs) == clusters
    assert torch.isfinite(server.log_pi).all()


def test_the_papers_numbers() -> None:
    """One seed of the preset, three outliers: FOCUS against FedAvg."""
    rotated(3, 0)
    chosen = {m.label: m.config for m in methods_of(find("focus-rotated-mnist"))}
    got = {}
    for label in ("FOCUS 3 outliers", "FedAvg 3 outliers"):
        config = chosen[label].model_copy(update={"seed": 0})
        got[label.split()[0]] = isonomy.run(config).metrics
    focus, fedavg = got["FOCUS"], got["FedAvg"]
    assert focus["client.accuracy.mean"] >= 0.950
    assert focus["client.loss.mean"] <= 0.155
    assert focus["faa"] <= min(0.094, fedavg["faa"] / 3)
    assert fedavg["client.accuracy.mean"] == pytest.approx(0.929, abs=0.01)
