"""What engines share: who is in a round, silence, counting of bytes, client states."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import isonomy
from isonomy.algorithms import registry
from isonomy.contract.world import CLIENTS, TRAIN, world
from isonomy.core import tree
from isonomy.core.client import Client
from isonomy.core.cohort import Ask, Replies
from isonomy.core.phase import phase
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines import base
from isonomy.engines.base import Engine, Meter, States, dropout, sample
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.program import Programs
from isonomy.engines.batched.runner import shared
from isonomy.engines.loop import Loop
from isonomy.errors import IsonomyError

ENGINES = [Loop, Batched]


@phase("gather", n="statistic")
def counting(task: Task, message: Any, client: Client) -> Any:
    return {"n": client.size}, client.state


def federation_of(*sizes: int) -> Federation:
    rows = torch.arange(sum(sizes))
    return build(
        rows.unsqueeze(-1).float(),
        rows % 2,
        torch.zeros(len(rows), 0, dtype=torch.int64),
        {"train": list(rows.split(list(sizes)))},
        classes=2,
    )


# --- who is in a round ----------------------------------------------------------------------------

ROUNDS = 2000


def frequencies(federation: Federation, count: int, **options: Any) -> list[float]:
    chosen = torch.zeros(len(federation))
    for r in range(ROUNDS):
        chosen[sample(federation, count, seed=1, round=r, **options)] += 1
    return (chosen / ROUNDS).tolist()


def tolerance(p: float) -> float:
    """Four and a half standard errors of a frequency."""
    return 4.5 * math.sqrt(p * (1 - p) / ROUNDS)


def test_uniform_sample_has_equal_chances() -> None:
    for got in frequencies(federation_of(1, 2, 30, 4, 5), 2):
        assert abs(got - 2 / 5) < tolerance(2 / 5)


def in_turn(sizes: list[int], count: int) -> list[float]:
    """Chance to be among `count` clients drawn one after another in proportion to size."""
    chance = [0.0] * len(sizes)
    for order in itertools.permutations(range(len(sizes)), count):
        p, left = 1.0, sum(sizes)
        for k in order:
            p *= sizes[k] / left
            left -= sizes[k]
        for k in order:
            chance[k] += p
    return chance


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sample_by_size_has_the_chances_of_drawing_in_turn(count: int) -> None:
    sizes = [1, 2, 30, 4, 13]
    got = frequencies(federation_of(*sizes), count, how="size")
    for a, b in zip(got, in_turn(sizes, count), strict=True):
        assert abs(a - b) < tolerance(b)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_sample_is_distinct_sorted_and_a_function_of_seed_and_round(how: Any) -> None:
    federation = federation_of(*range(1, 31))
    draws = []
    for seed, r in itertools.product(range(3), range(5)):
        ids = sample(federation, 7, seed=seed, round=r, how=how)
        assert ids.tolist() == sorted(set(ids.tolist()))
        assert len(ids) == 7
        assert torch.equal(ids, sample(federation, 7, seed=seed, round=r, how=how))
        draws.append(tuple(ids.tolist()))
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_draws_among_many_clients_have_the_same_chances(how: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(base, "MANY", 0)  # as with more than 65,536 clients
    sizes = [1, 2, 30, 4, 13, 1, 7, 9]
    expected = in_turn(sizes, 2) if how == "size" else [1 / 4] * 8
    for a, b in zip(frequencies(federation_of(*sizes), 2, how=how), expected, strict=True):
        assert abs(a - b) < tolerance(b)


def test_sample_of_all_or_more_is_everyone() -> None:
    federation = federation_of(1, 2, 3)
    assert sample(federation, 3, seed=0, round=0).tolist() == [0, 1, 2]
    assert sample(federation, 9, seed=0, round=0).tolist() == [0, 1, 2]


# --- wrappers -------------------------------------------------------------------------------------


def asked(ids: list[int], round: int = 0, **options: Any) -> Ask:
    return Ask(
        lambda *_: ((), ()),
        options.pop("message", {}),
        Work(),
        round,
        0.1,
        torch.tensor(ids),
        **options,
    )


def echo(ask: Ask) -> Iterator[Replies]:
    """Every client answers with three floats, two clients a chunk."""
    for ids in ask.ids.split(2):
        yield Replies({"r": torch.zeros(len(ids), 3)}, ids, torch.ones(len(ids)))


def answered(exchange: Any, ask: Ask) -> list[int]:
    return [int(k) for chunk in exchange(ask) for k in chunk.ids]


def test_dropout_has_its_probability_and_lasts_the_round() -> None:
    wrapped = dropout(echo, probability=0.3, seed=2)
    ids = list(range(50))
    counts = []
    for r in range(80):
        first = answered(wrapped, asked(ids, r))
        assert answered(wrapped, asked(ids, r)) == first  # the same in every phase
        if r < 3:
            alone = [k for k in ids if answered(wrapped, asked([k], r))]
            assert alone == first  # whichever other clients are asked
        counts.append(len(first))
    rate = sum(counts) / (50 * 80)
    assert abs(rate - 0.7) < 4.5 * math.sqrt(0.3 * 0.7 / 4000)
    assert len(set(counts)) > 3


def test_dropout_of_nobody_and_of_everybody() -> None:
    assert answered(dropout(echo, probability=0.0, seed=0), asked([3, 1, 2])) == [3, 1, 2]
    assert answered(dropout(echo, probability=1.0, seed=0), asked([3, 1, 2])) == []


def test_dropout_keeps_each_clients_own_message() -> None:
    seen: dict[int, float] = {}

    def note(ask: Ask) -> Iterator[Replies]:
        assert ask.each is not None
        seen.update(zip(ask.ids.tolist(), ask.each["own"].tolist(), strict=True))
        yield from echo(ask)

    ids = list(range(20))
    wrapped = dropout(note, probability=0.5, seed=1)
    list(wrapped(asked(ids, each={"own": torch.arange(20) * 10})))
    assert 0 < len(seen) < 20
    assert all(own == 10 * k for k, own in seen.items())


def test_meter_by_hand() -> None:
    """Five clients, one silent; 3 floats and a double down (20 bytes), 2 floats more for each."""
    meter = Meter()

    def four(ask: Ask) -> Iterator[Replies]:
        yield from echo(ask.to(ask.ids[ask.ids != 9]))

    message = {"w": torch.zeros(3), "t": torch.zeros((), dtype=torch.float64)}
    ask = asked([1, 4, 9, 2, 3], message=message, each={"own": torch.zeros(5, 2)})
    wrapped = meter(four)
    assert answered(wrapped, ask) == [1, 4, 2, 3]
    assert meter.down == 5 * 20 + 5 * 8
    assert meter.up == 4 * 12
    assert (meter.phases, meter.asked, meter.answered) == (1, 5, 4)
    assert meter.messages == 5 + 4
    list(wrapped(ask))
    assert (meter.down, meter.up, meter.phases) == (280, 96, 2)


@pytest.mark.parametrize("kind", ENGINES)
def test_meter_of_a_round_of_fedavg(kind: type[Engine]) -> None:
    """4 clients, a model of 4*5 + 5 + 5*3 + 3 = 43 floats each way."""
    where, meter = world(), Meter()
    engine = kind(where.task, where.federation)
    cohort = engine.cohort(where.ids(0), work=where.work, round=0, wrap=(meter,))
    fedavg = registry()["fedavg"]()
    fedavg.round(fedavg.init_server(where.task, where.params, CLIENTS), cohort)
    assert (meter.down, meter.up) == (4 * 43 * 4, 4 * 43 * 4)


def test_wrappers_wrap_from_the_inside_out() -> None:
    where, inner, outer = world(), Meter(), Meter()
    engine = Loop(where.task, where.federation)
    half = functools.partial(dropout, probability=0.5, seed=3)
    cohort = engine.cohort(engine.everyone(), work=where.work, round=0, wrap=(inner, half, outer))
    cohort.gather(counting, {})
    assert outer.asked == CLIENTS
    assert inner.asked == outer.answered < CLIENTS


# --- cohorts and states ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_cohort_carries_sizes_and_rate(kind: type[Engine]) -> None:
    where = world()
    engine = kind(where.task, where.federation)
    cohort = engine.cohort(torch.tensor([5, 1]), work=Work(lr=0.4), round=2)
    assert (cohort.rate, cohort.round, cohort.clients) == (0.4, 2, CLIENTS)
    assert cohort.sizes.tolist() == [TRAIN[5], TRAIN[1]]
    cohort = engine.cohort(torch.tensor([5]), work=Work(lr=0.4), round=2, rate=0.1)

    @phase("gather", rate="statistic", n="statistic")
    def rate_and_size(task: Task, message: Any, client: Client) -> Any:
        return {"rate": client.rate, "n": client.size}, client.state

    got = cohort.gather(rate_and_size, {}).value
    assert got["rate"].tolist() == pytest.approx([0.1])
    assert got["n"].tolist() == [float(TRAIN[5])]
    assert engine.everyone().tolist() == list(range(CLIENTS))


@pytest.mark.parametrize("kind", ENGINES)
def test_messages_for_each_client_reach_it(kind: type[Engine]) -> None:
    where = world()
    engine = kind(where.task, where.federation)
    ids = torch.tensor([6, 2, 7, 0])
    cohort = engine.cohort(ids, work=where.work, round=0)

    @phase("gather", got="statistic", n="statistic")
    def answer(task: Task, message: Any, client: Client) -> Any:
        return {"got": message["own"] + message["all"], "n": client.sizes[0]}, client.state

    each = {"own": ids.float() * 10}
    got = cohort.gather(answer, {"all": torch.tensor(1.0)}, each=each)
    assert got.ids.tolist() == [6, 2, 7, 0]
    assert got.value["got"].tolist() == [61.0, 21.0, 71.0, 1.0]
    assert got.value["n"].tolist() == [TRAIN[k] for k in (6, 2, 7, 0)]


@pytest.mark.parametrize("kind", ENGINES)
def test_states_change_only_where_asked_and_by_their_own_phase(kind: type[Engine]) -> None:
    where = world()
    engine = kind(where.task, where.federation)
    engine.reset({"n": torch.zeros(()), "i": torch.zeros((), dtype=torch.int64)})

    @phase("gather")
    def change(task: Task, message: Any, client: Client) -> Any:
        return {}, {"n": client.state["n"] + client.size, "i": client.state["i"] + 1}

    for ids in ([4, 1, 2], [2, 7]):
        engine.cohort(torch.tensor(ids), work=where.work, round=0).gather(change, {})
    assert engine.states.stacked["i"].tolist() == [0, 1, 2, 0, 1, 0, 0, 1]
    own = [n * i for n, i in zip(TRAIN, [0, 1, 2, 0, 1, 0, 0, 1], strict=True)]
    assert engine.states.stacked["n"].tolist() == [float(n) for n in own]


def test_states_take_copies() -> None:
    initial = {"w": torch.zeros(2)}
    states = States(initial, 3)
    states.take(torch.tensor([0, 1]))["w"].add_(1)
    assert states.stacked["w"].sum() == 0
    states.put(torch.tensor([2, 0]), {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert states.stacked["w"].tolist() == [[3, 4], [0, 0], [1, 2]]
    assert initial["w"].tolist() == [0, 0]


def test_a_state_that_nobody_declared_is_not_lost_in_silence() -> None:
    """A phase returns a state, `init_client` made none: an error, not an empty state."""
    where = world()
    engine = Loop(where.task, where.federation)
    engine.reset(())
    cohort = engine.cohort(where.ids(0), work=where.work, round=0)

    @phase("gather")
    def keeps_a_state(task: Task, message: Any, client: Client) -> Any:
        return {}, {"n": client.size}

    with pytest.raises((IsonomyError, ValueError), match="state"):
        cohort.gather(keeps_a_state, {})


# --- the batched engine's own ---------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 8, "auto"])
def test_chunks_are_of_similar_clients_largest_first(chunk: Any) -> None:
    where = world()
    engine = Batched(where.task, where.federation, chunk=chunk)
    ask = Ask(counting, {}, where.work, 0, 0.1, engine.everyone())
    chunks = list(engine.exchange(ask))
    most = CLIENTS if chunk == "auto" else chunk
    assert [len(c.ids) for c in chunks[:-1]] == [most] * (len(chunks) - 1)
    sizes = [int(n) for c in chunks for n in c.sizes]
    assert sizes == sorted(TRAIN, reverse=True)
    assert [float(n) for c in chunks for n in c.value["n"]] == [float(n) for n in sizes]


def test_one_chunk_is_found_at_once_where_clients_one_by_one_would_fill_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 50 to 90 clients, 60 of which fit, padding for 30 * 40 examples allowed."""
    monkeypatch.setattr("isonomy.engines.batched.engine.PADDING", 1200)
    work = Work(batch=10)
    task = Task(lambda: torch.nn.Linear(1, 2))
    for clients, small, expected in [
        (50, 0, [50]),
        (60, 0, [60]),
        (61, 0, [60, 1]),
        (60, 40, [60]),  # 40 clients with 30 examples fewer than the others
        (60, 41, [59, 1]),
        (90, 80, [50, 40]),
    ]:
        sizes = [40] * (clients - small) + [10] * small
        engine = Batched(task, federation_of(*sizes), chunk=60)
        ask = Ask(counting, {}, work, 0, work.lr, engine.everyone(), None, verb="gather")
        assert [len(chunk.ids) for chunk in engine.exchange(ask)] == expected, (clients, small)


def test_a_measurement_has_smaller_chunks_than_training_if_sizes_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A phase that trains nothing has less padding, and the same replies."""
    monkeypatch.setattr("isonomy.engines.batched.engine.MEASURED", 59)

    @phase("gather", trained="model")
    def training(task: Task, message: Any, client: Client) -> Any:
        return {"trained": client.size}, client.state

    engine = Batched(Task(lambda: torch.nn.Linear(1, 2)), federation_of(40, 30, 20, 10, 10, 10))
    for asked, work, expected in [
        (counting, Work(steps=1), [3, 3]),  # padding 10 + 20, with the next one 30 more
        (counting, Work(epochs=1), [6]),
        (training, Work(steps=1), [6]),
    ]:
        chunks = list(engine.exchange(Ask(asked, {}, work, 0, 0.1, engine.everyone())))
        assert [len(chunk.ids) for chunk in chunks] == expected
        (name,) = chunks[0].value
        found = torch.cat([chunk.value[name] for chunk in chunks])
        assert found.tolist() == [40, 30, 20, 10, 10, 10]


def test_a_chunk_takes_no_more_memory_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    where = world()
    engine = Batched(where.task, where.federation)
    ask = Ask(counting, {}, where.work, 0, 0.1, engine.everyone())
    monkeypatch.setattr("isonomy.engines.batched.chunks.MEMORY", 5500)
    chunks = list(engine.exchange(ask))
    assert 1 < len(chunks) <= CLIENTS
    lengths = [len(c.ids) for c in chunks]
    assert lengths[0] < max(lengths)  # more small clients fit than large ones
    monkeypatch.setattr("isonomy.engines.batched.chunks.MEMORY", 0)
    assert len(list(engine.exchange(ask))) == CLIENTS


def test_a_heavy_model_is_probed_once_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    where = world()
    monkeypatch.setattr("isonomy.engines.batched.engine.HEAVY", 0)
    local = registry()["local"]()
    engine = Batched(where.task, where.federation, seed=1)
    engine.reset(local.init_client(where.task, where.params))
    server = local.init_server(where.task, where.params, CLIENTS)
    cohort = engine.cohort(engine.everyone(), work=where.work, round=0)
    (trained,) = tree.leaves(local.round(server, cohort))
    assert float(trained) == CLIENTS
    assert engine.chunks["local"] in (1, 4, 16)

    again = Batched(where.task, where.federation, seed=1, chunks=engine.chunks)
    again.reset(local.init_client(where.task, where.params))
    monkeypatch.setattr(again, "_probe", None)  # a saved choice needs no probe
    local.round(server, again.cohort(again.everyone(), work=where.work, round=0))
    for a, b in zip(
        tree.leaves(engine.states.stacked), tree.leaves(again.states.stacked), strict=True
    ):
        assert torch.equal(a, b)


def test_a_client_that_takes_long_is_probed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    where = world()
    monkeypatch.setattr("isonomy.engines.batched.engine.HEAVY", 0)
    tried = []
    for long in (0.0, float("inf")):
        monkeypatch.setattr("isonomy.engines.batched.engine.LONG", long)
        engine = Batched(where.task, where.federation, seed=1)
        run = engine._run
        seen: set[int] = set()

        def counted(ask, first, last, run=run, seen=seen):
            seen.add(last - first)
            return run(ask, first, last)

        monkeypatch.setattr(engine, "_run", counted)
        ask = Ask(counting, {}, where.work, 0, 0.1, engine.everyone())
        chosen = engine._probe(engine._sorted(ask, ask.ids))
        tried.append((seen, chosen))
    assert tried[0] == ({1}, 1)
    assert tried[1][0] == {number for number in (1, 4, 16) if number <= CLIENTS}


def test_chunk_below_one_is_refused() -> None:
    where = world()
    with pytest.raises((IsonomyError, ValueError), match="chunk"):
        Batched(where.task, where.federation, chunk=0)


def test_new_programs_give_the_same_bits() -> None:
    """What a resumed run does: nothing that was traced is left, and the bits are the same."""
    where, fedprox = world(), registry()["fedprox"]()

    def one() -> Tensor:
        engine = Batched(where.task, where.federation, seed=1)
        engine.programs = Programs()
        server = fedprox.init_server(where.task, where.params, CLIENTS)
        for r in range(2):
            server = fedprox.round(server, engine.cohort(where.ids(r), work=where.work, round=r))
        return torch.cat([t.flatten() for t in tree.leaves(server)])

    assert torch.equal(one(), one())


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge", "squared"])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_local_training_is_traced_and_right(loss: Any, optimiser: str) -> None:
    """The speed of the engine rests on its local loops not falling back to the plain one."""
    where = world(2)
    outputs = 2 if loss == "cross_entropy" else 1
    task = Task(lambda: torch.nn.Linear(4, outputs), loss_name=loss, levels=(2,))
    work = Work(
        batch=8,
        lr=0.05,
        optimiser="adam" if optimiser == "adam" else "sgd",
        momentum=0.9 if optimiser == "momentum" else 0.0,
    )
    federation = where.federation
    if loss == "squared":
        federation = replace(federation, y=federation.y.float(), classes=0)
    params, fedavg = task.init(0), registry()["fedavg"]()
    got = []
    for kind in ENGINES:
        engine, programs = kind(task, federation, seed=1), Programs()
        if isinstance(engine, Batched):
            engine.programs = programs
        cohort = engine.cohort(where.ids(1), work=work, round=0)
        got.append(fedavg.round(fedavg.init_server(task, params, CLIENTS), cohort))
        if isinstance(engine, Batched):
            assert programs.traced > 0
            assert not programs.refused
    torch.testing.assert_close(got[1], got[0], rtol=1e-5, atol=1e-5)


def test_freed_memory_is_kept_where_the_allocator_can():
    import platform

    from isonomy.engines.batched.memory import keep_freed

    assert keep_freed() == (platform.libc_ver()[0] == "glibc")


def test_runs_with_the_same_kind_of_model_share_their_traced_steps() -> None:
    """The second run of a comparison traces nothing, and compiles nothing; another model does."""
    programs = shared(False, "float32")

    def traced(seed: int, hidden: int) -> int:
        before = programs.traced
        isonomy.run(
            isonomy.make_config(
                data={"name": "synthetic", "clients": 3, "seed": 0},
                model={"name": "mlp", "hidden": [hidden]},
                rounds=2,
                seed=seed,
                excess={"clusters": "none"},
            )
        )
        return programs.traced - before

    assert traced(0, 7) > 0
    assert traced(1, 7) == 0
    assert traced(1, 9) > 0
