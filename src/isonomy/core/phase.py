"""A phase: what one client does in one exchange, and the declaration of what it replies.

A phase is a pure function of one client, `phase(task, message, client) -> (reply, state)`, and its
reply is a dict of named parts. The decorator `phase` declares these parts and their kinds, and by
which of the cohort's verbs the server asks for them:

    @phase("mean", params="model")
    def local(self, task, message, client): ...

The declaration determines what a method reveals, what an attack may change, what a defence may
combine, and how a reply is sent. The cohort raises an error if an exchange differs from it, and the
contract suite compares it with what really happens in a round.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.task import Task
from isonomy.errors import IsonomyError

Phase = Callable[[Task, Message, Client], tuple[Reply, State]]

Kind = Literal["model", "update", "gradient", "statistic", "group statistic", "examples"]
"""What a part of a reply is.

- `model`: parameters that the client trained, from the part of the message that `Part.of` names;
- `update`: a difference of parameters;
- `gradient`: a derivative with respect to parameters;
- `statistic`: numbers about the client's examples, such as a loss or a count;
- `group statistic`: such numbers per protected group or label;
- `examples`: values of single examples, such as features or labels.
"""

Verb = Literal["gather", "mean", "sum", "weigh"]

TRAINED: frozenset[Kind] = frozenset(("model", "update", "gradient"))
"""The kinds that hold parameters or their differences: what attacks change."""


class DeclarationError(IsonomyError):
    """A phase that is not declared, or an exchange that differs from the declaration."""


@dataclass(frozen=True)
class Part:
    """One part of a reply: its kind, and which part of the message it belongs to.

    `of` names the part of the message from which a model was trained, or at which an update or a
    gradient was computed. None means that it does not belong to anything that was sent.
    """

    kind: Kind
    of: str | None = None


@dataclass(frozen=True)
class Declaration:
    """What a phase replies, and how the server asks for it.

    `seen` names the parts that the server sees of every client when it asks with `weigh`.
    """

    name: str
    verbs: tuple[Verb, ...]
    parts: Mapping[str, Part]
    seen: tuple[str, ...] = ()
    does: str = ""  # the first sentence of the phase's docstring
    times: int | str = 1  # how often a client is asked in one round at most, or the option with it
    at_end: int | str | None = None  # the same after the last round; None: as often as in a round

    def individual(self) -> tuple[str, ...]:
        """The parts that the server sees of every client, under at least one verb of the phase."""
        if "gather" in self.verbs:
            return tuple(self.parts)
        return self.seen if "weigh" in self.verbs else ()

    @property
    def trained(self) -> dict[str, Part]:
        """The parts that hold parameters, updates or gradients."""
        return {name: part for name, part in self.parts.items() if part.kind in TRAINED}


F = TypeVar("F", bound=Callable[..., Any])


def phase(
    *verbs: Verb,
    seen: tuple[str, ...] = (),
    name: str | None = None,
    times: int | str = 1,
    at_end: int | str | None = None,
    **parts: Kind | Part,
) -> Callable[[F], F]:
    """Declare a phase: the verbs that it is asked with, and the kind of each part of its reply.

    A part declared "model" belongs to the part of the message that has the same name; write
    `Part("model", of=...)` for another one, or `Part("model")` for none. `name` is the phase's name
    in error messages, by default that of the function. `times` is how often a client may be asked
    in one round, or the name of the attribute of the algorithm that holds it, and `at_end` how
    often after the last round, if that differs; a participant of a real federation refuses more.

    >>> @phase("mean", params="model", loss="statistic")
    ... def local(task, message, client):
    ...     '''Local training.'''
    >>> declaration(local).parts["params"]
    Part(kind='model', of='params')
    """
    made = {
        key: part if isinstance(part, Part) else Part(part, key if part == "model" else None)
        for key, part in parts.items()
    }
    strange = [key for key in seen if key not in made]
    if strange:
        raise DeclarationError(f"`seen` lists '{strange[0]}', but the phase declares no such part.")

    def declare(function: F) -> F:
        does = " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split())
        called = name or function.__name__
        found = Declaration(called, verbs, made, seen, does, times, at_end)
        function.declaration = found  # type: ignore[attr-defined]
        return function

    return declare


def declaration(function: Any) -> Declaration:
    """The declaration of a phase; raises DeclarationError if it has none."""
    found = getattr(function, "declaration", None)
    if not isinstance(found, Declaration):
        name = getattr(function, "__qualname__", repr(function))
        raise DeclarationError(
            f"phase '{name}' does not declare what it replies; decorate it with @phase(...), such "
            'as @phase("mean", params="model").'
        )
    return found


def declared(kind: type) -> dict[str, Declaration]:
    """Every declared phase of a class, by the name of its method, in the order of definition."""
    found: dict[str, Declaration] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if isinstance(getattr(value, "declaration", None), Declaration):
                found[name] = value.declaration
    return found
