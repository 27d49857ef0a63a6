"""Seconds, bytes and memory of a real federation: processes of this machine, TLS, keys.

Beside it Flower's floor: an app of Flower's alone whose messages are empty, without TLS or keys.
`process_costs.py` says what is measured of the memory.

python benchmarks/federation.py 2 10
python benchmarks/federation.py 20 --no-floor
python benchmarks/federation.py 3 10 --no-floor --secure
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import process_costs
from isonomy.federation.flower import keys, processes
from isonomy.runs.folder import RunFolder
from process_costs import Memory

CONFIG = """\
rounds = {rounds}
data = {{ path = "tables", label = "y" }}
model = {{ name = "mlp", hidden = [{hidden}, {hidden}] }}
evaluate = {{ every = {rounds}, bootstrap = 0 }}
"""


def tables(folder: Path, clients: int) -> list[str]:
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [f"c{k:02d}" for k in range(clients)]
    for name in names:
        x = rng.normal(size=(200, 10))
        y = (x.sum(1) > 0).astype(int)
        head = ",".join([*(f"x{j}" for j in range(10)), "y"])
        rows = [",".join([*(f"{v:.4f}" for v in row), str(t)]) for row, t in zip(x, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([head, *rows]) + "\n")
    return names


class Meter:
    """Passes bytes on to an address and counts them, as a network would see them (with TLS)."""

    def __init__(self, to: str) -> None:
        self.to = to.rsplit(":", 1)
        self.up = self.down = 0
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            try:
                far = socket.create_connection((self.to[0], int(self.to[1])))
            except OSError:  # the server does not listen yet
                near.close()
                continue
            for a, b, way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(a, b, way), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                to.sendall(piece)
                setattr(self, way, getattr(self, way) + len(piece))
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Watch:
    """The memory of the organiser's side and of every participant, at chosen moments."""

    def __init__(self, serve: int, joins: list[int]) -> None:
        self.serve, self.joins = serve, joins
        self.moments: list[tuple[Memory, list[Memory]]] = []
        self.programs: dict[str, float] = {}  # of the organiser's side, and their RSS
        self.spent: list[tuple[float, float]] = []  # processor time, of a participant on average

    def look(self) -> None:
        of, family = process_costs.of, process_costs.family
        side = family(self.serve)
        every = [pid for join in self.joins for pid in family(join)]
        spent = process_costs.processor_seconds
        self.spent.append((spent(side), spent(every) / len(self.joins)))
        self.moments.append((of(side), [of(family(pid)) for pid in self.joins]))
        for pid in side:
            with contextlib.suppress(OSError):
                self.programs[process_costs.command(pid)] = round(of([pid]).rss)

    def shown(self, rounds: int) -> dict[str, object]:
        """The highest of the moments: the organiser's side, and the largest participant.

        There were `rounds` rounds between the first moment and the last.
        """

        def size(memory: Memory) -> float:
            return memory.rss if memory.alone is None else memory.alone

        organiser = max((side for side, _ in self.moments), key=size)
        every = [sorted(each, key=size) for _, each in self.moments]
        largest = max((each[-1] for each in every), key=size)
        seconds = [(b - a) / rounds for a, b in zip(self.spent[0], self.spent[-1], strict=True)]
        return {
            "processor seconds a round, of the organiser's side and of one participant": [
                round(s, 2) for s in seconds
            ],
            "MB of the largest participant": largest.shown(),
            "MB of a participant alone, smallest and median": [
                round(min(size(each[0]) for each in every)),
                round(max(size(each[len(each) // 2]) for each in every)),
            ],
            "PSS of all participants, MB": round(
                max(sum(memory.pss for memory in each) for each in every)
            ),
            "MB of the organiser's side": organiser.shown(),
            "RSS of the organiser's programs, MB": self.programs,
        }


def run(clients: int, rounds: int = 8, hidden: int = 256, *, secure: bool = False) -> None:
    folder = Path(tempfile.mkdtemp(prefix="federation-"))
    names = tables(folder / "tables", clients)
    text = CONFIG.format(rounds=rounds, hidden=hidden)
    (folder / "config.toml").write_text(text + f"secure = {str(secure).lower()}\n")
    keys.make(folder / "keys", names)
    address = f"127.0.0.1:{processes.free_port()}"
    begin = time.monotonic()
    children = []

    def start(name: str, *arguments: str) -> processes.Child:
        command = [sys.executable, "-m", "isonomy.cli", *arguments]
        child = processes.Child(command, dict(os.environ), folder / f"{name}.log")
        children.append(child)
        return child

    where = ["--keys", str(folder / "keys"), "--address", address, "--no-report"]
    where += ["--timeout", "600"]  # a busy machine is slow, and everyone should be measured
    serve = start(
        "serve", "serve", str(folder / "config.toml"), *where, "--to", str(folder / "run")
    )
    processes.wait_for_port(int(address.rsplit(":", 1)[1]), serve, "the organiser")
    meter = Meter(address)
    joins = []
    for name in names:
        secrets = ["--key", str(folder / "keys" / name), "--ca", str(folder / "keys/ca.crt")]
        table = str(folder / "tables" / f"{name}.csv")
        asked = ["--server", meter.address, "--data", table, *secrets, "--yes"]
        joins.append(start(name, "join", *asked).process.pid)
    watch = Watch(serve.process.pid, joins)
    place = RunFolder(folder / "run")
    marks: dict[int, tuple[int, int]] = {}  # bytes over the network when a round was done
    try:
        while (code := serve.process.poll()) is None:
            done = len(place.lines("rounds.jsonl")) if place.exists else 0
            if done not in marks:
                marks[done] = meter.down, meter.up
                if done in (1, rounds - 1):
                    watch.look()
            time.sleep(0.1)
    finally:
        for child in children:
            child.stop(20)
    assert code == 0, serve.output()
    last = place.lines("timing.jsonl")[-1]
    line = place.lines("rounds.jsonl")[0]
    down, up = line["bytes_down"], line["bytes_up"]  # the trees of a round
    counted = marks[rounds - 1][0] - marks[1][0], marks[rounds - 1][1] - marks[1][1]
    spent = sorted(last["exchanges"][2:-1])
    whole = sorted(line["seconds"] for line in place.lines("timing.jsonl")[1 : rounds - 1])
    out = {
        "clients": clients,
        "secure": secure,
        "seconds a round": [round(s, 2) for s in (whole[0], whole[len(whole) // 2], whole[-1])],
        "seconds in all": round(time.monotonic() - begin, 1),
        "seconds an exchange": [round(s, 2) for s in (spent[0], spent[len(spent) // 2], spent[-1])],
        "bytes of a message's tree": down // clients,
        "bytes handed to Flower over the trees'": [
            round(last["traffic"]["sent"] / (down * (rounds + 1)), 4),  # one evaluation
            round(last["traffic"]["received"] / (up * rounds), 4),
        ],
        "bytes of rounds over the network over the trees', down and up": [
            round(counted[0] / down / (rounds - 2), 4),
            round(counted[1] / up / (rounds - 2), 4),
        ],
        **watch.shown(rounds - 2),
    }
    print(json.dumps(out), flush=True)
    shutil.rmtree(folder)


# --- the floor ------------------------------------------------------------------------------------

PROJECT = """\
[project]
name = "floor"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "floor.server:app"
clientapp = "floor.client:app"

[tool.flwr.app.config]
clients = 2
exchanges = 8
out = ""
"""
SERVER = """\
import json, pathlib, time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    given, spent = context.run_config, []
    while len(list(grid.get_node_ids())) < given["clients"]:
        time.sleep(0.2)
    nodes = list(grid.get_node_ids())
    for _ in range(given["exchanges"]):
        begin = time.monotonic()
        got = list(grid.send_and_receive(
            [Message(RecordDict(), dst_node_id=n, message_type="query") for n in nodes]
        ))
        assert len(got) == len(nodes) and not any(m.has_error() for m in got)
        spent.append(time.monotonic() - begin)
    pathlib.Path(given["out"]).write_text(json.dumps(spent))
"""
CLIENT = """\
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict(), reply_to=message)
"""


def floor(clients: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="floor-"))
    package = folder / "project" / "floor"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("server", SERVER), ("client", CLIENT)):
        (package / f"{name}.py").write_text(text)
    port, out = processes.free_port(), folder / "seconds.json"
    address = f"127.0.0.1:{port}"
    processes.write_home(folder / "home", address, None)
    env = processes.environment(folder / "home")
    del env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]  # as Flower has it
    children = []

    def start(name: str, *command: str) -> processes.Child:
        whole = [processes.program(command[0]), *command[1:]]
        children.append(processes.Child(whole, env, folder / f"{name}.log"))
        return children[-1]

    try:
        where = ["--insecure", "--host", "127.0.0.1", "--port"]
        link = start("link", "flower-superlink", *where, str(port))
        processes.wait_for_port(port, link, "the SuperLink")
        for k in range(clients):
            at = [*where, str(processes.free_port())]
            start(f"node{k}", "flower-supernode", "--superlink", address, *at)
        given = f'clients={clients} out="{out}"'
        processes.flwr(
            folder / "home",
            ["run", str(package.parent), processes.CONNECTION, "--run-config", given],
        )
        until = time.monotonic() + 1800
        while not out.exists():
            assert time.monotonic() < until, link.output()
            time.sleep(0.5)
    finally:
        for child in children:
            child.stop(20)
    spent = sorted(json.loads(out.read_text())[1:])
    shown = [round(s, 2) for s in (spent[0], spent[len(spent) // 2], spent[-1])]
    print(json.dumps({"clients": clients, "seconds an empty exchange": shown}), flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("counts", type=int, nargs="*", default=[2, 10], help="numbers of clients")
    parser.add_argument("--secure", action="store_true", help="with secure aggregation")
    parser.add_argument("--rounds", type=int, default=8, help="rounds, at least 4")
    parser.add_argument("--no-floor", action="store_true", help="measure isonomy only")
    given = parser.parse_args()
    for count in given.counts:
        print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
        if not given.no_floor:
            floor(count)
        run(count, given.rounds, secure=given.secure)
    if not given.no_floor:
        run(given.counts[0], hidden=512)  # what the network adds does not grow with the model
