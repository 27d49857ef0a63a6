"""An organiser sends participants another Flower app: they run their own."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

program = pytest.importorskip("flwr.supernode.runtime.run_clientapp")


def bad_app(marker: Path) -> bytes:
    """An app that writes a file when it is imported."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("pyproject.toml", '[tool.flwr.app.components]\nclientapp = "bad:app"\n')
        archive.writestr("bad.py", f"open({str(marker)!r}, 'w').close()\napp = None\n")
    return made.getvalue()


def test_nothing_that_is_sent_is_written_or_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of Flower's program, in its order."""
    from isonomy.federation.flower import own_app
    from isonomy.federation.flower.client_app import app

    for name in own_app.REPLACED:  # put back after the test
        monkeypatch.setattr(program, name, getattr(program, name))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    before = set(tmp_path.rglob("*"))
    own_app.use_own_app()
    program.install_from_fab(bad_app(tmp_path / "marker"), skip_prompt=True)
    place = program.get_project_dir("bad/app", "1.0.0", "0" * 64)
    program.install_app_dependencies(place, launch_id="1", run_id=1, index_context={})
    load = program.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("bad/app", "1.0.0", "0" * 64) is app
    assert set(tmp_path.rglob("*")) == before


def test_another_version_of_flower_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from isonomy.federation.flower import own_app

    monkeypatch.delattr(program, "install_from_fab")
    with pytest.raises(RuntimeError, match="install_from_fab"):
        own_app.use_own_app()
