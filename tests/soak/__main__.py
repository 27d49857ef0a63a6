"""The soak test: `make soak`, or `PYTHONPATH=tests python -m soak --rounds 300 --seed 0`.

Ten participants, one of them an attacker, and an organiser, as real processes with TLS and keys on
127.0.0.1. Faults are planted by a plan that follows from the seed. Afterwards it checks that all
rounds were done, that every planted fault was named and no other one occurred, that memory did not
grow, and that the model is that of a simulation in which the same clients answered.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from federation.real import Place
from isonomy.runs.folder import RunFolder
from soak import checks, guard, outcome, plan
from soak.director import Director, SoakError, logs_of

NAMES = tuple(f"site{k}" for k in range(10))
CHANGES = {  # to the config of tests/federation/participants.py
    "algorithm": "fedavg",
    "defence": "trimmed_mean",
    "defence.expected": 1,
    "local.batch": 0,
    "local.steps": 3,
    "local.lr": 0.5,
}
AFTER = 150.0  # seconds of the given time that are left for the simulations


def main() -> None:
    """Run it; the exit code is 0 if everything holds."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="hard limit of the whole test")
    parser.add_argument("--timeout", type=int, default=25, help="seconds to answer a message")
    parser.add_argument("--to", type=Path, default=Path("runs/soak"), help="folder for all files")
    given = parser.parse_args()
    try:
        made = plan.make(given.rounds, given.seed, NAMES, timeout=given.timeout)
    except ValueError as error:
        sys.exit(str(error))
    folder = given.to.absolute()
    _clear(folder)
    made.save(folder / "plan.json")
    begin, limit = time.monotonic(), given.minutes * 60
    watching = guard.start(folder, limit)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    torch.set_num_threads(1)
    try:
        wrong = soak(folder, made, begin + limit - AFTER, given.timeout)
    except SoakError as error:
        wrong = [str(error)]
    finally:
        guard.end(watching)
    say(f"{(time.monotonic() - begin) / 60:.1f} minutes in all; everything is in '{folder}'")
    for text in wrong:
        say(f"FAILED: {text}")
    say("the soak test failed" if wrong else "the soak test passed")
    sys.exit(1 if wrong else 0)


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


def _clear(folder: Path) -> None:
    """Make the folder; that of an earlier soak test is removed."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "plan.json").exists():
            sys.exit(f"'{folder}' is not empty and not of a soak test; choose another with --to.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def soak(folder: Path, made: plan.Plan, end: float, timeout: int) -> list[str]:
    """Run the federation and check what came of it; returns what is wrong."""
    tests = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.getenv("PYTHONPATH")]))
    say(
        f"{made.rounds} rounds, seed {made.seed}, {len(made.names)} participants, attacker "
        f"{made.attacker}, load average {os.getloadavg()[0]:.1f}"
    )
    changes = {**CHANGES, "rounds": made.rounds, "evaluate.every": made.rounds}
    with Place(folder, made.names, **changes) as place:
        place.timeout = timeout
        director = Director(place, made, end, say)
        try:
            director.run()
        finally:
            outcome.save(folder, director)
    run = RunFolder(place.run)
    lines = run.lines("rounds.jsonl")
    seconds = sorted(line["seconds"] for line in run.lines("timing.jsonl")[: len(lines)])
    say(
        f"seconds per round: median {seconds[len(seconds) // 2]:.1f}, longest {seconds[-1]:.1f}; "
        f"until the first round {director.first_round:.0f}, in all {director.seconds:.0f}; load "
        f"average {os.getloadavg()[0]:.1f}"
    )
    refused = sum(len(checks.reasons(line, made.attacker)) for line in lines)
    lost = sum(len(line.get("faults", ())) for line in lines) - refused
    say(
        f"{len(director.struck)} strikes, after which {lost} replies were missing; {refused} "
        f"forbidden replies were refused; at least {min(line['answered'] for line in lines)} of "
        f"{len(made.names)} answered in every round"
    )
    out = checks.wrong(made, director.struck, lines, logs_of(folder))
    out += [f"a process was connected to {address}" for address in sorted(director.strangers)]
    out += outcome.memory(director, made, say)
    return out + outcome.models(place, made, say)


if __name__ == "__main__":
    main()
