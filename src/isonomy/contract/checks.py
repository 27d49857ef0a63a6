"""The contract, one function for each clause; each raises AssertionError when it is broken.

`suite` runs them on one algorithm. The tests run them on every algorithm of the package, and on
algorithms and engines that break one clause each, to see that they are caught. What a round really
exchanges is compared with the declarations in `recording`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from isonomy.contract.running import (
    LOOP,
    Outcome,
    Transport,
    begin,
    check,
    close,
    copied,
    home,
    named,
    one_round,
    outcome,
    over_the_wire,
    own_world,
    run,
    same_bits,
    scattered,
    shared_run,
    silent,
    through_bytes,
)
from isonomy.contract.world import CLIENTS, World, world
from isonomy.core import random, tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client
from isonomy.core.cohort import Ask, Exchange, NoReplies, Replies
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine

# --- the clauses ----------------------------------------------------------------------------------


@check
def check_engines_agree(
    algorithm: Algorithm, transport: Transport, where: World | None = None
) -> None:
    """Server, states and predictions are those of the reference engine, to rounding."""
    where = where or home(algorithm)
    expected = _reference(algorithm, where)
    got = run(algorithm, transport, where, finish=True)
    close(got.server, expected.server, "server")
    close(got.states, expected.states, "client states")
    close(got.outputs, expected.outputs, "predictions")


@functools.cache
def _reference(algorithm: Algorithm, where: World) -> Outcome:
    """The run of the reference engine, shared by the engines that are compared with it."""
    return run(algorithm, LOOP, where, finish=True)


@check
def check_repeatable(algorithm: Algorithm, transport: Transport) -> None:
    """The same inputs give the same bits, whatever ran before."""
    where = home(algorithm)
    first = shared_run(algorithm, transport, where, 4)
    torch.rand(3)  # the global generator has moved on
    same_bits(run(algorithm, transport, where, rounds=4), first, "the second run")


@check
def check_inputs_unchanged(algorithm: Algorithm, transport: Transport) -> None:
    """Server, message, initial parameters and examples are what they were before a round."""
    where = own_world(algorithm)
    federation = where.federation
    examples = (federation.x, federation.y, federation.groups, federation.ranges)
    before = copied(examples)

    def watched(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            given = (ask.message, ask.each or {}, ask.ids)
            before = copied(given)
            yield from exchange(ask)
            same_bits(given, before, "the message, after the phase")

        return wrapped

    params = copied(where.params)
    engine = transport.make(where.task, federation, seed=where.seed)
    engine.server_data = where.server_data if algorithm.needs_server_data else None
    engine.reset(algorithm.init_client(where.task, where.params))
    server = algorithm.init_server(where.task, where.params, len(federation))
    for r in range(2):
        given = copied(server)
        new = one_round(algorithm, engine, server, where, r, wrap=(watched,))
        same_bits(server, given, "the server's state before the round, after it")
        server = new
    same_bits(where.params, params, "the initial parameters, after the rounds")
    same_bits(examples, before, "the federation, after the rounds")


@check
def check_phases_pure(algorithm: Algorithm) -> None:
    """Called twice on the same client a phase answers the same and changes nothing it was given."""
    where = own_world(algorithm)

    def called_twice(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            @functools.wraps(ask.phase)
            def twice(task: Task, message: Any, client: Client) -> tuple[Tree, Tree]:
                given = (message, client.state, client.pool, client.key, client.rate)
                before = copied(given)
                first = copied(ask.phase(task, message, client))
                same_bits(given, before, "what the phase was given, after it")
                second = ask.phase(task, message, client)
                same_bits(second, first, "the phase's second answer")
                return second

            yield from exchange(replace(ask, phase=twice))

        return wrapped

    engine, server = begin(algorithm, LOOP, where)
    for r in range(2):
        server = one_round(algorithm, engine, server, where, r, wrap=(called_twice,))


@check
def check_order(algorithm: Algorithm, transport: Transport) -> None:
    """Nothing depends on the order of a cohort, of the replies or of the federation."""
    where = home(algorithm)
    expected = shared_run(algorithm, transport, where, 2)

    other = [where.ids(r)[torch.randperm(len(where.ids(r)), generator=_seeded())] for r in (0, 1)]
    got = run(algorithm, transport, where, cohorts=other)
    close(got.server, expected.server, "server, of a cohort in another order")
    close(got.states, expected.states, "client states, of a cohort in another order")

    engine, server = begin(algorithm, transport, where)
    for r in (0, 1):
        server = one_round(algorithm, engine, server, where, r, wrap=(scattered,))
    close(server, expected.server, "server, of replies in another order")

    # client j of the other federation is client old[j] of this one, and draws its numbers
    old = torch.randperm(CLIENTS, generator=_seeded())
    new = old.argsort()
    moved = replace(where, federation=where.federation.only(old.tolist()))
    with relabelled_keys(old):
        ids = [new[where.ids(r)] for r in (0, 1)]
        got = run(algorithm, transport, moved, cohorts=ids)
    at = by_client(algorithm, where)
    server = []
    for t, axes in zip(tree.leaves(expected.server), at, strict=True):
        for axis in axes:
            t = t.index_select(axis, old)
        server.append(t)
    close(tree.leaves(got.server), server, "server, of a federation in another order")
    states = tree.take(expected.states, old)
    close(got.states, states, "client states, of a federation in another order")


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


def relabelled_keys(old: Tensor) -> Any:
    """Client j draws what client old[j] would have drawn."""
    plain = random.key

    def key(*parts: int | Tensor) -> Tensor:
        moved = [old[p] if isinstance(p, Tensor) and p.dim() else p for p in parts]
        return plain(*moved)

    return mock.patch.object(random, "key", key)


def by_client(algorithm: Algorithm, where: World) -> list[list[int]]:
    """For each leaf of the server's state, the axes that run over all clients."""

    def shapes(clients: int) -> list[tuple[int, ...]]:
        made = algorithm.init_server(where.task, copied(where.params), clients)
        return [tuple(t.shape) for t in tree.leaves(made)]

    pairs = zip(shapes(CLIENTS), shapes(CLIENTS + 1), strict=True)
    return [[i for i, n in enumerate(a) if n != b[i]] for a, b in pairs]


LONE = (1, 5)  # the smallest client, padded most among others, and a large one


@check
def check_padding(algorithm: Algorithm, transport: Transport) -> None:
    """Neither the split of a cohort into chunks nor the other clients of a chunk matter."""
    where = home(algorithm)
    expected = shared_run(algorithm, transport, where, 2)
    for cut in transport.chunks:
        got = run(algorithm, transport, where, rounds=2, **cut)
        close(got.server, expected.server, f"server with {cut}")
        close(got.states, expected.states, f"client states with {cut}")

    # all examples in one batch: then the largest client of a chunk sets the width
    where = replace(where, work=replace(where.work, batch=0, epochs=2))
    everyone = torch.arange(CLIENTS)
    reply, states = first_phase(algorithm, transport, where, everyone)
    for k in LONE:
        own, after = first_phase(algorithm, transport, where, torch.tensor([k]))
        close(own, tree.take(reply, slice(k, k + 1)), f"client {k}'s reply when alone")
        mine = tree.take(states, k)
        close(tree.take(after, k), mine, f"client {k}'s state when alone")


class _EnoughError(Exception):
    """The first phase is done."""


def first_phase(
    algorithm: Algorithm, transport: Transport, where: World, ids: Tensor
) -> tuple[Tree, Tree]:
    """Replies to the first phase in the order of `ids`, and all states after it."""
    got: list[Replies] = []

    def until_answered(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            got.extend(exchange(ask))
            raise _EnoughError
            yield

        return wrapped

    engine, server = begin(algorithm, transport, where)
    with contextlib.suppress(_EnoughError):
        one_round(algorithm, engine, server, where, 0, ids=ids, wrap=(until_answered,))
    order = torch.cat([c.ids for c in got]).argsort()
    value = tree.take(tree.concat([c.value for c in got]), order)
    return value, transport.states(engine)


@check
def check_draws(transport: Transport) -> None:
    """A client's batches and draws are the same bits alone and among larger clients."""
    where = world()

    @phase(
        "gather",
        batches="statistic",
        steps="statistic",
        examples="statistic",
        uniform="statistic",
        normal="statistic",
        train="statistic",
        labels="statistic",
        validation="statistic",
    )
    def fingerprint(_task: Task, _message: Any, client: Client) -> tuple[Tree, Tree]:
        plan = client.plan
        steps, batch = plan.rows.shape
        live = (torch.arange(steps) < plan.count).unsqueeze(-1)
        place = torch.arange(steps).unsqueeze(-1) * 1000 + torch.arange(batch)
        own = plan.rows - client.starts[0]
        marks = random.mix64(own * 1_000_000 + place) % 1_000_003
        real = (plan.weight > 0) & live
        train = client.train
        reply = {
            "batches": torch.where(real, marks, 0).sum(),
            "steps": plan.count,
            "examples": (plan.weight * live).sum(),
            "uniform": client.uniform("u", (3,)),
            "normal": client.normal("z", (3,)),
            "train": train.weight.sum(),
            "labels": (train.y * train.weight).sum(),
            "validation": client.validation.weight.sum(),
        }
        return reply, client.state

    for work in (
        where.work,
        replace(where.work, last="drop", epochs=2),
        replace(where.work, batch=0),
    ):
        for steps in (None, 5):
            how = replace(work, steps=steps)

            def ask(ids: Tensor, engine: Engine, how: Any = how) -> Tree:
                cohort = engine.cohort(ids, work=how, round=3)
                return cohort.gather(fingerprint, {}).value

            alone = LOOP.make(where.task, where.federation, seed=where.seed)
            expected = tree.concat([ask(torch.tensor([k]), alone) for k in range(CLIENTS)])
            for cut in ({}, *transport.chunks):
                engine = transport.make(where.task, where.federation, seed=where.seed, **cut)
                got = ask(engine.everyone(), engine)
                same_bits(got, expected, f"batches and draws with {how} and {cut}")
    sizes = where.federation.sizes()
    same_bits(expected["train"], sizes.float(), "the weight of all training examples")


@check
def check_outside_untouched(algorithm: Algorithm, transport: Transport) -> None:
    """A client outside the cohort keeps its state bit for bit."""
    where = home(algorithm)
    engine, server = begin(algorithm, transport, where)
    for r in range(3):
        before = transport.states(engine)
        server = one_round(algorithm, engine, server, where, r)
        outside = torch.tensor([k for k in range(CLIENTS) if k not in where.cohorts[r]])
        after = tree.take(transport.states(engine), outside)
        same_bits(after, tree.take(before, outside), f"states outside the cohort of round {r}")


@check
def check_serialisation(algorithm: Algorithm, transport: Transport) -> None:
    """Messages, replies, server and states are tensors only, and bytes carry all of them."""
    where = home(algorithm)
    expected = shared_run(algorithm, transport, where, 2)
    engine, server = begin(algorithm, transport, where)
    for r in range(2):
        server = through_bytes(server, "the server's state")
        transport.restore(engine, through_bytes(transport.states(engine), "the client states"))
        server = one_round(algorithm, engine, server, where, r, wrap=(over_the_wire,))
    got = outcome(algorithm, transport, engine, server, where)
    same_bits(got, expected, "the run over the wire")


@check
def check_missing_replies(algorithm: Algorithm, transport: Transport) -> None:
    """Clients that drop out count as never asked; if all do, the round raises NoReplies."""
    where = home(algorithm)
    quiet = {int(where.ids(1)[1])}
    rest = torch.tensor([k for k in where.cohorts[1] if k not in quiet])

    def after(*wrap: Any, of: Transport = transport, ids: Tensor | None = None) -> Outcome:
        engine, server = begin(algorithm, of, where)
        server = one_round(algorithm, engine, server, where, 0)
        server = one_round(algorithm, engine, server, where, 1, ids=ids, wrap=wrap)
        return outcome(algorithm, of, engine, server, where)

    smaller = after(ids=rest)
    close(after(silent({0: quiet})), smaller, "a round with clients silent from the start")
    lost = after(silent(dict.fromkeys(range(99), quiet), lost=True))
    close(lost.server, smaller.server, "the server after a round with replies lost")

    # silent from the second phase on: no smaller cohort is the same, so compare with the reference
    late = silent({1: {where.cohorts[1][2]}})
    expected = after(late, of=LOOP)
    close(after(late), expected, "a round with clients silent from the second phase")
    turned = after(late, ids=where.ids(1).flip(0))
    close(turned.server, expected.server, "such a round, with the cohort in another order")

    everyone = set(range(CLIENTS))
    for number, all_asked in enumerate(phases(algorithm, transport, where)):
        engine, server = begin(algorithm, transport, where)
        given = copied(server)
        nobody = silent({number: everyone})
        try:
            after_it = one_round(algorithm, engine, server, where, 0, wrap=(nobody,))
        except NoReplies:
            same_bits(server, given, "the server when nobody answers")
        else:
            assert not all_asked, f"nobody answered phase {number}, but the round continued"
            engine, server = begin(algorithm, LOOP, where)
            expected = one_round(algorithm, engine, server, where, 0, wrap=(nobody,))
            close(after_it, expected, f"the server when nobody asked in phase {number} answers")


def phases(algorithm: Algorithm, transport: Transport, where: World) -> list[bool]:
    """A round's exchanges: whether each asks all of the cohort, or only some of its clients."""
    asked: list[Ask] = []

    def counted(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            asked.append(ask)
            yield from exchange(ask)

        return wrapped

    engine, server = begin(algorithm, transport, where)
    one_round(algorithm, engine, server, where, 0, wrap=(counted,))
    return [len(ask.ids) == len(where.ids(0)) for ask in asked]


@check
def check_resume(algorithm: Algorithm, transport: Transport) -> None:
    """A run that a new engine resumes from bytes after round 2 ends in the same bits."""
    where = home(algorithm)
    straight = shared_run(algorithm, transport, where, 4)

    engine, server = begin(algorithm, transport, where)
    for r in (0, 1):
        server = one_round(algorithm, engine, server, where, r)
    saved = through_bytes((server, transport.states(engine)), "the checkpoint")

    again = dataclasses.replace(algorithm)  # type: ignore[type-var]
    engine, _ = begin(again, transport, where)
    server, states = saved
    transport.restore(engine, states)
    for r in (2, 3):
        server = one_round(again, engine, server, where, r)
    resumed = outcome(again, transport, engine, server, where)
    same_bits(resumed, straight, "the resumed run")


@check
def check_same_run(
    one: Algorithm,
    other: Algorithm,
    transport: Transport,
    *,
    cohorts: Iterable[Tensor] | None = None,
    exactly: bool = True,
    part: Callable[[Outcome], Tree] = lambda got: (
        named(got.server),
        named(got.states),
        got.outputs,
    ),
) -> None:
    """Two algorithms give the same result: for limit identities."""
    chosen = None if cohorts is None else list(cohorts)
    where = home(one)
    if chosen is None:
        expected = part(shared_run(other, transport, where, 3))
    else:
        expected = part(run(other, transport, where, cohorts=chosen))
    got = part(run(one, transport, where, cohorts=chosen))
    (same_bits if exactly else close)(got, expected, f"{one} instead of {other}")


@check
def check_declaration(kind: type[Algorithm]) -> None:
    """A final frozen dataclass with its name, paper, family, what it reveals, and docstrings."""
    assert dataclasses.is_dataclass(kind), f"{kind.__name__} is not a dataclass"
    params: Any = inspect.getattr_static(kind, "__dataclass_params__")
    assert params.frozen, f"{kind.__name__} is not frozen"
    for field in ("name", "paper", "family", "reveals"):
        value = getattr(kind, field, None)
        assert isinstance(value, str), f"{kind.__name__} has no {field}"
        assert value.strip(), f"{kind.__name__} has no {field}"
    for base in kind.__mro__[1:]:
        if base is not Algorithm and isinstance(base, type) and issubclass(base, Algorithm):
            assert inspect.isabstract(base), f"{kind.__name__} subclasses {base.__name__}"
    for thing, where in ((kind, kind.__name__), (sys.modules[kind.__module__], kind.__module__)):
        text = thing.__doc__ or ""
        generated = text.startswith(f"{kind.__name__}(")  # what dataclass writes by itself
        assert text.strip(), f"{where} has no docstring"
        assert not generated, f"{where} has no docstring"
    algorithm = kind()
    assert algorithm == kind(), f"{kind.__name__} does not compare by its hyper-parameters"
    hash(algorithm)


@check
def check_model(kind: type[Algorithm]) -> None:
    """What a client uses is a model: otherwise it cannot be exported."""
    assert kind.model is not Algorithm.model or kind.predict is Algorithm.predict, (
        f"{kind.__name__} overrides predict() but not model(), so its model cannot be exported"
    )
