"""`python -m fuzz SECONDS [NAME ...]`: run each fuzzer for some seconds; bugs go to the corpus."""

from __future__ import annotations

import sys
import time

import torch

from fuzz.fuzzer import keep, run
from fuzz.registry import FUZZERS


def main() -> int:
    """Run them; the exit code is 1 if a bug was found."""
    torch.set_num_threads(1)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    names = sys.argv[2:] or list(FUZZERS)
    first = int(time.time()) % 10**6  # other cases in every run
    bugs = 0
    print(f"seeds from {first}")
    for name in names:
        out = run(FUZZERS[name], seconds=seconds, first_seed=first)
        print(f"{name:<10} {out.cases:>8,} cases {out.seconds:>6.0f} s  {len(out.bugs)} bugs")
        for (where, text), path in zip(out.texts.items(), keep(out), strict=True):
            print(f"  {where}\n  {path}\n{text}")
        sys.stdout.flush()
        bugs += len(out.bugs)
    return int(bugs > 0)


if __name__ == "__main__":
    sys.exit(main())
