"""Attacks on group fairness: who does what, forged models, malicious training, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from algorithms.group_by_hand import ENGINES, people
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.fairfed import FairFed
from isonomy.blocks.groups import cells, rates
from isonomy.config.schema import parse
from isonomy.core import random, tree
from isonomy.core.client import Client, Pool, lone_client
from isonomy.core.examples import Attribute
from isonomy.core.notions import NOTIONS
from isonomy.core.task import Batch, Task
from isonomy.core.work import Work
from isonomy.data.federation import build as federation_of
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.robust.attack import Trainee, roles
from isonomy.robust.fairness_attacks import (
    EABFL,
    FOE,
    SDFA,
    FFlip,
    PFAttack,
    SpDFA,
    _products,
    repeated,
)
from isonomy.robust.forging import Apart, Forging
from isonomy.robust.labels import flipped
from isonomy.runs.build import build, check_remote
from isonomy.runs.training import run

BAD = torch.tensor([0, 2, 3, 5, 8])
both = pytest.mark.parametrize("kind", ENGINES)


def test_roles_of_malicious_clients() -> None:
    nobody: list[int] = []
    assert [t.tolist() for t in roles(FFlip(), BAD, 0)] == [nobody, BAD.tolist()]
    assert [t.tolist() for t in roles(FOE(), BAD, 0)] == [BAD.tolist(), nobody]
    assert [t.tolist() for t in roles(SDFA(), BAD, 0)] == [BAD.tolist(), BAD.tolist()]
    assert [t.tolist() for t in roles(EABFL(), BAD, 0)] == [BAD.tolist(), nobody]
    forge, flip = roles(SpDFA(), BAD, 0)
    assert (len(forge), len(flip)) == (3, 2)
    assert sorted([*forge.tolist(), *flip.tolist()]) == BAD.tolist()
    assert len({tuple(roles(SpDFA(), BAD, s).flip.tolist()) for s in range(20)}) > 3


def test_groups_of_training_examples_are_flipped() -> None:
    _, made = people(2)
    new = flipped(made, torch.tensor([1, 3]), "age")
    for k in range(4):
        train_rows, test = made.rows(k), made.rows(k, "test")
        old, now = made.groups[train_rows], new.groups[train_rows]
        assert torch.equal(now[:, 1], 2 - old[:, 1] if k in (1, 3) else old[:, 1])
        assert torch.equal(now[:, 0], old[:, 0])
        assert torch.equal(made.groups[test], new.groups[test])
    assert torch.equal(made.x, new.x)
    assert torch.equal(made.y, new.y)
    sex = flipped(made, torch.tensor([0]), "")
    assert torch.equal(sex.groups[made.rows(0)][:, 0], 1 - made.groups[made.rows(0)][:, 0])


@both
@pytest.mark.parametrize("attack", [FOE(factor=0.5), SDFA(factor=2.0)])
def test_negative_models_by_hand(kind: type[Engine], attack: Any) -> None:
    """Two clients of equal weight, one malicious: (w_0 - factor w_1) / 2."""
    task, made = people(2)
    params = task.init(0)

    def after(ids: list[int], around: Any = ()) -> Any:
        engine = kind(task, made)
        engine.reset(())
        cohort = engine.cohort(torch.tensor(ids), work=Work(), round=0, around=around)
        algorithm = FedAvg(weight="equal")
        return algorithm.round(algorithm.init_server(task, params, 4), cohort).params

    own = [after([k]) for k in (0, 1)]
    forged = after([0, 1], (Forging(attack, torch.tensor([1, 3]), seed=0),))
    for name, value in forged.items():
        wanted = (own[0][name] - attack.factor * own[1][name]) / 2
        torch.testing.assert_close(value, wanted, atol=1e-6, rtol=1e-5)


def rows_of_two_groups(n: int, seed: int) -> Pool:
    """Rows of two groups whose labels depend on the features in different ways."""
    draw = np.random.default_rng(seed)
    z = draw.integers(0, 2, n)
    x = draw.normal(size=(n, 3))
    score = np.where(z == 0, x[:, 0] + 0.3 * x[:, 1], 0.6 * x[:, 0] - x[:, 2])
    y = (score + 0.7 * draw.normal(size=n) > 0).astype(np.int64)
    return Pool(torch.tensor(x).float(), torch.tensor(y), torch.tensor(z).unsqueeze(1))


def linear_task() -> Task:
    return Task(
        lambda: torch.nn.Linear(3, 1), loss_name="logistic", levels=(2,), attributes=("sex",)
    )


def biased() -> tuple[Task, Client]:
    """The task, and a client with such rows."""
    pool = rows_of_two_groups(300, seed=4)
    return linear_task(), lone_client(pool, Work(batch=32, lr=0.3), 0.3, random.key(1))


def group_loss(task: Task, params: Any, client: Client, group: int) -> float:
    whole = client.train
    inside = (whole.group == group).float()
    return float((task.losses(params, whole) * inside).sum() / inside.sum())


def honest(task: Task, client: Client, rounds: int = 3) -> Any:
    from isonomy.blocks.descent import descend

    params = task.init(0)
    for _ in range(rounds):
        params = descend(task.loss, params, client)
    return params


def test_products_of_gradients() -> None:
    """The same as products of single gradients."""
    task, client = biased()
    params, whole = task.init(0), client.train
    direction = grad(task.loss)(task.init(1), whole)

    def one(x: Any, y: Any, z: Any) -> Any:
        batch = Batch(x.unsqueeze(0), y.unsqueeze(0), z.unsqueeze(0), torch.ones(1))
        return tree.dot(grad(task.loss)(params, batch), direction)

    wanted = vmap(one)(whole.x, whole.y, whole.groups)
    torch.testing.assert_close(_products(task, params, whole, direction), wanted)


@pytest.mark.parametrize("group", [0, 1])
def test_eab_fl_harms_one_group(group: int) -> None:
    """The group's loss and the gap to the other group grow; with the public code's sign, the
    group's loss falls.
    """
    task, client = biased()
    own = honest(task, client)
    before = [group_loss(task, own, client, z) for z in (0, 1)]
    after = {}
    for pick in ("harmful", "released"):
        attack = EABFL(pick=pick, group=group, lr=0.02)  # type: ignore[arg-type]
        made = attack.train(Trainee(task, task.init(0), own, client))
        after[pick] = [group_loss(task, made, client, z) for z in (0, 1)]
    assert after["harmful"][group] > before[group] + 0.05
    gap = after["harmful"][group] - after["harmful"][1 - group]
    assert gap > before[group] - before[1 - group] + 0.05
    assert after["released"][group] < before[group]


def test_eab_fl_without_a_group_or_a_weight_does_nothing() -> None:
    """No derivative is above the threshold: only the bias moves; nobody to pick: nothing moves."""
    task, client = biased()
    own = honest(task, client)
    made = EABFL(threshold=1e9).train(Trainee(task, own, own, client))
    assert torch.equal(made["weight"], own["weight"])
    assert not torch.equal(made["bias"], own["bias"])
    alone = Pool(client.pool.x, client.pool.y, torch.zeros_like(client.pool.groups))
    only = lone_client(alone, client.work, 0.3, client.key)
    same = EABFL().train(Trainee(task, own, own, only))
    assert tree.leaves(tree.tmap(torch.equal, same, own)) == [True, True]


def test_pf_attack_restores_the_gap_of_plain_training() -> None:
    """From a model with equal rates in both groups, towards the gap of the client's own model."""
    task, client = biased()
    x = client.pool.x.clone()
    x[:, 0] += 1.5 * client.pool.groups[:, 0]
    noise = torch.tensor(np.random.default_rng(0).normal(size=300))
    pool = Pool(x, (x[:, 0] + noise > 0.7).long(), client.pool.groups)
    client = lone_client(pool, client.work, 0.3, client.key)
    fair = {"weight": torch.tensor([[0.0, 1.0, 0.0]]), "bias": torch.zeros(1)}

    def gap(params: Any) -> float:
        rate = rates(cells(task, params, client, 0), NOTIONS["dp"])[0]
        return float(rate[1] - rate[0])

    assert abs(gap(fair)) < 0.15
    aimed = gap(honest(task, client))
    assert aimed > 0.3
    made = PFAttack(gamma=1.0, lr=0.05).train(Trainee(task, fair, fair, client))
    assert gap(made) > 0.7 * aimed
    boosted = PFAttack(gamma=1.0, lr=0.05, weight=0.25).train(Trainee(task, fair, fair, client))
    for name, value in boosted.items():
        wanted = fair[name] + 4 * (made[name] - fair[name])
        torch.testing.assert_close(value, wanted, atol=1e-4, rtol=1e-5)


def test_pf_attack_is_honest_before_the_last_rounds() -> None:
    task, made = people(2)
    results = {}
    for rounds in (3, 9, None):
        engine = Loop(task, made)
        engine.reset(())
        around = (Forging(PFAttack(), torch.tensor([1]), seed=0, rounds=rounds),)
        algorithm = FairFed(beta=1.0)
        server = algorithm.init_server(task, task.init(0), 4)
        for r in range(2):
            cohort = engine.cohort(engine.everyone(), work=Work(), round=r, around=around)
            server = algorithm.round(server, cohort)
        results[rounds] = server.params
    plain = train_plain(task, made)
    assert same(results[9], plain)
    assert not same(results[3], plain)  # its second round is one of the last two
    assert not same(results[None], results[3])  # there, the first one is attacked too


def train_plain(task: Task, made: Any) -> Any:
    engine = Loop(task, made)
    engine.reset(())
    algorithm = FairFed(beta=1.0)
    server = algorithm.init_server(task, task.init(0), 4)
    for r in range(2):
        server = algorithm.round(server, engine.cohort(engine.everyone(), work=Work(), round=r))
    return server.params


def same(a: Any, b: Any) -> bool:
    return all(bool(torch.equal(a[name], b[name])) for name in a)


@both
@pytest.mark.parametrize("hides", [True, False])
def test_pf_attack_reports_no_distance(kind: type[Engine], hides: bool) -> None:
    task, made = people(2)
    engine = kind(task, made)
    engine.reset(())
    heard = {}

    def hearing(exchange: Any) -> Any:
        def wrapped(ask: Any) -> Any:
            for chunk in exchange(ask):
                if "distance" in chunk.value:
                    found = chunk.value["distance"].tolist()
                    heard.update(zip(chunk.ids.tolist(), found, strict=True))
                yield chunk

        return wrapped

    around = (Forging(PFAttack(hides=hides), torch.tensor([1]), seed=0),)
    algorithm = FairFed(beta=1.0)
    server = algorithm.init_server(task, task.init(0), 4)
    cohort = engine.cohort(engine.everyone(), work=Work(), round=0, around=around, wrap=(hearing,))
    algorithm.round(server, cohort)
    assert (heard[1] == 0) == hides
    assert all(heard[k] > 0 for k in (0, 2, 3))


def test_repeated_passes() -> None:
    _, client = biased()
    plan, more = client.plan, repeated(client, 3)
    steps = int(plan.count)
    assert int(more.count) == 3 * steps
    for i in range(3):
        assert torch.equal(more.rows[i * steps : (i + 1) * steps], plan.rows[:steps])


CONFIG: dict[str, Any] = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 6},
    "evaluate": {"bootstrap": 0},
    "excess": "none",
}


def test_a_split_attack_in_a_run() -> None:
    """Two of four malicious clients forge, the others train on flipped groups; all is said."""
    config = parse(CONFIG | {"attack": {"name": "sp_dfa", "fraction": 0.6}})
    setting = build(config)
    forge, flip = setting.roles
    assert (len(forge), len(flip)) == (2, 2)
    for k in range(6):
        rows = setting.federation.rows(k)
        changed = not torch.equal(setting.federation.groups[rows], setting.clean.groups[rows])
        assert changed == (k in flip.tolist())
    got = run(config)
    assert [line["attacked"] for line in got.rounds] == [2] * 4
    assert "groups of 2 clients' training examples flipped" in " ".join(got.notes)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attack": "eab_fl", "algorithm": "fedmdfg"}, "clients of 'fedmdfg' send none"),
        ({"attack": {"name": "eab_fl", "group": 7}}, "attack.group = 7"),
        ({"attack": {"name": "f_flip", "attribute": "height"}}, "attack.attribute"),
        ({"attack": {"name": "pf_attack"}, "data": {"name": "points"}}, "protected"),
        ({"attack": {"name": "f_flip"}, "data": {"name": "points"}}, "protected"),
        ({"attack": {"name": "foe", "factor": 0.0}}, "factor"),
    ],
)
def test_what_does_not_suit_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build(parse(CONFIG | changes))


def test_models_that_are_not_whole_are_refused() -> None:
    with pytest.raises(ConfigError, match="trains a whole model"):
        run(parse(CONFIG | {"attack": "eab_fl", "algorithm": "equifl"}))


@pytest.mark.parametrize("name", ["f_flip", "s_dfa", "sp_dfa"])
def test_groups_are_not_flipped_in_a_real_federation(name: str) -> None:
    with pytest.raises(ConfigError, match="does not change the groups"):
        check_remote(parse(CONFIG | {"attack": name}), 6)
    check_remote(parse(CONFIG | {"attack": "foe"}), 6)
    check_remote(parse(CONFIG | {"attack": "eab_fl"}), 6)


def test_the_gap_grows_in_a_federation() -> None:
    """Two of six clients raise the loss of group 0, of new rows, relative to that of group 1."""
    task, pool = linear_task(), rows_of_two_groups(600, seed=5)
    parts = {"train": list(torch.arange(600).split(100))}
    made = federation_of(*pool, parts, classes=2, attributes=(Attribute("sex", ("f", "m")),))

    def gap(around: Any) -> float:
        engine = Batched(task, made)
        engine.reset(())
        algorithm = FedAvg(weight="equal")
        server = algorithm.init_server(task, task.init(0), 6)
        for r in range(6):
            work = Work(lr=0.3)
            cohort = engine.cohort(engine.everyone(), work=work, round=r, around=around)
            server = algorithm.round(server, cohort)
        batch = Batch(*rows_of_two_groups(2000, seed=6), torch.ones(2000))
        losses = task.losses(server.params, batch)
        return float(losses[batch.group == 0].mean() - losses[batch.group == 1].mean())

    bad = torch.tensor([1, 4])
    attacked = {
        pick: gap((Forging(EABFL(pick=pick, lr=0.05), bad, seed=0),))  # type: ignore[arg-type]
        for pick in ("harmful", "released")
    }
    assert attacked["harmful"] > gap(()) + 0.01
    assert attacked["released"] < attacked["harmful"]


def test_malicious_clients_are_asked_apart() -> None:
    """The same replies, in less time."""
    task, made = people(7, clients=6, n=60)
    bad, results = torch.tensor([1, 4]), []
    for wrap in ((), (Apart(bad),)):
        engine = Batched(task, made)
        engine.reset(())
        algorithm = FedAvg()
        server = algorithm.init_server(task, task.init(0), 6)
        for ids in ([0, 1, 2, 4], [0, 2], [1, 4]):
            around = (Forging(EABFL(epochs=2), bad, seed=0),)
            cohort = engine.cohort(
                torch.tensor(ids), work=Work(), round=0, around=around, wrap=wrap
            )
            server = algorithm.round(server, cohort)
        results.append(server.params)
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("local", ["reweigh", "reweigh_all"])
def test_flipped_groups_matter_with_weights_of_all_examples(local: Any) -> None:
    """A client's own debiasing weights do not depend on the names of the groups."""
    task, made = people(7, clients=6, n=60)
    algorithm, results = FairFed(beta=0.0, local=local), []
    for data in (made, flipped(made, torch.tensor([1, 4]), "")):
        engine = Batched(task, data)
        engine.reset(())
        server = algorithm.init_server(task, task.init(0), 6)
        cohort = engine.cohort(engine.everyone(), work=Work(), round=0)
        results.append(algorithm.round(server, cohort).params)
    close = all(torch.allclose(results[0][n], results[1][n], atol=1e-6) for n in results[0])
    assert close == (local == "reweigh")
