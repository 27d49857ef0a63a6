"""Every attack's rule by hand, what is attacked in a reply, who is malicious, poisoned labels."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from contract.table import ENGINES
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.contract.checks import LOOP, begin
from isonomy.contract.world import CLIENTS, world
from isonomy.core import random, tree
from isonomy.core.cohort import Ask, Replies
from isonomy.core.phase import Part, phase
from isonomy.core.work import Work
from isonomy.errors import ConfigError
from isonomy.robust.attacks import (
    ATTACKS,
    Broken,
    FreeRider,
    Gaussian,
    InnerProduct,
    Labels,
    Little,
    Replacement,
    SignFlip,
    little_z,
    make,
)
from isonomy.robust.forging import Collusion, Count, Forging
from isonomy.robust.labels import malicious, poisoned
from isonomy.robust.parts import replied, trained, updates

IDS = torch.tensor([3, 5, 8, 9])
BAD = torch.tensor([5, 9, 11])
SENT = {"0.weight": torch.tensor([[1.0, 2.0]]), "0.bias": torch.tensor([0.5])}
rng = np.random.default_rng(3)
MOVES = rng.normal(size=(4, 3)).astype(np.float32)


def replies(rows=MOVES) -> dict[str, Any]:
    moves = torch.tensor(rows)
    return {
        "params": {
            "0.weight": SENT["0.weight"] + moves[:, :2].unsqueeze(1),
            "0.bias": SENT["0.bias"] + moves[:, 2:],
        },
        "loss": torch.arange(4.0),
    }


@phase("mean", params="model", loss="statistic")
def local(task, message, client):
    """Stands for a phase in which clients train a model."""


def ask(message=None, each=None, round=2, exchange=0, cohort=4) -> Ask:
    message = message or {"params": SENT}
    about = {"exchange": exchange, "cohort": cohort}
    return Ask(local, message, Work(), round, 0.1, IDS, each, **about)


def exchanged(attack, value=None, question=None, chunks=((0, 1), (2, 3)), cohort=4):
    """The replies under an attack, in the order of IDS, and the count of changed ones."""
    value = replies() if value is None else value
    question = question or ask(cohort=cohort)

    def honest(task, message, client):
        return tree.take(value, IDS.tolist().index(int(client.id))), client.state

    phase = Forging(attack, BAD, seed=7)(question, honest) if attack.alone else honest

    def exchange(_: Ask):
        for chunk in chunks:
            at = torch.tensor(chunk)
            clients = [SimpleNamespace(id=k, state=()) for k in IDS[at]]
            made = tree.stack([phase(None, question.message, one)[0] for one in clients])
            yield Replies(made, IDS[at], torch.ones(len(at)))

    wrapped = exchange if attack.alone else Collusion(attack, BAD, seed=7)(exchange)
    count = Count(BAD)
    got = list(count(wrapped)(question))
    ids = torch.cat([c.ids for c in got])
    out = tree.take(tree.concat([c.value for c in got]), ids.argsort())
    return out, count


def moved(out) -> np.ndarray:
    weight = (out["params"]["0.weight"] - SENT["0.weight"]).reshape(4, 2)
    return torch.cat([weight, out["params"]["0.bias"] - SENT["0.bias"]], 1).numpy()


def expect(attack, rows_of_bad, **how):
    out, count = exchanged(attack, **how)
    expected = MOVES.copy()
    expected[[1, 3]] = rows_of_bad
    assert moved(out) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert out["loss"].tolist() == [0, 1, 2, 3]
    assert count.changed == 2


def test_rules_of_one_client():
    bad = MOVES[[1, 3]]
    expect(Replacement(), 4 * bad)
    expect(Replacement(), 10 * bad, cohort=10)  # the round's clients, not those that answer
    expect(Replacement(factor=-2.5), -2.5 * bad)
    expect(SignFlip(factor=3.0), -3 * bad)
    expect(FreeRider(), 0 * bad)
    out, _ = exchanged(Labels())
    assert moved(out) == pytest.approx(MOVES, rel=1e-5, abs=1e-6)


def test_gaussian_has_the_spread_of_the_clients_own_update():
    keys = random.key(7, 2, IDS[[1, 3]])
    noise = random.normal(keys, "attack 0", (3,)).numpy()
    spread = MOVES[[1, 3]].std(1, keepdims=True)  # numpy's: divided by the number
    expect(Gaussian(), spread * noise)
    expect(Gaussian(scale=2.0), 2 * spread * noise)
    expect(FreeRider(noise=0.1), 0.1 * noise)
    value = {"params": {"w": torch.randn(4, 20_000) * torch.tensor([1, 2.0, 3, 5]).unsqueeze(1)}}
    value["loss"] = torch.zeros(4)
    question = ask({"params": {"w": torch.zeros(20_000)}})
    out, _ = exchanged(Gaussian(), value, question)
    got = out["params"]["w"]
    assert float(got[1].std()) == pytest.approx(2, rel=0.03)
    assert float(got[3].std()) == pytest.approx(5, rel=0.03)
    assert abs(float((got[1] * value["params"]["w"][1]).mean())) < 0.1  # has nothing of it


def test_noise_does_not_repeat():
    """In public code the sampler and the batches reseed what the noise is drawn from."""
    seen = []
    for round in (0, 1):
        for exchange in (0, 1):
            out, _ = exchanged(Gaussian(), question=ask(round=round, exchange=exchange))
            seen += [tuple(row) for row in moved(out)[[1, 3]].tolist()]
    assert len(set(seen)) == len(seen) == 8


def test_rules_of_colluders():
    bad, good = MOVES[[1, 3]], MOVES[[0, 2]]
    expect(InnerProduct(epsilon=0.5), -0.5 * good.mean(0))
    expect(InnerProduct(epsilon=2.0, knows="malicious"), -2 * bad.mean(0))
    expect(Little(z=1.5), bad.mean(0) - 1.5 * bad.std(0))
    expect(Little(z=1.5, knows="benign"), good.mean(0) - 1.5 * good.std(0))
    # the paper's z: the same whether replies come in one chunk or in four
    z = little_z(4, 2)
    expect(Little(), bad.mean(0) - z * bad.std(0))
    expect(Little(), bad.mean(0) - z * bad.std(0), chunks=((3,), (0,), (2,), (1,)))


def test_the_largest_z():
    """n = 50, m = 24: s = 26 - 24 = 2 of 26 benign ones further out."""
    assert little_z(50, 24) == pytest.approx(norm.ppf((26 - 2) / 26))
    assert little_z(10, 2) == 0.0
    assert little_z(3, 2) == 0.0
    assert little_z(2, 2) == 0.0
    assert little_z(100, 49) == pytest.approx(norm.ppf(49 / 51))


def test_broken_replies():
    for what, test in (("nan", torch.isnan), ("inf", torch.isinf)):
        out, _ = exchanged(Broken(what=what))
        wrong = [bool(test(out["params"]["0.bias"][i]).all()) for i in range(4)]
        assert wrong == [False, True, False, True]
    collusion = Collusion(Broken(what="shape"), BAD, seed=7)
    got = list(collusion(lambda _: iter([Replies(replies(), IDS, torch.ones(4))]))(ask()))
    assert [c.ids.tolist() for c in got] == [[3, 8], [5, 9]]
    assert got[1].value["params"]["0.bias"].shape == (2, 2)


# --- what is attacked -----------------------------------------------------------------------------


@phase(
    "gather",
    params="model",
    first=Part("model", "params"),
    gradient=Part("gradient", "params"),
    update="update",
    layer="model",
    loss="statistic",
    counts="group statistic",
)
def many(task, message, client):
    """Stands for a phase with parts of every kind."""


def test_parts():
    like = {"0.weight": torch.zeros(4, 1, 2), "0.bias": torch.zeros(4, 1)}
    value = {
        "params": like,
        "first": like,  # another model, trained from the same one
        "gradient": like,
        "update": like,
        "layer": {"9.weight": torch.zeros(4, 7)},  # trained from nothing that was sent
        "loss": torch.zeros(4),
        "counts": torch.zeros(4, 2),
    }
    question = replace(ask(), phase=many)
    found = {p.name: p for p in trained(question, value)}
    assert list(found) == ["params", "first", "gradient", "update", "layer"]
    assert found["params"].origin is SENT
    assert found["first"].origin is SENT
    assert found["gradient"].origin is None
    assert found["gradient"].sent is SENT
    assert found["update"].origin is None
    assert [p.combines for p in found.values()] == [True, True, True, True, False]
    own = {"params": {k: torch.stack([v * i for i in range(4)]) for k, v in SENT.items()}}
    (mine,) = trained(ask({"at": torch.zeros(2)}, own), {"params": like})
    assert mine.own
    assert mine.combines
    at = torch.tensor([2, 0])
    rows = updates({"params": tree.take(like, at)}, [mine], at)
    assert rows.tolist() == [[-2, -4, -1], [0, 0, 0]]
    back = replied({"params": tree.take(like, at)}, [mine], at, rows)
    assert back["params"]["0.weight"].tolist() == [[[0, 0]], [[0, 0]]]
    assert trained(ask(), {"loss": torch.zeros(4)}) == []


def test_a_phase_that_sends_no_parameters_is_not_wrapped():
    @phase("sum", loss="statistic")
    def losses(task, message, client):
        """Stands for a phase without parameters."""

    question = replace(ask(), phase=losses)
    assert Forging(SignFlip(), BAD, seed=7)(question, losses) is losses


def test_what_was_not_sent_by_malicious_clients_stays_as_it_is():
    value = replies()
    before = tree.tmap(torch.clone, value)
    for kind in ATTACKS.values():
        if kind is not Broken and not kind.trains:  # see test_fairness_attacks
            exchanged(kind(), value)
    assert tree.leaves(tree.tmap(torch.equal, value, before)) == [True] * 3


@pytest.mark.parametrize("transport", ENGINES.values(), ids=ENGINES)
def test_replacement_in_a_round_of_fedavg(transport):
    """w + mean of the updates, two of them times the number of clients."""
    where, ids = world(), torch.tensor([0, 1, 2, 5])

    def after(malicious_ids):
        engine, server = begin(FedAvg(weight="equal"), transport, where)
        forging = Forging(Replacement(), torch.tensor(malicious_ids), seed=1)
        cohort = engine.cohort(ids, work=where.work, round=0, around=(forging,))
        return FedAvg(weight="equal").round(server, cohort).params

    engine, server = begin(FedAvg(), LOOP, where)
    alone = [engine.cohort(ids[i : i + 1], work=where.work, round=0) for i in range(len(ids))]
    message = {"params": server.params}
    each = tree.stack([one.mean(FedAvg().local, message)["params"] for one in alone])
    for name, got in after([2, 5, 7]).items():
        moves = each[name] - server.params[name]
        expected = server.params[name] + (moves[0] + moves[1] + 4 * (moves[2] + moves[3])) / 4
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# --- who is malicious, and labels -----------------------------------------------------------------


def test_who_is_malicious():
    """Each once: public code draws with replacement in places, so that fewer are malicious."""
    for seed in range(20):
        who = malicious(50, fraction=0.5, seed=seed).tolist()
        assert len(set(who)) == len(who) == 25
        assert who == sorted(who)
        assert set(malicious(50, fraction=0.2, seed=seed).tolist()) < set(who)
    assert (
        malicious(50, fraction=0.5, seed=0).tolist() != malicious(50, fraction=0.5, seed=1).tolist()
    )
    assert malicious(7, fraction=0.5).numel() == 4  # 3.5, rounded
    assert malicious(9, ids=[8, 2]).tolist() == [2, 8]
    assert malicious(9, fraction=0.0).tolist() == []
    for bad in ([9], [-1], [1, 1]):
        with pytest.raises(ConfigError, match="numbers from 0 to 8"):
            malicious(9, ids=bad)
    with pytest.raises(ConfigError, match="selects no client"):
        malicious(9, fraction=0.01)
    with pytest.raises(ConfigError, match="every client is malicious"):
        malicious(2, fraction=0.9)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("how", ["auto", "random", "flip"])
def test_poisoned_labels(classes, how):
    """Only training labels of malicious clients change, and they do: public code skips some sets
    without a word."""
    clean = world(classes).federation
    who = torch.tensor([2, 5])
    bad = poisoned(clean, who, how, seed=4)
    assert torch.equal(bad.x, clean.x)
    assert torch.equal(bad.ranges, clean.ranges)
    for k in range(CLIENTS):
        for split in ("train", "validation", "test"):
            rows = clean.rows(k, split)
            same = torch.equal(bad.y[rows], clean.y[rows])
            assert same == (k not in (2, 5) or split != "train"), (k, split)
    rows = clean.rows(2, "train")
    if how == "flip" or (how == "auto" and classes == 2):
        assert torch.equal(bad.y[rows], classes - 1 - clean.y[rows])
    else:
        assert set(bad.y[rows].tolist()) == set(range(classes))
        assert 0 < int((bad.y[rows] == clean.y[rows]).sum()) < 40  # drawn, not turned
    again = poisoned(clean, who, how, seed=4)
    assert torch.equal(again.y, bad.y)
    assert poisoned(clean, who, "none", seed=4) is clean


def test_targets_have_no_labels():
    regression = replace(world().federation, y=torch.zeros(len(world().federation.y)), classes=0)
    with pytest.raises(ConfigError, match="no classes"):
        poisoned(regression, torch.tensor([0]), "flip", 0)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gausian", {}, "gaussian"),
        ("gaussian", {"scale": 0}, "scale = 0"),
        ("replacement", {"factor": float("inf")}, "factor = inf"),
        ("sign_flip", {"factor": -1}, "factor = -1"),
        ("inner_product", {"epsilon": 0}, "epsilon = 0"),
        ("inner_product", {"knows": "all"}, "'malicious', 'benign'"),
        ("little", {"z": -1}, "z = -1"),
        ("free_rider", {"noise": -1}, "noise = -1"),
        ("broken", {"what": "all"}, "'nan', 'inf', 'shape'"),
        ("labels", {"how": "flip"}, "has no options"),
    ],
)
def test_bad_options_are_one_sentence(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make(name, options)
