"""A participant's Flower: a SuperNode that hands messages to this process, kept running."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Listener
from pathlib import Path

from isonomy.errors import ConfigError, RunError
from isonomy.federation.flower import forkserver, local_socket, processes
from isonomy.federation.flower.processes import Child
from isonomy.federation.flower.superlink import loopback_only, parse

PATIENCE = 150.0  # seconds in which a server forgets a connection that was cut, and some more
PAUSE = 5.0  # seconds before another attempt
FOREIGN = {  # what the connection says, and what it means: trying again is of no use
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of the authority in --ca: this "
    "is another server, or --ca is of another federation; ask the organiser for ca.crt",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; it was started with --insecure",
}
UNKNOWN = "the server does not know the key in --key; have the organiser register its public half"


class Node:
    """A SuperNode, started again when it ends before its time."""

    def __init__(
        self, server: str, home: Path, address: str, *, key: Path | None, ca: Path | None
    ) -> None:
        self.server = parse(server)
        self._home = home.absolute()
        self.known = self._home / "known"  # there once the server let this key in
        command = [processes.program("flower-supernode"), "--superlink", server]
        if key is None or ca is None:
            loopback_only(server)
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(ca.absolute())]
            command += ["--auth-supernode-private-key", str(key.absolute())]
        self._command = [*command, "--node-config", f'isonomy="{address}"', "--host", "127.0.0.1"]
        self._child: Child | None = None
        self._warm: Child | None = None
        self._socket = f"{address}-warm"

    def start(self) -> None:
        """Start it, anew."""
        self.stop()
        env = processes.environment(self._home)
        if hasattr(os, "fork"):
            waiting = [sys.executable, "-m", "isonomy.federation.flower.forkserver", self._socket]
            Path(self._socket).unlink(missing_ok=True)
            self._warm = Child(waiting, env, self._home / "clientapp.log")
            real = processes.program(forkserver.PROGRAM)
            folder = forkserver.lay_out(self._home / "bin", self._socket, real)
            env = env | {"PATH": f"{folder}{os.pathsep}{env['PATH']}"}
        command = [*self._command, "--port", str(processes.free_port())]
        self._child = Child(command, env, self._home / "supernode.log")

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.running

    def said(self) -> str:
        """What it has printed since it was started."""
        return "" if self._child is None else self._child.said()

    def stop(self) -> None:
        """End it."""
        for child in (self._child, self._warm):
            if child is not None:
                child.stop()
        self._child = self._warm = None
        Path(self._socket).unlink(missing_ok=True)


def stay(
    node: Node, ended: threading.Event, *, busy: Callable[[], int], note: Callable[[str], None]
) -> None:
    """Keep a node running until `ended`; raise when the server refuses it for good."""
    _wait_for(node, ended, note)
    node.start()
    since, heard = time.monotonic(), busy()
    while not ended.wait(0.3):
        if busy() != heard:
            since, heard = time.monotonic(), busy()
        said = node.said()
        for sign, meaning in FOREIGN.items():
            if sign in said:
                raise ConfigError(f"{meaning}.")
        if "SuperNode ID" in said:
            node.known.touch()
        if node.running:
            continue
        if not node.known.exists() and "SuperNode ID" not in said:
            raise ConfigError(f"{UNKNOWN} ({processes.last_line(_plain(said))}).")
        if time.monotonic() - since > PATIENCE:
            raise RunError(
                f"the connection is lost ({processes.last_line(_plain(said))}) and could not be "
                "had again; join once more."
            )
        note("not connected; trying again.")  # a server forgets a cut connection after a minute
        ended.wait(PAUSE)
        if _wait_for(node, ended, note):
            since = time.monotonic()  # the server was away: that is not a refusal
        if not ended.is_set():
            node.start()


def _plain(said: str) -> str:
    """Without the lines that only point to Flower's pages."""
    return "\n".join(line for line in said.splitlines() if "://" not in line)


def _wait_for(node: Node, ended: threading.Event, note: Callable[[str], None]) -> bool:
    """Wait until somebody listens at the server's address; whether it was necessary.

    Flower's own attempts grow ever rarer.
    """
    told = False
    while not ended.is_set():
        try:
            socket.create_connection(node.server, 5).close()
            return told
        except OSError:
            if not told:
                host, port = node.server
                note(f"nobody listens at {host}:{port} yet; waiting.")
                told = True
            ended.wait(0.5)
    return told


def part(node: Node, seconds: float = 60.0) -> None:
    """Let the last reply go out before the node is stopped."""
    before = node.said().count("Sent successfully")
    until = time.monotonic() + seconds
    while node.running and time.monotonic() < until:
        if node.said().count("Sent successfully") > before:
            return
        time.sleep(0.1)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse a folder that another participant's process uses."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system
            pass
        except OSError:
            raise RunError(
                f"another `isonomy join` uses '{folder}'; end it first, or choose with --home."
            ) from None
        yield


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """The address at which Flower's processes find this one."""
    with local_socket.listening() as (listener, address):
        thread = threading.Thread(target=_serve, args=(listener, answer), daemon=True)
        thread.start()
        yield address


def _serve(listener: Listener, answer: Callable[[bytes], bytes]) -> None:
    while True:
        try:
            line = listener.accept()
        except OSError:
            return
        try:
            with line:
                line.send_bytes(answer(line.recv_bytes(local_socket.MOST)))
        except (OSError, EOFError):  # whoever asked is gone
            continue
