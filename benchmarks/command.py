"""The CPU time of whole commands, start and exit included.

    python benchmarks/command.py                      this checkout
    python benchmarks/command.py OLD/src [NEW/src]    two checkouts, in turns

For `isonomy --help` and `isonomy run quickstart` (one method, 15 rounds), the user and system time
of the whole process. For the latter also the time of the steps of local training alone (those of
the rounds and of the surrogates), in a process in which all programs have been traced; "beyond" is
the difference: imports, tracing, batches, evaluation, report, exit. One thread; the least of the
repeats.

As in an installed package, the modules are compiled to bytecode beforehand. The bytecode is kept in
a temporary folder, even if PYTHONDONTWRITEBYTECODE is set, which would compile them in each run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "src"
HELP, BEYOND = 0.3, 4.0  # the bounds, in seconds

STEPS = """
import sys, time
from isonomy import api
from isonomy.engines.batched import program
from isonomy.runs import surrogate
run, spent = program.Programs._run, []
def timed(*arguments):
    begin = time.process_time()
    out = run(*arguments)
    spent.append(time.process_time() - begin)
    return out
program.Programs._run = timed
for _ in range(3):
    spent.clear()
    surrogate._reference.cache_clear()  # so that every run trains its surrogates
    api.run(api.make_config("quickstart"), sys.argv[1], overwrite=True)
    print(sum(spent))
"""


def environment(source: Path, folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    return {**kept, **bytecode, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}


def seconds(source: Path, folder: Path, *arguments: str) -> float:
    """The CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "isonomy", *arguments],
        env=environment(source, folder), check=True, capture_output=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps(source: Path, folder: Path) -> float:
    """The CPU time of the steps of `isonomy run quickstart`, in a warm process."""
    command = [sys.executable, "-c", STEPS, str(folder / "steps")]
    done = subprocess.run(
        command, env=environment(source, folder), check=True, capture_output=True, text=True
    )
    return min(float(line) for line in done.stdout.split()[1:])


def main() -> int:
    """Measure, print one line per checkout; 1 if the last one misses a bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="*", default=[HERE])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    sources = given.sources if len(given.sources) > 1 else [*given.sources, HERE]
    sources = list(dict.fromkeys(source.resolve() for source in sources))
    found: dict[Path, list[tuple[float, float, float]]] = {source: [] for source in sources}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = ("run", "quickstart", "--quiet", "--overwrite", "--to", str(folder / "run"))
        for source in sources:
            seconds(source, folder, *run)  # compiles the modules
        for _ in range(given.repeats):
            for source in sources:
                shown = seconds(source, folder, "--help")
                found[source].append((shown, seconds(source, folder, *run), steps(source, folder)))
    print(f"{'--help':>8} {'run':>8} {'steps':>8} {'beyond':>8}  CPU s")
    for source in sources:
        shown, whole, arithmetic = (min(column) for column in zip(*found[source], strict=True))
        beyond = whole - arithmetic
        print(f"{shown:8.2f} {whole:8.2f} {arithmetic:8.2f} {beyond:8.2f}  {source}")
    met = shown <= HELP and beyond <= BEYOND
    print(f"bounds: --help at most {HELP} s, beyond the steps at most {BEYOND} s: ", end="")
    print("met" if met else "MISSED")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
