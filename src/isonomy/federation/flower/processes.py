"""Flower's programs as child processes: the SuperLink, and the command line."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from isonomy.errors import ConfigError, RunError, missing_extra

CONNECTION = "isonomy"
SECONDS = 600.0  # the longest time that a command of Flower may take
_DEATH = 1  # prctl's PR_SET_PDEATHSIG

PROJECT = """\
[project]
name = "isonomy-federation"
version = "1.0.0"
description = "Passes on the messages of isonomy."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "isonomy"

[tool.flwr.app.components]
serverapp = "isonomy_federation.server:app"
clientapp = "isonomy_federation.client:app"

[tool.flwr.app.config]
isonomy = ""
"""
SERVER = "from isonomy.federation.flower.server_app import app\n\n__all__ = ['app']\n"
CLIENT = "from flwr.clientapp import ClientApp\n\napp = ClientApp()  # participants use their own\n"
SETTINGS = {  # Flower makes no requests other than those of the federation, and installs nothing
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def need_flower() -> None:
    """Raise ConfigError if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError(missing_extra("a federation", "Flower", "flower"))


def need_local_sockets(what: str) -> None:
    """Raise ConfigError on a system without the sockets and process groups that `what` needs."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "killpg"):
        raise ConfigError(
            f"{what} needs Unix sockets and process groups, which {sys.platform} does not have; "
            "run it on Linux or macOS, or in the Windows Subsystem for Linux."
        )


_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE")


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: their own home, no telemetry, no update check.

    Their answers are read, so variables that ask for colours in pipes (notebooks and CI systems set
    them) are left out.
    """
    programs = str(Path(sys.executable).parent)
    inherited = {name: value for name, value in os.environ.items() if name not in _COLOURS}
    return inherited | {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        **SETTINGS,
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # seconds; less costs time and gains nothing
        # glibc: few heaps for many threads, and large blocks go back to the system when freed
        "MALLOC_ARENA_MAX": "2",
        "MALLOC_MMAP_THRESHOLD_": "262144",
    }


def program(name: str) -> str:
    """The path of a program that is installed with this Python."""
    return str(Path(sys.executable).parent / name)


class Child:
    """A program that ends with this process; its output goes to a file."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(log, "ab")  # noqa: SIM115
        self._from = self._file.tell()
        self.process = subprocess.Popen(
            list(command),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops it
            preexec_fn=_with_parent,
        )

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self.process.poll() is None

    def output(self) -> str:
        """What it has printed since it was started."""
        with open(self.log, "rb") as file:
            file.seek(self._from)
            return file.read().decode(errors="replace")

    def stop(self, seconds: float = 8.0) -> None:
        """End it and the processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._file.close()


def _with_parent() -> None:
    """On Linux, end the child when this process is killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH, signal.SIGTERM)


def free_port() -> int:
    """A port on loopback that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(
    port: int, child: Child, what: str, host: str = "127.0.0.1", seconds: float = 300.0
) -> None:
    """Wait until the port is open; raises RunError if the child ends first or time is up."""
    until = time.monotonic() + seconds
    at = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # any address: try this machine's
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((at, port), 1):
            return
        if not child.running:
            break
        time.sleep(0.1)
    raise RunError(f"{what} did not start ({last_line(child.output())}); see '{child.log}'.")


def last_line(text: str) -> str:
    """The last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


# --- Flower's command line ------------------------------------------------------------------------


def write_home(home: Path, address: str, ca: Path | None) -> None:
    """Write the address of the SuperLink for Flower's command line, and the app that it runs."""
    secure = "insecure = true" if ca is None else f'root-certificates = "{ca.absolute()}"'
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n'
        f'[superlink.{CONNECTION}]\naddress = "{address}"\n{secure}\n'
    )
    package = home / "app" / "isonomy_federation"
    package.mkdir(parents=True, exist_ok=True)
    (home / "app" / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(SERVER)
    (package / "client.py").write_text(CLIENT)


def flwr(home: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """Run commands of Flower's command line in one process; returns their answers (JSON)."""
    words = [[*command, "--format", "json"] for command in commands]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "isonomy.federation.flower.flwr_cli", json.dumps(words)],
            env=environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"Flower's command line did not end within {SECONDS:g} s; the machine may be too busy: "
            "try again."
        ) from None
    answers = _answers(done.stdout)
    good = [answer for answer in answers if answer.get("success", True)]
    if len(good) < len(commands):
        refused = " ".join(commands[len(good)][:2])
        reason = next((a["error-message"] for a in answers if a.get("error-message")), None)
        reason = reason or last_line(done.stdout + done.stderr)
        raise RunError(f"Flower refused `flwr {refused}`: {reason}")
    return good


def _answers(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text, ignoring what is between them."""
    found, at, reader = [], text.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            value, at = reader.raw_decode(text, at)
            found.append(value)
        except ValueError:
            at += 1
        at = text.find("{", at)
    return found
