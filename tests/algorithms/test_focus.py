"""FOCUS: steps worked by hand, prediction, clients that drop out, and initial models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.by_hand import ENGINES, FEDERATION, TASK
from algorithms.exchanges import Asked, listening
from isonomy.algorithms import make
from isonomy.algorithms.clustered.focus import Focus, Models, Server
from isonomy.contract.checks import silent
from isonomy.core import tree
from isonomy.core.cohort import NoReplies
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

# --- steps by hand --------------------------------------------------------------------------------


def with_models(*weights: float, clients: int = 2) -> Server:
    """A server with these one-weight models and uniform shares."""
    count = len(weights)
    return Server(
        models={"weight": torch.tensor(weights).reshape(count, 1, 1)},
        log_pi=torch.full((clients, count), -math.log(count), dtype=torch.float64),
        skipped=torch.zeros(clients, dtype=torch.float64),
        wait=torch.tensor(-1),
    )


def run(
    algorithm: Focus,
    kind: type[Engine],
    server: Any,
    *,
    rounds: int = 1,
    ids: Any = (0, 1),
    rate: float = 0.1,
    wrap: tuple[Any, ...] = (),
) -> tuple[Any, Engine]:
    """Rounds of one full-batch step on the federation of `by_hand`."""
    engine = kind(TASK, FEDERATION)
    engine.reset(algorithm.init_client(TASK, {"weight": torch.ones(1, 1)}))
    work = Work(epochs=1, batch=0, lr=rate)
    for r in range(rounds):
        cohort = engine.cohort(torch.tensor(ids), work=work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    return server, engine


def weights(server: Any) -> list[float]:
    return server.models["weight"].flatten().tolist()


PLAIN = Focus(models=2, start="independent", skip=0.0)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("weight", ["equal", "size"])
def test_two_rounds_by_hand(kind: type[Engine], weight: Any) -> None:
    """Models w = 1 and w = 0; losses and gradients of `by_hand`, worked with NumPy.

    Client 0, (x, y) = (1, 2) and (2, 2), has loss (5 w^2 - 12 w + 8) / 2: 0.5 at 1 and 4 at 0.
    Client 1, (1, -1), has (w + 1)^2: 4 and 1. So pi_0 = softmax(-0.5, -4), pi_1 = softmax(-4, -1).
    One step of rate 0.1 along 5 w - 6 and 2 (w + 1) takes client 0 from 1 to 1.1 and from 0 to
    0.6, client 1 to 0.6 and to -0.2. Every model is the mean with the new pi; in the second round
    pi is multiplied on.
    """
    w = np.array([1.0, 0.0])
    pi = np.full((2, 2), 0.5)
    say = np.array([2.0, 1.0]) if weight == "size" else np.ones(2)
    for _ in range(2):
        losses = np.stack([(5 * w**2 - 12 * w + 8) / 2, (w + 1) ** 2])
        pi = pi * np.exp(-losses)
        pi /= pi.sum(1, keepdims=True)
        theta = np.stack([w - 0.1 * (5 * w - 6), w - 0.1 * 2 * (w + 1)])
        w = (say[:, None] * pi * theta).sum(0) / (say[:, None] * pi).sum(0)
    algorithm = Focus(models=2, start="independent", skip=0.0, weight=weight)
    server, engine = run(algorithm, kind, with_models(1.0, 0.0), rounds=2)
    assert weights(server) == pytest.approx(w.tolist(), abs=1e-6)
    np.testing.assert_allclose(server.log_pi.exp().numpy(), pi, rtol=1e-6)
    np.testing.assert_allclose(engine.states.stacked["pi"].numpy(), pi, rtol=1e-6)


def test_the_first_rounds_numbers() -> None:
    """The same, the first round only, as literal numbers.

    pi_00 = 1 / (1 + e^-3.5) = 0.970688, pi_11 = 1 / (1 + e^-3) = 0.952574. First model:
    (0.970688 * 1.1 + 0.047426 * 0.6) / 1.018114 = 1.076709; second:
    (0.029312 * 0.6 - 0.952574 * 0.2) / 0.981886 = -0.176117.
    """
    server, _ = run(PLAIN, Loop, with_models(1.0, 0.0))
    assert server.log_pi.exp().flatten().tolist() == pytest.approx(
        [0.970688, 0.029312, 0.047426, 0.952574], abs=1e-6
    )
    assert weights(server) == pytest.approx([1.076709, -0.176117], abs=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("rounds", [1, 2, 7, 60])
def test_shares_accumulate_over_rounds(kind: type[Engine], rounds: int) -> None:
    """With models that do not change (rate 0), pi after k rounds is softmax(-k l)."""
    server, _ = run(PLAIN, kind, with_models(1.0, 0.0, 0.875), rounds=rounds, rate=0.0)
    losses = np.array([[0.5, 4.0, 0.6640625], [4.0, 1.0, 3.515625]])
    score = -rounds * losses
    score -= score.max(1, keepdims=True)
    expected = score - np.log(np.exp(score).sum(1, keepdims=True))
    np.testing.assert_allclose(server.log_pi.numpy(), expected, rtol=1e-6, atol=1e-9)
    assert weights(server) == pytest.approx([1.0, 0.0, 0.875], abs=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_model_with_negligible_shares_is_still_a_mean(kind: type[Engine]) -> None:
    """Both clients' share in the second model is e^-2000 and less: 0 / 0 in plain numbers.

    Only the ratio matters: client 1's share is e^-5 of client 0's. From w = 3 the steps lead to
    3 - 0.9 = 2.1 and 3 - 0.8 = 2.2. (The E step multiplies by e^-8.5 at client 0, where the
    losses are 9 / 2 + ... = 8.5 at 3 and 0.5 at 1, and by e^-16 at client 1, 16 and 4.)
    """
    server = with_models(1.0, 3.0)
    server = server._replace(
        log_pi=torch.tensor([[0.0, -2000.0], [0.0, -2005.0]], dtype=torch.float64)
    )
    made, _ = run(PLAIN, kind, server)
    lost = np.array([-2000 - 8.5 + 0.5, -2005 - 16 + 4])
    assert made.log_pi[:, 1].tolist() == pytest.approx(lost.tolist())
    share = np.exp(lost - lost.max())
    assert weights(made)[1] == pytest.approx(float((share @ [2.1, 2.2]) / share.sum()), abs=1e-6)
    assert tree.finite(made)


@pytest.mark.parametrize("kind", ENGINES)
def test_huge_losses_stay_finite(kind: type[Engine]) -> None:
    server, engine = run(PLAIN, kind, with_models(1e15, 0.0), rate=1e-30)
    assert tree.finite(server)
    assert engine.states.stacked["pi"].tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_clients_outside_the_cohort_keep_their_shares() -> None:
    server = with_models(1.0, 0.0)
    server.log_pi[0] = torch.tensor([-3.0, math.log1p(-math.exp(-3.0))])
    made, _ = run(PLAIN, Batched, server, ids=(1,))
    assert torch.equal(made.log_pi[0], server.log_pi[0])
    assert weights(made) == pytest.approx([0.6, -0.2], abs=1e-6)


def test_one_client() -> None:
    """Alone, a client moves every model along its own gradient, whatever its shares."""
    made, _ = run(PLAIN, Batched, with_models(1.0, 0.0), ids=(0,))
    assert weights(made) == pytest.approx([1.1, 0.6], abs=1e-6)


# --- prediction -----------------------------------------------------------------------------------


def test_a_client_predicts_the_mixture_with_its_own_shares() -> None:
    task = Task(lambda: nn.Linear(2, 3), classes=3)
    models = tree.stack([task.init(0), task.init(1)])
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    each = [task.outputs(tree.take(models, m), 4 * x).softmax(-1) for m in (0, 1)]
    state = {"pi": torch.tensor([0.2, 0.6, 0.1, 0.1], dtype=torch.float64)}  # room for four
    got = Focus().predict(task, Models(models), state, 4 * x)
    torch.testing.assert_close(got.softmax(-1), 0.25 * each[0] + 0.75 * each[1])
    y = torch.tensor([0, 1, 2, 0, 1])
    mixture = 0.25 * each[0] + 0.75 * each[1]
    torch.testing.assert_close(task.each_loss(got, y), -mixture[range(5), y].log())


def test_a_client_without_training_has_uniform_shares() -> None:
    task = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="squared", classes=0)
    models = {"weight": torch.tensor([1.0, 2.0]).reshape(2, 1, 1)}
    state = Focus().init_client(task, task.init(0))
    assert Focus().predict(task, Models(models), state, torch.ones(1, 1)).item() == 1.5


@pytest.mark.parametrize("kind", ENGINES)
def test_a_new_client_takes_one_e_step_from_uniform_shares(kind: type[Engine]) -> None:
    """softmax(-l) with the losses of client 0 and 1; nothing at the server changes."""
    server = with_models(1.0, 0.0)
    engine = kind(TASK, FEDERATION)
    engine.reset(Focus().init_client(TASK, {}))
    cohort = engine.cohort(torch.tensor([0, 1]), work=Work(), round=0)
    cohort.gather(Focus().adapt, {"model": Focus().deployed(server)})
    got = engine.states.stacked["pi"][:, :2].numpy()
    odds = np.exp(-np.array([[0.5, 4.0], [4.0, 1.0]]))
    np.testing.assert_allclose(got, odds / odds.sum(1, keepdims=True), rtol=1e-6)


def test_finish_gives_shares_to_clients_that_were_never_asked() -> None:
    """Client 1 trains; client 0 was never in a cohort and takes its shares from the last models."""
    made, engine = run(PLAIN, Batched, with_models(1.0, 0.0), ids=(1,))
    before = made.log_pi.clone()
    everyone = engine.cohort(engine.everyone(), work=Work(), round=1)
    done = PLAIN.finish(made, everyone)
    w = np.array(weights(made))
    losses = (5 * w**2 - 12 * w + 8) / 2
    assert done.log_pi[0].exp().tolist() == pytest.approx(
        (np.exp(-losses) / np.exp(-losses).sum()).tolist(), rel=1e-5
    )
    assert torch.equal(done.log_pi[1], before[1])
    torch.testing.assert_close(engine.states.stacked["pi"][0], done.log_pi[0].exp())


# --- silence --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_a_model_whose_clients_drop_out_does_not_change(kind: type[Engine]) -> None:
    """Only client 1 has a share in the second model, and is silent in the M step."""
    server = with_models(1.0, 0.0)
    server = server._replace(log_pi=torch.tensor([[0.0, -50.0], [-50.0, 0.0]], dtype=torch.float64))
    algorithm = Focus(models=2, start="independent", skip=1e-4, check=1)
    made, _ = run(algorithm, kind, server, wrap=(silent({2: {1}}),))
    assert weights(made) == pytest.approx([1.1, 0.0], abs=1e-6)


def test_a_round_in_which_all_clients_drop_out_has_no_effect() -> None:
    server = with_models(1.0, 0.0)
    for phase in (0, 1, 2):
        with pytest.raises(NoReplies):
            run(PLAIN, Loop, server, wrap=(silent({phase: {0, 1}}),))


def test_too_few_answers_postpone_the_split() -> None:
    """Three models, two clients: the common model is trained on, and the split is postponed."""
    algorithm = Focus(models=3, warmup=0)
    server = algorithm.init_server(TASK, {"weight": torch.ones(1, 1)}, 2)
    made, _ = run(algorithm, Batched, server)
    assert weights(made) == pytest.approx([0.85], abs=1e-6)
    assert int(made.wait) == 0
    again, _ = run(Focus(models=2, warmup=0), Batched, made)
    assert len(weights(again)) == 2
    assert int(again.wait) == -1


# --- where the models start -----------------------------------------------------------------------


def test_equal_models_never_separate() -> None:
    server, _ = run(PLAIN, Batched, with_models(1.0, 1.0), rounds=20)
    assert weights(server)[0] == weights(server)[1]
    assert server.log_pi.exp().flatten().tolist() == pytest.approx([0.5] * 4)


def test_independent_models_differ_and_are_reproducible() -> None:
    task = Task(lambda: nn.Linear(3, 2), classes=2)
    algorithm = Focus(models=3, start="independent")
    one = algorithm.init_server(task, task.init(5), 4).models
    again = algorithm.init_server(task, task.init(5), 4).models
    other = algorithm.init_server(task, task.init(6), 4).models
    assert torch.equal(one["weight"][0], task.init(5)["weight"])
    assert torch.equal(one["weight"], again["weight"])
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(one["weight"][a], one["weight"][b])
    assert not torch.equal(one["weight"][1], other["weight"][1])


def test_models_that_cannot_start_differently_are_refused() -> None:
    class Zero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.w * x

    task = Task(Zero, loss_name="squared", classes=0)
    with pytest.raises(ConfigError, match="start"):
        Focus(models=2, start="independent").init_server(task, task.init(0), 2)


@pytest.mark.parametrize(
    "options",
    [
        {"models": -1},
        {"most": 1},
        {"start": "independent"},
        {"warmup": -1},
        {"trust": 1.0},
        {"trust": 0.0},
        {"check": 0},
        {"skip": 1.0},
        {"skip": -0.1},
        {"start": "random", "models": 2},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make("focus", options)


# --- skipping -----------------------------------------------------------------------------------


def test_settled_clients_are_asked_again_periodically() -> None:
    """With check = 4, in rounds 4 and 8 (counted from 0) and not in between."""
    server = with_models(1.1, -1.0)
    server = server._replace(log_pi=torch.tensor([[0.0, -50.0], [-50.0, 0.0]], dtype=torch.float64))
    heard: list[Asked] = []
    algorithm = Focus(models=2, start="independent", check=4)
    run(algorithm, Batched, server, rounds=9, wrap=(listening(heard),))
    when, r = [], -1
    for h in heard:
        if h.phase == "expect":
            when.append(r + 1)
        elif h.ids == (0,):
            r += 1
    assert when == [0, 4, 8]


@pytest.mark.parametrize("kind", ENGINES)
def test_the_losses_of_skipped_e_steps_are_added(kind: type[Engine]) -> None:
    """Models fixed by a rate of almost 0: after a check, log pi is that of E steps in every round.

    Client 0 is settled at first, client 1 is not. In rounds 1 and 2 only client 1 is asked; in
    round 3 both, and client 0's loss counts for three rounds.
    """
    server = with_models(1.0, 0.0)
    server = server._replace(log_pi=torch.tensor([[0.0, -30.0], [-0.7, -0.7]]).double())
    results = []
    for check in (1, 3):
        algorithm = Focus(models=2, start="independent", check=check)
        engine = kind(TASK, FEDERATION)
        engine.reset(algorithm.init_client(TASK, {"weight": torch.ones(1, 1)}))
        made, skipped = server, []
        for r in range(1, 4):
            cohort = engine.cohort(torch.tensor([0, 1]), work=Work(batch=0, lr=1e-12), round=r)
            made = algorithm.round(made, cohort)
            skipped.append(made.skipped.tolist())
        results.append(made.log_pi)
        assert skipped == ([[0, 0]] * 3 if check == 1 else [[1, 0], [2, 0], [0, 0]])
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)


def test_the_limit_on_the_number_of_models_is_announced() -> None:
    def with_shape(clients: int, found: int) -> Server:
        return with_models(*range(found), clients=clients)

    assert "Among 3 clients" in Focus().remark(with_shape(3, 1))
    assert "algorithm.models" in Focus().remark(with_shape(3, 1))
    assert Focus().remark(with_shape(10, 1)) == ""
    assert "More than 4 models" in Focus(most=4).remark(with_shape(10, 4))
    assert "More than 2 models" in Focus().remark(with_shape(3, 2))
    assert Focus(models=1).remark(with_shape(3, 1)) == ""
