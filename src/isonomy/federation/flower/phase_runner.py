"""The client's half: it runs the phase that a message names on its own rows, and answers.

What it may be asked to run is decided here and not by the message: phases come from `Phases`,
which knows them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Pool
from isonomy.core.cohort import Ask, ClientSide
from isonomy.core.fold import using
from isonomy.core.phase import Phase, declaration, declared
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import parts
from isonomy.federation.flower import codec
from isonomy.federation.flower.state_store import Store

READ_ONLY = "measure:"  # phases that change no state begin with this


class Phases(Protocol):
    """Phases by name, the same at the server and at clients."""

    def name(self, phase: Phase) -> str:
        """What a phase is called in a message."""

    def find(self, name: str) -> Phase:
        """The phase of that name; KeyError if there is none."""


class OfAlgorithm:
    """An algorithm's own phases, and those in which clients count their predictions."""

    def __init__(self, algorithm: Algorithm, measure: Callable[[Algorithm, str], Phase]) -> None:
        self.algorithm = algorithm
        self._measure = measure

    def name(self, phase: Phase) -> str:
        """A method's name, or the name that a measurement carries."""
        own = declaration(phase).name
        self.find(own)
        return own

    def find(self, name: str) -> Phase:
        """A phase that the algorithm declares."""
        if name.startswith(READ_ONLY):
            return self._measure(self.algorithm, name.removeprefix(READ_ONLY))
        if name not in declared(type(self.algorithm)):
            raise KeyError(name)
        phase: Phase = getattr(self.algorithm, name)
        return phase


class Participant:
    """One client: its number, its rows, what it keeps, and the phases it knows."""

    def __init__(
        self,
        number: int,
        task: Task,
        pool: Pool,
        ranges: Tensor,
        store: Store,
        phases: Phases,
        around: tuple[ClientSide, ...] = (),
    ) -> None:
        self.number = number
        self.task = task
        self.pool = pool
        self.ranges = ranges  # [1, 3, 2]: where each split lies in the pool
        self.store = store
        self.phases = phases
        self.around = around  # middleware of the client side, for phases that train

    def answer(self, request: bytes) -> bytes:
        """The reply to a phase's message; a message that cannot be followed is refused."""
        head, message = codec.unpack(request)
        try:
            phase = self.phases.find(head["phase"])
            round, seed = int(head["round"]), int(head["seed"])
            work = Work(**{**head["work"], "betas": tuple(head["work"]["betas"])})
            rate = float(head["rate"])
            exchange, cohort = int(head["exchange"]), int(head["cohort"])
        except (KeyError, TypeError, ValueError):
            raise codec.MalformedError("it names no phase, round or work that is known") from None
        reads = head["phase"].startswith(READ_ONLY)
        newest = self.store.rounds()[-1:]
        if not reads and newest and newest[0] > round:
            raise codec.MalformedError(f"it is of round {round + 1}, which is over")
        ids = torch.tensor([self.number])
        ask = Ask(
            phase,
            message,
            work,
            round,
            rate,
            ids,
            exchange=exchange,
            cohort=cohort,
            around=() if reads else self.around,
        )
        value, state = run_phase(self.task, ask, self.pool, self.ranges, self.store.load(), seed)
        if not reads:
            self.store.save(round, state)
            self.store.settle(int(head.get("safe", 0)))
        return codec.pack({"ok": True}, value)


def run_phase(
    task: Task, ask: Ask, pool: Pool, ranges: Tensor, state: Any, seed: int
) -> tuple[Any, Any]:
    """One client's phase, as the loop engine runs it."""
    stacked = tree.tmap(lambda t: t.unsqueeze(0), state)
    made = parts(ask, ask.ids, pool, ranges, stacked, seed)
    with torch.no_grad(), using(None):
        lane = tree.take(made["lanes"], 0)
        return ask.wrapped()(task, ask.message, Client(**lane, **made["shared"]))


def request(ask: Ask, name: str, seed: int, safe: int) -> dict[str, Any]:
    """The header of a phase's message."""
    return {
        "kind": "phase",
        "phase": name,
        "round": ask.round,
        "rate": ask.rate,
        "work": asdict(ask.work),
        "seed": seed,
        "exchange": ask.exchange,
        "cohort": ask.cohort,
        "safe": safe,
    }
