"""Real processes: an organiser and participants started as a user would start them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from federated.members import CONFIG, NAMES, write_tables
from isonomy.engines.flower import commands, keys
from isonomy.experiments.folder import RunFolder

PATIENCE = 900.0  # a machine may be busy; what matters is told apart from slowness
BAD = Path(__file__).with_name("bad_member.py")


def descendants(pid: int) -> list[int]:
    """A process and all that it started, from the system's own table."""
    parent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    out = [pid]
    for one in out:
        out += [child for child, above in parent.items() if above == one]
    return out


class Place:
    """A folder with tables, keys and a config; processes that end with it."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder = folder
        write_tables(folder / "tables")
        (folder / "config.toml").write_text(CONFIG)
        self.overrides = [f"{k}={v}" for k, v in changes.items()]
        keys.make(folder / "keys", NAMES)
        self.address = f"127.0.0.1:{commands.free_port()}"
        self.processes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if process.poll() is None:
                self.crash_process(process)

    def start(self, name: str, *command: str, env: dict | None = None) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.processes[name] = process
        return process

    def isonomy(self, name: str, *arguments: str) -> subprocess.Popen:
        return self.start(name, sys.executable, "-m", "isonomy.cli", *arguments)

    def serve(self, *more: str) -> subprocess.Popen:
        begin = [str(self.folder / "config.toml"), *self.overrides, "--to", str(self.run)]
        where = ["--keys", str(self.folder / "keys"), "--address", self.address, "--no-report"]
        return self.isonomy("organiser", "serve", *(more or begin), *where, "--timeout", "120")

    def join(self, name: str, *, table: str = "", key: str = "", ca: str = "") -> subprocess.Popen:
        return self.isonomy(name, "join", *self.joining(name, table=table, key=key, ca=ca))

    def joining(self, name: str, *, table: str = "", key: str = "", ca: str = "") -> list[str]:
        data = self.folder / (table or f"tables/{name if name in NAMES else NAMES[0]}.csv")
        out = ["--server", self.address, "--data", str(data), "--yes"]
        who = name if name in NAMES else NAMES[0]
        out += ["--key", key or str(self.folder / "keys" / who)]
        out += ["--ca", ca or str(self.folder / "keys/ca.crt")]
        return [*out, "--home", str(self.folder / "homes" / name)]

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
            organiser = self.processes.get("organiser")
            failed = organiser is not None and organiser.poll() not in (None, 0, -9)
            assert not failed, f"the organiser failed before: {what}\n{self.logs()}"
            time.sleep(0.2)

    def ends(self, name: str, seconds: float = PATIENCE) -> int:
        self.until(f"'{name}' ends", lambda: self.processes[name].poll() is not None, seconds)
        return self.processes[name].returncode

    def logs(self) -> str:
        return "\n".join(
            f"== {p.name}\n{p.read_text(errors='replace')[-1500:]}"
            for p in self.folder.glob("*.log")
        )

    def crash(self, name: str) -> None:
        """As if its machine lost power."""
        self.crash_process(self.processes.pop(name))

    def crash_process(self, process: subprocess.Popen) -> None:
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def seconds(run: Path) -> list[float]:
    """How long each exchange of a finished run took."""
    last = RunFolder(run).lines("timing.jsonl")[-1]
    return json.loads(json.dumps(last))["exchanges"]
