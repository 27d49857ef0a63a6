"""A participant's SuperNode: it passes messages to this process, and is restarted if it ends."""

from __future__ import annotations

import json
import math
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from multiprocessing.connection import Listener
from pathlib import Path

from isonomy.errors import ConfigError, RunError
from isonomy.federation.flower import forkserver, keys, local_socket, processes
from isonomy.federation.flower.gateway import WHO
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
NOT_IN_THE_RUN = (
    "the server knows the key in --key, but not as one of this run's clients; ask the organiser to "
    "name this client in --clients"
)
IN_USE = (
    "another `isonomy join` uses the key in --key; stop that one, or ask the organiser for a key "
    "of your own"
)
RECENT = 15.0  # seconds; a node asks for messages every 3 s
CERTIFICATES = {  # why OpenSSL refuses a certificate, by its number
    9: "the server's certificate is not valid yet by the clock of this machine; correct the clock",
    10: "the server's certificate has expired; ask the organiser for new keys",
    62: "the server's certificate is for another host than --server; use the name that the "
    "organiser gave, or ask for a certificate for this one",
    64: "the server's certificate is for another address than --server; use the name that the "
    "organiser gave, or ask for a certificate for this one",
}


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
        self._key, self._ca = key, ca
        self._command = [*command, "--node-config", f'isonomy="{address}"', "--host", "127.0.0.1"]
        self._child: Child | None = None
        self._forkserver: Child | None = None
        self._socket = f"{address}-fork"

    def start(self) -> None:
        """Start it; a process that is running is stopped first."""
        self.stop()
        env = processes.environment(self._home)
        if not hasattr(os, "fork"):  # without the shim, Flower would run the app that is sent
            raise ConfigError("`isonomy join` needs Linux or macOS; use one of these.")
        waiting = [sys.executable, "-m", "isonomy.federation.flower.forkserver", self._socket]
        Path(self._socket).unlink(missing_ok=True)
        self._forkserver = Child(waiting, env, self._home / "clientapp.log")
        folder = forkserver.write_shim(self._home / "bin", self._socket)
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

    def ask_gate(self) -> float | None:
        """As `ask_gate`, with infinity for never; None if the server cannot be asked now."""
        if self._key is None or self._ca is None:
            return None
        with suppress(ConnectionError):
            heard = ask_gate(self.server, self._key, self._ca)
            return math.inf if heard is None else heard
        return None

    def stop(self) -> None:
        """Stop it."""
        for child in (self._child, self._forkserver):
            if child is not None:
                child.stop()
        self._child = self._forkserver = None
        Path(self._socket).unlink(missing_ok=True)


def ask_gate(server: tuple[str, int], key: Path, ca: Path) -> float | None:
    """Seconds since the server last heard of the key, None if never.

    Raises ConfigError, with the reason, if it refuses the key or shows a wrong certificate, and
    ConnectionError if it cannot be asked now.
    """
    context = ssl.create_default_context(cafile=str(ca))
    connection = HTTPSConnection(*server, timeout=10, context=context)
    try:
        connection.request("GET", WHO, headers=keys.signed_headers(key))
        response = connection.getresponse()
        said = json.loads(response.read(10_000))
    except ssl.SSLCertVerificationError as error:
        other = FINAL_ERRORS["CERTIFICATE_VERIFY_FAILED"]
        raise ConfigError(f"{CERTIFICATES.get(error.verify_code, other)}.") from None
    except ssl.SSLError as error:
        if error.reason in FINAL_ERRORS:
            raise ConfigError(f"{FINAL_ERRORS[error.reason]}.") from None
        raise ConnectionError(str(error)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectionError(str(error)) from None
    finally:
        connection.close()
    match said.get("reason") if isinstance(said, dict) else "":
        case None:
            return None if said["heard"] is None else float(said["heard"])
        case "clock":
            raise ConfigError(
                f"the clock of this machine differs from the server's, which has {said['time']}; "
                "correct the clock, and join again."
            )
        case "unknown key" | "no key":
            raise ConfigError(f"{UNKNOWN}.")
    raise ConnectionError("the server is busy")


def keep_running(
    node: SuperNode, ended: threading.Event, *, busy: Callable[[], int], note: Callable[[str], None]
) -> None:
    """Keep a node running until `ended`; raises an error if the server refuses it for good.

    `busy` returns the number of messages answered so far.
    """
    _wait_for(node, ended, note)
    node.ask_gate()
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
        heard = node.ask_gate()
        in_use = "SuperNode ID" not in output and heard is not None and heard < RECENT
        if in_use and time.monotonic() - since > PATIENCE:
            raise ConfigError(f"{IN_USE}.")
        new = not node.known.exists() and "SuperNode ID" not in output
        if new and heard is not None and not in_use:  # the gateway accepts the key
            last = processes.last_line(_without_links(output))
            raise ConfigError(f"{NOT_IN_THE_RUN} ({last}).")
        if time.monotonic() - since > PATIENCE:
            raise RunError(
                f"the connection is lost ({processes.last_line(_without_links(output))}) and could "
                "not be restored; join again."
            )
        if in_use:  # perhaps by a process of this participant that has just ended
            note("the key in --key is in use, or was so a moment ago; trying again.")
        elif heard is None:
            note("the server is busy or cannot be reached; trying again.")
        else:
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
