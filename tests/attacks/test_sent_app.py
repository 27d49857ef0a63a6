"""An organiser sends participants another Flower app: it is not even fetched.

`federation/test_real_small.py` does the same with real processes.
"""

from __future__ import annotations

import io
import threading
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.run_pb2 import GetRunResponse, Run

from federation.fleet import Fleet
from isonomy.federation.flower import keys, node
from isonomy.federation.flower.message_content import content_of, record_of


def bad_app(marker: Path) -> bytes:
    """An app that writes a file when it is imported."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pyproject.toml", '[tool.flwr.app.components]\nclientapp = "bad:app"\n')
        archive.writestr("bad.py", f"open({str(marker)!r}, 'w').close()\napp = None\n")
    return made.getvalue()


class Bad(Fleet):
    """Offers an app to nodes that ask for it, as a SuperNode of Flower does."""

    app = b""

    def _GetRun(self, _: object) -> GetRunResponse:  # noqa: N802
        return GetRunResponse(run=Run(run_id=5, fab_id="bad/app", fab_hash="0" * 64))

    def _GetFab(self, _: object) -> GetFabResponse:  # noqa: N802
        return GetFabResponse(fab=Fab(hash_str="0" * 64, content=self.app))


def test_no_app_is_fetched_written_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(node, "SHORT", 0.01)
    keys.make(tmp_path / "keys", ["north"])
    key = keys.private_key(tmp_path / "keys" / "north")
    ended, fleet = threading.Event(), Bad(record_of(b"abc"))
    fleet.app, fleet.done = bad_app(tmp_path / "marker"), ended.set
    monkeypatch.setattr(node, "FleetHttpClient", fleet)
    before = set(tmp_path.rglob("*"))
    opened = node.Node(
        ("127.0.0.1", 1),
        sign=lambda: keys.headers_of(key),
        public=keys.public_bytes(key),
        ca=tmp_path / "keys" / "ca.crt",
        register=False,
        ended=ended,
        final=lambda _: None,
        lost=lambda: None,
    )
    opened.run(lambda content: content + b"!", print)
    opened.close()
    assert content_of(fleet.answer()) == b"abc!"
    assert not {"GetRun", "GetFab"} & set(fleet.asked)
    assert set(tmp_path.rglob("*")) == before
