"""Small tables for a federation of three, and participants without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from isonomy.federation.flower.transport import NoReply
from isonomy.federation.participant import Participant

NAMES = ("east", "north", "south")
CONFIG = """\
rounds = 3
seed = 5
data = { path = "tables", label = "approved", protected = ["sex"], rare = 2 }
model = { name = "mlp", hidden = [6] }
local = { batch = 16, lr = 0.2 }
evaluate = { every = 2, bootstrap = 0, scores = "never" }
excess = { clusters = "none" }
privacy = { cell = 1, rounding = false }
"""


def write_tables(folder: Path, names: Sequence[str] = NAMES, times: int = 1) -> Path:
    """A file for each client: numbers with gaps, categories, a group, a label that depends.

    `times` makes them larger.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for k, name in enumerate(names):
        rng = np.random.default_rng(50 + k)
        rows = (60 + 25 * k) * times
        lines = ["age,income,job,sex,approved"]
        for _ in range(rows):
            age = int(rng.integers(18, 80))
            income = round(float(rng.normal(30 + 4 * k, 8)), 2)
            sex = ("Female", "Male")[int(rng.random() < 0.4 + 0.1 * k)]
            score = 0.06 * (income - 30) + 0.02 * (age - 45) + 0.5 * (sex == "Male")
            yes = ("no", "yes")[int(score + rng.normal(0, 0.7) > 0)]
            job = ("clerk", "driver", "nurse")[int(rng.integers(3))]
            shown = "" if rng.random() < 0.1 else str(income)
            lines.append(f"{age},{shown},{job},{sex},{yes}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


class Room:
    """Participants in this process, by the numbers of nodes 100, 101, ..."""

    def __init__(
        self,
        participants: Mapping[str, Participant],
        spoil: Callable[..., bytes | None] | None = None,
    ) -> None:
        self.participants = {
            100 + NAMES.index(name): member for name, member in participants.items()
        }
        self.away: set[int] = set()
        self.spoil = spoil

    def nodes(self) -> set[int]:
        return set(self.participants) - self.away

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        for node, content in reversed(list(requests.items())):  # never in the order asked
            if node in self.away:
                yield node, NoReply("it has left")
                continue
            answer = self.participants[node].answer(content)
            if self.spoil is not None:
                spoilt = self.spoil(NAMES[node - 100], content, answer)
                if spoilt is None:
                    yield node, NoReply("it did not reply")
                    continue
                answer = spoilt
            yield node, answer


def participant(folder: Path, name: str, **options: object) -> Participant:
    """A participant that agrees."""
    given = {"decide": lambda charter: True, "cell": 1, "exact": True} | options
    return Participant(folder / "tables" / f"{name}.csv", folder / "homes" / name, **given)  # type: ignore[arg-type]


NODES = {name: 100 + k for k, name in enumerate(NAMES)}
