"""What the clauses of the contract are written with: running, comparing, copying, wrapping."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from isonomy.contract.world import CLIENTS, World, world
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict
from isonomy.core.cohort import Ask, Exchange, Replies
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError

CLOSE = 1e-5  # tolerance for float32 results that differ only in the order of sums


@dataclass(frozen=True, eq=False)
class Transport:
    """How the suite makes an engine and accesses the clients' states.

    `chunks` lists further ways in which the engine can split a cohort, as options of `make`.
    """

    make: Callable[..., Engine]
    chunks: tuple[dict[str, Any], ...] = ()

    def states(self, engine: Engine) -> Tree:
        """A copy of every client's state, stacked."""
        return copied(engine.states.take(engine.everyone()))

    def restore(self, engine: Engine, states: Tree) -> None:
        """Give every client a state."""
        engine.states.put(engine.everyone(), states)


LOOP = Transport(Loop)


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Mark a clause of the contract: any other exception inside it also counts as a breach."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except AssertionError:
            raise
        except Exception as error:
            what = f"{function.__name__}: {type(error).__name__}: {error}"
            raise AssertionError(what) from error

    return wrapped


# --- comparing, copying, running ------------------------------------------------------------------


def copied(value: Tree) -> Tree:
    """A copy of the tree with its tensors cloned; other leaves are kept."""
    return tree.tmap(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, value)


def same_bits(actual: Tree, expected: Tree, what: str) -> None:
    """Assert equal containers, dtypes, shapes and numbers."""
    _same(actual, expected, what, 0.0)


def close(actual: Tree, expected: Tree, what: str) -> None:
    """Assert equal containers, dtypes and shapes, and numbers equal to rounding."""
    _same(actual, expected, what, CLOSE)


def _same(actual: Tree, expected: Tree, what: str, tolerance: float) -> None:
    got, spec = pytree.tree_flatten_with_path(actual)
    want, wanted = pytree.tree_flatten_with_path(expected)
    assert spec == wanted, f"{what}: {spec} instead of {wanted}"
    for (path, a), (_, b) in zip(got, want, strict=True):
        where = f"{what} at {pytree.keystr(path)}"
        assert isinstance(a, Tensor), f"{where}: a {type(a).__name__}, not a tensor"
        assert_close(
            a,
            b,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=functools.partial("{}: {}".format, where),
        )


def only_tensors(value: Tree, what: str) -> None:
    """Assert that all leaves of the tree are tensors."""
    for leaf in tree.leaves(value):
        assert isinstance(leaf, Tensor), f"{what} holds a {type(leaf).__name__}: {leaf!r}"


def through_bytes(value: Tree, what: str = "tree") -> Tree:
    """The tree after a round trip through safetensors bytes, in its original containers."""
    only_tensors(value, what)
    arrays, shape = tree.pack(value)
    data = safetensors.torch.save({k: t.contiguous().clone() for k, t in arrays.items()})
    return tree.like(value, tree.unpack(safetensors.torch.load(data), shape))


def home(algorithm: Algorithm) -> World:
    """The world to check an algorithm in: three classes, or two for one that refuses three."""
    where = world()
    try:
        algorithm.init_server(where.task, copied(where.params), CLIENTS)
    except ConfigError:
        return world(2)
    return where


def own_world(algorithm: Algorithm) -> World:
    """A world with its own tensors, so that a fault does not affect other tests."""
    where = home(algorithm)
    return replace(world.__wrapped__(where.task.classes), task=where.task)


def field(value: Tree, name: str) -> Tree:
    """A part of a state by its name, whether the state is a NamedTuple or a dict."""
    return value[name] if isinstance(value, dict) else getattr(value, name)


def named(value: Tree) -> dict[str, Tensor]:
    """The tree's tensors by path, so that states of different classes can be compared."""
    return tree.pack(value)[0]


class Outcome(NamedTuple):
    """The result of a run."""

    server: Tree
    states: Tree
    outputs: list[Tensor]


def begin(
    algorithm: Algorithm, transport: Transport, where: World, **options: Any
) -> tuple[Engine, Tree]:
    """An engine whose clients have their initial state, and the server's."""
    engine = transport.make(where.task, where.federation, seed=where.seed, **options)
    engine.server_data = where.server_data if algorithm.needs_server_data else None
    engine.reset(algorithm.init_client(where.task, copied(where.params)))
    clients = len(where.federation)
    return engine, algorithm.init_server(where.task, copied(where.params), clients)


def one_round(
    algorithm: Algorithm,
    engine: Engine,
    server: Tree,
    where: World,
    round: int,
    *,
    ids: Tensor | None = None,
    wrap: tuple[Any, ...] = (),
) -> Tree:
    """The server after one more round."""
    chosen = where.ids(round) if ids is None else ids
    return algorithm.round(server, engine.cohort(chosen, work=where.work, round=round, wrap=wrap))


def run(
    algorithm: Algorithm,
    transport: Transport,
    where: World,
    *,
    rounds: int = 3,
    cohorts: Iterable[Tensor] | None = None,
    finish: bool = False,
    **options: Any,
) -> Outcome:
    """Run some rounds with changing cohorts, from the start."""
    engine, server = begin(algorithm, transport, where, **options)
    chosen = [where.ids(r) for r in range(rounds)] if cohorts is None else list(cohorts)
    for r, ids in enumerate(chosen):
        server = one_round(algorithm, engine, server, where, r, ids=ids)
    if finish:
        everyone = engine.cohort(engine.everyone(), work=where.work, round=len(chosen))
        server = algorithm.finish(server, everyone)
        if isinstance(algorithm, GivesVerdict):
            server = algorithm.examine(server, everyone)
    return outcome(algorithm, transport, engine, server, where)


@functools.cache
def shared_run(algorithm: Algorithm, transport: Transport, where: World, rounds: int) -> Outcome:
    """A plain run, made once for all clauses that compare something with it."""
    return run(algorithm, transport, where, rounds=rounds)


def outcome(
    algorithm: Algorithm, transport: Transport, engine: Engine, server: Tree, where: World
) -> Outcome:
    """Server, states and every client's outputs on its own test rows."""
    states = transport.states(engine)
    federation, task = where.federation, where.task
    deployed = algorithm.deployed(server)
    outputs = [
        algorithm.predict(
            task, deployed, tree.take(states, k), federation.x[federation.rows(k, "test")]
        )
        for k in range(len(federation))
    ]
    return Outcome(copied(server), states, outputs)


# --- wrappers of the exchange ---------------------------------------------------------------------


def silent(by_phase: dict[int, set[int]], *, lost: bool = False) -> Callable[[Exchange], Exchange]:
    """In phase i of a round the clients of `by_phase[i]` do not answer.

    They never receive the question or, with `lost`, do their work but the reply is lost.
    """

    def wrap(exchange: Exchange) -> Exchange:
        phase = itertools.count()

        def wrapped(ask: Ask) -> Iterator[Replies]:
            quiet = torch.tensor(sorted(by_phase.get(next(phase), set())), dtype=torch.int64)
            if not lost:
                ids = ask.ids[~torch.isin(ask.ids, quiet)]
                if len(ids):
                    yield from exchange(ask.to(ids))
                return
            for chunk in exchange(ask):
                keep = (~torch.isin(chunk.ids, quiet)).nonzero().squeeze(-1)
                yield Replies(tree.take(chunk.value, keep), chunk.ids[keep], chunk.sizes[keep])

        return wrapped

    return wrap


def scattered(exchange: Exchange) -> Exchange:
    """Replies arrive one by one, in reverse order."""

    def wrapped(ask: Ask) -> Iterator[Replies]:
        for chunk in reversed(list(exchange(ask))):
            for i in reversed(range(len(chunk.ids))):
                yield Replies(*(tree.take(part, slice(i, i + 1)) for part in chunk))

    return wrapped


def over_the_wire(exchange: Exchange) -> Exchange:
    """Messages and replies travel as bytes."""

    def wrapped(ask: Ask) -> Iterator[Replies]:
        each = None if ask.each is None else through_bytes(ask.each, "each client's message")
        sent = replace(ask, message=through_bytes(ask.message, "the message"), each=each)
        for chunk in exchange(sent):
            yield chunk._replace(value=through_bytes(chunk.value, "the reply"))

    return wrapped
