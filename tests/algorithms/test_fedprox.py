from __future__ import annotations

from typing import Any

import pytest

from algorithms.by_hand import check_weight
from isonomy.algorithms.average.fedprox import FedProx
from isonomy.core.algorithm import Algorithm


def check_by_hand(algorithm: Algorithm, weight: str) -> None:
    """Gradients of `by_hand`, 5 w - 6 and 2 (w + 1), plus mu (v - w) with mu = 0.5; rate 0.1.

    The first step from w = 1 feels no pull: 1.1 and 0.6. The second: client 0 has gradient
    5 * 1.1 - 6 + 0.5 * (1.1 - 1) = -0.45, to 1.145; client 1 has 3.2 + 0.5 * (0.6 - 1) = 3, to
    0.3. By size (2.29 + 0.3) / 3 = 0.8633333, equally 0.7225.
    """
    check_weight(algorithm, 0.8633333 if weight == "size" else 0.7225, steps=2)


@pytest.mark.parametrize("weight", ["size", "equal"])
def test_by_hand(weight: Any) -> None:
    check_by_hand(FedProx(mu=0.5, weight=weight), weight)


def test_the_pull_is_to_this_rounds_model() -> None:
    """Two rounds of two steps, client 1 alone, mu = 0.5.

    Round 1 from w = 1: 0.6, then 0.3. Round 2 from 0.3: gradient 2.6, to 0.04; then gradient
    2.08 + 0.5 * (0.04 - 0.3) = 1.95, to -0.155.
    """
    check_weight(FedProx(mu=0.5), -0.155, steps=2, rounds=2, ids=(1,))


def test_a_strong_pull_keeps_clients_near() -> None:
    """mu = 10, rate 0.1: the pull undoes a step exactly, so v_2 = w - rate * gradient(v_1).

    Client 1: v_1 = 0.6, then 0.6 - 0.1 * (3.2 + 10 * (0.6 - 1)) = 0.68.
    """
    check_weight(FedProx(mu=10.0), 0.68, steps=2, ids=(1,))
