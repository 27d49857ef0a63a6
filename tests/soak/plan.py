"""Which faults a soak test plants, and when: everything follows from the seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["kill", "stall", "hang", "restart"]

FEWEST = 45  # rounds: some to begin with, some for the faults, and TAIL
HEAD = 4  # rounds before the first fault
TAIL = 30  # rounds after the last fault, in which the last participant can come back
CALM = 3  # honest participants that nothing happens to, besides the attacker
FORBIDDEN = ("not finite", "no training gives", "has shape", "too large", "malformed")
POISON = "poison"  # a reply that looks like any other, with the opposite update
ORGANISER = "organiser"


@dataclass(frozen=True)
class Event:
    """What happens once `round` rounds are done, `delay` seconds later.

    kill     SIGKILL to all processes of the participants; they are started again
    stall    all processes of the participants stand still for `seconds`, or until it is noticed
    hang     only `isonomy join` stands still: their SuperNodes still say that they are connected
    restart  SIGKILL to the organiser, which is started again and resumes the run
    """

    round: int
    kind: Kind
    who: tuple[str, ...]
    delay: float
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The events in their order, and what the attacker sends in rounds in which it is not honest.

    `replies` maps a round, from 0, to a word of FORBIDDEN or to POISON.
    """

    rounds: int
    seed: int
    names: tuple[str, ...]
    attacker: str
    events: tuple[Event, ...]
    replies: dict[int, str]

    @property
    def untouched(self) -> list[str]:
        """The participants whose processes live from the beginning to the end."""
        struck = {name for event in self.events for name in event.who}
        return [name for name in self.names if name not in struck]

    def save(self, path: Path) -> None:
        """Write it, for the attacker's process and for readers."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path) -> Plan:
    """A plan that was saved."""
    read = json.loads(path.read_text())
    read["names"] = tuple(read["names"])
    read["events"] = tuple(Event(**{**e, "who": tuple(e["who"])}) for e in read["events"])
    read["replies"] = {int(r): way for r, way in read["replies"].items()}
    return Plan(**read)


def make(rounds: int, seed: int, names: Sequence[str], *, timeout: float) -> Plan:
    """A plan for these participants; stalls last longer than `timeout`, so that each is noticed."""
    if rounds < FEWEST:
        raise ValueError(f"{rounds} rounds are too few for the faults; give at least {FEWEST}.")
    if len(names) < CALM + 3:
        raise ValueError(f"{len(names)} participants are too few; give at least {CALM + 3}.")
    rng = random.Random(f"soak {rounds} {seed} {' '.join(names)}")
    attacker, *others = rng.sample(list(names), len(names))
    struck = others[CALM:]
    kinds: list[Kind] = ["kill", "stall", "hang"] * max(1, rounds // 150)
    kinds += ["kill"] * (rounds // 150)
    rng.shuffle(kinds)
    first, last = HEAD, rounds - TAIL
    restart = rng.randint(max(first + 1, rounds // 10), max(first + 2, rounds // 5))
    rest = [r for r in range(first, last + 1) if r != restart]
    at = sorted(rng.sample(rest, len(kinds)))
    events = [Event(restart, "restart", (), round(rng.uniform(0, 3), 2))]
    turn: list[str] = []  # everyone has its turn before anyone has its second
    for number, (when, kind) in enumerate(zip(at, kinds, strict=True)):
        several = 2 if number % 4 == 3 else 1  # now and then two at once
        while len(turn) < several:
            turn += rng.sample(
                [name for name in struck if name not in turn], len(struck) - len(turn)
            )
        who, turn = tuple(sorted(turn[:several])), turn[several:]
        seconds = 0.0 if kind == "kill" else round(timeout * rng.uniform(1.2, 1.4), 1)
        events.append(Event(when, kind, who, round(rng.uniform(0, 3), 2), seconds))
    events.sort(key=lambda event: event.round)
    return Plan(rounds, seed, tuple(names), attacker, tuple(events), _replies(rounds, rng))


def _replies(rounds: int, rng: random.Random) -> dict[int, str]:
    """A tenth of the replies is forbidden, each way as often; half of the others is poison.

    Each way occurs in the first third: a large reply raises the memory that its receiver keeps, so
    the trend is measured after the first one.
    """
    bad = rng.sample(range(rounds // 3), len(FORBIDDEN))
    more = [r for r in range(rounds) if r not in bad]
    bad += rng.sample(more, max(0, rounds // 10 - len(bad)))
    out = {r: FORBIDDEN[i % len(FORBIDDEN)] for i, r in enumerate(bad)}
    for r in range(rounds):
        if r not in out and rng.random() < 0.5:
            out[r] = POISON
    return dict(sorted(out.items()))
