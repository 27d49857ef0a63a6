"""A demonstration: three participants on one machine, with TLS, keys and generated tables."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from isonomy.errors import RunError
from isonomy.federation.flower import keys, processes

NAMES = ("east", "north", "south")
GOOD = (None, 0, 3)  # exit codes: still running, complete, complete with a withheld model
CONFIG = """\
rounds = {rounds}
data = {{ path = "example.csv", label = "approved", protected = ["sex"] }}
model = {{ name = "mlp", hidden = [16] }}
algorithm = "{algorithm}"
local = {{ epochs = 2, batch = 32, lr = 0.1 }}
evaluate = {{ every = {rounds} }}
"""


def run(
    folder: Path,
    *,
    rounds: int,
    algorithm: str,
    overwrite: bool,
    say: Callable[[str], None],
    seconds: float = 900.0,
) -> None:
    """Run the demonstration; raises RunError if a process fails or `seconds` are over."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "demo.toml").exists() or not (folder / "keys").is_dir():
            raise RunError(
                f"'{folder}' is not empty and not a demo; choose a new or an empty folder with "
                "--to."
            )
        if not overwrite:
            raise RunError(
                f"'{folder}' exists; replace it with --overwrite, or choose another folder with "
                "--to."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables(folder)
    (folder / "demo.toml").write_text(CONFIG.format(rounds=rounds, algorithm=algorithm))
    keys.make(folder / "keys", NAMES)
    address = f"127.0.0.1:{processes.free_port()}"
    begin = time.monotonic()
    started: dict[str, processes.Child] = {}

    def start(name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "isonomy.cli", *arguments]
        started[name] = processes.Child(command, dict(os.environ), folder / f"{name}.log")
        say(f"started: isonomy {' '.join(arguments)}")

    try:
        where = ["--keys", str(folder / "keys"), "--address", address]
        start("organiser", "serve", str(folder / "demo.toml"), *where, "--to", str(folder / "run"))
        for name in NAMES:
            secrets = ["--key", str(folder / "keys" / name), "--ca", str(folder / "keys/ca.crt")]
            table = str(folder / f"{name}.csv")
            start(name, "join", "--server", address, "--data", table, *secrets, "--yes")
        while any(child.running for child in started.values()):
            failed = [name for name, child in started.items() if child.process.poll() not in GOOD]
            if failed or time.monotonic() - begin > seconds:
                break
            time.sleep(0.2)
        ended = {name: child.process.poll() for name, child in started.items()}
    finally:
        for child in started.values():
            child.stop(30)
    for name, code in ended.items():
        if code not in GOOD:
            last = processes.last_line(started[name].output())
            raise RunError(f"'{name}' failed: {last} See '{folder}'.")
    if None in ended.values():
        raise RunError(f"the demonstration took longer than {seconds:g} s; see '{folder}'.")
    say((folder / "organiser.log").read_text(errors="replace").rstrip())
    say(f"three participants and an organiser: {time.monotonic() - begin:.0f} s")


def tables(folder: Path) -> None:
    """Write one table per client, and an example of columns and values for the organiser."""
    import numpy as np

    header = "age,income,years,job,sex,approved"
    rng = np.random.default_rng(11)
    for name, rows, shift in (("east", 400, 0.0), ("north", 700, 3.0), ("south", 250, -3.0)):
        lines = [header]
        for _ in range(rows):
            age, years = int(rng.integers(20, 70)), int(rng.integers(0, 30))
            income = round(float(rng.normal(35 + shift, 9)), 1)
            sex = ("Female", "Male")[int(rng.random() < 0.55)]
            job = ("clerk", "driver", "nurse", "teacher")[int(rng.integers(4))]
            score = 0.08 * (income - 35) + 0.05 * (years - 12) + 0.5 * (sex == "Male")
            label = ("no", "yes")[int(score + rng.normal(0, 0.8) > 0.2)]
            lines.append(f"{age},{income},{years},{job},{sex},{label}")
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    example = [header]
    for i in range(24):
        sex, label = ("Female", "Male")[i % 2], ("no", "yes")[(i // 2) % 2]
        job = ("clerk", "driver", "nurse", "teacher")[i % 4]
        example.append(f"{30 + i},{20 + i},{i % 9},{job},{sex},{label}")
    (folder / "example.csv").write_text("\n".join(example) + "\n")
