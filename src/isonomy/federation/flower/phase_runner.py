"""The client's side: it runs the phase that a message names on the client's own rows.

The message does not decide what can be run: a phase is looked up by its name in `Phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Pool
from isonomy.core.cohort import Ask, ClientSide
from isonomy.core.fold import using
from isonomy.core.phase import Declaration, Phase, declaration, declared
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import parts
from isonomy.errors import IsonomyError
from isonomy.federation.flower import codec
from isonomy.federation.flower.state_store import StateStore

READ_ONLY = "measure:"  # the names of phases that change no state begin with this


class Phases(Protocol):
    """Phases by name, the same at the server and at the clients."""

    def name(self, phase: Phase) -> str:
        """The name of a phase in a message; KeyError if `find` does not know it."""

    def find(self, name: str) -> Phase:
        """The phase of that name; KeyError if there is none."""


class Terms(NamedTuple):
    """With which work, learning rate and seed a client answers a question."""

    work: Work
    rate: float
    seed: int


class Agreement(Protocol):
    """What a participant of a real federation has agreed to."""

    def admit(self, head: codec.Header, terms: Terms, message: Any, content: str) -> None:
        """Record a question before it is answered; raises MalformedError if it is refused.

        `content` is the digest of the message.
        """


class Masking(Protocol):
    """Secure aggregation, at a client."""

    def answer(self, request: bytes) -> bytes:
        """The reply to a message that prepares or ends an exchange."""

    def opened(self, head: codec.Header, value: Any) -> tuple[Any, str]:
        """The message of a question, and a text that is another one for other masks."""

    def masked(self, head: codec.Header, declared: Declaration, message: Any, value: Any) -> Any:
        """The reply, masked."""


class AlgorithmPhases:
    """The phases that an algorithm declares, and those in which clients measure a model."""

    def __init__(self, algorithm: Algorithm, measure: Callable[[Algorithm, str], Phase]) -> None:
        self.algorithm = algorithm
        self._measure = measure

    def name(self, phase: Phase) -> str:
        """The name that the phase declares."""
        own = declaration(phase).name
        self.find(own)
        return own

    def find(self, name: str) -> Phase:
        """A measurement, or a phase that the algorithm declares."""
        if name.startswith(READ_ONLY):
            return self._measure(self.algorithm, name.removeprefix(READ_ONLY))
        if name not in declared(type(self.algorithm)):
            raise KeyError(name)
        phase: Phase = getattr(self.algorithm, name)
        return phase


class PhaseRunner:
    """Answers the messages of one client: its number, rows, stored states and known phases."""

    def __init__(
        self,
        number: int,
        task: Task,
        pool: Pool,
        ranges: Tensor,
        store: StateStore,
        phases: Phases,
        around: tuple[ClientSide, ...] = (),
        agreement: Agreement | None = None,
        masking: Masking | None = None,
    ) -> None:
        self.number = number
        self.task = task
        self.pool = pool
        self.ranges = ranges  # [1, 3, 2]: where each split lies in the pool
        self.store = store
        self.phases = phases
        self.around = around  # client-side middleware, for phases that train
        self.agreement = agreement  # without one, messages bring their own terms
        self.masking = masking  # with it, no reply of training is sent as it is

    def answer(self, request: bytes) -> bytes:
        """The reply to a phase's message; raises MalformedError for a message that is refused.

        With `masking`, also to the messages that prepare or end a secure exchange.
        """
        if self.masking is not None and codec.header(request).get("kind") == "secure":
            return self.masking.answer(request)
        head, message = codec.unpack(request)
        try:
            phase = self.phases.find(head["phase"])
            round, seed = int(head["round"]), int(head["seed"])
            work = Work(**{**head["work"], "betas": tuple(head["work"]["betas"])})
            terms = Terms(work, float(head["rate"]), seed)
            exchange, cohort = int(head["exchange"]), int(head["cohort"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise codec.MalformedError("it names an unknown phase, round or work") from None
        reads = head["phase"].startswith(READ_ONLY)
        newest = self.store.rounds()[-1:]
        if not reads and newest and newest[0] > round:
            raise codec.MalformedError(f"it is of round {round + 1}, which is over")
        content = codec.digest(request)
        hide = None if reads or not declaration(phase).parts else self.masking
        if hide is not None:
            message, masks = hide.opened(head, message)
            content += f" masked {masks}"
        elif "secure" in head:
            raise codec.MalformedError("the charter does not mask this reply")
        if self.agreement is not None:
            self.agreement.admit(head, terms, message, content)
        ids = torch.tensor([self.number])
        ask = Ask(
            phase,
            message,
            terms.work,
            round,
            terms.rate,
            ids,
            exchange=exchange,
            cohort=cohort,
            around=() if reads else self.around,
        )
        own = self.store.load()
        try:
            value, state = run_phase(self.task, ask, self.pool, self.ranges, own, terms.seed)
        except IsonomyError:
            raise
        except Exception as error:
            if self.agreement is None:
                raise
            what = f"'{head['phase']}' cannot be computed from it ({type(error).__name__})"
            raise codec.MalformedError(what) from error
        if not reads:
            self.store.save(round, state)
            self.store.forget_before(int(head.get("settled", 0)))
        if hide is not None:
            value = hide.masked(head, declaration(phase), message, value)
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


def request(ask: Ask, name: str, seed: int, settled: int, charter: str = "") -> dict[str, Any]:
    """The header of a phase's message; `charter` is the digest of what clients agreed to."""
    return {
        "kind": "phase",
        "charter": charter,
        "phase": name,
        "round": ask.round,
        "rate": ask.rate,
        "work": asdict(ask.work),
        "seed": seed,
        "exchange": ask.exchange,
        "cohort": ask.cohort,
        "settled": settled,
        "final": ask.final,
    }
