"""Compares the results of two checkouts, bit by bit: the same configs and seeds in both.

    python benchmarks/same_results.py OLD/src [NEW/src] [--only NAME,...]

Each checkout runs every config below in a process of its own. The bytes of the trained model, the
last metrics and every round's line have to be equal; what differs is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BASE = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 8, "examples": 900},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"batch": 16, "lr": 0.1},
    "evaluate": {"every": 2, "bootstrap": 20},
    "excess": {"steps": 20},
}
ADAM = {"local": {"batch": 16, "lr": 0.005, "optimiser": "adam"}}
ATTACK = {"name": "gaussian", "fraction": 0.25}
CONFIGS = {
    "fedavg": {},
    "fedavg-sampled": {"cohort": {"size": 5, "dropout": 0.2}},
    "fedavg-loop": {"engine": {"name": "loop"}},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.5}},
    "local": {"algorithm": "local"},
    "focus": {"algorithm": {"name": "focus", "models": 2}},
    "fedeba": {"algorithm": "fedeba"},
    "prac_fedeba": {"algorithm": "prac_fedeba"},
    "q_fedavg": {"algorithm": {"name": "q_fedavg", "q": 1.0}},
    "afl": {"algorithm": "afl"},
    "fedmgda": {"algorithm": "fedmgda"},
    "propfair": {"algorithm": "propfair"},
    "fedfv": {"algorithm": "fedfv"},
    "pffl": {"algorithm": {"name": "pffl", "zeta": 0.9}},
    "local_bgl": {"algorithm": "local_bgl"},
    "fedfb": {"algorithm": "fedfb"},
    "fairfed": {"algorithm": "fairfed"},
    "fcfl": {"algorithm": "fcfl"},
    "agnosticfair": {"algorithm": "agnosticfair"},
    "lft_ensemble": {"algorithm": "lft_ensemble"},
    "fmtl": {"algorithm": "fmtl"},
    "apfl": {"algorithm": "apfl"},
    "ewc": {"algorithm": "ewc"},
    "l2sgd": {"algorithm": "l2sgd"},
    "perfedavg": {"algorithm": "perfedavg"},
    "fedma": {"algorithm": "fedma"},
    "pfnm": {"algorithm": "pfnm"},
    "hetpfl": {"algorithm": "hetpfl", **ADAM, "front": {"rays": 11}},
    "praffl": {"algorithm": "praffl", **ADAM, "front": {"rays": 11}},
    "attack-gaussian": {"attack": ATTACK},
    "attack-replacement": {"attack": {"name": "replacement", "fraction": 0.25}},
    "attack-little-krum": {"attack": {"name": "little", "fraction": 0.25}, "defence": "krum"},
    "attack-labels-median": {"attack": {"name": "labels", "fraction": 0.25}, "defence": "median"},
    "attack-broken": {"attack": {"name": "broken", "fraction": 0.25}},
}

RUN = """
import json, sys
from pathlib import Path
from isonomy import api
make = getattr(api, "make_config", None) or api.config
out = Path(sys.argv[1])
for name, values in json.loads(sys.stdin.read()).items():
    try:
        api.run(make(None, **values), out / name, keep=True)
    except Exception as error:
        (out / f"{name}.error").write_text(f"{type(error).__name__}: {error}")
"""


def results(source: Path, configs: dict[str, object], out: Path) -> None:
    """Run every config with the package at `source`."""
    subprocess.run(
        [sys.executable, "-c", RUN, str(out)],
        input=json.dumps(configs).encode(),
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        check=True,
    )


def differences(old: Path, new: Path, name: str) -> list[str]:
    """What differs between two results of one config."""
    for side, place in (("old", old), ("new", new)):
        error = place / f"{name}.error"
        if error.exists():
            return [f"{side}: {error.read_text()[:160]}"]
    out = []
    model = Path(name) / "model" / "model.safetensors"
    if (old / model).read_bytes() != (new / model).read_bytes():
        out.append("model")
    one, other = (json.loads((p / name / "summary.json").read_text()) for p in (old, new))
    changed = [k for k in one["metrics"] if one["metrics"][k] != other["metrics"].get(k)]
    out += [f"{len(changed)} metrics ({changed[0]})"] if changed else []
    if set(one["metrics"]) != set(other["metrics"]):
        out.append("names of metrics")
    lines = [(p / name / "rounds.jsonl").read_text() for p in (old, new)]
    if lines[0] != lines[1]:
        out.append("rounds.jsonl")
    return out


def main() -> int:
    """Compare, print one line per config."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument(
        "new", type=Path, nargs="?", default=Path(__file__).resolve().parent.parent / "src"
    )
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(CONFIGS)
    configs = {name: {**BASE, **CONFIGS[name]} for name in names}
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / "old", Path(folder) / "new"]
        for source, place in zip((given.old, given.new), places, strict=True):
            place.mkdir()
            results(source, configs, place)
        for name in names:
            found = differences(*places, name)
            differ += bool(found)
            print(f"{name:24} {'; '.join(found) if found else 'equal'}")
    print(f"{len(names) - differ} of {len(names)} equal")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
