"""docs/tutorials/federation.md, followed with real processes. Slow: `pytest -m slow`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from isonomy.federation.flower.processes import free_port
from isonomy.runs.folder import RunFolder

pytestmark = pytest.mark.slow

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


def test_the_tutorial_of_organisers_and_participants(tmp_path: Path) -> None:
    """The page's files and commands, with another port if 9092 is taken."""
    text = (TUTORIALS / "federation.md").read_text()
    shutil.copytree(TUTORIALS / "clinics", tmp_path / "clinics")
    for name, body in re.findall(r'```\w+ title="(.+?)"\n(.*?)```', text, flags=re.DOTALL):
        (tmp_path / name).write_text(body)
    isonomy = [sys.executable, "-m", "isonomy.cli"]
    (keys,) = re.findall(r"^\$ isonomy (.*)$", text, flags=re.MULTILINE)
    subprocess.run([*isonomy, *keys.split()], cwd=tmp_path, check=True, capture_output=True)
    commands = re.findall(r"```sh\nisonomy (.*)\n```", text)
    assert [command.split()[0] for command in commands] == ["serve", "join", "join"]
    address = f"127.0.0.1:{free_port()}"
    started = []
    try:
        for number, command in enumerate(commands):
            words = command.replace("127.0.0.1:9092", address).split()
            with (tmp_path / f"{number}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*isonomy, *words],
                    cwd=tmp_path,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            started.append(process)
        for number, process in enumerate(started):
            said = tmp_path / f"{number}.log"
            assert process.wait(600) == 0, said.read_text()
    finally:
        for process in started:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
    run = RunFolder(tmp_path / "runs" / "trial")
    assert run.complete
    assert (tmp_path / "runs" / "trial" / "report.html").exists()
