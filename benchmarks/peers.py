"""The same rounds in Isonomy, a plain PyTorch loop, JAX, fluke, pfl-research and Flower.

    python benchmarks/peers.py --cache FOLDER                   all of them
    python benchmarks/peers.py --cache FOLDER --only W1 --peers plain,jax

W1     FedAvg, MLP 60-64-10, 100 clients x 100 examples, batch 10, one epoch, all clients.
CNN    FedAvg, a small CNN on 28x28 images, 20 clients x 100 examples, batch 10, one epoch.
Ditto  W1's work with Ditto (FMTL): every client has a personal model besides, lam = 0.5.

Every peer has an environment of its own in FOLDER, which is made once from the package index. All
start from the same model and use the same batches in the same order, so they must end in the same
model, to rounding, which grows with the rounds: the largest and the median difference from the
plain loop's after 8 rounds are shown. Each runs in a process of its own, with one thread (JAX takes
the cores that it finds, Flower two actors); `--turns` repeats all of them in turn. Seconds are the
median of the rounds after the first ones; "first" is the time from the start of the process to the
end of the first round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from engine import cnn, federation, mlp
from isonomy.core import random
from isonomy.core.task import Task

HERE = Path(__file__).resolve().parent
TORCH = "torch==2.13.0"
PEERS: dict[str, list[str]] = {  # and what has to be installed for them
    "isonomy": [],
    "plain": [],
    "jax": ["jax"],
    "fluke": ["fluke-fl", TORCH],
    "pfl": ["pfl[pytorch]", TORCH],
    "flower": ["flwr[simulation]", TORCH],
}
WORKLOADS = {  # network, clients, rounds, learning rate, lam; and the peers that have it
    "W1": ("mlp", 100, 60, 0.1, 0.0, list(PEERS)),
    "CNN": ("cnn", 20, 8, 0.05, 0.0, list(PEERS)),
    "Ditto": ("mlp", 100, 30, 0.1, 0.5, ["isonomy", "plain", "jax", "fluke"]),
}
SIZE, BATCH = 100, 10
ROUNDS = {"isonomy": 60, "jax": 60}  # the slow ones make fewer
FEWER = 8
SKIPPED = 3  # rounds that warm up


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


def write_work(name: str, rounds: int, path: Path) -> None:
    """The work as arrays that every peer can read."""
    kind, clients, _, lr, lam, _ = WORKLOADS[name]
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
        x=x.reshape(clients, SIZE, *x.shape[1:]).numpy(),
        y=fed.y.reshape(clients, SIZE).numpy(),
        order=torch.stack(order).numpy(),
        kind=kind,
        batch=BATCH,
        lr=lr,
        lam=lam,
        parameters=len(params),
        **{f"p{i}": p.numpy() for i, p in enumerate(params.values())},
    )


def run(peer: str, python: str, work: Path, out: Path) -> tuple[dict, list[np.ndarray]]:
    """One peer's rounds: its times and its final model."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if PEERS[peer]:
        env.pop("PYTHONPATH", None)
    env |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    begin = time.time()
    script = HERE / "peer_rounds" / f"{peer}_rounds.py"
    done = subprocess.run(
        [python, script, work, out], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"{peer} failed:\n{done.stdout[-800:]}\n{done.stderr[-2500:]}")
    record = json.loads(out.with_suffix(".json").read_text())
    with np.load(out) as arrays:
        final = [arrays[f"p{i}"] for i in range(len(arrays.files))]
    ends = record["ends"]
    if len(ends) <= SKIPPED + 1:
        raise RuntimeError(f"{peer} recorded the end of {len(ends)} rounds only.")
    spent = [b - a for a, b in itertools.pairwise(ends)]
    skipped = min(len(spent) // 2, len(spent) - 5) if len(spent) > 20 else SKIPPED
    record |= {"first": ends[0] - begin, "each": spent[skipped:]}
    return record, final


def measured(name: str, peers: list[str], cache: Path, turns: int) -> list[dict]:
    """One row for each peer that has this workload."""
    chosen = [peer for peer in peers if peer in WORKLOADS[name][-1]]
    pythons = {peer: python_of(peer, cache) for peer in chosen}
    found: dict[str, list[dict]] = {}
    models: dict[tuple[str, int], list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for peer in chosen:
                rounds = min(WORKLOADS[name][2], ROUNDS.get(peer, FEWER))
                work = Path(folder) / f"{rounds}.npz"
                if not work.exists():
                    write_work(name, rounds, work)
                out = Path(folder) / f"{peer}-{turn}.npz"
                try:
                    record, models[peer, rounds] = run(peer, pythons[peer], work, out)
                except RuntimeError as error:
                    print(error, file=sys.stderr)
                    continue
                found.setdefault(peer, []).append(record)
                each = statistics.median(record["each"])
                shown = f"{name} {peer}: {each:.4f} s a round, first after {record['first']:.1f} s"
                print(shown, file=sys.stderr, flush=True)
            if "isonomy" in chosen and turn == 0:  # as many rounds as the slow ones, to compare
                work = Path(folder) / f"{FEWER}.npz"
                if work.exists():
                    for peer in ("isonomy", "jax"):
                        if peer in chosen:
                            out = Path(folder) / f"{peer}-few.npz"
                            models[peer, FEWER] = run(peer, pythons[peer], work, out)[1]
    rows = []
    base = statistics.median(s for one in next(iter(found.values())) for s in one["each"])
    for peer in found:
        seconds = [s for one in found[peer] for s in one["each"]]
        reference = models.get(("plain", FEWER))
        own = models.get((peer, FEWER))
        apart = typical = None
        if reference is not None and own is not None:
            pairs = list(zip(own, reference, strict=False))  # of fluke, only the global model
            gaps = np.concatenate([np.abs(a - b).ravel() for a, b in pairs])
            apart, typical = float(gaps.max()), float(np.median(gaps))
        rows.append(
            {
                "work": name,
                "peer": peer,
                "version": found[peer][0]["version"],
                "seconds": statistics.median(seconds),
                "least": min(seconds),
                "ratio": statistics.median(seconds) / base,
                "first": statistics.median(one["first"] for one in found[peer]),
                "apart": apart,
                "typical": typical,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The same rounds in several frameworks.")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the environments")
    parser.add_argument("--only", choices=WORKLOADS, help="one workload")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, separated by commas")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args()
    names = [options.only] if options.only else list(WORKLOADS)
    peers = options.peers.split(",")
    rows = [row for n in names for row in measured(n, peers, options.cache, options.turns)]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    titles = f"{'s/round':>9} {'least':>9} {'ratio':>7} {'first':>6}"
    print(f"{'work':6} {'peer':8} {titles}  differ by (median)")
    for r in rows:
        apart = "" if r["apart"] is None else f"{r['apart']:.1e} ({r['typical']:.0e})"
        times = f"{r['seconds']:9.4f} {r['least']:9.4f} {r['ratio']:7.1f} {r['first']:6.1f}"
        print(f"{r['work']:6} {r['peer']:8} {times}  {apart:17}  {r['version']}")


if __name__ == "__main__":
    main()
