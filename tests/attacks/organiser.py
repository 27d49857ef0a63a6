"""A dishonest organiser: it knows the software, and sends participants what it likes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy.config.files import read
from isonomy.core.cohort import Ask
from isonomy.core.examples import SPLITS
from isonomy.core.work import Work
from isonomy.federation import organiser
from isonomy.federation.flower import codec
from isonomy.federation.flower.phase_runner import AlgorithmPhases, request
from isonomy.federation.participant import Participant
from isonomy.federation.sessions import Sessions
from isonomy.runs.build import build
from isonomy.runs.measurements import measurement

SESSION = "5" * 32


class Dishonest:
    """An organiser after an honest start: participants have agreed, and tables are prepared.

    Every answer is decoded as an organiser can; `refused` collects the reasons of refusals.
    """

    def __init__(
        self, folder: Path, *overrides: str, victim: str = "east", times: int = 1, **own: Any
    ) -> None:
        write_tables(folder / "tables", times=times)
        (folder / "config.toml").write_text(
            CONFIG.replace("privacy = { cell = 1, rounding = false }\n", "")
        )
        self.folder = folder
        limits = {"rows": 1, "cell": 1} | own
        self.participants = {name: participant(folder, name, **limits) for name in NAMES}
        config = read(folder / "config.toml", list(overrides))
        self.plan = organiser.begin(config, folder / "run", NAMES)
        self.charter = self.plan.about["charter"]
        self.sessions = self.greeting(SESSION, 0)
        self.plan.about["fitted"] = organiser._fit(self.plan, self.sessions, lambda _: None)
        self.sessions.prepare(self.plan.about["fitted"]["preprocessing"])
        self.setting = build(self.plan.config, federation=organiser.placeholder(self.plan))
        self.names = AlgorithmPhases(self.setting.algorithm, measurement)
        self.victim = victim
        self.refused: list[str] = []

    def greeting(self, session: str, done: int) -> Sessions:
        """Sessions with everyone, of a server that has done so many rounds."""
        room = Room(self.participants)
        made = Sessions(room, self.charter, session=session, done=done, timeout=1.0, nodes=NODES)
        fitted = self.plan.about["fitted"]
        made.prepared = None if fitted is None else fitted["preprocessing"]
        made.wait_for_all(0)
        return made

    @property
    def target(self) -> Participant:
        return self.participants[self.victim]

    def send(self, head: dict[str, Any], value: Any = ()) -> dict[str, Any] | Any:
        """The tree or the header of the answer; None if the victim refuses."""
        head = {"charter": self.sessions.digest} | head
        answer = self.target.answer(codec.pack(head, value))
        about = codec.header(answer)
        if about["ok"] is not True:
            self.refused.append(about["why"])
            return None
        tree = codec.unpack(answer)[1]
        return tree if tree != () else about

    def table(self, phase: str, message: dict[str, Any]) -> Any:
        """The answer to a question about the table."""
        got = self.send({"kind": "table", "phase": phase, "message": message})
        return None if got is None else got["reply"]

    def ask(
        self,
        name: str,
        message: Any,
        round: int = 0,
        *,
        work: Work | None = None,
        exchange: int = 0,
        **changes: Any,
    ) -> Any:
        """The answer to a phase, by default with the charter's own work, rate and seed."""
        config = self.plan.config
        reads = name.startswith("measure:")
        own = Work(steps=1) if reads else config.local
        rate = own.lr if reads else config.local.rate(round, config.rounds)
        ask = Ask(self.names.find(name), message, work or own, round, rate, torch.tensor([0]))
        head = request(replace(ask, exchange=exchange, cohort=3), name, config.seed, 0)
        head.pop("charter")
        return self.send(head | changes, message)

    # --- the truth, to judge what was recovered ---------------------------------------------------

    def rows(self, split: str = "train") -> tuple[Tensor, Tensor, Tensor]:
        """The victim's features, labels and groups of a split."""
        runner = self.target._runner
        assert runner is not None
        begin, end = runner.ranges[0, SPLITS.index(split)].tolist()
        pool = runner.pool
        return pool.x[begin:end], pool.y[begin:end], pool.groups[begin:end, 0]


def recovered(candidates: Tensor, rows: Tensor, near: float = 1e-3) -> int:
    """How many of the rows are among the candidates, in every feature."""
    if not len(candidates):
        return 0
    distance = (candidates.unsqueeze(1) - rows.unsqueeze(0)).abs().amax(-1)  # [candidates, rows]
    return int((distance <= near).any(0).sum())


def guesses(rows: Tensor, count: int) -> Tensor:
    """As many guesses, each value drawn from the column's true values: what chance recovers."""
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(len(rows), (count, rows.shape[1]), generator=generator)
    return rows.gather(0, at)


def ratios(before: Any, after: Any) -> Tensor:
    """For each hidden neuron, its weights' change divided by that of its bias.

    If a single row activates the neuron, this is the row.
    """
    weight = after["linear1.weight"] - before["linear1.weight"]
    bias = after["linear1.bias"] - before["linear1.bias"]
    moved = bias.abs() > 1e-12
    return weight[moved] / bias[moved].unsqueeze(-1)


# --- models that are made to single out rows ------------------------------------------------------


def traps(params: Any, round: int) -> Any:
    """A model whose hidden neurons each react to few rows: random directions, high thresholds."""
    made = {name: t.clone() for name, t in params.items()}
    generator = torch.Generator().manual_seed(round)
    weight = 0.01 * torch.randn(made["linear1.weight"].shape, generator=generator)
    made["linear1.weight"] = weight
    made["linear1.bias"] = -1.8 * weight.norm(dim=1)
    made["linear2.weight"] = torch.randn(made["linear2.weight"].shape, generator=generator)
    made["linear2.bias"] = torch.zeros_like(made["linear2.bias"])
    return made


def bins(params: Any, low: float, high: float) -> Any:
    """A model whose hidden neurons react to all rows above one threshold after the other.

    Two neighbours differ by the rows between their thresholds (Fowl et al., Robbing the Fed).
    """
    made = {name: torch.zeros_like(t) for name, t in params.items()}
    hidden, inputs = made["linear1.weight"].shape
    direction = torch.randn(inputs, generator=torch.Generator().manual_seed(3))
    made["linear1.weight"] = 1e-3 * direction.expand(hidden, inputs).clone()
    made["linear1.bias"] = -1e-3 * torch.linspace(low, high, hidden)
    made["linear2.weight"][1] = 1.0
    return made


def differences(before: Any, after: Any) -> Tensor:
    """The ratios of `ratios`, of the differences between neighbouring neurons."""
    weight = (after["linear1.weight"] - before["linear1.weight"]).double().diff(dim=0)
    bias = (after["linear1.bias"] - before["linear1.bias"]).double().diff(dim=0)
    moved = bias.abs() > 1e-12
    return (weight[moved] / bias[moved].unsqueeze(-1)).float()


def gate(params: Any, rows: Tensor, width: float = 1e-3) -> Any:
    """A model that predicts class 1 for these rows only, by three neurons for each."""
    made = {name: torch.zeros_like(t) for name, t in params.items()}
    direction = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(1))
    for i, row in enumerate(rows):
        for k, (away, sign) in enumerate(((-width, 1.0), (0.0, -2.0), (width, 1.0))):
            made["linear1.weight"][3 * i + k] = direction
            made["linear1.bias"][3 * i + k] = -(float(direction @ row) + away)
            made["linear2.weight"][1, 3 * i + k] = sign * 1e6
    made["linear2.bias"][0] = 1e6 * width / 2
    return made


def flipped(params: Any, row: Tensor | None = None, *, half: int = 2, width: float = 1e-3) -> Any:
    """A model that predicts class 1 for about half of all rows; for one row it predicts the other.

    The first neuron divides the rows, and the next three react to the one row only.
    """
    made = {name: torch.zeros_like(t) for name, t in params.items()}
    divided = torch.Generator().manual_seed(half)
    direction = torch.randn(made["linear1.weight"].shape[1], generator=divided)
    made["linear1.weight"][0] = direction
    made["linear2.weight"][1, 0], made["linear2.bias"][0] = 50.0, 5.0
    if row is not None:
        single = gate(params, row.unsqueeze(0), width)
        other = int(50 * float(direction @ row) <= 5)
        made["linear1.weight"][1:4] = single["linear1.weight"][:3]
        made["linear1.bias"][1:4] = single["linear1.bias"][:3]
        made["linear2.weight"][other, 1:4] = single["linear2.weight"][1, :3]
    return made
