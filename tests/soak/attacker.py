"""The attacker: a participant that sends what the plan says; started like `isonomy`.

python -m soak.attacker PLAN join --server ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from federation import bad_participant
from isonomy.cli import main
from isonomy.core.cohort import Ask
from isonomy.core.phase import Phase
from isonomy.federation import participant as own
from isonomy.federation.flower import codec
from isonomy.federation.participant import Participant
from isonomy.robust.attacks import SignFlip
from isonomy.robust.forging import Forging
from soak import plan as plans
from soak.plan import FORBIDDEN, POISON, Plan

FACTOR = 60.0  # how long the poisoned update is, relative to the honest one
SPOIL = {  # how a forbidden reply is made, by the word with which it is refused
    **dict(zip(bad_participant.MEANINGS, bad_participant.WAYS, strict=True)),
    "no training gives": lambda reply: bad_participant._changed(reply, lambda t: t + 1e30),
}


class Poison:
    """Client-side middleware: the attacker's update has the wrong sign in the planned rounds."""

    def __init__(self, plan: Plan) -> None:
        malicious = torch.tensor([plan.names.index(plan.attacker)])
        self._forging = Forging(SignFlip(factor=FACTOR), malicious, seed=plan.seed)
        self._rounds = {r for r, way in plan.replies.items() if way == POISON}

    def __call__(self, ask: Ask, phase: Phase) -> Phase:
        """Wrap a phase."""
        return self._forging(ask, phase) if ask.round in self._rounds else phase


def attack(plan: Plan) -> None:
    """Let the participant of this process do what the plan says."""
    assert set(SPOIL) == set(FORBIDDEN)
    honest = Participant.answer

    def answer(self: Participant, request: bytes) -> bytes:
        reply = honest(self, request)
        head = codec.header(request)
        if head["kind"] != "phase" or head["phase"].startswith("measure:"):
            return reply
        way = plan.replies.get(head["round"])
        return SPOIL[way](reply) if way in SPOIL else reply

    Participant.answer = answer  # type: ignore[method-assign]
    own.client_side = lambda _: (Poison(plan),)  # type: ignore[attr-defined]


if __name__ == "__main__":
    attack(plans.load(Path(sys.argv.pop(1))))
    main()
