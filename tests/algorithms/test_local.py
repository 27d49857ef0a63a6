from __future__ import annotations

import pytest
import torch

from algorithms.by_hand import ENGINES, TASK, rounds
from isonomy.algorithms.personal.local import Local
from isonomy.engines.base import Engine


@pytest.mark.parametrize("kind", ENGINES)
def test_by_hand(kind: type[Engine]) -> None:
    """Gradients of `by_hand`, 5 w - 6 and 2 (w + 1), rate 0.1, each client from its own weight.

    After two steps 1.15 and 0.28, after two more: client 0 by v <- 0.5 v + 0.6 to 1.175, 1.1875;
    client 1 by v <- 0.8 v - 0.2 to 0.024, -0.1808. Four client rounds in all.
    """
    server, engine = rounds(Local(), kind, steps=2)
    weights = engine.states.stacked["params"]["weight"].flatten()
    assert weights.tolist() == pytest.approx([1.15, 0.28], abs=1e-6)
    server, engine = rounds(Local(), kind, steps=2, rounds=2)
    weights = engine.states.stacked["params"]["weight"].flatten()
    assert weights.tolist() == pytest.approx([1.1875, -0.1808], abs=1e-6)
    assert server.trained.item() == 4.0


@pytest.mark.parametrize("kind", ENGINES)
def test_clients_outside_the_cohort_do_not_train(kind: type[Engine]) -> None:
    _, engine = rounds(Local(), kind, steps=1, rounds=3, ids=(1,))
    weights = engine.states.stacked["params"]["weight"].flatten()
    assert weights.tolist() == pytest.approx([1.0, 0.024], abs=1e-6)  # 0.6, 0.28, 0.024


def test_predicts_with_the_clients_own_weight() -> None:
    state = {"params": {"weight": torch.tensor([[3.0]])}}
    server = {"trained": torch.zeros(())}
    assert Local().predict(TASK, server, state, torch.tensor([[2.0]])).tolist() == [[6.0]]
