"""Linear programs, solved with HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def mixture(gain: Tensor, keep: Tensor) -> Tensor | None:
    """The point a of the simplex that maximises gain' a subject to keep @ a >= 0.

    `keep` is [constraints, len(gain)]. Returns None if there is no such point.

    >>> mixture(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, -1.0]])).tolist()
    [0.5, 0.5]
    """
    size = len(gain)
    below = None if len(keep) == 0 else -_scaled(keep)
    right = None if below is None else np.zeros(len(below))
    found = _solved(
        -_scaled(gain.unsqueeze(0))[0],
        A_ub=below,
        b_ub=right,
        A_eq=np.ones((1, size)),
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * size,
    )
    return _point(found)


def worst(gain: Tensor, mass: Tensor, most: float) -> Tensor | None:
    """The weights a in [0, most] that maximise gain' a subject to mass' a = sum of mass.

    Returns None if the solver finds no solution.
    """
    found = _solved(
        -_scaled(gain.unsqueeze(0))[0],
        A_eq=_scaled(mass.unsqueeze(0)),
        b_eq=[float(_scaled(mass.unsqueeze(0)).sum())],
        bounds=[(0.0, most)] * len(gain),
    )
    return _point(found)


def game(payoffs: Tensor) -> tuple[float, Tensor]:
    """The value of a matrix game and the best mixture of its columns, against the worst row.

    The mixture maximises min_s payoffs[s] @ a over the simplex.

    >>> game(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    (0.5, tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    at = payoffs.to(torch.float64)
    scale = float(at.abs().max()) or 1.0
    rows, size = (at / scale).numpy(), at.shape[1]
    found = _solved(
        np.append(np.zeros(size), -1.0),
        A_ub=np.hstack([-rows, np.ones((len(rows), 1))]),
        b_ub=np.zeros(len(rows)),
        A_eq=np.append(np.ones(size), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * size + [(None, None)],
    )
    mix = torch.from_numpy(np.clip(np.asarray(found.x[:-1], dtype=np.float64), 0, None))
    mix = mix / mix.sum()
    return float((at @ mix).min()), mix


def _scaled(rows: Tensor) -> NDArray[np.float64]:
    """Each row divided by its largest entry, because the solver's tolerances are absolute."""
    at = rows.to(torch.float64)
    top = at.abs().amax(1, keepdim=True)
    return np.asarray((at / torch.where(top > 0, top, 1.0)).numpy())


def _point(found: object) -> Tensor | None:
    x = getattr(found, "x", None)
    return None if x is None else torch.from_numpy(np.asarray(x, dtype=np.float64))


def _solved(cost: NDArray[np.float64], **constraints: Any) -> Any:
    from scipy.optimize import linprog  # takes half a second, so import it only here

    return linprog(cost, method="highs", **constraints)
