"""The leaderboard: what follows from rows, by hand; and the page against its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from isonomy.studies import leaderboard
from isonomy.studies.leaderboard import Board

ROOT = Path(__file__).parents[2]


def row(method: str, seed: int, one_class: bool = False, **metrics: float) -> dict[str, Any]:
    names = {"dp": "group.sex.demographic_parity", "worst": "client.accuracy.worst10"}
    return {
        "method": method,
        "seed": seed,
        "metrics": {names.get(name, name): value for name, value in metrics.items()},
        "complete": bool(metrics),
        "why": "" if metrics else "needs two groups",
        "one_class": one_class,
        "trials": 5,
        "seconds": 60.0,
        "commit": "abc",
        "versions": {"torch": "2"},
    }


@pytest.fixture
def board() -> Board:
    def rows(shift: float) -> list[dict[str, Any]]:
        found = [row("picky", 0)] if shift else []
        for seed, jitter in ((0, 0.0), (1, 0.01)):
            found += [
                row("fedavg", seed, accuracy=0.9 - jitter, dp=0.3, worst=0.5),
                row("fair", seed, accuracy=0.8 + shift, dp=0.1 + jitter, worst=0.6),
                row("bad", seed, accuracy=0.7, dp=0.3, worst=0.4),
                row("constant", seed, one_class=True, accuracy=0.75, dp=0.0, worst=0.4),
            ]
        return found

    return Board({"one": rows(0.0), "two": rows(0.05)})


def test_ranks_and_fronts(board: Board):
    ranks = board.ranking("accuracy")
    assert ranks is not None
    assert ranks.ranks == {"fedavg": 1.0, "fair": 2.0, "constant": 3.0, "bad": 4.0}
    parity = board.ranking("demographic_parity")
    assert parity is not None
    assert parity.ranks == {"constant": 1.0, "fair": 2.0, "bad": 3.5, "fedavg": 3.5}
    # the constant has the smallest gap, and is on no front
    assert board.fronts("demographic_parity") == {"fedavg": ["one", "two"], "fair": ["one", "two"]}


def test_the_page(board: Board):
    page = leaderboard.page(board)
    assert "| fair | 2.0 | 1.0 | 2.0 |" in page
    assert "- accuracy: **fedavg** 0.895." in page
    # paired differences .2 and .19: t = .195 / (.005), one degree of freedom
    assert "- demographic-parity gap: **fair** 0.105; fedavg 0.300, p = 0.016." in page
    assert "| constant (one class) | 0.750 ± 0.000 |" in page
    assert page.count("picky: needs two groups") == 1
    assert "8 runs, 8 min in all; torch 2; commit abc" in page


def test_the_picture_is_valid_and_has_every_method(board: Board):
    drawn = ElementTree.fromstring(leaderboard.picture(board))
    texts = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    for name in ("fedavg", "fair", "bad", "constant", "demographic-parity gap"):
        assert name in texts


def test_the_page_in_the_documentation_is_that_of_its_data():
    found = leaderboard.read(ROOT / "results" / "leaderboard")
    page = ROOT / "docs" / "leaderboard.md"
    assert page.read_text(encoding="utf-8") == leaderboard.page(found)
    picture = page.parent / "pictures" / "leaderboard.svg"
    assert picture.read_text(encoding="utf-8") == leaderboard.picture(found)
