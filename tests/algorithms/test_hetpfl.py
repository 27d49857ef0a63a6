"""HetPFL: its sampler by hand; the fusion; faults of the authors' code; refusals."""

from __future__ import annotations

from typing import Any

import moocore
import numpy as np
import pytest
import torch
from scipy.special import digamma

from algorithms.exchanges import Asked, listening
from algorithms.fronts import (
    TASK,
    cross_entropy,
    federation,
    gradient,
    heads,
    paper_hetpfl,
    played,
    rays_of,
    squared,
)
from isonomy.algorithms import make
from isonomy.algorithms.preference.hetpfl import HetPFL
from isonomy.blocks import fusion, preferences
from isonomy.contract.checks import silent
from isonomy.core import random, tree
from isonomy.core.task import Batch
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.models import hypernet as nets

STEP = Work(steps=2, batch=0, lr=0.1)  # one for the body, one for the hypernet
MAKE = nets.maker(TASK, nets.split(TASK, TASK.init(0))[1])  # the paper's hypernet
LONG = Work(steps=8, batch=6, lr=0.01, optimiser="adam")


def state_of(engine: Engine, client: int) -> Tree:
    return {k: v[client] for k, v in engine.states.stacked.items() if isinstance(v, torch.Tensor)}


def test_update_of_the_sampler_by_hand() -> None:
    """Four preferences and losses, alpha (1.5, 2): contributions by moocore, the score in closed
    form, and Adam's first step, which is its rate in the direction of the gradient's sign.
    """
    lam = np.array([[0.1, 0.9], [0.4, 0.6], [0.7, 0.3], [0.9, 0.1]])
    losses = np.array([[0.2, 0.9], [0.4, 0.5], [0.6, 0.45], [1.3, 0.1]])
    reference = np.array([1.3, 1.0])  # the largest seen, at least 1
    whole = moocore.hypervolume(losses, ref=reference)
    gain = np.array(
        [whole - moocore.hypervolume(np.delete(losses, i, 0), ref=reference) for i in range(4)]
    )
    assert gain[3] == 0  # the worst point in an objective is the reference, so it adds nothing
    alpha = np.array([1.5, 2.0])
    score = np.log(lam) - digamma(alpha) + digamma(alpha.sum())
    g = -(gain[:, None] * score).mean(0) + 1e-4 * alpha  # with weight decay
    first, second = 0.1 * g, 0.001 * g * g
    moved = alpha - 0.05 * (first / 0.1) / (np.sqrt(second / 0.001) + 1e-8)

    method = paper_hetpfl()
    sampler = method.init_client(TASK, TASK.init(0))
    sampler = {
        "mixture": {**sampler["mixture"], "alpha": torch.tensor([alpha.tolist()])},
        "memory": sampler["memory"],
        "reference": torch.ones(2),
    }
    after = method.update_sampler(sampler, torch.tensor(lam).float(), torch.tensor(losses).float())
    assert after["reference"].tolist() == pytest.approx([1.3, 1.0])
    assert after["mixture"]["alpha"][0].numpy() == pytest.approx(moved, abs=1e-5)
    assert after["memory"].first["alpha"][0].numpy() == pytest.approx(first, rel=1e-3)
    again = method.update_sampler(after, torch.tensor(lam).float(), torch.tensor(losses).float())
    assert float(again["memory"].step) == 2


def test_alpha_stays_within_its_limits() -> None:
    method = paper_hetpfl(kappa=10.0, limits=(1.0, 3.0))
    _, engine = played(method, Loop, federation(), LONG, rounds=2)
    alpha = engine.states.stacked["mixture"]["alpha"]
    assert float(alpha.min()) >= 1
    assert float(alpha.max()) <= 3
    assert float(alpha.max()) == 3 or float(alpha.min()) == 1


def test_the_sampler_is_updated_on_every_batch() -> None:
    """In the authors' code an overwritten variable skips all but the first batch of an epoch.

    Three passes of 12 / 6 = 2 batches: of 6 steps 3 are the body's, and each of the other 3 must
    be a step of alpha too.
    """
    work = Work(epochs=3, batch=6, lr=0.01)
    _, engine = played(paper_hetpfl(share=0.5), Loop, federation(sizes=(12,)), work)
    assert float(engine.states.stacked["memory"].step[0]) == 3
    _, engine = played(paper_hetpfl(share=0.5), Loop, federation(sizes=(12,)), work, rounds=2)
    assert float(engine.states.stacked["memory"].step[0]) == 6  # kept across rounds


def test_hypernet_is_trained_on_both_objectives_in_every_step() -> None:
    """The same bug trains on the loss alone at (1/2, 1/2) in the other batches; then fairness
    would not matter to the second half of the steps. Here it does to each.
    """
    data = federation(sizes=(12,))
    work = Work(steps=4, batch=6, lr=0.05)
    _, engine = played(paper_hetpfl(share=0.5, kappa=0.0), Loop, data, work)
    one = state_of(engine, 0)["hypernet"]
    data.groups[data.rows(0)] = 1 - data.groups[data.rows(0)]  # the other code, the same groups
    _, engine = played(paper_hetpfl(share=0.5, kappa=0.0), Loop, data, work)
    assert torch.allclose(one, state_of(engine, 0)["hypernet"], atol=1e-5)
    data.groups[data.rows(0)] = data.y[data.rows(0)].unsqueeze(-1)  # other groups
    _, engine = played(paper_hetpfl(share=0.5, kappa=0.0), Loop, data, work)
    assert not torch.allclose(one, state_of(engine, 0)["hypernet"], atol=1e-4)


# --- the fusion -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fused() -> tuple[HetPFL, Any, Engine]:
    method = paper_hetpfl(fusion_steps=40, preferences=4, shown=8)
    server, engine = played(method, Loop, federation(), LONG, rounds=2, finish=True)
    return method, server, engine


def test_weights_are_a_distribution_that_depends_on_the_preference() -> None:
    """FusionNet starts with equal weights and learns; the authors' code tunes the mean instead.

    Client 0's hypernet is good for the loss, client 1's for fairness: its outputs are 0. No client
    has nine tenths of the weight everywhere, as it had when training started with one dominating.
    """
    data, params = federation(sizes=(300, 200)), TASK.init(0)
    method = HetPFL(fusion="net")
    server, engine = played(method, Loop, data, Work(steps=20, batch=64, lr=0.5))
    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    revealed = fusion.FusionData(**cohort.gather(method.reveal, {"psi": server.kept}).value)
    where = nets.head_of(TASK)
    head = torch.cat([server.kept[where.weight].flatten(), server.kept[where.bias]])
    made = torch.stack([torch.zeros_like(head), -head])  # no correction, and no head at all
    revealed = revealed._replace(hypernet=made.repeat(1, nets.KNOTS))
    make, terms, both = nets.maker(TASK, server.kept), method.terms, torch.ones(2)
    nothing, learnt = (
        fusion.train_net(TASK, make, revealed, terms, steps=n, rate=0.05, count=16, alone=False)
        for n in (0, 300)
    )
    rays = preferences.grid(10, 2)
    even = fusion.fusion_weights(nothing, rays, both)
    each = fusion.fusion_weights(learnt, rays, both)
    assert torch.allclose(even, torch.full((11, 2), 0.5))
    assert each.sum(1).numpy() == pytest.approx(1, abs=1e-6)
    assert float(each.min()) > 0
    assert float(each[-1, 1]) > float(each[0, 1]) + 0.1  # fairness counts more at (1, 0)
    assert set(params) == set(server.kept)


def test_global_model_in_numpy(fused: Any) -> None:
    """Weights by Linear, ReLU, Linear, sigmoid over their sum; the head of the mixed hypernet."""
    method, server, engine = fused
    lam = np.array([0.2, 0.8])
    net = {k: v.double().numpy() for k, v in server.net.items()}
    hidden = np.maximum(net["weight1"] @ lam + net["bias1"], 0)
    raw = 1 / (1 + np.exp(-(net["weight2"] @ hidden + net["bias2"])))
    mixed = raw / raw.sum() @ engine.states.stacked["kept"].double().numpy()
    weight, bias = heads(mixed, lam)
    deployed = method.deployed(server)
    got = method.at(TASK, deployed, None, torch.tensor([0.2, 0.8]))
    assert got["linear2.weight"].numpy() == pytest.approx(weight, abs=1e-4)
    assert got["linear2.bias"].numpy() == pytest.approx(bias, abs=1e-4)
    assert method.joint(deployed)
    assert not method.joint(method.deployed(method.init_server(TASK, TASK.init(0), 3)))


def test_fusion_does_not_start_from_a_useless_mean(fused: Any) -> None:
    """Very different hypernets, of which one is good: FusionNet starts near that one."""
    method, server, engine = fused
    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    revealed = fusion.FusionData(**cohort.gather(method.reveal, {"psi": server.kept}).value)
    wild = [20 * nets.initial(TASK, TASK.init(seed), 2) for seed in (5, 6)]
    apart = revealed._replace(hypernet=torch.stack([wild[0], revealed.hypernet[1], wild[1]]))
    rows = Batch(
        *(t.flatten(0, 1) for t in (revealed.latent, revealed.y, revealed.groups, revealed.weight))
    )

    def volume(net: Any) -> float:
        def own(ray: torch.Tensor) -> torch.Tensor:
            return fusion.fused(net, apart.hypernet, torch.ones(3), ray)

        key = fusion.seed_of(revealed)
        return float(fusion.front_volume(TASK, MAKE, own, rows, method.terms, key))

    even = fusion.fusion_net(3, 2)
    found = fusion.train_net(
        TASK, MAKE, apart, method.terms, steps=0, rate=0.01, count=8, alone=True
    )
    later = fusion.train_net(
        TASK, MAKE, apart, method.terms, steps=30, rate=0.01, count=8, alone=True
    )
    assert volume(found) > volume(even) + 0.01
    assert volume(later) >= volume(found) - 1e-6  # the best on the way is kept
    assert float(fusion.fusion_weights(found, torch.tensor([0.5, 0.5]), torch.ones(3)).max()) > 0.8


def test_fusion_lowers_its_loss(fused: Any) -> None:
    """Eq. 10 on all training examples, in numpy, is smaller than with the initial weights."""
    method, server, engine = fused
    data = federation()
    hypernets = engine.states.stacked["kept"].double().numpy()
    body = {k: v.double().numpy() for k, v in server.kept.items()}

    def eq10(net: dict[str, Any]) -> float:
        total = []
        for ray in preferences.grid(20, 2)[1:-1]:
            weights = fusion.fusion_weights(net, ray, torch.ones(3)).double().numpy()
            weight, bias = heads(weights @ hypernets, ray.double().numpy())
            for k in range(3):
                at = data.rows(k)
                h = np.maximum(
                    data.x[at].numpy() @ body["linear1.weight"].T + body["linear1.bias"], 0
                )
                out = h @ weight.T + bias
                both = (
                    cross_entropy(out, data.y[at].numpy()),
                    squared(out, data.groups[at, 0].numpy()),
                )
                total.append(np.log(np.exp(np.array(both) / ray.numpy()).sum()))
        return float(np.mean(total))

    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    revealed = fusion.FusionData(**cohort.gather(method.reveal, {"psi": server.kept}).value)
    even = fusion.fusion_net(3, 2)
    last = fusion.train_net(
        TASK, MAKE, revealed, method.terms, steps=150, rate=0.05, count=8, alone=False
    )
    assert float((last["bias2"] - even["bias2"]).abs().max()) > 0  # it has learnt
    assert eq10(last) < eq10(even)


def test_revealed_examples_are_the_clients_own_and_at_most_as_many_as_allowed(fused: Any) -> None:
    method, server, engine = fused
    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    revealed = fusion.FusionData(**cohort.gather(method.reveal, {"psi": server.kept}).value)
    assert revealed.latent.shape[:2] == (3, 8)
    assert revealed.weight.sum(1).tolist() == [8, 7, 8]  # of 12, 7 and 9
    data = federation()
    for k in range(3):
        mine = nets.features(TASK, server.kept, data.x[data.rows(k)])
        for row in revealed.latent[k][revealed.weight[k] > 0]:
            assert bool((mine - row).abs().sum(1).min() < 1e-5)


def test_a_client_that_does_not_answer_has_no_weight() -> None:
    method = paper_hetpfl(fusion_steps=3, preferences=2, shown=4, select=0)
    server, engine = played(method, Loop, federation(), STEP)
    cohort = engine.cohort(engine.everyone(), work=STEP, round=1, wrap=(silent({0: {1}}),))
    server = method.finish(server, cohort)
    assert server.has.tolist() == [1, 0, 1]
    weights = fusion.fusion_weights(server.net, torch.tensor([0.5, 0.5]), server.has)
    assert float(weights[1]) == 0
    assert float(weights.sum()) == pytest.approx(1)


def test_the_mean_and_the_tuned_mean() -> None:
    plain, engine = played(
        paper_hetpfl(fusion="mean", shown=8), Loop, federation(), LONG, rounds=2, finish=True
    )
    mean = engine.states.stacked["kept"].mean(0)
    assert torch.allclose(plain.hypernets[0], mean)
    method = paper_hetpfl(fusion="tuned", shown=12, fusion_steps=6, preferences=4)
    server, engine = played(method, Loop, federation(), LONG, rounds=2, finish=True)
    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    revealed = fusion.FusionData(**cohort.gather(method.reveal, {"psi": server.kept}).value)
    key = fusion.seed_of(revealed)
    real = revealed.weight.flatten() > 0
    rows = [
        t.flatten(0, 1)[real]
        for t in (revealed.latent, revealed.y, revealed.groups, revealed.weight)
    ]
    order = random.permutation(key, "tuned", torch.tensor(28), 28, 1)[0]
    held = Batch(*(t[order[22:]] for t in rows))  # the fifth that is held out
    before = fusion.front_volume(TASK, MAKE, lambda _: mean, held, method.terms, key)
    tuned = server.hypernets[0]
    after = fusion.front_volume(TASK, MAKE, lambda _: tuned, held, method.terms, key)
    assert float(after) >= float(before) - 1e-6  # it may be the mean itself, but not worse


def test_what_clients_send() -> None:
    heard: list[Asked] = []
    played(
        paper_hetpfl(refit=1, fusion_steps=1),
        Loop,
        federation(),
        STEP,
        finish=True,
        wrap=(listening(heard),),
    )
    assert [a.phase for a in heard] == [
        "local", "validate", "keep", "settle", "train_again", "reveal",
    ]  # fmt: skip
    assert heard[0].replied == ("psi",)


# --- beyond the paper -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_body_trained_on_the_front_in_numpy(kind: type) -> None:
    """One step of client 1's body: .1 times the gradient of the mean over 3 preferences of
    log sum exp(loss_j / lam_j), the hypernet at rest; by central differences.
    """
    data, start = federation(), TASK.init(0)
    flat = nets.initial(TASK, start, 2).double().numpy()
    body = np.concatenate([start["linear1.weight"].flatten(), start["linear1.bias"]]).astype(float)
    rows = data.rows(1)
    x, y, z = data.x[rows].double().numpy(), data.y[rows].numpy(), data.groups[rows, 0].numpy()
    rays = rays_of(1, 3, "body preferences")

    def front(w: np.ndarray) -> float:
        latent, total = np.maximum(x @ w[:12].reshape(4, 3).T + w[12:], 0), 0.0
        for lam in rays:
            weight, bias = heads(flat, lam)
            out = latent @ weight.T + bias
            total += np.log(np.exp(np.array([cross_entropy(out, y), squared(out, z)]) / lam).sum())
        return total / len(rays)

    expected = body - 0.1 * gradient(front, body)
    method = paper_hetpfl(
        body="front", preferences=3, share=1.0, select=0, kappa=0.0, alpha=1.0, fusion="none"
    )
    server, engine = played(method, kind, data, Work(steps=1, batch=0, lr=0.1), ids=[1])
    got = torch.cat([server.psi["linear1.weight"].flatten(), server.psi["linear1.bias"]])
    assert got.numpy() == pytest.approx(expected, abs=2e-4)
    assert engine.states.stacked["hypernet"][1].numpy() == pytest.approx(flat, abs=1e-6)


def test_refit_trains_hypernets_on_the_final_body() -> None:
    data = federation()
    server, engine = played(paper_hetpfl(fusion="none"), Loop, data, LONG, rounds=2)
    before = engine.states.stacked["kept"].clone()
    again = paper_hetpfl(fusion="none", refit=1)
    cohort = engine.cohort(engine.everyone(), work=LONG, round=2)
    after = again.finish(server, cohort)
    assert torch.equal(after.kept["linear1.weight"], server.kept["linear1.weight"])
    assert not torch.equal(engine.states.stacked["kept"], before)


def test_three_objectives() -> None:
    data = federation()
    method = paper_hetpfl(
        objectives=("error", "dp.z", "eo.z"), preferences=4, fusion_steps=2, shown=6
    )
    server, engine = played(method, Loop, data, LONG, rounds=2, finish=True)
    assert engine.states.stacked["mixture"]["alpha"].shape == (3, 1, 3)
    model = method.at(TASK, method.deployed(server), None, torch.tensor([0.2, 0.3, 0.5]))
    assert bool(torch.isfinite(model["linear2.weight"]).all())


def test_components_of_the_mixture_stay_different() -> None:
    _, engine = played(paper_hetpfl(parts=2, fusion="none"), Loop, federation(), LONG, rounds=2)
    alpha = engine.states.stacked["mixture"]["alpha"]
    assert alpha.shape == (3, 2, 2)
    assert float((alpha[:, 0] - alpha[:, 1]).abs().min()) > 0.1


def test_a_new_client_trains_its_hypernet_only(fused: Any) -> None:
    method, server, _ = fused
    data = federation(sizes=(20,))
    engine = Loop(TASK, data, seed=9)
    engine.reset(method.init_client(TASK, TASK.init(0)))
    cohort = engine.cohort(engine.everyone(), work=LONG, round=5)
    deployed = method.deployed(server)
    cohort.gather(method.adapt, {"model": deployed})
    own = state_of(engine, 0)["kept"]
    start = server.hypernets.mean(0)
    assert not torch.equal(own, start)
    far = method.init_client(TASK, TASK.init(0))["kept"]
    assert float((own - start).norm()) < float((own - far).norm())
    model = method.at(TASK, deployed, state_of(engine, 0), torch.tensor([0.5, 0.5]))
    assert torch.equal(model["linear1.weight"], server.kept["linear1.weight"])


@pytest.mark.parametrize("fusion_by", ["net", "none"])
def test_the_deployed_model_survives_packing(fused: Any, fusion_by: str) -> None:
    """Saved tensors keep their names, and a decoded model adapts and predicts as before."""
    method, server, _ = fused
    if fusion_by == "none":
        method = paper_hetpfl(fusion="none")
        server = method.init_server(TASK, TASK.init(0), 3)
    deployed = method.deployed(server)
    arrays, shape = tree.pack(deployed)
    names = {"psi/linear1.weight", "psi/linear1.bias"}
    if fusion_by == "net":
        names |= {"hypernets", "has", *(f"net/{k}" for k in fusion.fusion_net(3, 2))}
    assert set(arrays) == names
    decoded = tree.unpack(arrays, shape)
    assert method.joint(decoded) == method.joint(deployed) == (fusion_by == "net")
    states = []
    for model in (deployed, decoded):
        engine = Loop(TASK, federation(sizes=(9,)), seed=9)
        engine.reset(method.init_client(TASK, TASK.init(0)))
        cohort = engine.cohort(engine.everyone(), work=STEP, round=0)
        cohort.gather(method.adapt, {"model": model})
        states.append(state_of(engine, 0))
    assert torch.equal(states[0]["kept"], states[1]["kept"])
    ray = torch.tensor([0.5, 0.5])
    if fusion_by == "none":
        with pytest.raises(ValueError, match="no front for all clients"):
            method.at(TASK, decoded, None, ray)
    else:
        head = "linear2.weight"
        same = [method.at(TASK, model, None, ray)[head] for model in (deployed, decoded)]
        assert torch.equal(*same)


def test_one_client() -> None:
    method = paper_hetpfl(fusion_steps=2, shown=4)
    server, engine = played(method, Batched, federation(sizes=(5,)), STEP, rounds=1, finish=True)
    ray = torch.tensor([0.3, 0.7])
    deployed = method.deployed(server)
    alone = method.at(TASK, deployed, state_of(engine, 0), ray)
    together = method.at(TASK, deployed, None, ray)
    assert torch.allclose(alone["linear2.weight"], together["linear2.weight"], atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kappa": -1.0}, "kappa = -1.0: give 0 or more"),
        ({"alpha": 6.0}, "alpha = 6.0: give two limits"),
        ({"limits": [0.5, 5.0]}, "at least 1"),
        ({"limits": [1.0]}, "give two limits"),
        ({"parts": 0}, "parts = 0: give 1 or more"),
        ({"shown": 0}, "shown = 0"),
        ({"fusion_rate": 0.0}, "fusion_rate = 0.0"),
        ({"objectives": ["error", "dp", "eo"], "preferences": 20}, "give at most 12"),
        ({"fusion": "sum"}, "one of"),
        ({"hypernet_rate": -1.0}, "hypernet_rate = -1.0: give a learning rate"),
        ({"baseline": True}, "baseline"),
        ({"fairness": "gap", "code": "number"}, "code = 'one-hot'"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make("hetpfl", options)
