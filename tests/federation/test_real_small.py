"""A whole federation of real processes, as small as can be; `make federation` has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation.real import Place, check_equal_to_loop


def test_two_participants_and_an_organiser_equal_the_loop_engine(tmp_path: Path) -> None:
    """TLS, keys, a personal state, and nothing left running when it is over.

    The app that the organiser sends is not isonomy's. No participant runs it.
    """
    changes = {"algorithm": "fmtl", "rounds": 1, "evaluate.every": 1}
    evil = (
        f"app = None\nopen({str(tmp_path / 'was-here')!r}, 'w').close()\nraise SystemExit('evil')\n"
    )
    with Place(tmp_path, ("east", "north"), **changes) as place:
        check_equal_to_loop(place, app=evil)
    sent = (tmp_path / "run" / "flower" / "app" / "isonomy_federation" / "client.py").read_text()
    assert sent == evil
    assert not (tmp_path / "was-here").exists()
    assert not list((tmp_path / "homes").rglob("isonomy_federation"))
