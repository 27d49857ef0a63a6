"""Measures rounds, evaluation and checkpoints with 1,000 to 1,000,000 clients, and their memory.

    python benchmarks/clients.py pack FOLDER [--clients N,...]    # generated data, once
    python benchmarks/clients.py measure FOLDER [--clients N,...] # the scaling table
    python benchmarks/clients.py states FOLDER                    # a million personal models
    python benchmarks/clients.py ranks FOLDER --clients N         # memory of 1, 2 and 3 ranks

Every row is measured in a process of its own with one thread. Data are 'devices' (10 to 1,000
examples a client, 46 on average), packed; the model is an MLP of 1,218 parameters (4.9 kB); a round
has 100 sampled clients, one epoch with batches of 16.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CLIENTS = (1_000, 10_000, 100_000, 1_000_000)
SAMPLE = 1_000  # clients of a sampled evaluation


def config_of(folder: Path, clients: int, algorithm: str, **changes: Any) -> Any:
    """The config of a run on packed data."""
    from isonomy import api

    base = {
        "rounds": 1000,
        "data": {"name": "packed", "path": str(folder / str(clients))},
        "model": {"name": "mlp", "hidden": [64]},
        "algorithm": algorithm,
        "local": {"batch": 16, "lr": 0.1},
        "cohort": {"size": 100},
        "evaluate": {"bootstrap": 0, "scores": "never"},
        "front": {"rays": 0},
        "excess": "none",
    }
    return api.make_config(None, **{**base, **changes})


def pack(folder: Path, clients: list[int]) -> None:
    """Write the data."""
    from isonomy.data.datasets import parts
    from isonomy.data.packed import pack as write

    for number in clients:
        if not (folder / str(number) / "federation.json").exists():
            begin = time.perf_counter()
            found = write(parts("devices", clients=number), folder / str(number))
            spent = time.perf_counter() - begin
            print(f"{number:,} clients, {found.x.shape[0]:,} examples: packed in {spent:.1f} s")


def memory() -> dict[str, float]:
    """The memory of this process now and at most, in MB: its own, and of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own, files = int(found["RssAnon"]), int(found["RssFile"]) + int(found["RssShmem"])
    return {"own MB": own / 1024, "mapped MB": files / 1024, "peak MB": peak / 1024}


@contextlib.contextmanager
def started(config: Any, folder: Path | None) -> Iterator[tuple[Any, Any, Any]]:
    """A run that is ready for its first round, or for the one after its checkpoint."""
    import torch

    from isonomy.runs.build import build, engine_of
    from isonomy.runs.folder import RunFolder
    from isonomy.runs.listener import Listener
    from isonomy.runs.start import begin

    torch.set_num_threads(1)
    setting = build(config)
    place = None if folder is None else RunFolder(folder)
    if place is not None and not place.exists:
        place.create(setting.config.model_copy(update={"versions": {"benchmark": "1"}}))
    yield setting, place, begin(setting, place, Listener(), engine_of)


def measure_one(
    folder: Path, clients: int, algorithm: str, rounds: int, *, everyone: bool = True
) -> dict[str, Any]:
    """One row of the table."""
    from isonomy.runs.evaluate import evaluate
    from isonomy.runs.start import save
    from isonomy.runs.training import _one_round

    out: dict[str, Any] = {"clients": clients, "algorithm": algorithm}
    with tempfile.TemporaryDirectory(dir=folder) as at:
        begin = time.perf_counter()
        with started(config_of(folder, clients, algorithm), Path(at) / "run") as (
            setting,
            place,
            now,
        ):
            out["start s"] = time.perf_counter() - begin
            spent, saved, busy = [], [], []
            for i in range(rounds):
                begin, before = time.perf_counter(), time.process_time()
                line = _one_round(setting, now)
                spent.append(time.perf_counter() - begin)
                busy.append(time.process_time() - before)
                place.append("rounds.jsonl", line)
                if i % 10 == 9:
                    begin = time.perf_counter()
                    save(place, now, setting)
                    saved.append(time.perf_counter() - begin)
            out["round s"] = statistics.median(spent[5:])
            out["round s, quartiles"] = statistics.quantiles(spent[5:], n=4)[::2]
            out["round CPU s"] = statistics.median(busy[5:])
            out["checkpoint s"] = statistics.median(saved)
            out |= {f"{k}, rounds": v for k, v in memory().items()}
            some = setting.config.evaluate.model_copy(update={"clients": min(SAMPLE, clients)})
            sampled = setting.config.model_copy(update={"evaluate": some})
            for name, chosen in [("sampled", sampled), ("all", setting.config)][: 1 + everyone]:
                object.__setattr__(setting, "config", chosen)
                begin = time.perf_counter()
                made = evaluate(setting, now, last=False)
                out[f"evaluate {name} s"] = time.perf_counter() - begin
                out[f"accuracy, {name}"] = made.metrics["accuracy"]
            begin = time.perf_counter()
            place.write_clients(now.round, made.clients)
            out["table of clients s"] = time.perf_counter() - begin
            out |= memory()
    return out


def states_one(folder: Path, clients: int) -> dict[str, Any]:
    """A personal model for every client: written, saved, changed, saved again, read, evaluated."""
    import torch

    from isonomy.core import tree
    from isonomy.runs.evaluate import evaluate
    from isonomy.runs.start import save
    from isonomy.runs.training import _one_round

    out: dict[str, Any] = {"clients": clients}
    at = folder / "personal"
    shutil.rmtree(at, ignore_errors=True)
    config = config_of(folder, clients, "fmtl", engine={"states": "disk"})

    def timed(name: str, begin: float) -> None:
        out[f"{name} s"] = round(time.perf_counter() - begin, 3)
        out[f"{name} peak MB"] = round(memory()["peak MB"])

    with started(config, at) as (setting, place, now):
        begin, draw = time.perf_counter(), torch.Generator().manual_seed(0)
        for ids in setting.federation.blocks(1 << 14):
            stacked = now.engine.states.take(ids)
            new = tree.tmap(lambda t: t + 0.01 * torch.randn(t.shape, generator=draw), stacked)
            now.engine.states.put(ids, new)
        timed("all clients get a model", begin)
        begin = time.perf_counter()
        now.round = 1
        place.append("rounds.jsonl", {"round": 1})
        save(place, now, setting)
        timed("first checkpoint", begin)
        spent = []
        for _ in range(3):
            place.append("rounds.jsonl", _one_round(setting, now))
            begin = time.perf_counter()
            save(place, now, setting)
            spent.append(time.perf_counter() - begin)
        out["checkpoint after a round of 100 s"] = round(statistics.median(spent), 3)
        some = torch.randperm(clients, generator=draw)[:1000].sort().values
        kept = now.engine.states.take(some)
        out["states on disk MB"] = round(
            sum(f.stat().st_size for f in (at / "checkpoint").iterdir()) / 2**20
        )
    now.engine.states = None
    begin = time.perf_counter()
    with started(config, at) as (setting, place, now):
        timed("resume", begin)
        again = now.engine.states.take(some)
        same = zip(tree.leaves(kept), tree.leaves(again), strict=True)
        out["the same after resuming"] = all(torch.equal(a, b) for a, b in same)
        begin = time.perf_counter()
        evaluate(setting, now, last=False)
        timed("evaluate all", begin)
    shutil.rmtree(at)
    return out


RANK = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import clients
from pathlib import Path
from isonomy.engines.distributed import ranks
from isonomy.runs import processes, training
from isonomy.runs.evaluate import evaluate
folder, number, engine = Path(sys.argv[2]), int(sys.argv[3]), {"name": "distributed"}
config = clients.config_of(folder, number, "fmtl", engine=engine)
with processes.of_run(config) as group, group.connected(None):
    with clients.started(config, None) as (setting, place, now):
        held = now.engine.states.held
        for _ in range(20):
            training._one_round(setting, now)
        setting.federation.pages.release = lambda: None  # count all pages of the evaluation
        evaluate(setting, now, last=False)
        mine = {"rank": getattr(ranks.current(), "rank", 0),  # None if there is one process
                "clients": number if held is None else len(held), **clients.memory()}
        every = now.engine.everywhere(mine)
        if now.engine.leads:
            print("\\n".join(json.dumps(one) for one in every))
"""


def ranks_table(folder: Path, clients: int) -> None:
    """Memory of each of 1, 2 and 3 ranks."""
    here = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "rank.py"
        script.write_text(RANK)
        for size in (1, 2, 3):
            command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}",
                       str(script), here, str(folder), str(clients)]  # fmt: skip
            print(f"{size} ranks")
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(done.stdout, end="", flush=True)
            if done.returncode:
                print(done.stderr[:4000])  # the first process that failed


def in_process(*arguments: str) -> dict[str, Any]:
    """One row, in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    text = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if text.returncode:
        raise SystemExit(text.stderr)
    return dict(json.loads(text.stdout.splitlines()[-1]))


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["pack", "measure", "states", "ranks", "row"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--algorithms", default="fedavg,fmtl")
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--sampled", action="store_true", help="no evaluation of all clients")
    given = parser.parse_args()
    clients = [int(n) for n in given.clients.split(",")]
    if given.what == "pack":
        pack(given.folder, clients)
    elif given.what == "row":
        everyone = not given.sampled
        row = measure_one(
            given.folder, clients[0], given.algorithms, given.rounds, everyone=everyone
        )
        print(json.dumps(row))
    elif given.what == "states":
        print(json.dumps(states_one(given.folder, clients[-1]), indent=1))
    elif given.what == "ranks":
        ranks_table(given.folder, clients[-1])
    else:
        for algorithm in given.algorithms.split(","):
            for number in clients:
                asked = ["--algorithms", algorithm, "--rounds", str(given.rounds)]
                asked += ["--sampled"] if given.sampled else []
                row = in_process("row", str(given.folder), "--clients", str(number), *asked)
                plain = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
                print(json.dumps(plain), flush=True)


if __name__ == "__main__":
    main()
