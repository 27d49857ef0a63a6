"""Attacks and defences with representative algorithms: every engine does the same.

One algorithm for each way of replying: models (fedavg), models and losses (term, fedfv), gradients
(fedeba), several models (focus), layers (fedma), nothing of the kind (local).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.table import ENGINES, row
from isonomy.algorithms import registry
from isonomy.contract.running import LOOP, Transport, begin, close, outcome, same_bits, scattered
from isonomy.contract.world import World, world
from isonomy.core.algorithm import Algorithm
from isonomy.engines.base import dropout
from isonomy.robust.attacks import ATTACKS, Attack
from isonomy.robust.combiners import COMBINERS, Combiner
from isonomy.robust.defence import Defence, refusal
from isonomy.robust.forging import Collusion, Count, Forging
from isonomy.robust.screen import Screen

MALICIOUS = torch.tensor([1, 4, 5])
BATCHED = ENGINES["batched"]
ATTACKED = ("fedavg", "term", "fedfv", "fedeba", "focus", "fedma", "local")
AVERAGING = ("fedavg", "fedprox", "focus")


def made(name: str) -> Algorithm:
    """The algorithm under the options that reach every part of it."""
    return registry()[name](**row(name).variants[0])


def sides(attack: Attack | None, seed: int) -> tuple[list[Any], list[Any]]:
    """The attack as middleware, of the client side or, if clients collude, of the server side."""
    if attack is None or not attack.forges:
        return [], []
    if attack.alone:
        return [Forging(attack, MALICIOUS, seed=seed)], []
    return [], [Collusion(attack, MALICIOUS, seed=seed)]


def run(
    algorithm: Algorithm,
    transport: Transport,
    where: World,
    *,
    attack: Attack | None = None,
    rule: Combiner | None = None,
    wrap: tuple[Any, ...] = (),
    rounds: int = 3,
) -> tuple[Any, int, dict[int, str]]:
    """The result of some rounds, the number of changed replies, and the rejected clients."""
    engine, server = begin(algorithm, transport, where)
    changed, rejected = 0, {}
    defence = None if rule is None else Defence(rule)
    for r in range(rounds):
        screen, count = Screen(), Count(MALICIOUS)
        client_side, server_side = sides(attack, where.seed)
        if attack is not None and attack.forges:
            server_side = [count, *server_side]
        cohort = engine.cohort(
            where.ids(r),
            work=where.work,
            round=r,
            wrap=(screen.learn, *server_side, *wrap, screen),
            around=tuple(client_side),
            combine=defence,
        )
        server = algorithm.round(server, cohort)
        changed += count.changed
        rejected |= screen.rejected
    return outcome(algorithm, transport, engine, server, where), changed, rejected


PAIRS = [
    (name, kind())
    for name in ATTACKED
    for kind in ATTACKS.values()
    if not (kind.trains and name == "fedma")  # whose clients send layers
]


@pytest.mark.parametrize(("name", "attack"), PAIRS, ids=[f"{n}-{a.name}" for n, a in PAIRS])
def test_attacks(name: str, attack: Attack) -> None:
    where, algorithm = world(2) if attack.binary else world(), made(name)
    expected, changed, rejected = run(algorithm, LOOP, where, attack=attack)
    got, also, too = run(algorithm, BATCHED, where, attack=attack)
    assert (also, too) == (changed, rejected)
    close(got, expected, f"{name} under {attack.name}")
    assert bool(changed) == (name != "local" and attack.forges)
    assert set(rejected) <= set(MALICIOUS.tolist())
    assert bool(rejected) == (attack.name == "broken" and name != "local")


@pytest.mark.parametrize("rule", [kind() for kind in COMBINERS.values()], ids=lambda r: r.name)
@pytest.mark.parametrize("name", AVERAGING)
def test_defences(name: str, rule: Combiner) -> None:
    where, algorithm = world(), made(name)
    assert refusal(type(algorithm), rule.name) is None
    attack = ATTACKS["sign_flip"](factor=3.0)  # type: ignore[call-arg]
    expected, *_ = run(algorithm, LOOP, where, attack=attack, rule=rule)
    got, *_ = run(algorithm, BATCHED, where, attack=attack, rule=rule)
    close(got, expected, f"{name} with {rule.name}")
    plain, *_ = run(algorithm, BATCHED, where, attack=attack)
    assert any(not torch.equal(a, b) for a, b in zip(plain.outputs, got.outputs, strict=True)), (
        "the defence did nothing"
    )


@pytest.mark.parametrize("transport", ENGINES.values(), ids=ENGINES)
def test_order_repetition_and_dropout(transport: Transport) -> None:
    """Draws depend neither on chunks nor on earlier runs; a smaller cohort is attacked alike."""
    where = world()
    for attack in (ATTACKS["gaussian"](), ATTACKS["little"]()):
        first, *_ = run(made("fedavg"), transport, where, attack=attack)
        torch.rand(3)
        again, *_ = run(made("fedavg"), transport, where, attack=attack)
        same_bits(again, first, "the second run")
        turned, *_ = run(made("fedavg"), transport, where, attack=attack, wrap=(scattered,))
        close(turned, first, "replies in another order")

        def quiet(inner: Any) -> Any:
            return dropout(inner, probability=0.4, seed=3)

        some, *_ = run(made("fedavg"), transport, where, attack=attack, wrap=(quiet,))
        same, *_ = run(made("fedavg"), LOOP, where, attack=attack, wrap=(quiet,))
        close(some, same, "with clients that drop out")


def test_resumed_rounds_draw_the_same() -> None:
    """A round's attack does not depend on the rounds before it."""
    where = world()
    engine, server = begin(made("fedavg"), LOOP, where)
    results = []
    for _ in range(2):
        forging = Forging(ATTACKS["gaussian"](), MALICIOUS, seed=7)
        cohort = engine.cohort(where.ids(1), work=where.work, round=1, around=(forging,))
        results.append(made("fedavg").round(server, cohort))
    same_bits(results[1], results[0], "the round done again")
