"""Suggesting zeta: the least worst-group loss against scipy, and its proof."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from isonomy import make_config, suggest
from isonomy.config.schema import Config
from isonomy.errors import ConfigError
from isonomy.runs.build import build
from isonomy.studies.suggest_zeta import ZetaSuggestion


def small(**changes: object) -> Config:
    """Four clients with groups that want different models."""
    values = {
        "data": {"name": "synthetic", "clients": 4, "examples": 800, "keep_protected": False},
        "model": {"name": "logistic"},
        "algorithm": {"name": "pffl"},
        "rounds": 10,
        "local": {"steps": 4, "batch": 0, "lr": 0.1},
    }
    return make_config(**(values | changes))


class Exact:
    """The same problem in numpy, solved by scipy: groups' losses and the risk."""

    def __init__(self, config: Config) -> None:
        made = build(config).federation
        ranges = made.ranges[:, 0].tolist()
        rows = np.concatenate([np.arange(a, b) for a, b in ranges])
        self.x = np.hstack([made.x.numpy().astype(float), np.ones((len(made.y), 1))])[rows]
        self.y = made.y.numpy()[rows]
        columns = made.groups.numpy()[rows].T
        self.cells = [c == g for c in columns for g in range(int(c.max()) + 1)]
        self.share = np.concatenate([np.full(b - a, 1 / (b - a) / len(ranges)) for a, b in ranges])

    def losses(self, w: np.ndarray) -> np.ndarray:
        o = self.x @ w
        out: np.ndarray = np.logaddexp(0, o) - self.y * o
        return out

    def gradient(self, w: np.ndarray, weight: np.ndarray) -> np.ndarray:
        out: np.ndarray = self.x.T @ (weight * (1 / (1 + np.exp(-self.x @ w)) - self.y))
        return out

    def worst(self, w: np.ndarray) -> float:
        return float(max(self.losses(w)[c].mean() for c in self.cells))

    def fairest(self) -> float:
        """min t subject to loss_z(w) <= t."""
        size = self.x.shape[1]
        over = [
            {
                "type": "ineq",
                "fun": lambda v, c=c: v[-1] - self.losses(v[:-1])[c].mean(),
                "jac": lambda v, c=c: np.append(-self.gradient(v[:-1], c / c.sum()), 1.0),
            }
            for c in self.cells
        ]
        found = minimize(
            lambda v: v[-1],
            np.append(np.zeros(size), 1.0),
            jac=lambda v: np.append(np.zeros(size), 1.0),
            constraints=over,
            method="SLSQP",
            options={"ftol": 1e-10, "maxiter": 500},
        )
        return self.worst(found.x[:-1])

    def free(self) -> tuple[float, float]:
        """The least risk, and the worst loss of that model."""
        found = minimize(
            lambda w: self.share @ self.losses(w),
            np.zeros(self.x.shape[1]),
            jac=lambda w: self.gradient(w, self.share),
            method="BFGS",
            options={"gtol": 1e-8},
        )
        return float(found.fun), self.worst(found.x)


def agrees(config: Config, found: ZetaSuggestion) -> None:
    """The range is that of scipy, and the proof is below the value by little."""
    exact = Exact(config)
    least, (risk, worst) = exact.fairest(), exact.free()
    assert found.least == pytest.approx(least, abs=5e-4)
    assert found.proved is not None
    assert found.least - 1e-3 < found.proved <= least + 1e-7
    assert found.unconstrained == pytest.approx(worst, abs=1e-5)
    assert found.free_risk == pytest.approx(risk, abs=1e-6)
    assert max(found.fair.values()) == found.least < found.zeta < found.unconstrained


@pytest.mark.parametrize("engine", ["batched", "loop"])
def test_the_range_is_that_of_scipy(engine: str) -> None:
    config = small(engine=engine)
    found = suggest(config)
    assert isinstance(found, ZetaSuggestion)
    agrees(config, found)
    assert "infeasible (proved)" in found.text()
    json.dumps(found.plain())


@pytest.mark.slow
def test_compas() -> None:
    """The setting of preset pffl-compas: no logistic model has a worst group loss below .610."""
    config = make_config(
        data={
            "name": "compas", "clients": 20, "rows": "all", "protected": ["sex"], "races": "all",
            "age_cat": True, "fractions": [0.7, 0.0, 0.3],
            "partition": {"name": "dirichlet", "beta": 0.5},
        },
        model={"name": "logistic"},
        algorithm={"name": "pffl"},
    )  # fmt: skip
    found = suggest(config)
    assert isinstance(found, ZetaSuggestion)
    agrees(config, found)
    assert found.least == pytest.approx(0.610, abs=0.005)


def test_bounds_by_label() -> None:
    """Cells of cbgl: only labels with a finite bound."""
    found = suggest(
        small(algorithm={"name": "pffl", "constraint": "cbgl", "zetas": [float("inf"), 0.5]})
    )
    assert isinstance(found, ZetaSuggestion)
    assert len(found.fair) == 2
    assert all("label" in name for name in found.fair)


def test_a_network_is_measured_by_training() -> None:
    config = small(model={"name": "mlp", "hidden": [4]})
    found = suggest(config, "zeta")
    assert isinstance(found, ZetaSuggestion)
    assert found.proved is None
    assert found.least <= found.unconstrained
    assert "not a proof" in found.text()


def test_the_option_follows_from_the_algorithm() -> None:
    """Without one that has such an option, the user has to say which."""
    with pytest.raises(ConfigError, match="--for lam"):
        suggest(small(algorithm={"name": "fedavg"}))
    with pytest.raises(ConfigError, match="unknown option to suggest 'eta'"):
        suggest(small(), "eta")
    with pytest.raises(ConfigError, match="within each client"):
        suggest(small(algorithm={"name": "local_bgl"}), "zeta")
    with pytest.raises(ConfigError, match="no protected attribute"):
        suggest(small(data="points", model="linear", algorithm={"name": "fedavg"}), "zeta")
