"""What came of a soak test: memory, models, and what the attacker achieved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch

from federation.real import Place, model, own
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.errors import TrainingError
from isonomy.runs.folder import RunFolder
from soak import watch
from soak.attacker import Poison
from soak.director import Director
from soak.plan import ORGANISER, Plan
from soak.replay import replay

Say = Callable[[str], None]
WORSE = 1.2  # times the loss without faults and attacker, at most
HARM = 2.0  # times the loss, if nothing defends, at least


def save(folder: Path, director: Director) -> None:
    """Write what was done and measured, for a closer look."""
    struck = [
        {"kind": s.event.kind, "name": s.name, "round": s.round, "seconds": round(s.seconds, 1)}
        for s in director.struck
    ]
    series = [
        {"owner": one.owner, "role": one.role, "pid": one.pid}
        | {"samples": [[s.seconds, s.round, s.anonymous, s.resident] for s in one.samples]}
        for one in director.memory.series.values()
    ]
    (folder / "struck.json").write_text(json.dumps(struck, indent=1) + "\n")
    (folder / "memory.json").write_text(json.dumps(series) + "\n")


def memory(director: Director, plan: Plan, say: Say) -> list[str]:
    """Print the trends of the last two thirds; returns what grows, or was not measured."""
    owners, since = [ORGANISER, *plan.untouched], plan.rounds // 3
    trends = director.memory.trends(since, owners)
    say(f"memory that processes have allocated, and its growth from round {since} on:")
    for one in trends:
        say(f"  {one}")
    most = watch.totals(director.memory)
    say("largest sum: " + ", ".join(f"{name} {most[name]:.0f} MB" for name in owners))
    out = [
        f"the memory of {one.owner}'s {one.role} grew by {one.growth:.1f} MB"
        for one in trends
        if not one.flat
    ]
    for owner in owners:
        wanted = watch.ORGANISERS if owner == ORGANISER else watch.PARTICIPANTS
        missing = set(wanted) - {one.role for one in trends if one.owner == owner}
        if missing:
            out.append(f"too few samples of {owner}'s {', '.join(sorted(missing))}")
    return out


def models(place: Place, plan: Plan, say: Say) -> list[str]:
    """Compare the model with simulations; returns where it is not what it should be."""
    out, served, poison = [], RunFolder(place.run), (Poison(plan),)

    def simulate(name: str, *overrides: str, honest: bool = False) -> RunFolder:
        config = read(place.folder / "config.toml", [*place.overrides, "engine=loop", *overrides])
        recorded = None if honest else served
        folder = place.folder / name
        replay(config, recorded, plan.names, folder, () if honest else poison)
        return RunFolder(folder)

    again = simulate("replayed")
    got, expected = (tree.leaves(model(f.path)["server"]) for f in (served, again))
    difference = max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True))
    equal = _equal(got, expected)
    what = "has the same bytes" if equal else f"differs by up to {difference:.1e}"
    say(f"the model of a simulation with the same answering clients {what}")
    if not equal:
        out.append(f"the simulation's model differs by up to {difference:.1e}")
    for line, other in zip(*(f.lines("rounds.jsonl") for f in (served, again)), strict=True):
        if line["answered"] != other["answered"]:
            out.append(f"round {line['round']}: other clients answered in the simulation")
    for name in plan.names:
        if not _equal(tree.leaves(own(place, name)["server"]), got):
            out.append(f"'{name}' did not receive the organiser's model")
    try:
        undefended = _loss(simulate("undefended", "defence=none"))
    except TrainingError:
        undefended = math.inf  # training diverged
    loss, honest = _loss(served), _loss(simulate("honest", honest=True))
    say(
        f"loss with faults, attacker and defence {loss:.4g}; without faults and attacker "
        f"{honest:.4g}; with both and no defence {undefended:.4g}"
    )
    if loss > WORSE * honest:
        out.append("the attacker did harm in spite of the defence")
    if undefended < HARM * loss:
        out.append("the attacker did no harm without a defence, so the defence shows nothing")
    return out


def _equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _loss(folder: RunFolder) -> float:
    return float(folder.summary()["metrics"]["loss"])
