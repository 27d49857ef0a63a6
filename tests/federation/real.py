"""Real processes: an organiser and participants started as a user would start them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from federation.participants import CONFIG, NAMES, write_tables
from federation.process_table import MARK, descendants, marked
from isonomy import api
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.federation.flower import keys, processes
from isonomy.runs import saved_model
from isonomy.runs.folder import RunFolder

PATIENCE = 900.0  # a machine may be busy; what matters is told apart from slowness
BAD = Path(__file__).with_name("bad_participant.py")


class Place:
    """A folder with tables, keys and a config; processes that end with it."""

    timeout = 120  # seconds within which a participant must reply

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES, **changes: object) -> None:
        self.folder, self.names = folder, names
        write_tables(folder / "tables", names)
        (folder / "config.toml").write_text(CONFIG)
        self.overrides = [f"{k}={v}" for k, v in changes.items()]
        keys.make(folder / "keys", names)
        self.address = f"127.0.0.1:{processes.free_port()}"
        self.processes: dict[str, subprocess.Popen] = {}
        self.may_fail: set[str] = set()

    def __enter__(self) -> Place:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """End all processes; one that does not end by itself is a fault."""
        for seconds in (10, 90):  # an organiser ends its round first, unless it is told twice
            for process in self.processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            end = time.monotonic() + seconds
            while (left := marked(self.folder)) and time.monotonic() < end:
                for process in self.processes.values():
                    process.poll()  # so that none stays as a zombie
                time.sleep(0.2)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes.values():
            process.wait()
        assert kind is not None or not left, f"these did not end: {left}"

    def start(self, name: str, *command: str, env: dict | None = None) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**(env or os.environ), MARK: str(self.folder)},
                start_new_session=True,  # as on its own machine: Linux divides time by session
            )
        self.processes[name] = process
        return process

    def isonomy(self, name: str, *arguments: str) -> subprocess.Popen:
        return self.start(name, sys.executable, "-m", "isonomy.cli", *arguments)

    def serve(self, *more: str) -> subprocess.Popen:
        return self.isonomy("organiser", *self.serving(*more))

    def serving(self, *more: str) -> list[str]:
        begin = [str(self.folder / "config.toml"), *self.overrides, "--to", str(self.run)]
        where = ["--keys", str(self.folder / "keys"), "--address", self.address, "--no-report"]
        return ["serve", *(more or begin), *where, "--timeout", str(self.timeout)]

    def serve_another_app(self, code: str) -> subprocess.Popen:
        """Serve, and send participants an app that runs this code when it is imported."""
        program = (
            "from isonomy.federation.flower import processes; from isonomy.cli import main; "
            f"processes.CLIENT = {code!r}; main()"
        )
        return self.start("organiser", sys.executable, "-c", program, *self.serving())

    def join(self, name: str, *, table: str = "", key: str = "", ca: str = "") -> subprocess.Popen:
        return self.isonomy(name, "join", *self.joining(name, table=table, key=key, ca=ca))

    def joining(self, name: str, *, table: str = "", key: str = "", ca: str = "") -> list[str]:
        who = name if name in self.names else self.names[0]
        data = self.folder / (table or f"tables/{who}.csv")
        out = ["--server", self.address, "--data", str(data), "--yes"]
        out += ["--key", key or str(self.folder / "keys" / who)]
        out += ["--ca", ca or str(self.folder / "keys/ca.crt")]
        return [*out, "--cell", "1", "--exact", "--home", str(self.folder / "homes" / name)]

    def join_badly(self, name: str) -> subprocess.Popen:
        return self.start(name, sys.executable, str(BAD), "join", *self.joining(name))

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def rounds(self) -> list[dict]:
        return RunFolder(self.run).lines("rounds.jsonl")

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.logs()}"
            for name in {"organiser", *self.names} - self.may_fail:
                code = self.processes[name].poll() if name in self.processes else None
                assert not code, f"'{name}' ended with {code} before: {what}\n{self.logs()}"
            time.sleep(0.2)

    def ends(self, name: str, seconds: float = PATIENCE) -> int:
        self.may_fail.add(name)
        self.until(f"'{name}' ends", lambda: self.processes[name].poll() is not None, seconds)
        return self.processes[name].returncode

    def logs(self) -> str:
        return "\n".join(
            f"== {p.relative_to(self.folder)}\n{p.read_text(errors='replace')[-1500:]}"
            for p in sorted(self.folder.rglob("*.log"))
        )

    def crash(self, name: str) -> None:
        """As if its machine lost power."""
        process = self.processes.pop(name)
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


# --- what came of it ------------------------------------------------------------------------------


def model(folder: Path) -> dict:
    saved = saved_model.read(folder / "model")
    return {"server": saved.server, "clients": saved.clients}


def own(place: Place, name: str) -> dict:
    """A participant's model and state, in its own folder."""
    return model(next((place.folder / "homes" / name).glob("*/result")))


def simulate(place: Place) -> Path:
    """The same config, tables and clients, by the reference engine."""
    config = read(place.folder / "config.toml", [*place.overrides, "engine=loop"])
    api.run(config, place.folder / "simulated")
    return place.folder / "simulated"


def same(a, b) -> None:
    for s, t in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(s, t, rtol=1e-5, atol=1e-6)


def check_equal_to_loop(place: Place, app: str = "") -> None:
    """A whole federation from its beginning to its end, and the simulation of it.

    `app` is code that the organiser sends in place of isonomy's app.
    """
    if app:
        place.serve_another_app(app)
    else:
        place.serve()
    for who in place.names:
        place.join(who)
    assert place.ends("organiser") == 0, place.logs()
    assert "without confirming it" not in place.said("organiser")
    for who in place.names:
        assert place.ends(who) == 0, place.logs()
    expected = model(simulate(place))
    same(model(place.run)["server"], expected["server"])
    for k, who in enumerate(place.names):
        same(own(place, who)["server"], expected["server"])
        if tree.leaves(expected["clients"]):
            same(tree.take(own(place, who)["clients"], 0), tree.take(expected["clients"], k))
    lines = [RunFolder(f).lines("rounds.jsonl") for f in (place.run, place.folder / "simulated")]
    for key in ("bytes_down", "bytes_up"):
        assert [line[key] for line in lines[0]] == [line[key] for line in lines[1]]
    metrics = RunFolder(place.run).summary()["metrics"]
    wanted = RunFolder(place.folder / "simulated").summary()["metrics"]
    assert metrics == pytest.approx(wanted, abs=1e-6, nan_ok=True)
