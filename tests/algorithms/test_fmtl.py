from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.by_hand import ENGINES, TASK, rounds, start
from isonomy.algorithms import make
from isonomy.algorithms.personal.fmtl import FMTL, gradient_step, proximal_step
from isonomy.core.algorithm import Global
from isonomy.core.client import Client
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.data.federation import build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError


def personal(engine: Engine) -> list[float]:
    return engine.states.stacked["params"]["weight"].flatten().tolist()


def weight(server: Any) -> float:
    return server.params["weight"].item()


# --- worked by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_by_hand(kind: type[Engine]) -> None:
    """Gradients of `by_hand`, 5 w - 6 and 2 (w + 1), rate 0.1, lam = 0.5, two steps a round.

    Round 1, all from 1 and anchored at 1. Global copies: 1.1, 1.15 and 0.6, 0.28, equally 0.715.
    Personal: the first step feels no pull, 1.1 and 0.6; the second, -0.5 + 0.5 * 0.1 = -0.45 to
    1.145, and 3.2 - 0.5 * 0.4 = 3 to 0.3.
    Round 2, anchored at 0.715: -0.275 + 0.5 * 0.43 = -0.06 to 1.151, then -0.245 + 0.5 * 0.436 =
    -0.027 to 1.1537; client 1: 2.6 - 0.5 * 0.415 = 2.3925 to 0.06075, then 2.1215 - 0.327125 to
    -0.1186875.
    """
    server, engine = rounds(FMTL(lam=0.5), kind, steps=2)
    assert weight(server) == pytest.approx(0.715, abs=1e-6)
    assert personal(engine) == pytest.approx([1.145, 0.3], abs=1e-6)
    _, engine = rounds(FMTL(lam=0.5), kind, steps=2, rounds=2)
    assert personal(engine) == pytest.approx([1.1537, -0.1186875], abs=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
def test_moving_anchor_by_hand(kind: type[Engine]) -> None:
    """The box of the first paper: the copy w_k steps first, and v is pulled to where it is now.

    Client 0: w_k = 1.1, v = 1 - 0.1 (-1 + 0.5 (1 - 1.1)) = 1.105; w_k = 1.15, v = 1.105 - 0.1
    (-0.475 + 0.5 (1.105 - 1.15)) = 1.15475. Client 1: 0.6 and 1 - 0.1 (4 + 0.2) = 0.58; 0.28 and
    0.58 - 0.1 (3.16 + 0.15) = 0.249.
    """
    server, engine = rounds(FMTL(lam=0.5, anchor="moving"), kind, steps=2)
    assert weight(server) == pytest.approx(0.715, abs=1e-6)
    assert personal(engine) == pytest.approx([1.15475, 0.249], abs=1e-6)


@pytest.mark.parametrize("kind", ENGINES)
def test_proximal_by_hand(kind: type[Engine]) -> None:
    """rate * lam = 1: after its step v goes halfway back to 1.

    Client 0: 1.1 to 1.05; gradient -0.75, 1.125 to 1.0625. Client 1: 0.6 to 0.8; gradient 3.6,
    0.44 to 0.72.
    """
    _, engine = rounds(FMTL(lam=10.0, pull="proximal"), kind, steps=2)
    assert personal(engine) == pytest.approx([1.0625, 0.72], abs=1e-6)


def test_size_weights() -> None:
    """By size the copies 1.15 and 0.28 have weights 2 and 1: 0.86."""
    server, _ = rounds(FMTL(weight="size"), Loop, steps=2)
    assert weight(server) == pytest.approx(0.86, abs=1e-6)


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_a_huge_pull_is_the_rounds_global_model(kind: type[Engine]) -> None:
    """lam -> inf: v is the model that the last round sent, 0.715 after one round of two steps."""
    _, engine = rounds(FMTL(lam=1e9, pull="proximal"), kind, steps=2, rounds=2)
    assert personal(engine) == pytest.approx([0.715, 0.715], abs=1e-6)


def test_personal_models_approach_the_global_one_as_lam_grows() -> None:
    """After training to convergence, |v_k - w*| falls to 0 as lam grows."""
    apart = []
    for lam in (0.0, 1.0, 10.0, 100.0, 1e6):
        server, engine = rounds(FMTL(lam=lam, pull="proximal"), Batched, steps=1, rounds=100)
        apart.append([abs(v - weight(server)) for v in personal(engine)])
    for k in (0, 1):
        assert all(b[k] < a[k] for a, b in itertools.pairwise(apart))
    assert max(apart[-1]) < 1e-4


def test_the_end_of_training_is_objective_2() -> None:
    """v_k minimises F_k + (lam / 2) |v - w*|^2: 5 v - 6 + lam (v - w) = 0, 2 (v + 1) + ... = 0.

    One full step a round, equal weights: w* has 7 w - 4 = 0.
    """
    lam = 0.8
    server, engine = rounds(FMTL(lam=lam), Batched, steps=1, rounds=120)
    w = 4 / 7
    assert weight(server) == pytest.approx(w, abs=1e-5)
    assert personal(engine) == pytest.approx(
        [(6 + lam * w) / (5 + lam), (lam * w - 2) / (2 + lam)], abs=1e-5
    )


# --- what public code gets wrong ------------------------------------------------------------------


def test_the_pull_grows_with_the_distance() -> None:
    """A penalty lam |v - w| (not squared) pulls by lam wherever v is; ours by lam times |v - w|."""
    work, rate = Work(), torch.tensor(0.1)
    at = [torch.tensor(1.0), torch.tensor(3.0)]
    moved = [
        float(gradient_step(work, rate, v, (), torch.tensor(0.0), torch.tensor(0.0), 0.5)[0])
        for v in at
    ]
    assert moved == pytest.approx([0.95, 2.85])


@pytest.mark.parametrize("kind", ENGINES)
def test_a_first_time_client_starts_from_the_initial_model(kind: type[Engine]) -> None:
    """Not from the model of the client that trained before: client 1 alone, after client 0.

    Client 0's round leaves w = 1.1. Client 1's v starts from 1: gradient 4, pull 0.5 (1 - 1.1).
    """
    algorithm, engine = FMTL(lam=0.5), kind(TASK, rounds(FMTL(), kind, steps=1)[1].federation)
    engine.reset(algorithm.init_client(TASK, start()))
    server = algorithm.init_server(TASK, start(), 2)
    work = Work(epochs=1, batch=0, lr=0.1)
    for r, who in enumerate((0, 1)):
        cohort = engine.cohort(torch.tensor([who]), work=work, round=r)
        server = algorithm.round(server, cohort)
    assert personal(engine) == pytest.approx([1.1, 1 - 0.1 * (4 - 0.05)], abs=1e-6)


# --- lam chosen by each client --------------------------------------------------------------------


def held_out(y: float, count: int) -> Engine:
    """A client that trains on (1, -1) and validates on `count` times (1, y)."""
    federation = build(
        torch.ones(1 + count, 1),
        torch.tensor([-1.0, *[y] * count]),
        torch.zeros(1 + count, 0, dtype=torch.int64),
        {"train": [torch.tensor([0])], "validation": [torch.arange(1, 1 + count)]},
        classes=0,
    )
    return Loop(TASK, federation)


def choose(engine: Engine, algorithm: FMTL) -> float:
    """The personal weight after two full steps from 1, anchored at 1."""
    engine.reset(algorithm.init_client(TASK, start()))
    work = Work(epochs=2, batch=0, lr=0.1)
    server = algorithm.init_server(TASK, start(), 1)
    algorithm.round(server, engine.cohort(torch.tensor([0]), work=work, round=0))
    return personal(engine)[0]


def test_lam_is_chosen_on_validation_examples() -> None:
    """Both first steps lead from 1 to 0.6. The second leads to 0.6 - 0.1 (3.2 - 0.4 lam).

    That is 0.32 for lam = 1 and 0.48 for lam = 5. Validation at 1 prefers 0.48, at -1 prefers
    0.32; the training loss, at -1, would always take the least lam, as would the loss with its
    penalty on the training batch.
    """
    chosen = FMTL(lam=0.0, lams=(1.0, 5.0))
    assert choose(held_out(1.0, 4), chosen) == pytest.approx(0.48, abs=1e-6)
    assert choose(held_out(-1.0, 4), chosen) == pytest.approx(0.32, abs=1e-6)


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_validation_examples_mean_the_given_lam(count: int) -> None:
    """lam = 0: 0.6 - 0.1 * 3.2 = 0.28, whatever the few examples would choose."""
    assert choose(held_out(1.0, count), FMTL(lam=0.0, lams=(1.0, 5.0))) == pytest.approx(0.28)


def test_a_step_that_overflows_is_not_chosen() -> None:
    """A validation loss that is NaN counts as infinite: lam = 1 is chosen, 0.32."""
    federation = held_out(-1.0, 4).federation
    algorithm = FMTL(lam=0.0, lams=(1e38, 1.0), least=1)
    engine = Loop(TASK, federation)
    engine.reset(algorithm.init_client(TASK, start()))
    work = Work(epochs=2, batch=0, lr=0.1, optimiser="adam")  # which no lam makes diverge
    server = algorithm.init_server(TASK, start(), 1)
    algorithm.round(server, engine.cohort(torch.tensor([0]), work=work, round=0))
    assert math.isfinite(personal(engine)[0])


# --- a client that is new, and options ------------------------------------------------------------


def test_adapt_by_hand() -> None:
    """A new client at w = 1 takes the local work: as round 1 of `test_by_hand`, client 1."""
    engine = rounds(FMTL(), Loop, steps=1)[1]
    got: dict[str, Any] = {}

    class Probe(FMTL):
        @phase("gather")
        def probe(self, task: Any, message: Any, client: Client) -> Any:
            got["state"] = self.adapt(task, message, client)[1]
            return {}, client.state

    work = Work(epochs=2, batch=0, lr=0.1)
    cohort = engine.cohort(torch.tensor([1]), work=work, round=0)
    cohort.gather(Probe(lam=0.5).probe, {"model": Global(start())})
    assert got["state"]["params"]["weight"].item() == pytest.approx(0.3, abs=1e-6)


def test_steps_that_would_diverge_are_refused() -> None:
    with pytest.raises(ConfigError, match="times the learning rate"):
        rounds(FMTL(lam=20.0), Loop, steps=1)
    rounds(FMTL(lam=19.0), Loop, steps=1)
    rounds(FMTL(lam=20.0, pull="proximal"), Loop, steps=1)


@pytest.mark.parametrize(
    "options", [{"lam": -1.0}, {"lam": math.inf}, {"lams": [0.1, -2.0]}, {"least": 0}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} = "):
        make("fmtl", options)


# --- Lemma 1: any strongly convex f_k -------------------------------------------------------------

numbers = st.floats(-3, 3, allow_nan=False)


def solved(gradient: Any, anchor: torch.Tensor, lam: float, step: Any) -> torch.Tensor:
    """The minimiser of f + (lam / 2) |v - anchor|^2 by many steps of the algorithm's own."""
    rate = torch.tensor(0.3 / (3.0 + lam) if step is gradient_step else 0.1, dtype=torch.float64)
    v = torch.zeros_like(anchor)
    for _ in range(300):
        v, _ = step(Work(), rate, v, (), anchor, gradient(v), lam)
    return v


@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.tuples(numbers, numbers), min_size=3, max_size=5),
    anchor=st.tuples(numbers, numbers),
    logistic=st.booleans(),
)
def test_lemma_1(rows: Any, anchor: Any, logistic: bool) -> None:
    """As lam grows the local loss does not fall, and the distance to w* does not grow.

    f is the mean logistic or squared loss of some rows (labels +1, -1, ...) plus |v|^2 / 4.
    """
    x = torch.tensor(rows, dtype=torch.float64) / 2
    y = torch.tensor([(-1.0) ** i for i in range(len(rows))], dtype=torch.float64)
    w = torch.tensor(anchor, dtype=torch.float64)

    def f(v: torch.Tensor) -> torch.Tensor:
        out = x @ v
        data = torch.nn.functional.softplus(-y * out) if logistic else (out - y).square() / 4
        return data.mean() + v.square().sum() / 4

    def gradient(v: torch.Tensor) -> torch.Tensor:
        out = x @ v
        slope = -y * torch.sigmoid(-y * out) if logistic else (out - y) / 2
        return slope @ x / len(y) + v / 2

    torch.testing.assert_close(gradient(w), torch.func.grad(f)(w))
    lams = (0.0, 0.2, 1.0, 5.0, 500.0)
    found = [solved(gradient, w, lam, gradient_step) for lam in lams]
    losses = [float(f(v)) for v in found]
    apart = [float((v - w).norm()) for v in found]
    assert all(b >= a - 1e-7 for a, b in itertools.pairwise(losses))
    assert all(b <= a + 1e-7 for a, b in itertools.pairwise(apart))
    assert apart[-1] <= 0.05 * (1 + apart[0] + float(w.norm()))  # eq. 9: the limit is w*


def test_both_kinds_of_pull_converge_to_the_same_point() -> None:
    """Where the gradient and the pull balance, for small rates: 2 (v + 1) + v - 1 = 0."""

    def gradient(v: torch.Tensor) -> torch.Tensor:
        return 2 * (v + 1)

    w = torch.tensor([1.0], dtype=torch.float64)
    explicit = solved(gradient, w, 1.0, gradient_step)
    assert explicit.tolist() == pytest.approx([-1 / 3])
    rate = torch.tensor(0.1, dtype=torch.float64)
    v = torch.zeros_like(w)
    for _ in range(300):
        v, _ = proximal_step(Work(), rate, v, (), w, gradient(v), 1.0)
    # v = (v - r g + r lam w) / (1 + r lam) has g + lam (v - w) = 0 at rest, whatever the rate
    assert v.tolist() == pytest.approx([-1 / 3])
