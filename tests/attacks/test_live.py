"""A dishonest organiser with real processes over loopback, TLS and keys. Slow: `pytest -m slow`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federation.real import Place

pytestmark = pytest.mark.slow
BAD = Path(__file__).with_name("bad_organiser.py")


def test_steps_of_one_row_are_refused_and_named_on_both_sides(tmp_path: Path) -> None:
    names = ("east", "north")
    with Place(tmp_path, names, rounds=3) as place:
        where = ["--keys", str(tmp_path / "keys"), "--address", place.address, "--no-report"]
        begin = [str(tmp_path / "config.toml"), *place.overrides, "--to", str(place.run)]
        place.start("organiser", sys.executable, str(BAD), "serve", *begin, *where)
        for who in names:
            place.join(who)
        assert place.ends("organiser") == 0, place.logs()
        rounds = place.rounds()
        assert [line["answered"] for line in rounds] == [2, 0, 2]
        faults = rounds[1]["faults"]
        assert {fault["client"] for fault in faults} == set(names)
        assert all("its work is not the charter's" in fault["why"] for fault in faults)
        for who in names:
            assert place.ends(who) == 0
            assert "a message was refused: its work is not the charter's." in place.said(who)
