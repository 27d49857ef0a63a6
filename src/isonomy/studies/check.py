"""Checks of an algorithm, such as one of a user's own: does it keep the contract that runs rely on?

Each check trains the algorithm for a few rounds on generated data, and compares:

    runs       it trains, and predicts with finite losses
    repeats    the same seed gives the same bits
    agrees     the batched engine gives what the loop gives, up to rounding
    resumes    stopped after a round and resumed, it ends with the same bits
    sampled    it trains with some of the clients in each round

That a phase replies what it declares is checked in every exchange. The package's own algorithms
also have the contract suite of its repository, which checks more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isonomy.config.schema import parse
from isonomy.core import tree
from isonomy.errors import IsonomyError
from isonomy.runs import training
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener

ROUNDS = 3
CLOSE = 1e-3  # the largest difference between engines, relative to the size of a tensor


@dataclass(frozen=True)
class Check:
    """One check: its name, what it is, and what went wrong; empty if it passed."""

    name: str
    meaning: str
    problem: str = ""


class _Stopped(Exception):
    """Raised by a listener to stop a run after its first round."""


class _Stop(Listener):
    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        raise _Stopped


def check(algorithm: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> list[Check]:
    """All checks of an algorithm, given as a table of its name and options.

    `changes` are further keys of the config, such as another model. If it does not run at all, the
    other checks are left out.
    """
    with tempfile.TemporaryDirectory() as place:
        return _checked(dict(algorithm), dict(changes or {}), Path(place))


def _checked(algorithm: dict[str, Any], changes: dict[str, Any], place: Path) -> list[Check]:
    def trained(name: str, **more: Any) -> RunFolder:
        values = _config(algorithm) | changes | more
        training.run(parse(values), place / name, keep=True)
        return RunFolder(place / name)

    def resumed() -> RunFolder:
        values = _config(algorithm) | changes
        try:
            training.run(parse(values), place / "resumed", listeners=[_Stop()], keep=True)
        except _Stopped:
            training.resume(place / "resumed", keep=True)
        return RunFolder(place / "resumed")

    first = _attempt("runs", "it trains and predicts with finite losses", lambda: trained("loop"))
    if isinstance(first, Check):
        return [first]
    out = [Check("runs", "it trains and predicts with finite losses")]
    compared: list[tuple[str, str, Callable[[], RunFolder], float]] = [
        ("repeats", "the same seed gives the same bits", lambda: trained("again"), 0.0),
        (
            "agrees",
            "the batched engine gives what the loop gives",
            lambda: trained("batched", engine={"name": "batched"}),
            CLOSE,
        ),
        ("resumes", "stopped and resumed, it ends with the same bits", resumed, 0.0),
    ]
    for name, meaning, make, close in compared:
        other = _attempt(name, meaning, make)
        if isinstance(other, Check):
            out.append(other)
        else:
            out.append(Check(name, meaning, _difference(first, other, close)))
    meaning = "it trains with two of four clients in each round"
    some = _attempt("sampled", meaning, lambda: trained("sampled", cohort={"size": 2}))
    out.append(some if isinstance(some, Check) else Check("sampled", meaning))
    return out


def _config(algorithm: dict[str, Any]) -> dict[str, Any]:
    return {
        "data": {"name": "synthetic", "clients": 4},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": algorithm,
        "rounds": ROUNDS,
        "local": {"epochs": 1, "batch": 32, "lr": 0.1},
        "engine": {"name": "loop"},
        "evaluate": {"every": ROUNDS, "bootstrap": 0},
        "excess": {"clusters": "none"},
        "checkpoint": {"every": 1},
        "front": {"rays": 4},
    }


def _attempt(name: str, meaning: str, make: Callable[[], RunFolder]) -> RunFolder | Check:
    """The run, or the check that failed with the reason."""
    try:
        return make()
    except IsonomyError as error:
        return Check(name, meaning, str(error))
    except Exception as error:  # the user's own code may raise anything
        return Check(name, meaning, f"{type(error).__name__}: {error}")


def _difference(one: RunFolder, other: RunFolder, close: float) -> str:
    """In which tensor two runs' models differ by more than allowed; empty if in none."""
    models = [place.model() for place in (one, other)]
    parts = [tree.leaves({"server": model.server, "clients": model.clients}) for model in models]
    if len(parts[0]) != len(parts[1]):
        return "the models have different numbers of tensors."
    worst = 0.0
    for a, b in zip(*parts, strict=True):
        if a.shape != b.shape:
            return (
                f"a tensor has shape {tuple(a.shape)} in one run and {tuple(b.shape)} in another."
            )
        if not a.is_floating_point():
            same = bool((a == b).all())
            worst = max(worst, 0.0 if same else float("inf"))
            continue
        if not close and not torch.equal(a, b):
            worst = max(worst, float((a - b).abs().max()) or float("inf"))
        scale = float(a.abs().max()) if a.numel() else 0.0
        far = float((a - b).abs().max()) if a.numel() else 0.0
        if close and far > close * max(scale, 1e-3):
            worst = max(worst, far)
    return f"tensors differ by up to {worst:.2g}." if worst else ""
