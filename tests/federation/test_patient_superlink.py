"""The SuperLink's database waits for its lock, so that a busy machine does not end a federation."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.supercore import sql_mixin
from flwr.supercore.object_store.sql_object_store import SqlObjectStore

from isonomy.federation.flower.patient_superlink import SECONDS, wait_longer

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found")  # of Flower


def write_while_locked(path: Path, seconds: float) -> None:
    """Write to a database of Flower while another connection holds its lock for some time."""
    store = SqlObjectStore(str(path))
    store.initialize()
    held = threading.Event()

    def hold() -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        held.set()
        time.sleep(seconds)
        other.execute("COMMIT")
        other.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        store.query("DELETE FROM objects")
    finally:
        thread.join()
        store._engine.dispose()  # type: ignore[union-attr]


def test_a_lock_that_is_held_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth of a second stands for Flower's five seconds."""
    settings = dict(sql_mixin.SQLITE_PRAGMAS)
    assert int(settings["busy_timeout"]) < SECONDS * 1000
    short = tuple({**settings, "busy_timeout": "50"}.items())
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", short)
    with pytest.raises(Exception, match="database is locked"):
        write_while_locked(tmp_path / "state.db", 0.3)
    wait_longer()
    write_while_locked(tmp_path / "state.db", 0.3)
    kept = {name: value for name, value in sql_mixin.SQLITE_PRAGMAS if name != "busy_timeout"}
    assert kept.items() <= settings.items()
