"""Blend: each client's share by hand, what decides it, and clients without validation examples."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from algorithms.by_hand import ENGINES, TASK, start
from isonomy.algorithms import make
from isonomy.algorithms.personal.blend import Blend
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)
WORK = Work(epochs=1, batch=0, lr=0.1)


def federation(*held: list[float], at: float = 1.0) -> Federation:
    """The clients of `by_hand`, with validation examples (at, y) for each y of theirs."""
    x, y = [[1.0], [2.0], [1.0]], [2.0, 2.0, -1.0]
    parts = []
    for own in held:
        parts.append(torch.arange(len(y), len(y) + len(own)))
        x += [[at]] * len(own)
        y += own
    return build(
        torch.tensor(x),
        torch.tensor(y),
        torch.zeros(len(y), 0, dtype=torch.int64),
        {"train": [torch.tensor([0, 1]), torch.tensor([2])], "validation": parts},
        classes=0,
    )


said: list[str] = []  # remarks, the last one last


def personal(
    algorithm: Blend, kind: type[Engine], *held: list[float], at: float = 1.0
) -> list[float]:
    """Personal weights after one round from w = 1 and the last stage."""
    engine = kind(TASK, federation(*held, at=at))
    engine.reset(algorithm.init_client(TASK, start()))
    server = algorithm.init_server(TASK, start(), 2)
    everyone = torch.tensor([0, 1])
    server = algorithm.round(server, engine.cohort(everyone, work=WORK, round=0))
    got: Any = algorithm.finish(server, engine.cohort(everyone, work=WORK, round=1))
    assert torch.equal(got.params["weight"], server.params["weight"])  # personal models stay away
    assert not algorithm.remark(server)
    said.append(algorithm.remark(got))
    weights: list[float] = engine.states.stacked["params"]["weight"].flatten().tolist()
    return weights


@both
def test_a_round_and_the_shares_by_hand(kind: type[Engine]) -> None:
    """Updates w - w_k from w = 1 are 0.1 (5 - 6) = -0.1 and 0.1 * 4 = 0.4, losses 0.5 and 4.

    They conflict. alpha = 0.5 keeps the second; the first, projected on the second's normal plane,
    is 0 in one dimension. The mean 0.2 is rescaled to the length of the updates' mean, 0.15: w =
    0.85. One step from there leads to 0.85 + 0.175 = 1.025 and 0.85 - 0.37 = 0.48.

    Validation examples are (1, y), so the best share is that whose weight is nearest to their mean
    y: of 0.85, 0.9375 and 1.025, 0.9375 for y = 0.95; of 0.85, 0.665 and 0.48, 0.85 for y = 2.
    """
    one = Blend(alpha=0.5, shares=(0.0, 0.5, 1.0), steps=1, least=1)
    got = personal(one, kind, [0.9, 1.0], [2.0])
    assert got == pytest.approx([0.9375, 0.85])
    assert said[-1].endswith("are 0.25 on average, chosen on their validation examples.")
    assert personal(one, kind, [2.0], [0.0]) == pytest.approx([1.025, 0.48])


@both
def test_a_client_with_too_few_validation_examples_takes_the_given_share(
    kind: type[Engine],
) -> None:
    """Client 0 has one example, which would choose 1; a quarter of the way leads to 0.89375."""
    one = Blend(alpha=0.5, shares=(0.0, 1.0), share=0.25, steps=1, least=2)
    assert personal(one, kind, [2.0], [0.0, 0.0]) == pytest.approx([0.89375, 0.48])
    assert "1 of 2 clients have fewer than 2 validation examples" in said[-1]
    assert personal(one, kind, [], []) == pytest.approx([0.89375, 0.7575])
    assert "0.25 on average; 2 of 2 clients" in said[-1]


def test_training_examples_do_not_choose() -> None:
    """The training loss falls with the share; validation examples that disagree decide."""
    one = Blend(alpha=0.5, shares=(0.0, 1.0), steps=3, least=1)
    assert personal(one, Loop, [0.85], [0.85]) == pytest.approx([0.85, 0.85])


@both
def test_a_last_stage_that_diverges_leaves_the_common_model(kind: type[Engine]) -> None:
    """With a rate of 1e30 weights overflow, and every share but 0 has a loss that is not finite."""
    one = Blend(alpha=0.5, steps=4, lr=1e30, least=1)
    assert personal(one, kind, [1.0], [1.0]) == pytest.approx([0.85, 0.85])


@both
def test_of_equal_losses_the_smaller_share_counts(kind: type[Engine]) -> None:
    """At x = 0 all weights predict 0; shares may be given in any order."""
    one = Blend(alpha=0.5, shares=(1.0, 0.0), steps=1, least=1)
    assert personal(one, kind, [3.0], [3.0], at=0.0) == pytest.approx([0.85, 0.85])


@pytest.mark.parametrize(
    "options",
    [{"alpha": 2.0}, {"shares": ()}, {"shares": (0.5, 1.5)}, {"share": -0.1}, {"least": 0},
     {"epochs": 0}],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make("blend", options)
