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
from isonomy.report.figures.drawing import Kind, View, drawn
from isonomy.report.runs import Method
from isonomy.report.svg import Axis, Band, Chart, Line, Points
from isonomy.runs.record import Record

_POINTS = 100
_MANY_CLIENTS = 20  # the largest number of clients drawn one by one


def draw(records: list[Record]) -> list[View]:
    """One view per method and kind: densities of sampled preferences, fusion weights."""
    views = []
    for method in runs.methods(records):
        facts = method.runs[0].facts
        if "preference_distributions" in facts:
            chart = _distributions(method, facts["preference_distributions"])
            views.append(View("sampled preferences", chart, method.title))
        if "fusion_weights" in facts:
            chart = _weights(method, facts["fusion_weights"])
            views.append(View("fusion weights", chart, method.title))
    return drawn(views)


def _distributions(method: Method, found: dict[str, Any]) -> Chart:
    """Each client's density of the share of the error; with more objectives, its mean shares."""
    alpha, weight = np.array(found["alpha"]), np.array(found["weight"])  # [K, parts, m], [K, parts]
    names = _clients(method, len(alpha))
    first, *others = _objectives(method, alpha.shape[2])
    if len(others) > 1:
        return _mean_shares(names, (first, *others), alpha, weight)
    chart = Chart(
        Axis(f"share of {first} in the preference", low=0, high=1),
        Axis("density of sampled preferences", zero=True),
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
        tip = f"{name}\nalpha {shown}"
        chart.add(Line(share.tolist(), np.asarray(density).tolist(), series=i, name=name, tip=tip))
    return chart


def _mean_shares(
    names: Sequence[str], objectives: Sequence[str], alpha: Floats, weight: Floats
) -> Chart:
    """The mean share of each objective and its standard deviation, by client."""
    total = alpha.sum(-1, keepdims=True)
    part = alpha / total  # [K, parts, m]
    ray = (weight[..., None] * part).sum(1)
    second = (weight[..., None] * (part * (1 - part) / (total + 1) + part**2)).sum(1)
    scale = len(objectives) - 1
    mean, deviation = (1 - ray) / scale, np.sqrt(np.maximum(second - ray**2, 0)) / scale
    chart = Chart(Axis(names=names), Axis("mean share", "± standard deviation"))
    for j, objective in enumerate(objectives):
        places = [k + 0.15 * (j - (len(objectives) - 1) / 2) for k in range(len(names))]
        chart.add(
            Points(
                places,
                mean[:, j].tolist(),
                series=j,
                name=objective,
                y_error=deviation[:, j].tolist(),
                tips=[f"{name}\n{objective}: {v:.3g}" for name, v in
                      zip(names, mean[:, j], strict=True)],
            )
        )  # fmt: skip
    return chart


def _weights(method: Method, found: dict[str, Any]) -> Chart:
    """The weight of each client's hypernet in the common one, stacked, over the preference."""
    rays, weights = np.array(found["rays"]), np.array(found["weights"])  # [R, m], [R, K]
    first = _objectives(method, rays.shape[1])[0]
    chart = Chart(
        Axis(f"share of {first} in the preference"),
        Axis("weight of each client's hypernet", zero=True),
    )
    if weights.shape[1] < 2:
        return chart  # the hypernets were fused to one, whatever the preference
    share = (1 - rays[:, 0]) / (rays.shape[1] - 1)
    order = np.argsort(share, kind="stable")
    xs = share[order].tolist()
    below = np.zeros(len(order))
    for i, name in enumerate(_clients(method, weights.shape[1])):
        own = weights[order, i]
        key = name if i < _MANY_CLIENTS else ""
        if rays.shape[1] == 2:
            chart.add(Band(xs, below.tolist(), (below + own).tolist(), series=i, name=key))
            chart.add(Line(xs, (below + own).tolist(), series=i, tip=name))
            below = below + own
        else:
            tips = [f"{name}\nshare {x:.2f}, weight {v:.3f}"
                    for x, v in zip(xs, own, strict=True)]  # fmt: skip
            chart.add(Points(xs, own.tolist(), series=i, name=key, tips=tips, size=3.2))
    return chart


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
