"""A dishonest organiser with real processes over loopback, TLS and keys. Slow: `pytest -m slow`.

All attacks are made in one run of one federation, in one round after the other.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from attacks import bad_organiser as bad
from attacks.organiser import differences, guesses, ratios, recovered
from federation.participants import write_tables
from federation.real import Place
from isonomy.data.tables import files, phases, preprocessing
from isonomy.federation.flower import codec
from isonomy.federation.participant import own_rows

pytestmark = pytest.mark.slow
NAMES = ("east", "north")
ROUNDS = 10
REASONS = {
    bad.ONE_ROW: "its work is not the charter's",
    bad.OTHER_QUESTION: "'measure:train'",
    bad.REPEAT: "round 1 is over",
    bad.OTHER_CHARTER: "it is not of the charter that was agreed to",
    bad.WIDE: "its model is not of the charter's network",
}


class Ended(NamedTuple):
    place: Place
    rounds: list[dict[str, Any]]
    kept: Path

    def tree(self, name: str) -> Any:
        return codec.unpack((self.kept / name).read_bytes())[1]

    def training_rows(self) -> torch.Tensor:
        """The victim's own training rows as features: the truth."""
        about = json.loads((self.place.run / "federation.json").read_text())
        table = files.read(self.place.folder / "tables" / "east.csv")
        client = phases.Client(bad.VICTIM, "east", table, None)
        kept = phases.survey(about["charter"]["survey"], client)[1]
        fitted = preprocessing.of(about["fitted"]["preprocessing"])
        rows = own_rows(fitted, phases.Client(bad.VICTIM, "east", table, kept), 10)
        return rows.x[rows.rows(0, "train")]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("live")
    changes = {"rounds": ROUNDS, "evaluate.every": 1, "model.hidden": "[32]"}
    changes |= {"local.steps": 1, "local.batch": 32}
    changes |= {"privacy.cell": 10, "privacy.rounding": "true"}
    with Place(folder, NAMES, **changes) as place:
        write_tables(folder / "tables", NAMES, times=4)
        kept = folder / "kept"
        kept.mkdir()
        env = {**os.environ, "BAD_KEEP": str(kept), "BAD_RUN": str(place.run)}
        env |= {"BAD_KNOWN": str(folder / "tables" / "east.csv")}
        tests = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        env |= {"PYTHONPATH": os.pathsep.join(filter(None, tests))}
        command = [sys.executable, bad.__file__, *place.serving()]
        place.start("organiser", *command, env=env)
        for who in NAMES:
            place.join(who)
        assert place.ends("organiser") == 0, place.logs()
        for who in NAMES:
            assert place.ends(who) == 0, place.logs()
        yield Ended(place, place.rounds(), kept)


@pytest.mark.parametrize("round", REASONS)
def test_what_is_not_in_the_charter_is_refused_and_named_on_both_sides(
    ended: Ended, round: int
) -> None:
    """Steps of one row, another question, a repeated one, another digest, a wider network."""
    line = ended.rounds[round]
    assert line["answered"] == 0
    faults = [fault for fault in line["faults"] if not fault["phase"].startswith("measure:")]
    assert {fault["client"] for fault in faults} == set(NAMES)
    for fault in faults:
        assert REASONS[round] in fault["why"]
        assert REASONS[round] in ended.place.said(fault["client"])
    assert not (ended.kept / f"{round}-local-told").exists()


def test_honest_rounds_before_and_after_are_answered(ended: Ended) -> None:
    honest = [line["answered"] for r, line in enumerate(ended.rounds) if r not in REASONS]
    assert honest == [2] * (ROUNDS - len(REASONS))


def test_gradients_at_the_agreed_batch(ended: Ended) -> None:
    """One step of 32 rows: no row is found, and near ones no more often than by chance."""
    rows = ended.training_rows()
    found = []
    for r in range(bad.CURIOUS, ROUNDS):
        before = ended.tree(f"{r}-local-asked")["params"]
        after = ended.tree(f"{r}-local-told")["params"]
        found += [ratios(before, after), differences(before, after)]
    tried = torch.cat(found)
    assert len(tried) > 0
    assert recovered(tried, rows) == 0
    assert recovered(tried, rows, near=0.05) <= recovered(guesses(rows, len(tried)), rows, 0.05)


def test_differences_between_rounds(ended: Ended) -> None:
    """Evaluations of models for one person each; the difference to the empty model is that person.

    Group and label are found of none, and no count differs from that of another round by one.
    """
    told = [
        ended.tree(f"{r}-measure-test-told")["counts"] for r in range(bad.CURIOUS + 1, ROUNDS + 1)
    ]
    assert len(told) == ROUNDS - bad.CURIOUS
    cells = [int((counts[:, :, 1] > 0).sum()) for counts in told]  # for anyone
    assert cells == [0] * len(told)
    for one, other in pairwise(told):
        moved = (one - other).abs().numpy()
        assert not bool(np.isin(moved, [1]).any())
