"""The organiser's Flower programs: SuperLink, gateway, registration of keys, and ServerApp."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Listener
from pathlib import Path

from isonomy.errors import ConfigError, RunError
from isonomy.federation.flower import local_socket, processes
from isonomy.federation.flower.organiser_socket import OrganiserSocket
from isonomy.federation.flower.processes import Child

SECONDS = 600.0  # the longest time that Flower may take to start the ServerApp
SaveNodes = Callable[[Mapping[str, int]], None]


def parse(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"'{address}' is not an address; write HOST:PORT, such as 0.0.0.0:9092.")
    return host, int(port)


def loopback_only(address: str) -> None:
    """Raise ConfigError for an address that other machines can reach."""
    host = parse(address)[0]
    try:
        inside = ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = host == "localhost"
    if not inside:
        raise ConfigError(
            f"--insecure neither encrypts nor checks who connects, so it is allowed on this "
            f"machine only (127.0.0.1), not for '{host}'; make keys with `isonomy keys`."
        )


@contextmanager
def running(
    folder: Path,
    address: str,
    *,
    keys: Path | None,
    names: Sequence[str],
    known: Mapping[str, int],
    save: SaveNodes,
) -> Iterator[tuple[OrganiserSocket, dict[str, int] | None]]:
    """A transport to the participants, and each one's node (None if there are no keys).

    `known` are nodes that were registered before; `save` is called with all nodes. The database in
    the folder holds them, so that a resumed run finds its participants again.
    """
    home = folder.absolute()
    host, port = parse(address)
    env = processes.environment(home)
    with ExitStack() as stack:

        def start(command: Sequence[str], log: str, what: str, host: str, port: int) -> None:
            child = Child(command, env, home / log)
            stack.callback(child.stop)
            processes.wait_for_port(port, child, what, host)

        inside = processes.free_port() if keys is not None else port
        here = "127.0.0.1" if keys is not None else host
        command = [sys.executable, "-m", "isonomy.federation.flower.patient_superlink"]
        command += ["--host", here, "--port", str(inside)]
        command += ["--database", str(home / "state.db")]
        command += ["--disable-runtime-dependency-installation"]
        if keys is None:
            loopback_only(address)
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(keys / "ca.crt")]
            command += ["--ssl-certfile", str(keys / "server.crt")]
            command += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
        processes.write_home(home, f"127.0.0.1:{inside}", None if keys is None else keys / "ca.crt")
        _check_port(host, port)
        new = [] if keys is None else [name for name in names if name not in known]
        registering = [_registering(keys, name) for name in new if keys is not None]
        if not known:  # an earlier start was killed before it saved the nodes
            (home / "state.db").unlink(missing_ok=True)
        start(command, "superlink.log", "Flower's SuperLink", here, inside)
        listener, at = stack.enter_context(local_socket.listening())
        answers = processes.flwr(
            home,
            *registering,
            ["run", str(home / "app"), processes.CONNECTION, "--run-config", f'isonomy="{at}"'],
        )
        nodes = None
        if keys is not None:
            ids = [int(answer["node-id"]) for answer in answers[: len(new)]]
            nodes = dict(known) | dict(zip(new, ids, strict=True))
            save(nodes)
            gateway = [sys.executable, "-m", "isonomy.federation.flower.gateway", "--host", host]
            gateway += ["--port", str(port), "--inside", f"127.0.0.1:{inside}", "--keys", str(keys)]
            gateway += ["--clients", *names]
            start(gateway, "gateway.log", "the gateway", host, port)
        transport = _accept_server_app(listener, at, home)
        try:
            yield transport, nodes
        finally:
            transport.close()


def _accept_server_app(listener: Listener, at: str, home: Path) -> OrganiserSocket:
    """Wait until the ServerApp connects."""
    with ThreadPoolExecutor(1) as waiting:
        connected = waiting.submit(listener.accept)
        try:
            return OrganiserSocket(connected.result(SECONDS))
        except TimeoutError:
            raise RunError(f"Flower's ServerApp did not start; see '{home}'.") from None
        finally:
            if not connected.done():
                local_socket.connect(at).close()  # ends the wait


def _check_port(host: str, port: int) -> None:
    """Raise ConfigError if nothing can listen at this address."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"the server cannot listen at {host}:{port} ({error.strerror}); choose another "
                "--address, or stop the program that uses it."
            ) from None


def _registering(keys: Path, name: str) -> list[str]:
    """The command that registers a participant's public key; every key gets its own node."""
    place = keys / f"{name}.pub"
    if not place.exists():
        raise ConfigError(
            f"'{keys}' has no public key '{name}.pub'; copy the public key of client '{name}' "
            "there, or make keys with `isonomy keys`."
        )
    return ["supernode", "register", str(place), processes.CONNECTION, "--name", name]
