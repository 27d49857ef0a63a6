from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from algorithms.by_hand import ENGINES, check_weight
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.contract.world import world
from isonomy.core.algorithm import Global
from isonomy.core.phase import phase
from isonomy.engines.base import Engine


@pytest.mark.parametrize(
    ("weight", "steps", "rounds", "expected"),
    [
        ("size", 1, 1, 2.8 / 3),
        ("equal", 1, 1, 0.85),
        ("size", 2, 1, 0.86),
        ("equal", 2, 1, 0.715),
        ("size", 1, 2, 0.8933333),
    ],
)
def test_by_hand(weight: Any, steps: int, rounds: int, expected: float) -> None:
    """Gradients of `by_hand`: 5 w - 6 and 2 (w + 1); rate 0.1.

    One step from 1: client 0 to 1 + 0.1 = 1.1, client 1 to 1 - 0.4 = 0.6. By size (2 * 1.1 + 0.6)
    / 3 = 2.8 / 3; equally 0.85. A second step: 1.1 + 0.05 = 1.15 and 0.6 - 0.32 = 0.28; by size
    2.58 / 3 = 0.86, equally 0.715. Instead a second round of one step, from w = 2.8 / 3: client 0
    to w - 0.1 (5 w - 6) = 0.5 w + 0.6 = 1.0666667, client 1 to 0.8 w - 0.2 = 0.5466667; by size
    2.68 / 3 = 0.8933333.
    """
    check_weight(FedAvg(weight=weight), expected, steps=steps, rounds=rounds)


def test_one_client_alone_by_hand() -> None:
    """Client 1 alone: 1, 0.6, 0.28."""
    check_weight(FedAvg(), 0.28, steps=2, ids=(1,))
    check_weight(FedAvg(), 0.28, steps=1, rounds=2, ids=(1,))


@pytest.mark.parametrize("kind", ENGINES)
def test_one_client_is_torchs_own_training(kind: type[Engine]) -> None:
    """Three rounds of one client are a torch loop over the same batches."""
    where, k = world(), 5
    engine = kind(where.task, where.federation, seed=where.seed)
    server = Global(where.params)
    net = where.task.build()
    net.load_state_dict(where.params)
    optimiser = torch.optim.SGD(net.parameters(), where.work.lr)
    for r in range(3):
        plans = []

        @phase("gather")
        def spy(task: Any, message: Any, client: Any, plans: list[Any] = plans) -> Any:
            plans.append(client.plan)
            return {}, client.state

        one = torch.tensor([k])
        engine.cohort(one, work=where.work, round=r).gather(spy, {})
        for rows, weight in zip(plans[0].rows, plans[0].weight, strict=True):
            real = rows[weight > 0]
            optimiser.zero_grad()
            out = net(where.federation.x[real])
            nn.functional.cross_entropy(out, where.federation.y[real]).backward()
            optimiser.step()
        server = FedAvg().round(server, engine.cohort(one, work=where.work, round=r))
    for name, p in net.named_parameters():
        torch.testing.assert_close(server.params[name], p.detach(), rtol=1e-6, atol=1e-6)
