"""A participant's SuperNode: it passes messages to this process, and is restarted if it ends."""

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
from isonomy.runs import files

PATIENCE = 150.0  # seconds; a server notices a lost connection after a minute
PAUSE = 5.0  # seconds before another attempt
FINAL_ERRORS = {  # Flower's messages and their meaning; trying again would not help
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by the authority in "
    "--ca: this is another server, or --ca belongs to another federation; ask the organiser for "
    "ca.crt",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; it was started with --insecure",
}
UNKNOWN = "the server does not know the key in --key; ask the organiser to register its public key"


class SuperNode:
    """A SuperNode process, with the fork server that runs its ClientApps."""

    def __init__(
        self, server: str, home: Path, address: str, *, key: Path | None, ca: Path | None
    ) -> None:
        self.server = parse(server)
        self._home = home.absolute()
        self.known = self._home / "known"  # exists once the server has accepted this key
        command = [processes.program("flower-supernode"), "--superlink", server]
        if key is None or ca is None:
            loopback_only(server)
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(ca.absolute())]
            command += ["--auth-supernode-private-key", str(key.absolute())]
        self._command = [*command, "--node-config", f'isonomy="{address}"', "--host", "127.0.0.1"]
        self._child: Child | None = None
        self._forkserver: Child | None = None
        self._socket = f"{address}-fork"

    def start(self) -> None:
        """Start it; a process that is running is stopped first."""
        self.stop()
        env = processes.environment(self._home)
        if hasattr(os, "fork"):
            waiting = [sys.executable, "-m", "isonomy.federation.flower.forkserver", self._socket]
            Path(self._socket).unlink(missing_ok=True)
            self._forkserver = Child(waiting, env, self._home / "clientapp.log")
            real = processes.program(forkserver.PROGRAM)
            folder = forkserver.write_shim(self._home / "bin", self._socket, real)
            env = env | {"PATH": f"{folder}{os.pathsep}{env['PATH']}"}
        command = [*self._command, "--port", str(processes.free_port())]
        self._child = Child(command, env, self._home / "supernode.log")

    @property
    def running(self) -> bool:
        """Whether it is running."""
        return self._child is not None and self._child.running

    def output(self) -> str:
        """What it has printed since it was started."""
        return "" if self._child is None else self._child.output()

    def stop(self) -> None:
        """Stop it."""
        for child in (self._child, self._forkserver):
            if child is not None:
                child.stop()
        self._child = self._forkserver = None
        Path(self._socket).unlink(missing_ok=True)


def keep_running(
    node: SuperNode, ended: threading.Event, *, busy: Callable[[], int], note: Callable[[str], None]
) -> None:
    """Keep a node running until `ended`; raises an error if the server refuses it for good.

    `busy` returns the number of messages answered so far.
    """
    _wait_for(node, ended, note)
    node.start()
    since, answered = time.monotonic(), busy()
    while not ended.wait(0.3):
        if busy() != answered:
            since, answered = time.monotonic(), busy()
        output = node.output()
        for sign, meaning in FINAL_ERRORS.items():
            if sign in output:
                raise ConfigError(f"{meaning}.")
        if "SuperNode ID" in output:
            node.known.touch()
        if node.running:
            continue
        if not node.known.exists() and "SuperNode ID" not in output:
            raise ConfigError(f"{UNKNOWN} ({processes.last_line(_without_links(output))}).")
        if time.monotonic() - since > PATIENCE:
            raise RunError(
                f"the connection is lost ({processes.last_line(_without_links(output))}) and could "
                "not be restored; join again."
            )
        note("not connected; trying again.")  # the server accepts it again after a minute
        ended.wait(PAUSE)
        if _wait_for(node, ended, note):
            since = time.monotonic()  # the server was not running, so it did not refuse
        if not ended.is_set():
            node.start()


def _without_links(output: str) -> str:
    """The output without the lines that link to Flower's documentation."""
    return "\n".join(line for line in output.splitlines() if "://" not in line)


def _wait_for(node: SuperNode, ended: threading.Event, note: Callable[[str], None]) -> bool:
    """Wait until the server's port is open; returns whether it was necessary to wait.

    Flower would wait as well, but with growing pauses.
    """
    waited = False
    while not ended.is_set():
        try:
            socket.create_connection(node.server, 5).close()
            return waited
        except OSError:
            if not waited:
                host, port = node.server
                note(f"the server at {host}:{port} is not reachable yet; waiting.")
                waited = True
            ended.wait(0.5)
    return waited


def wait_for_last_reply(node: SuperNode, seconds: float = 60.0) -> None:
    """Wait until the last reply was sent, so that the node can be stopped."""
    before = node.output().count("Sent successfully")
    until = time.monotonic() + seconds
    while node.running and time.monotonic() < until:
        if node.output().count("Sent successfully") > before:
            return
        time.sleep(0.1)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a participant's folder; raises RunError if another process uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # it will hold the participant's personal model
    with files.locked(folder) as free:
        if not free:
            raise RunError(
                f"another `isonomy join` uses '{folder}'; stop it first, or choose another folder "
                "with --home."
            )
        yield


@contextmanager
def listening(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """Answer the requests of Flower's processes in a thread; yields the address."""
    with local_socket.listening() as (listener, address):
        thread = threading.Thread(target=_serve, args=(listener, answer), daemon=True)
        thread.start()
        yield address


def _serve(listener: Listener, answer: Callable[[bytes], bytes]) -> None:
    while True:
        try:
            connection = listener.accept()
        except OSError:
            return
        try:
            with connection:
                connection.send_bytes(answer(connection.recv_bytes(local_socket.MOST)))
        except (OSError, EOFError):  # the other process has ended
            continue
