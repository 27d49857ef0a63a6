"""Seconds and bytes of exchanges in a real federation: processes of this machine, TLS, keys.

python benchmarks/federation.py 2 10
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from isonomy.engines.flower import commands, keys
from isonomy.experiments.folder import RunFolder

CONFIG = """\
rounds = {rounds}
data = {{ path = "tables", label = "y" }}
model = {{ name = "mlp", hidden = [{hidden}] }}
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


def run(clients: int, rounds: int = 8, hidden: int = 64) -> None:
    folder = Path(tempfile.mkdtemp(prefix="federation-"))
    names = tables(folder / "tables", clients)
    (folder / "config.toml").write_text(CONFIG.format(rounds=rounds, hidden=hidden))
    keys.make(folder / "keys", names)
    address = f"127.0.0.1:{commands.free_port()}"
    begin = time.monotonic()
    children = []

    def start(name: str, *arguments: str) -> commands.Child:
        command = [sys.executable, "-m", "isonomy.cli", *arguments]
        child = commands.Child(command, dict(os.environ), folder / f"{name}.log")
        children.append(child)
        return child

    where = ["--keys", str(folder / "keys"), "--address", address, "--no-report"]
    serve = start(
        "serve", "serve", str(folder / "config.toml"), *where, "--to", str(folder / "run")
    )
    for name in names:
        secrets = ["--key", str(folder / "keys" / name), "--ca", str(folder / "keys/ca.crt")]
        table = str(folder / "tables" / f"{name}.csv")
        start(name, "join", "--server", address, "--data", table, *secrets, "--yes")
    try:
        code = serve.process.wait(1800)
    finally:
        for child in children:
            child.stop(20)
    assert code == 0, serve.said()
    place = RunFolder(folder / "run")
    last = place.lines("timing.jsonl")[-1]
    lines = place.lines("rounds.jsonl")
    tree_down = sum(line["bytes_down"] for line in lines)
    tree_up = sum(line["bytes_up"] for line in lines)
    spent = sorted(last["exchanges"][2:-1])
    out = {
        "clients": clients,
        "seconds in all": round(time.monotonic() - begin, 1),
        "seconds an exchange": [spent[0], spent[len(spent) // 2], spent[-1]],
        "bytes sent over the tree's": round(last["wire"]["sent"] / tree_down, 3),
        "bytes received over the trees'": round(last["wire"]["received"] / tree_up, 3),
        "bytes of a message's tree": tree_down // clients // rounds,
    }
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("2", "10")):
        run(count)
