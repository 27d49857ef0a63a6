"""FedFV: both kinds of conflict by hand, the order of projections, and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from algorithms.by_hand import ENGINES
from algorithms.exchanges import lines, play, weight_of
from isonomy.algorithms import make
from isonomy.algorithms.client_fair.fedfv import FedFV, Server
from isonomy.blocks.conflicts import resolved
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError

both = pytest.mark.parametrize("kind", ENGINES)
WORK = Work(epochs=1, batch=0, lr=0.1)

# From w = 0 with rate 0.1 a client with one example (x, y) has the update g = w - w_k = -0.2 y x
# and the loss y^2.
#   a: g = (1, 0), loss 25;    b: g = (-1, 1), loss 100;    c: g = (0, -2), loss 6.25
A, B, C = ((1.0, 0.0), -5.0), ((-0.5, 0.5), -10.0), ((0.0, -4.0), -2.5)


def scaled(g: Any, like: Any) -> np.ndarray:
    g = np.asarray(g, dtype=float)
    return g / np.linalg.norm(g) * np.linalg.norm(like)


@both
def test_conflicts_within_by_hand(kind: type[Engine]) -> None:
    """In order of loss: c, a, b. alpha = 1/3 keeps b, the worst off.

    a: no conflict with c; with b -1: (1, 0) + (-1, 1) / 2 = (0.5, 0.5).
    c: no conflict with a; with b -2: (0, -2) + (-1, 1) = (-1, -1).
    Mean of (0.5, 0.5), (-1, 1), (-1, -1) is (-1.5, 0.5) / 3, of the length of the updates' mean,
    (0, -1) / 3.
    """
    task, federation = lines([[A], [B], [C]])
    got = play(FedFV(alpha=1 / 3, tau=0), kind, task, federation, [0.0, 0.0], WORK)
    expected = -scaled([-1.5, 0.5], [0, -1 / 3])
    assert weight_of(got).tolist() == pytest.approx(expected.tolist(), abs=1e-6)


@both
def test_the_order_is_that_of_the_losses(kind: type[Engine]) -> None:
    """alpha = 0: b too. c first, (-1, 1) - (0, 1) = (-1, 0); then a, -1: (0, 0)."""
    task, federation = lines([[A], [B], [C]])
    got = play(FedFV(alpha=0.0, tau=0), kind, task, federation, [0.0, 0.0], WORK)
    expected = -scaled([-0.5, -0.5], [0, -1 / 3])
    assert weight_of(got).tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def reference(updates: np.ndarray, losses: np.ndarray, alpha: float) -> np.ndarray:
    """The first step as the paper writes it, on the vectors themselves."""
    m = len(losses)
    order = np.argsort(losses)
    keep = order[m - int(np.ceil(round(alpha * m, 9))) :] if alpha else []
    out = updates.copy()
    for k in range(m):
        for i in order:
            if k not in keep and i != k and out[k] @ updates[i] < 0:
                out[k] -= (out[k] @ updates[i]) / (updates[i] @ updates[i]) * updates[i]
    return out


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 0.9, 1.0])
def test_coefficients_are_projections(alpha: float) -> None:
    random = np.random.default_rng(2)
    for m, d in ((1, 3), (6, 3), (10, 50)):
        V, losses = random.normal(size=(m, d)), random.exponential(size=m)
        expected = reference(V, losses, alpha)
        products = torch.from_numpy(V @ V.T)
        got = resolved(products, torch.from_numpy(losses), alpha).numpy() @ V
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


def test_how_many_updates_are_not_changed() -> None:
    losses = torch.arange(10.0)
    opposed = torch.full((10, 10), -1.0) + 11 * torch.eye(10)
    for alpha, kept in ((0.0, 0), (0.1, 1), (0.3, 3), (1 / 3, 4), (1.0, 10)):
        same = (resolved(opposed, losses, alpha) == torch.eye(10)).all(1)
        assert same.tolist() == [k >= 10 - kept for k in range(10)]


def test_conflicts_with_clients_of_earlier_rounds_by_hand() -> None:
    """Round 0: b alone, update (-1, 1). Round 1: a alone, which is in conflict with b's last.

    After round 0 w = (1, -1). Then a's example has gradient 2 (1 + 5) (1, 0), update (1.2, 0):
    product with (-1, 1) is -1.2, so (1.2, 0) + 0.6 (-1, 1) = (0.6, 0.6), of length 1.2.
    """
    task, federation = lines([[A], [B], [C]])
    for kind in ENGINES:
        for tau, change in ((0, [1.2, 0.0]), (1, scaled([1, 1], [1.2, 0]).tolist())):
            how = FedFV(alpha=0.0, tau=tau)
            engine = kind(task, federation)
            params = {"weight": torch.zeros(1, 2)}
            server = how.init_server(task, params, 3)
            for r, k in enumerate((1, 0)):
                cohort = engine.cohort(torch.tensor([k]), work=WORK, round=r)
                server = how.round(server, cohort)
            expected = [1 - change[0], -1 - change[1]]
            assert weight_of(server).tolist() == pytest.approx(expected, abs=1e-6)
            if tau:
                assert server.seen.tolist() == [1, 0, -1]
                last = server.last["weight"].reshape(3, 2)
                np.testing.assert_allclose(last, [[1.2, 0], [-1, 1], [0, 0]], atol=1e-6)


def after(how: FedFV, kind: type[Engine], cohorts: list[list[int]]) -> list[float]:
    """The model after rounds with the given cohorts of the clients a, b and c."""
    task, federation = lines([[A], [B], [C]])
    engine = kind(task, federation)
    server = how.init_server(task, {"weight": torch.zeros(1, 2)}, 3)
    for r, ids in enumerate(cohorts):
        server = how.round(server, engine.cohort(torch.tensor(ids), work=WORK, round=r))
    return weight_of(server).tolist()


@both
def test_with_all_clients_there_is_nothing_outside_the_cohort(kind: type[Engine]) -> None:
    everyone = [[0, 1, 2]] * 4
    within = after(FedFV(alpha=0.0, tau=0), kind, everyone)
    for tau in (1, 2, 3):
        assert after(FedFV(alpha=0.0, tau=tau), kind, everyone) == within


@both
def test_clients_of_this_cohort_are_not_outside_it_by_hand(kind: type[Engine]) -> None:
    """Rounds {a}, then {a, b}: a was seen in the last round, but is in the cohort now.

    After round 0, w = (-1, 0). In round 1, a's residual is 4, its update (0.8, 0); b's residual is
    10.5, its update (-1.05, 1.05). alpha = 1 changes neither. Their mean (-0.125, 0.525) conflicts
    with a's last update, which does not count: c is the only client outside, and was never seen.
    """
    got = after(FedFV(alpha=1.0, tau=1), kind, [[0], [0, 1]])
    assert got == pytest.approx([-0.875, -0.525], abs=1e-6)


def test_overlapping_cohorts_against_the_authors_order_of_work() -> None:
    """Random cohorts that overlap; the last round of every client is noted before step 2.

    The expected models are those of a plain loop over vectors in the order of the authors' code
    (first version): note the cohort's updates and rounds, project within, project outside.
    """
    random = np.random.default_rng(4)
    d, clients, differs = 3, 6, 0
    X, y = random.normal(size=(clients, d)), random.normal(size=clients) * 3
    task, federation = lines([[(tuple(x), float(t))] for x, t in zip(X, y, strict=True)])
    engine = ENGINES[0](task, federation)
    for tau in (1, 2):
        how = FedFV(alpha=0.2, tau=tau)
        server = how.init_server(task, {"weight": torch.zeros(1, d)}, clients)
        w, last, seen = np.zeros(d), np.zeros((clients, d)), np.full(clients, -1)
        for r in range(8):
            ids = np.sort(random.choice(clients, 3, replace=False))
            residual = X[ids] @ w - y[ids]
            updates = 0.2 * residual[:, None] * X[ids]
            differs += bool(np.isin(seen[ids], range(r - tau, r)).any())
            last[ids], seen[ids] = updates, r
            g = reference(updates, residual**2, 0.2).mean(0)
            for back in range(tau, 0, -1) if r >= tau else ():
                chosen = last[seen == r - back]
                c = chosen[chosen @ g < 0].sum(0)
                if c @ g < 0:
                    g = g - (c @ g) / (c @ c) * c
            w = w - scaled(g, updates.mean(0))
            cohort = engine.cohort(torch.from_numpy(ids), work=WORK, round=r)
            server = how.round(server, cohort)
            np.testing.assert_allclose(weight_of(server).numpy(), w, rtol=1e-3, atol=1e-4)
    assert differs  # some client was seen in the rounds before, so the order matters


def test_conflicts_are_summed_by_round_the_oldest_first() -> None:
    """Written on vectors, against a plain version of the paper's loop."""
    random = np.random.default_rng(8)
    d, clients = 5, 7
    last = random.normal(size=(clients, d))
    seen = np.array([3, 2, 3, 1, 0, -1, 2])
    g = random.normal(size=d)
    for tau in (1, 2, 3):
        expected = g.copy()
        for back in range(tau, 0, -1):
            chosen = [v for v, s in zip(last, seen, strict=True) if s == 4 - back]
            c = sum((v for v in chosen if expected @ v < 0), np.zeros(d))
            if expected @ c < 0:
                expected = expected - (expected @ c) / (c @ c) * c
        server = Server(
            params={"w": torch.zeros(d)},
            last={"w": torch.from_numpy(last).float()},
            seen=torch.from_numpy(seen),
        )
        got = FedFV(tau=tau)._without_past_conflicts(torch.from_numpy(g).float(), server, 4)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert not np.allclose(expected, g)


@both
def test_updates_that_cancel_do_not_change_the_model(kind: type[Engine]) -> None:
    """Opposite updates project to 0, so there is no direction to rescale."""
    x = (0.3, -0.7)
    for y in (-5.0, -0.37):  # exactly, and but for rounding
        task, federation = lines([[(x, 5.0)], [(x, y)]])
        got = play(FedFV(alpha=0.0, tau=0), kind, task, federation, [0.0, 0.0], WORK)
        assert weight_of(got).tolist() == [0.0, 0.0]


@both
def test_one_client_and_no_loss(kind: type[Engine]) -> None:
    task, federation = lines([[A], [((0.0, 1.0), 0.0)]])
    got = play(FedFV(), kind, task, federation, [0.0, 0.0], WORK, ids=[0])
    assert weight_of(got).tolist() == pytest.approx([-1.0, 0.0], abs=1e-6)
    got = play(FedFV(), kind, task, federation, [0.0, 0.0], WORK, ids=[1])
    assert weight_of(got).tolist() == [0.0, 0.0]
    got = play(FedFV(), kind, task, federation, [0.0, 0.0], WORK)
    assert weight_of(got).tolist() == pytest.approx([-0.5, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"), [({"alpha": 2.0}, "alpha = 2.0"), ({"tau": -1}, "tau = -1")]
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("fedfv", options)
