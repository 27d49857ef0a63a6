"""The recording clause: what rounds really exchange is compared with what phases declare.

A recorder stands on both sides of the cohort: around the exchange it keeps every question and every
reply, and at the algorithm's side it notes which parts of single replies the server was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from isonomy.config.schema import Config
from isonomy.contract.running import LOOP, begin, check, copied, home
from isonomy.contract.world import World
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import Adapts, GivesVerdict, LearnsFront
from isonomy.core.cohort import Ask, Cohort, Exchange, Replies, Weighed
from isonomy.core.examples import SPLITS
from isonomy.core.phase import Declaration, Part, declaration, declared
from isonomy.core.tree import Tree
from isonomy.federation.schedule import Schedule

FEWEST = 8  # labels are compared as a sequence only for clients with at least so many examples


@dataclass
class Exchanged:
    """One exchange: the question and the replies, one tree per client."""

    ask: Ask
    replies: dict[int, Tree]


@dataclass
class Record:
    """What an algorithm exchanged, and the parts that its server was shown of single clients."""

    exchanges: list[Exchanged] = field(default_factory=list)
    shown: list[tuple[Declaration, str, tuple[str, ...]]] = field(default_factory=list)
    personal: list[tuple[bool, bool]] = field(default_factory=list)  # declared, and observed

    def around(self, exchange: Exchange) -> Exchange:
        """Wrap an exchange."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            kept = Exchanged(ask, {})
            self.exchanges.append(kept)
            for chunk in exchange(ask):
                for i, k in enumerate(chunk.ids.tolist()):
                    kept.replies[k] = copied(tree.take(chunk.value, i))
                yield chunk

        return wrapped


class RecordingCohort(Cohort):
    """A cohort that notes which parts of single replies it hands to the algorithm."""

    seen_by_server: Record

    def gather(self, phase: Any, message: Any, **options: Any) -> Replies:
        """Ask, and note what the server sees."""
        got = super().gather(phase, message, **options)
        self._note(phase, "gather", tuple(got.value))
        return got

    def mean(self, phase: Any, message: Any, **options: Any) -> Tree:
        """Ask, and note what the server sees."""
        got = super().mean(phase, message, **options)
        self._note(phase, "mean", ())
        return got

    def sum(self, phase: Any, message: Any, **options: Any) -> Tree:
        """Ask, and note what the server sees."""
        got = super().sum(phase, message, **options)
        self._note(phase, "sum", ())
        return got

    def weigh(self, phase: Any, message: Any, **options: Any) -> Weighed:
        """Ask, and note what the server sees."""
        got = super().weigh(phase, message, **options)
        self._note(phase, "weigh", tuple(got.seen.value))
        return got

    def only(self, ids: Tensor) -> Cohort:
        """A part of the cohort, also recorded."""
        return recording(super().only(ids), self.seen_by_server)

    def _note(self, phase: Any, verb: str, parts: tuple[str, ...]) -> None:
        self.seen_by_server.shown.append((declaration(phase), verb, parts))


def recording(cohort: Cohort, record: Record) -> Cohort:
    """The cohort, from now on recorded."""
    cohort.__class__ = RecordingCohort
    cohort.seen_by_server = record  # type: ignore[attr-defined]
    return cohort


def recorded(algorithm: Algorithm, where: World, *, rounds: int = 3) -> Record:
    """The record of some rounds, of `finish`, and of the adaptation of every client."""
    record = Record()
    engine, server = begin(algorithm, LOOP, where)

    def cohort(ids: Tensor, round: int) -> Cohort:
        made = engine.cohort(ids, work=where.work, round=round, wrap=(record.around,))
        return recording(made, record)

    def personal() -> None:
        deployed = algorithm.deployed(server)
        state = tree.take(engine.states.stacked, 0)
        said = algorithm.personal(deployed)
        record.personal.append((said, reads_state(algorithm, where, deployed, state)))

    personal()
    for r in range(rounds):
        server = algorithm.round(server, cohort(where.ids(r), r))
        personal()
    server = algorithm.finish(server, cohort(engine.everyone(), rounds))
    if isinstance(algorithm, GivesVerdict):
        server = algorithm.examine(server, cohort(engine.everyone(), rounds))
    personal()
    if isinstance(algorithm, Adapts):
        new = cohort(engine.everyone(), rounds)
        new.gather(algorithm.adapt, {"model": algorithm.deployed(server)})
    return record


# --- does the model depend on the client's state? -------------------------------------------------


class AccessedError(Exception):
    """The client's state was accessed."""


class Untouchable:
    """A client's state that raises an error on access."""

    def __getattr__(self, name: str) -> Any:
        raise AccessedError(name)

    def __getitem__(self, key: Any) -> Any:
        raise AccessedError(key)

    def __iter__(self) -> Any:
        raise AccessedError

    def __len__(self) -> int:
        raise AccessedError


def reads_state(algorithm: Algorithm, where: World, deployed: Any, state: Tree) -> bool:
    """Whether a client's model depends on its state.

    A method that learns a front uses the client's state if it is given one. It does not need one
    if it has a front of all clients together (`joint`), which must then work without a state.
    """
    algorithm.model(where.task, deployed, state)  # with a real state it works
    if isinstance(algorithm, LearnsFront):
        if algorithm.joint(deployed):
            algorithm.model(where.task, deployed, None)
        return not algorithm.joint(deployed)
    try:
        algorithm.model(where.task, deployed, Untouchable())
    except Exception:  # of any kind: functions on trees do not know this object
        return True
    return False


# --- the clause -----------------------------------------------------------------------------------


@check
def check_recorded(
    algorithm: Algorithm, where: World | None = None, kept: list[Record] | None = None
) -> None:
    """Verbs, parts, kinds, what the server sees, and `personal` are as declared.

    The record is added to `kept`.
    """
    where = where or home(algorithm)
    record = recorded(algorithm, where)
    if kept is not None:
        kept.append(record)
    known = list(declared(type(algorithm)).values())
    for one in record.exchanges:
        what = one.ask.declared
        assert what in known, (
            f"phase '{what.name}' is asked, but is not a declared phase of the class"
        )
        assert one.ask.verb in what.verbs, f"phase '{what.name}' does not declare {one.ask.verb}"
        for k, reply in one.replies.items():
            _check_reply(one, k, reply, where)
    for what, verb, parts in record.shown:
        assert verb in what.verbs, f"phase '{what.name}' does not declare {verb}"
        hidden = set(parts) - set(what.individual())
        assert not hidden, f"phase '{what.name}' shows {hidden}, which it does not declare as seen"
    for said, reads in record.personal:
        assert said == reads, (
            f"personal() is {said}, but model() {'reads' if reads else 'does not read'} the "
            "client's state"
        )
    check_scheduled(algorithm, where, record)


def check_scheduled(algorithm: Algorithm, where: World, record: Record, rounds: int = 3) -> None:
    """A participant of a real federation would answer every question that was asked."""
    config = Config(rounds=rounds, local=where.work)
    schedule = Schedule(config, algorithm)
    asked: Counter[tuple[str, int, int]] = Counter()
    for one in record.exchanges:
        name, ask = one.ask.declared.name, one.ask
        if name == "adapt":  # of clients that were not in training, outside of a federation's run
            continue
        slot = schedule.slot(name, ask.round)
        other = algorithm.other_work(name, where.work)
        assert ask.work == slot.work, f"phase '{name}' is asked with other work than declared"
        if other is not None:
            assert ask.rate == slot.rate, f"phase '{name}' is asked with another learning rate"
        for k in ask.ids.tolist():
            asked[name, ask.round, k] += 1
            most = slot.most
            assert asked[name, ask.round, k] <= most, f"phase '{name}' is asked over {most} times"


def _check_reply(one: Exchanged, k: int, reply: Tree, where: World) -> None:
    """One client's reply has the declared parts, and each part is of its kind."""
    what = one.ask.declared
    assert isinstance(reply, dict), f"phase '{what.name}' replies a {type(reply).__name__}"
    assert set(reply) == set(what.parts), (
        f"phase '{what.name}' replies {sorted(reply)}, but declares {sorted(what.parts)}"
    )
    for name, part in what.parts.items():
        at = f"part '{name}' of phase '{what.name}', declared {part.kind},"
        sent = _sent(one.ask, k, part)
        if part.of is not None:
            assert sent is not None, f"{at} belongs to '{part.of}', which was not sent"
        if part.kind == "model" and part.of is not None:
            got, wanted = _layout(reply[name]), _layout(sent)
            assert got == wanted, f"{at} is {got}, but '{part.of}' was sent as {wanted}"
        if part.kind in ("statistic", "group statistic"):
            models = [where.params, *_models(one.ask, k)]
            assert not any(_holds(reply[name], model) for model in models), f"{at} holds a model"
            assert not _examples(reply[name], k, where), f"{at} holds examples of client {k}"


def _sent(ask: Ask, k: int, part: Part) -> Tree | None:
    """What the client was sent under the name that the part belongs to."""
    if part.of is None:
        return None
    if ask.each is not None and part.of in ask.each:
        return tree.take(ask.each[part.of], ask.ids.tolist().index(k))
    return ask.message.get(part.of)


def _models(ask: Ask, k: int) -> list[Tree]:
    """The parts of the message that a phase declares to have trained or differentiated."""
    found = [_sent(ask, k, part) for part in ask.declared.parts.values()]
    return [value for value in found if value is not None]


def _layout(value: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, spec = pytree.tree_flatten(value)
    return spec, [tuple(t.shape) for t in leaves]


def _holds(value: Tree, model: Tree) -> bool:
    """Whether a value has the shapes of a model, or of one of its matrices, or its size."""
    mine = [tuple(t.shape) for t in tree.leaves(value)]
    shapes = [tuple(t.shape) for t in tree.leaves(model)]
    if sorted(mine) == sorted(shapes) or set(mine) & {s for s in shapes if len(s) > 1}:
        return True
    size = sum(t.numel() for t in tree.leaves(model))
    return any(t.numel() == size for t in tree.leaves(value)) and size > 1


def _examples(value: Tree, k: int, where: World) -> bool:
    """Whether a value contains a row of the client's features, or all its labels of a split."""
    federation = where.federation
    for split in SPLITS:
        rows = federation.rows(k, split)
        x, y = federation.x[rows].flatten(1).double(), federation.y[rows].double()
        for leaf in tree.leaves(value):
            flat = leaf.flatten().double()
            if len(flat) >= x.shape[1]:
                windows = flat.unfold(0, x.shape[1], 1)
                if bool((windows.unsqueeze(1) == x).all(-1).any()):
                    return True
            if FEWEST <= len(y) <= len(flat):
                windows = flat.unfold(0, len(y), 1)
                if bool((windows == y).all(-1).any()):
                    return True
    return False


# --- over all variants of an algorithm ------------------------------------------------------------


def never_asked(kind: type[Algorithm], records: list[Record]) -> set[tuple[str, str]]:
    """Pairs of a declared phase and one of its verbs that none of the recorded runs used."""
    unused: set[tuple[str, str]] = {
        (name, verb)
        for name, what in declared(kind).items()
        if name != "adapt"
        for verb in what.verbs
    }
    names = {id(what): name for name, what in declared(kind).items()}
    for record in records:
        for what, verb, _ in record.shown:
            unused.discard((names.get(id(what), what.name), verb))
    return unused
