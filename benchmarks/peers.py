"""The same rounds in Isonomy, a plain PyTorch loop, JAX, fluke, pfl-research and Flower.

    python benchmarks/peers.py --cache FOLDER --make          make the environments, measure nothing
    python benchmarks/peers.py --cache FOLDER                 measure all of them
    python benchmarks/peers.py --cache FOLDER --only W1 --peers plain,jax --threads 2
    python benchmarks/peers.py --cache FOLDER --agree         differences of their models, no times

W1     FedAvg, MLP 60-64-10, 100 clients x 100 examples, batch 10, one epoch, all clients.
CNN    FedAvg, a small CNN on 28x28 images, 20 clients x 100 examples, batch 10, one epoch.
Ditto  W1's work with Ditto (FMTL): every client has a personal model besides, lam = 0.5.
qFFL   W1's work with q-FedAvg, q = 1 and L = 1 / learning rate.

Every peer has an environment of its own in FOLDER, which is made once from the package index. All
start from the same model and use the same batches in the same order, so they must end in the same
model, to rounding: the largest difference from the plain loop's after 1, 2, 4 and 8 rounds is
shown, with `--agree` also in float64. `benchmarks/rounding.py` explains those that are not small.

Each runs in a process of its own and trains with `--threads` threads: torch's for Isonomy, the
plain loop, fluke and pfl-research, as many processors for JAX, which takes all that it may use, and
as many actors of one thread each for Flower, whose server and Ray have processes besides.
`--turns` repeats all of them in turn. Seconds are the median of the rounds after the first ones;
"first" is the time from the start of the process to the end of the first round.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from engine import cnn, federation, mlp
from isonomy.core import random
from isonomy.core.task import Task

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
PEERS: dict[str, list[str]] = {  # and what has to be installed for them
    "isonomy": [],
    "compiled": [],  # Isonomy with `engine.compile`
    "plain": [],
    "jax": ["jax"],
    "fluke": [TORCH, "fluke-fl"],
    "pfl": [TORCH, "pfl[pytorch]"],
    "flower": [TORCH, "flwr[simulation]"],
}


Models = dict[int, list[np.ndarray]]  # the server's and then the personal ones, after a round


class Workload(NamedTuple):
    """What is trained; `lam` is Ditto's, `q` is q-FedAvg's, 0 where another method is used."""

    kind: str
    clients: int
    rounds: int
    lr: float
    lam: float = 0.0
    q: float = 0.0
    peers: tuple[str, ...] = tuple(PEERS)


WORKLOADS = {
    "W1": Workload("mlp", 100, 100, 0.1),
    "CNN": Workload("cnn", 20, 8, 0.05),
    "Ditto": Workload(
        "mlp",
        100,
        100,
        0.1,
        lam=0.5,
        peers=("isonomy", "compiled", "plain", "jax", "fluke", "flower"),
    ),
    "qFFL": Workload("mlp", 100, 100, 0.1, q=1.0),
}
SIZE, BATCH = 100, 10
# peers that make all rounds of a workload; the others are slow
MANY = ("isonomy", "compiled", "jax")
FEWER = 8
SKIPPED = 3  # rounds that warm up
AGREE = (1, 2, 4, 8)  # rounds after which `--agree` compares


def python_of(peer: str, cache: Path) -> str:
    """The interpreter of a peer's environment, which is made if there is none."""
    if not PEERS[peer]:
        return sys.executable
    home = cache / peer
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        print(f"making the environment of {peer} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEERS[peer]], check=True)
        (home / "ready").touch()
    return str(python)


def write_work(
    name: str,
    rounds: int,
    path: Path,
    *,
    threads: int = 1,
    precision: str = "float32",
    kept: Sequence[int] = (),
) -> None:
    """The work as arrays that every peer can read; models are kept after these rounds."""
    kind, clients, _, lr, lam, q, _ = WORKLOADS[name]
    fed = federation([SIZE] * clients, (60,) if kind == "mlp" else (1, 28, 28))
    generator = torch.Generator().manual_seed(1)
    classes = torch.randn(10, *fed.x.shape[1:], generator=generator)
    x = fed.x + 0.5 * classes[fed.y]  # so that there is something to learn
    params = Task(mlp if kind == "mlp" else cnn, classes=10).init(0)
    ids, sizes = torch.arange(clients), torch.full((clients,), SIZE)
    order = [  # as Isonomy draws it: one pass over each client's examples
        random.permutation(random.key(0, round, ids), "batches", sizes, SIZE, 1)[:, 0]
        for round in range(rounds)
    ]
    np.savez(
        path,
        x=x.reshape(clients, SIZE, *x.shape[1:]).numpy().astype(precision),
        y=fed.y.reshape(clients, SIZE).numpy(),
        order=torch.stack(order).numpy(),
        kind=kind,
        batch=BATCH,
        lr=float(np.float32(lr)),  # the same number in float32 and in float64
        lam=lam,
        q=q,
        threads=threads,
        kept=np.array(kept, dtype=np.int64),
        parameters=len(params),
        **{f"p{i}": p.numpy().astype(precision) for i, p in enumerate(params.values())},
    )


def run(peer: str, python: str, work: Path, out: Path, threads: int) -> tuple[dict, Models]:
    """One peer's rounds: its times, and its models after the last and the kept rounds."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    if PEERS[peer]:
        env.pop("PYTHONPATH", None)
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    processors = sorted(os.sched_getaffinity(0))
    if peer == "jax":  # it has no setting for the number of threads
        processors = processors[-threads:]
    begin = time.time()
    script = HERE / "peer_rounds" / f"{'isonomy' if peer == 'compiled' else peer}_rounds.py"
    done = subprocess.run(
        [python, script, work, out, *(["compile"] if peer == "compiled" else [])],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"{peer} failed:\n{done.stdout[-800:]}\n{done.stderr[-2500:]}")
    record = json.loads(out.with_suffix(".json").read_text())
    models: Models = {}
    with np.load(out) as arrays:
        for key in arrays.files:  # in the order in which they were written
            models.setdefault(int(key.split("-")[0]), []).append(arrays[key])
    ends = record["ends"]
    return record | {"first": ends[0] - begin, "each": steady(ends)}, models


def steady(ends: list[float]) -> list[float]:
    """The seconds of the rounds that count: the last half of many, all but the first of a few."""
    spent = [b - a for a, b in itertools.pairwise(ends)]
    return spent[max(SKIPPED, len(spent) // 2) :] if len(spent) > 20 else spent[SKIPPED:]


def apart(own: Models, reference: Models) -> list[float]:
    """The largest difference of all parameters of all models, after each of the rounds `AGREE`.

    Flower's personal models are asked for after the last round only; before, its server's model is
    compared.
    """
    gaps = []
    for n in AGREE:
        held = reference[n] if n == max(AGREE) else reference[n][: len(own[n])]
        if [a.shape for a in own[n]] != [b.shape for b in held]:
            raise RuntimeError(f"{len(own[n])} arrays cannot be compared with {len(held)} others.")
        pairs = zip(own[n], held, strict=True)
        gaps.append(max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in pairs))
    return gaps


def measured(name: str, peers: list[str], cache: Path, turns: int, threads: int) -> list[dict]:
    """One row for each peer that has this workload."""
    chosen = [peer for peer in peers if peer in WORKLOADS[name].peers]
    pythons = {peer: python_of(peer, cache) for peer in chosen}
    found: dict[str, list[dict]] = {}
    models: dict[str, Models] = {}
    with tempfile.TemporaryDirectory() as folder:

        def once(peer: str, rounds: int, turn: int) -> tuple[dict, Models]:
            work = Path(folder) / f"{rounds}.npz"
            if not work.exists():
                kept = AGREE if rounds == FEWER else ()
                write_work(name, rounds, work, threads=threads, kept=kept)
            out = Path(folder) / f"{peer}-{rounds}-{turn}.npz"
            return run(peer, pythons[peer], work, out, threads)

        for turn, peer in itertools.product(range(turns), chosen):
            rounds = WORKLOADS[name].rounds if peer in MANY else FEWER
            try:
                record, final = once(peer, rounds, turn)
                if turn == 0:
                    models[peer] = final if rounds == FEWER else once(peer, FEWER, turn)[1]
            except RuntimeError as error:
                print(error, file=sys.stderr)
                continue
            found.setdefault(peer, []).append(record)
            each = statistics.median(record["each"])
            shown = f"{name} {peer}: {each:.4f} s a round, first after {record['first']:.1f} s"
            print(shown, file=sys.stderr, flush=True)
    rows = []
    for peer, records in found.items():
        seconds = [s for one in records for s in one["each"]]
        row = {
            "work": name,
            "peer": peer,
            "version": records[0]["version"],
            "threads": threads,
            "seconds": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "rounds": len(seconds),
            "first": statistics.median(one["first"] for one in records),
        }
        if "plain" in models and peer != "plain":
            row["apart"] = apart(models[peer], models["plain"])
        rows.append(row)
    for row in rows:  # how many times as long as the plain loop
        base = next((r["seconds"] for r in rows if r["peer"] == "plain"), None)
        row["ratio"] = row["seconds"] / base if base else None
    return rows


def agreement(name: str, peers: list[str], cache: Path) -> list[dict]:
    """Largest differences from the plain loop's model, by rounds and precision.

    The row "plain" compares the plain loop's float32 with its own float64.
    """
    chosen = [peer for peer in peers if peer in WORKLOADS[name].peers and peer != "plain"]
    pythons = {peer: python_of(peer, cache) for peer in ["plain", *chosen]}
    found: dict[tuple[str, str], Models] = {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("float64", "float32"):
            work = Path(folder) / f"{precision}.npz"
            write_work(name, max(AGREE), work, precision=precision, kept=AGREE)
            for peer in ("plain", *chosen):
                out = Path(folder) / f"{peer}-{precision}.npz"
                own = found[peer, precision] = run(peer, pythons[peer], work, out, 1)[1]
                if (peer, precision) == ("plain", "float64"):
                    continue
                reference = found["plain", "float64" if peer == "plain" else precision]
                gaps = apart(own, reference)
                rows.append({"work": name, "peer": peer, "precision": precision, "apart": gaps})
                print(differences(rows[-1:]), file=sys.stderr, flush=True)
    return rows


def machine() -> str:
    """The date, the machine and how busy it was."""
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.date.today()}, {cores} cores, load average {load:.1f} at the start, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The same rounds in several frameworks.")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the environments")
    parser.add_argument("--only", choices=WORKLOADS, help="one workload")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--make", action="store_true", help="only make the environments")
    parser.add_argument("--agree", action="store_true", help="only compare the models")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    names = [options.only] if options.only else list(WORKLOADS)
    peers = options.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}. Known: {', '.join(PEERS)}.")
    if options.threads > len(os.sched_getaffinity(0)):
        parser.error("--threads is larger than the number of processors.")
    if options.make:
        for peer in peers:
            python_of(peer, options.cache)
        return
    where = machine()
    if options.agree:
        rows = [row for n in names for row in agreement(n, peers, options.cache)]
    else:
        turns, threads = options.turns, options.threads
        rows = [r for n in names for r in measured(n, peers, options.cache, turns, threads)]
    if options.json:
        print(json.dumps({"machine": where, "rows": rows}, indent=1))
        return
    print(where)
    print(differences(rows) if options.agree else times(rows))


def differences(rows: list[dict]) -> str:
    """The table of `--agree`."""
    titles = "  ".join(f"{n:>7}" for n in AGREE)
    lines = [f"{'work':6} {'peer':8} {'precision':9}  {titles}  rounds"]
    for r in rows:
        shown = "  ".join(f"{gap:7.1e}" for gap in r["apart"])
        lines.append(f"{r['work']:6} {r['peer']:8} {r['precision']:9}  {shown}")
    return "\n".join(lines)


def times(rows: list[dict]) -> str:
    """The table of times."""
    titles = f"{'s/round':>9} {'least':>9} {'most':>9} {'of':>4} {'ratio':>7} {'first':>6}"
    rounds = ", ".join(map(str, AGREE))
    lines = [f"{'work':6} {'peer':8} threads {titles}  differ after {rounds} rounds"]
    for r in rows:
        gaps = "  ".join(f"{gap:7.1e}" for gap in r.get("apart", ()))
        ratio = f"{r['ratio']:7.3f}" if r["ratio"] else f"{'':7}"
        spent = f"{r['seconds']:9.4f} {r['least']:9.4f} {r['most']:9.4f} {r['rounds']:4}"
        head = f"{r['work']:6} {r['peer']:8} {r['threads']:7}"
        lines.append(f"{head} {spent} {ratio} {r['first']:6.1f}  {gaps:34}  {r['version']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
