"""Tables nobody prepared, for tests of private preparation."""

from __future__ import annotations

from typing import Any

import numpy as np


def rows(count: int, seed: int) -> dict[str, list[Any]]:
    """Columns with gaps, rare categories and outliers; the label depends on age and job."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 80, count).astype(float)
    job = random.choice(["clerk", "driver", "nurse"], count, p=[0.5, 0.3, 0.2]).tolist()
    sex = random.choice(["f", "m"], count).tolist()
    work = [1.0 if one == "nurse" else 0.0 for one in job]
    risk = 1 / (1 + np.exp(-((age - 50) / 8 + 2 * np.array(work))))
    label = np.where(random.random(count) < risk, "yes", "no").tolist()
    income: list[Any] = (random.lognormal(8, 1, count)).tolist()
    income[0], income[1] = None, 1e12
    job[2] = f"astronaut {seed}"  # nobody else is one
    return {"age": age.tolist(), "job": job, "income": income, "sex": sex, "ill": label}


def tables(clients: int = 4, count: int = 600) -> dict[str, dict[str, list[Any]]]:
    """One table per client."""
    return {f"site {k}": rows(count, k) for k in range(clients)}
