from __future__ import annotations

from typing import Any

import pytest
import torch

from algorithms.by_hand import ENGINES, FEDERATION, TASK, check_weight, rounds
from isonomy.algorithms import make
from isonomy.algorithms.personal.perfedavg import PerFedAvg
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError


def test_by_hand() -> None:
    """alpha = 0.1, one full-batch step, rate 0.1: all three batches are all examples.

    Client 0 (gradient 5 w - 6, Hessian 5): u = 1.1, g = -0.5, (1 - 0.5) g = -0.25, w = 1.025.
    Client 1 (2 (w + 1), 2): u = 0.6, g = 3.2, 0.8 g = 2.56, w = 0.744. Equally 0.8845.
    First order: 1.05 and 0.68, equally 0.865.
    """
    check_weight(PerFedAvg(alpha=0.1), 0.8845, steps=1)
    check_weight(PerFedAvg(alpha=0.1, first_order=True), 0.865, steps=1)


@pytest.mark.parametrize("kind", ENGINES)
def test_the_three_batches(kind: type[Engine]) -> None:
    """Client 0 with batches of one, two steps: batches a, b; step 1 takes (a, b, a), 2 (b, a, b).

    Gradients: example 0 is 2 (w - 2), Hessian 2; example 1 is 4 (2 w - 2), Hessian 8. The order is
    the plan's, so both are worked and one has to fit; with `same` too, and the two ways differ.
    """
    grads = (lambda w: 2 * (w - 2), lambda w: 4 * (2 * w - 2))
    hessians = (2.0, 8.0)

    def worked(order: tuple[int, int], same: bool) -> float:
        w = 1.0
        for i in (0, 1):
            a, b = order[i], order[1 - i]
            inner, outer, third = (a, a, a) if same else (a, b, a)
            g = grads[outer](w - 0.05 * grads[inner](w))
            w -= 0.1 * (g - 0.05 * hessians[third] * g)
        return w

    ends = {}
    for batches in ("three", "same"):
        algorithm = PerFedAvg(alpha=0.05, batches=batches)  # type: ignore[arg-type]
        engine = kind(TASK, FEDERATION)
        params = {"weight": torch.tensor([[1.0]])}
        engine.reset(algorithm.init_client(TASK, params))
        cohort = engine.cohort(torch.tensor([0]), work=Work(epochs=1, batch=1, lr=0.1), round=0)
        got = algorithm.round(algorithm.init_server(TASK, params, 2), cohort)
        ends[batches] = got.params["weight"].item()
    for order in ((0, 1), (1, 0)):
        if ends["same"] == pytest.approx(worked(order, True), abs=1e-6):
            assert ends["three"] == pytest.approx(worked(order, False), abs=1e-6)
            break
    else:
        pytest.fail(f"{ends} fits neither order")
    assert worked((0, 1), True) != pytest.approx(worked((0, 1), False), abs=1e-3)


@pytest.mark.parametrize("kind", ENGINES)
def test_the_clients_own_step(kind: type[Engine]) -> None:
    """From w = 0.8845 with rate alpha = 0.1: 0.8845 - 0.1 (5 w - 6) and - 0.2 (w + 1)."""
    algorithm = PerFedAvg(alpha=0.1)
    server, engine = rounds(algorithm, kind, steps=1)
    work = Work(epochs=1, batch=0, lr=0.7)  # whose rate does not matter here
    algorithm.finish(server, engine.cohort(torch.arange(2), work=work, round=1))
    got = engine.states.stacked["params"]["weight"].flatten().tolist()
    assert got == pytest.approx([1.04225, 0.5076], abs=1e-6)


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"tune": -1}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} = "):
        make("perfedavg", options)
