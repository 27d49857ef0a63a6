"""A participant's connection to the organiser: opened, checked, and restored if it is lost."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from isonomy.errors import ConfigError, RunError
from isonomy.federation.flower import keys, processes
from isonomy.federation.flower.gateway import WHO, WINDOW
from isonomy.federation.flower.superlink import loopback_only, parse
from isonomy.runs import files

if TYPE_CHECKING:
    from isonomy.federation.flower.node import Node

PATIENCE = 150.0  # seconds; a server notices a lost connection after a minute
PAUSE = 5.0  # seconds before another attempt
FINAL_ERRORS = {  # OpenSSL's messages and their meaning; trying again would not help
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by the authority in "
    "--ca: this is another server, or --ca belongs to another federation; ask the organiser for "
    "ca.crt",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; it was started with --insecure",
}
UNKNOWN = "the server does not know the key in --key; ask the organiser to register its public key"
NOT_A_CLIENT = (
    "the server knows the key in --key, but its owner is not a client of this run; ask the "
    "organiser to name you in --clients"
)
IN_USE = (
    "another `isonomy join` uses the key in --key; stop that one, or ask the organiser for a key "
    "of your own"
)
CERTIFICATES = {  # why OpenSSL refuses a certificate, by its number
    9: "the server's certificate is not valid yet by the clock of this machine; correct the clock",
    10: "the server's certificate has expired; ask the organiser for new keys",
    62: "the server's certificate is for another host than --server; use the name that the "
    "organiser gave, or ask for a certificate for this one",
    64: "the server's certificate is for another address than --server; use the name that the "
    "organiser gave, or ask for a certificate for this one",
}


class Connection:
    """A participant's connection to a server, with the participant's key if there is one.

    `note` shows a sentence to the user; `ended` stops everything that waits.
    """

    def __init__(
        self,
        server: str,
        *,
        key: Path | None,
        ca: Path | None,
        ended: threading.Event,
        note: Callable[[str], None],
    ) -> None:
        self.server = parse(server)
        if key is None or ca is None:
            loopback_only(server)
        self._path, self._ca = key, ca
        self._ended, self._note = ended, note
        self._interrupted = False

    def keep(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer messages until `ended`; raises an error if the server refuses for good."""
        flower = _flower()
        refused: float | None = None  # since when
        noted = ""  # why, as it was shown
        while not self._ended.is_set():
            if self._wait_for_port():
                refused = None  # the server was not running, so it did not refuse
            if self._ended.is_set():
                return
            self._ask_gate()
            try:
                node = self._open()
            except flower.Ended:
                return
            except flower.Refused as error:
                refused = refused or time.monotonic()
                in_use = error.code == flower.NOT_ACTIVATED and self._path is not None
                if time.monotonic() - refused > PATIENCE:
                    if in_use:
                        raise ConfigError(f"{IN_USE}.") from None
                    raise RunError(
                        f"the server refuses to connect ({error}); join again."
                    ) from None
                if in_use:  # perhaps by a process of this participant that has just ended
                    why = (
                        "the key in --key is in use, or was a moment ago (the server notices after "
                        "about a minute that a connection was cut); trying again."
                    )
                else:
                    why = f"the server refuses this node ({error}); trying again."
                if why != noted:
                    self._note(why)
                noted = why
                self._ended.wait(PAUSE)
                continue
            refused, noted = None, ""
            try:
                node.run(self._connected(answer), self._note)
            except flower.Ended:
                return
            except flower.Refused:  # for example, by a server that was started anew
                self._lost()
            finally:
                node.close()

    def _open(self) -> Node:
        """A node that the server knows to be online."""
        from cryptography.hazmat.primitives.asymmetric import ec

        own = None if self._path is None else keys.private_key(self._path)
        key = own or ec.generate_private_key(ec.SECP384R1())
        node: Node = _flower().Node(
            self.server,
            sign=lambda: keys.headers_of(key),
            public=keys.public_bytes(key),
            ca=self._ca if own is not None else None,
            register=own is None,
            ended=self._ended,
            final=_raise_if_final,
            lost=self._lost,
        )
        return node

    def _connected(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """The same answers; a message shows that the connection works."""

        def answering(content: bytes) -> bytes:
            self._interrupted = False
            return answer(content)

        return answering

    def _lost(self) -> None:
        """Say once that the connection is interrupted."""
        if not self._interrupted and not self._ended.is_set():
            self._interrupted = True
            self._note("not connected; trying again.")

    def _ask_gate(self) -> None:
        """Raise ConfigError if the server will refuse the key, or its certificate is wrong."""
        if self._path is not None and self._ca is not None:
            try:
                ask_gate(self.server, self._path, self._ca)
            except ConnectionError:
                self._note("the server is busy or cannot be asked now; trying to connect.")

    def _wait_for_port(self) -> bool:
        """Wait until the server's port is open; returns whether it was necessary to wait."""
        waited = False
        while not self._ended.is_set():
            try:
                socket.create_connection(self.server, 5).close()
                return waited
            except OSError:
                if not waited:
                    host, port = self.server
                    self._note(f"the server at {host}:{port} is not reachable yet; waiting.")
                    waited = True
                self._ended.wait(0.5)
        return waited


def _flower() -> ModuleType:
    """The module that uses Flower; raises ConfigError if the version of Flower does not fit."""
    os.environ.update(processes.SETTINGS)  # before Flower is imported
    try:
        from isonomy.federation.flower import node
    except ImportError as error:
        raise ConfigError(
            f"this version of Flower cannot be used ({error}); install the one that isonomy needs: "
            "pip install 'isonomy[flower]'."
        ) from None
    return node


def _raise_if_final(error: Exception) -> None:
    """Raise ConfigError for a failed connection that cannot succeed later."""
    for sign, meaning in FINAL_ERRORS.items():
        if sign in str(error):
            raise ConfigError(f"{meaning}.") from None


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
                f"the clock of this machine differs from the server's by more than "
                f"{WINDOW / 60:.0f} minutes; the server has {_clock(said.get('time'))}. Correct "
                "the clock that is wrong, and join again."
            )
        case "unknown key" | "no key":
            raise ConfigError(f"{UNKNOWN}.")
        case "not a client":
            raise ConfigError(f"{NOT_A_CLIENT}.")
    raise ConnectionError("the server is busy")


def _clock(time: object) -> str:
    """A time that a server has sent, for people.

    >>> _clock("2026-01-31T08:05:09.123456+00:00"), _clock("soon")
    ('2026-01-31 08:05:09 UTC', 'another time')
    """
    try:
        read = dt.datetime.fromisoformat(str(time)).astimezone(dt.UTC)
    except ValueError:
        return "another time"
    return f"{read:%Y-%m-%d %H:%M:%S} UTC"


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
