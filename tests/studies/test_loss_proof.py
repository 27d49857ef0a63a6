"""Proofs about losses of linear models, against a general solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import isonomy
from isonomy.metrics.requirements import read_requirement
from isonomy.runs.build import Setting, build
from isonomy.studies.loss_proof import loss_proofs


@pytest.fixture(scope="module")
def setting() -> Setting:
    return build(isonomy.make_config(data={"name": "synthetic"}, model={"name": "logistic"}))


def smallest_worst_loss(setting: Setting, by: str) -> float:
    """min_w max_z loss_z by scipy: minimise t subject to loss_z(w) <= t."""
    data = setting.federation
    at = [np.arange(data.rows(k).start, data.rows(k).stop) for k in range(len(data))]
    rows = np.concatenate(at)
    x = np.hstack([data.x[rows].numpy().astype(float), np.ones((len(rows), 1))])
    y = data.y[rows].numpy().astype(float)
    group = data.groups[rows, 0].numpy()
    client = np.repeat(np.arange(len(data)), [len(one) for one in at])
    cell = {"group": group, "client": client}[by]
    masks = [cell == z for z in np.unique(cell)]

    def losses(w):
        o = x @ w
        each = np.logaddexp(0, o) - y * o
        return np.array([each[m].mean() for m in masks])

    def slopes(w):
        p = 1 / (1 + np.exp(-x @ w))
        return np.array([x[m].T @ (p - y)[m] / m.sum() for m in masks])

    found = minimize(
        lambda v: v[-1],
        np.append(np.zeros(x.shape[1]), 1.0),
        jac=lambda v: np.append(np.zeros(x.shape[1]), 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda v: v[-1] - losses(v[:-1]),
            "jac": lambda v: np.hstack([-slopes(v[:-1]), np.ones((len(masks), 1))]),
        },
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-9},
    )
    return float(found.x[-1])


@pytest.mark.parametrize(
    ("name", "by"), [("worst_group_loss", "group"), ("worst_client_loss", "client")]
)
def test_the_bracket_contains_the_least_worst_loss(setting: Setting, name: str, by: str) -> None:
    best = smallest_worst_loss(setting, by)
    attributes = [a.name for a in setting.federation.attributes]
    below = read_requirement(f"{name} <= {best - 0.02}", attributes)
    found = loss_proofs(setting, [below])
    assert found[0].infeasible
    assert found[0].low - 1e-4 <= 0.02 <= found[0].high + 1e-4
    assert found[0].high - found[0].low < 2e-3
    above = read_requirement(f"{name} <= {best + 0.02}", attributes)
    (found_above,) = loss_proofs(setting, [above])
    assert found_above.high <= 0
    assert "Some linear model meets" in found_above.text


def test_own_models_of_clients_are_never_worse(setting: Setting) -> None:
    low = read_requirement("worst_client_loss <= 0.001", ["z"])
    shared, own = loss_proofs(setting, [low])
    assert (shared.personal, own.personal) == (False, True)
    assert own.low <= shared.high


def test_without_losses_or_a_linear_model_there_is_no_proof(setting: Setting) -> None:
    assert loss_proofs(setting, [read_requirement("accuracy >= 0.9", ["z"])]) == ()
    deep = build(isonomy.make_config(data={"name": "synthetic"}, model={"name": "mlp"}))
    assert loss_proofs(deep, [read_requirement("loss <= 0.1", ["z"])]) == ()
