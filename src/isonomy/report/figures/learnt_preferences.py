"""What methods that learn fronts learnt about preferences: sampling distributions, fusion weights.

A method stores rays of losses; the figure shows preferences, in which more share of an objective
means less of it. With two objectives, the share of the first objective is the ray's second entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from isonomy.metrics.counts import Floats
from isonomy.report import runs
from isonomy.report.figures.drawing import Kind, Plot, Views, axis_titles, colour, dash, go, safe
from isonomy.report.runs import Method
from isonomy.runs.record import Record

_POINTS = 200
_MANY_CLIENTS = 20  # the largest number of clients drawn one by one


def draw(records: list[Record]) -> Plot | None:
    """One view per method and kind: densities of sampled preferences, fusion weights."""
    views = Views()
    for method in runs.methods(records):
        facts = method.runs[0].facts
        if "preference_distributions" in facts:
            _distributions(views, method, facts["preference_distributions"])
        if "fusion_weights" in facts:
            _weights(views, method, facts["fusion_weights"])
    return views.figure()


def _distributions(views: Views, method: Method, found: dict[str, Any]) -> None:
    """Each client's density of the share of the error; with more objectives, its mean shares."""
    alpha, weight = np.array(found["alpha"]), np.array(found["weight"])  # [K, parts, m], [K, parts]
    names = _clients(method, len(alpha))
    first, *others = _objectives(method, alpha.shape[2])
    title = f"{method.title}: sampled preferences"
    if len(others) > 1:
        _mean_shares(views, title, names, (first, *others), alpha, weight)
        return
    views.view(
        title,
        **axis_titles(
            x=f"share of {safe(first)} in the preference", y="density of sampled preferences"
        ),
        **{"yaxis.rangemode": "tozero"},
    )
    share = (np.arange(_POINTS) + 0.5) / _POINTS  # the ends may be 0, or where densities jump
    for i, name in enumerate(names[:_MANY_CLIENTS]):
        density = sum(
            w * beta_density(share, a[1], a[0]) for w, a in zip(weight[i], alpha[i], strict=True)
        )
        shown = "; ".join(
            f"{', '.join(f'{v:.2f}' for v in a)}"
            + (f" (weight {w:.2f})" if len(alpha[i]) > 1 else "")
            for w, a in zip(weight[i], alpha[i], strict=True)
        )
        views.add(
            go.Scatter(
                x=share.tolist(),
                y=np.round(density, 5).tolist(),
                name=safe(name),
                mode="lines",
                line={"color": colour(i), "width": 2, "dash": dash(i)},
                hovertemplate=f"{safe(name)}<br>share %{{x:.2f}}, density %{{y:.3g}}"
                f"<br>alpha {shown}<extra></extra>",
            )
        )


def _mean_shares(
    views: Views,
    title: str,
    names: Sequence[str],
    objectives: Sequence[str],
    alpha: Floats,
    weight: Floats,
) -> None:
    """The mean share of each objective and its standard deviation, by client."""
    total = alpha.sum(-1, keepdims=True)
    part = alpha / total  # [K, parts, m]
    ray = (weight[..., None] * part).sum(1)
    second = (weight[..., None] * (part * (1 - part) / (total + 1) + part**2)).sum(1)
    scale = len(objectives) - 1
    mean, deviation = (1 - ray) / scale, np.sqrt(np.maximum(second - ray**2, 0)) / scale
    views.view(title, **axis_titles(x="client", y="mean share ± standard deviation"))
    for j, objective in enumerate(objectives):
        views.add(
            go.Scatter(
                x=[safe(name) for name in names],
                y=mean[:, j].tolist(),
                error_y={"type": "data", "array": deviation[:, j].tolist()},
                mode="markers",
                name=safe(objective),
                marker={"color": colour(j), "size": 8},
            )
        )


def _weights(views: Views, method: Method, found: dict[str, Any]) -> None:
    """The weight of each client's hypernet in the common one, stacked, over the preference."""
    rays, weights = np.array(found["rays"]), np.array(found["weights"])  # [R, m], [R, K]
    if weights.shape[1] < 2:
        return  # the hypernets were fused to one, whatever the preference
    share = (1 - rays[:, 0]) / (rays.shape[1] - 1)
    order = np.argsort(share, kind="stable")
    first = _objectives(method, rays.shape[1])[0]
    views.view(
        f"{method.title}: fusion weights",
        **axis_titles(
            x=f"share of {safe(first)} in the preference",
            y="weight of each client's hypernet",
        ),
        **{"yaxis.rangemode": "tozero"},
    )
    stacked = rays.shape[1] == 2
    for i, name in enumerate(_clients(method, weights.shape[1])):
        views.add(
            go.Scatter(
                x=share[order].tolist(),
                y=np.round(weights[order, i], 5).tolist(),
                name=safe(name) if i < _MANY_CLIENTS else None,
                showlegend=i < _MANY_CLIENTS,
                mode="lines" if stacked else "markers",
                stackgroup="weights" if stacked else None,
                line={"color": colour(i), "width": 1},
                marker={"color": colour(i), "size": 5},
                hovertemplate=f"{safe(name)}<br>share %{{x:.2f}}, weight %{{y:.3f}}<extra></extra>",
            )
        )


def beta_density(x: Floats, a: float, b: float) -> Floats:
    """The density of a Beta(a, b) distribution with a, b of at least 1.

    >>> beta_density(np.array([0.5]), 2.0, 2.0).round(6).tolist()
    [1.5]
    """
    norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return np.asarray(math.exp(norm) * x ** (a - 1) * (1 - x) ** (b - 1))


def _objectives(method: Method, count: int) -> tuple[str, ...]:
    """The names of the objectives in the method's config, or numbers."""
    given = method.runs[0].config.get("algorithm", {}).get("objectives") or ("error", "dp")
    return tuple(given) if len(given) == count else tuple(f"objective {j}" for j in range(count))


def _clients(method: Method, count: int) -> list[str]:
    at = runs.last_clients(method.runs[0])
    known = {int(k): runs.client_name(at, i) for i, k in enumerate(at.get("client", []))}
    return [known.get(k, f"client {k}") for k in range(count)]


FIGURE = Kind(
    name="preferences",
    title="Learnt preferences",
    caption=(
        "What a method that learns a front learnt about preferences. Sampled preferences: the "
        "distribution from which each client draws the preferences that it trains on, at the end "
        "of the run; a flat line is the uniform distribution. Fusion weights: how much each "
        "client's hypernet counts in the common one, by preference; if the bands have the same "
        "height everywhere, the weights do not depend on the preference. More share of an "
        "objective means less of it. If there are several seeds, the first is drawn."
    ),
    draw=draw,
)
