"""The parts of the soak test, without a federation: its plan, its checks, its replay, its guard."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from federation.process_table import MARK, marked
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.federation import organiser
from isonomy.runs import saved_model
from isonomy.runs.folder import RunFolder
from soak import checks, plan, watch
from soak.attacker import SPOIL, Poison
from soak.director import Struck
from soak.plan import FORBIDDEN, ORGANISER, POISON, Event, Plan
from soak.replay import replay

SITES = tuple(f"site{k}" for k in range(10))


def make(rounds: int = 300, seed: int = 0) -> Plan:
    return plan.make(rounds, seed, SITES, timeout=40)


# --- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [plan.FEWEST, 300])
@pytest.mark.parametrize("seed", range(10))
def test_a_plan_has_every_fault_at_a_time_at_which_it_can_be_noticed(
    rounds: int, seed: int
) -> None:
    made = make(rounds, seed)
    assert {event.kind for event in made.events} == {"kill", "stall", "hang", "restart"}
    assert [event.round for event in made.events] == sorted({e.round for e in made.events})
    assert all(plan.HEAD <= event.round <= rounds - plan.TAIL for event in made.events)
    (restart,) = (event for event in made.events if event.kind == "restart")
    assert restart.round < rounds / 3  # memory is watched from there on
    assert made.attacker in made.untouched
    assert len(made.untouched) >= plan.CALM + 1
    for event in made.events:
        assert (event.seconds > 40) == (event.kind in ("stall", "hang"))
        assert len(set(event.who)) == len(event.who)
    assert set(made.replies.values()) == {*FORBIDDEN, POISON}
    assert {way for r, way in made.replies.items() if r < rounds // 3} >= set(FORBIDDEN)
    assert set(made.replies) < set(range(rounds))  # now and then it is honest


def test_a_plan_follows_from_its_seed_and_survives_its_file(tmp_path: Path) -> None:
    assert make(seed=3) == make(seed=3)
    assert make(seed=3) != make(seed=4)
    make(seed=3).save(tmp_path / "plan.json")
    assert plan.load(tmp_path / "plan.json") == make(seed=3)
    with pytest.raises(ValueError, match="too few"):
        make(rounds=plan.FEWEST - 1)


# --- the checks -----------------------------------------------------------------------------------


def recorded(made: Plan) -> tuple[list[Struck], list[dict[str, Any]], dict[str, str]]:
    """What a federation would have recorded in which everything is as it should be."""
    lines: list[dict[str, Any]] = [{"round": r + 1} for r in range(made.rounds)]
    logs = dict.fromkeys((*made.names, ORGANISER), "")
    printed = dict.fromkeys(logs, 0)
    for name in made.names:
        logs[name] = "Note: the server has started again and continues after round 9.\n"

    def add(r: int, name: str, why: str) -> None:
        fault = {"client": name, "phase": "local", "why": why}
        lines[r - 1].setdefault("faults", []).append(fault)
        logs[ORGANISER] += f"Note: round {r}: '{name}' is left out: {why}.\n"

    for r, way in made.replies.items():
        if way in FORBIDDEN:
            add(r + 1, made.attacker, f"its reply was refused: {way}")
    struck, back = [], dict.fromkeys(made.names, 0)
    for event in made.events:
        if event.kind == "restart":
            struck.append(Struck(event, ORGANISER, event.round, 1.0, printed))
            where = f"continues after round {event.round} of {made.rounds}"
            logs[ORGANISER] += f"fedavg, seed 5: {where}\n"
        for name in event.who:
            at = max(event.round, back[name])
            struck.append(Struck(event, name, at, 1.0, printed))
            add(at + 1, name, "it did not reply within 40 s")
            add(at + 2, name, "it is not connected")
            back[name] = at + 3
    return struck, lines, logs


def test_a_record_in_which_everything_is_named_passes() -> None:
    made = make()
    assert checks.wrong(made, *recorded(made)) == []


def test_every_defect_of_a_record_is_found() -> None:
    made = make()
    kill = next(s for s in recorded(made)[0] if s.event.kind == "kill")

    def found(change) -> str:
        struck, lines, logs = recorded(made)
        change(struck, lines, logs)
        return "\n".join(checks.wrong(made, struck, lines, logs))

    def forget(name: str, rounds: range):
        def change(_struck, lines, _logs) -> None:
            for r in rounds:
                lines[r - 1]["faults"] = [
                    f for f in lines[r - 1].get("faults", ()) if f["client"] != name
                ]

        return change

    def stays_away(_struck, lines, _logs) -> None:
        for line in lines[kill.round :]:
            line["faults"] = [{"client": kill.name, "phase": "local", "why": "it has left"}]

    refused = next(r for r, way in made.replies.items() if way in FORBIDDEN)
    used = next(r for r, way in made.replies.items() if way == POISON)
    calm = next(name for name in made.untouched if name != made.attacker)
    fault = {"phase": "local", "why": "it did not reply within 40 s"}
    assert "name no fault" in found(forget(kill.name, range(kill.round, kill.round + 6)))
    assert "was not refused" in found(forget(made.attacker, range(refused + 1, refused + 2)))
    assert "did not come back" in found(stays_away)
    assert "not carried out" in found(lambda struck, *_: struck.remove(kill))
    assert "once each" in found(lambda _, lines, __: lines.pop())
    assert "nothing was done to it" in found(
        lambda _, lines, __: lines[9].setdefault("faults", []).append({"client": calm, **fault})
    )
    assert "the poison of" in found(
        lambda _, lines, __: lines[used].update(faults=[{"client": made.attacker, **fault}])
    )
    assert "organiser's log has no line" in found(
        lambda _, __, logs: logs.update(organiser=logs[ORGANISER].replace(kill.name, "someone"))
    )
    assert "does not say" in found(
        lambda _, __, logs: logs.update(organiser=logs[ORGANISER].replace("continues", "begins"))
    )
    assert f"the log of '{calm}'" in found(lambda _, __, logs: logs.update({calm: ""}))


def samples(growth: float) -> list[watch.Sample]:
    """200 rounds of a process of 100 MB that grows by so many MB, with noise."""
    rng = random.Random(0)
    memory = [100 + growth * r / 200 + rng.gauss(0, 1) for r in range(200)]
    return [watch.Sample(4.0 * r, r, m, m + 40) for r, m in enumerate(memory)]


def test_growing_memory_is_told_from_noise() -> None:
    assert watch.trend("organiser", "gateway", samples(0.0)).flat
    leak = watch.trend("organiser", "gateway", samples(12.0))
    assert not leak.flat
    assert leak.growth == pytest.approx(12.0, abs=1.0)
    memory = watch.Memory()
    for pid, role in enumerate(("SuperLink", "gateway")):
        memory.series[pid] = watch.Series(ORGANISER, role, pid, samples(30.0 * pid))
    late = watch.Series(ORGANISER, "ServerApp", 7, samples(0.0)[150:])  # it was started later
    memory.series[7] = late
    found = memory.trends(100, [ORGANISER])
    assert [(one.role, one.flat) for one in found] == [("gateway", False), ("SuperLink", True)]


# --- the replay -----------------------------------------------------------------------------------


def test_a_replay_with_the_recorded_cohorts_gives_the_same_bytes(tmp_path: Path) -> None:
    """A served run in this process, with participants that are away, spoil and poison."""
    write_tables(tmp_path / "tables")
    (tmp_path / "config.toml").write_text(CONFIG)
    config = read(tmp_path / "config.toml", ["rounds=6", "evaluate.every=6", "local.batch=0"])
    way = {1: "not finite", 2: "no training gives", 3: POISON, 4: POISON}
    made = Plan(6, 0, NAMES, "north", (Event(1, "kill", ("east",), 0.0),), way)

    class Leaving(Room):
        asked = 0

        def ask(self, requests: Any, kind: str, *more: Any) -> Any:  # type: ignore[override]
            self.asked += kind == "train"
            leaves = kind == "train" and self.asked in (2, 3)
            self.away = {NODES["east"]} if leaves else set()
            return super().ask(requests, kind, *more)

        def nodes(self) -> set[int]:  # it takes time until it is noticed
            return set(self.participants)

    def spoil(name: str, request: bytes, reply: bytes) -> bytes:
        from isonomy.federation.flower import codec

        head = codec.header(request)
        if name != made.attacker or head["kind"] != "phase" or "measure:" in head["phase"]:
            return reply
        return SPOIL.get(made.replies.get(head["round"], ""), bytes)(reply)

    everyone = {name: participant(tmp_path, name) for name in NAMES}
    room = Leaving(everyone, spoil)
    begun = organiser.begin(config, tmp_path / "served", NAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isonomy.federation.participant.client_side", lambda _: (Poison(made),))
        organiser.conduct(begun, room, nodes=NODES, wait=0.0, timeout=5.0)
    served = RunFolder(tmp_path / "served")
    lines = served.lines("rounds.jsonl")
    assert [line["answered"] for line in lines] == [3, 1, 1, 3, 3, 3]
    assert [checks.reasons(line, "north") != [] for line in lines] == [
        r in (1, 2) for r in range(6)
    ]
    loop = read(
        tmp_path / "config.toml",
        ["rounds=6", "evaluate.every=6", "local.batch=0", "engine=loop"],
    )
    replay(loop, served, NAMES, tmp_path / "same", (Poison(made),))
    replay(loop, None, NAMES, tmp_path / "others", (Poison(made),))

    def model(name: str) -> list[torch.Tensor]:
        return tree.leaves(saved_model.read(tmp_path / name / "model").server)

    def equal(name: str) -> bool:
        return all(torch.equal(a, b) for a, b in zip(model("served"), model(name), strict=True))

    assert equal("same")
    assert not equal("others")
    again = RunFolder(tmp_path / "same").lines("rounds.jsonl")
    assert [line["answered"] for line in again] == [line["answered"] for line in lines]


# --- the guard ------------------------------------------------------------------------------------


def test_the_guard_ends_everything_when_time_is_up_or_the_test_is_killed(tmp_path: Path) -> None:
    tests = Path(__file__).parent.parent
    program = f"""
import os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, {str(tests)!r})
from soak import guard
folder = Path(sys.argv[1])
guard.start(folder, float(sys.argv[2]))
env = {{**os.environ, {MARK!r}: str(folder)}}
subprocess.Popen(["sleep", "100"], env=env, start_new_session=True)
print("started", flush=True)
time.sleep(100)
"""
    for folder, seconds in ((tmp_path / "late", 0.5), (tmp_path / "killed", 100.0)):
        command = [sys.executable, "-c", program, str(folder), str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        if seconds > 1:
            assert marked(folder)
            process.kill()
        process.wait(60)
        process.stdout.close()
        end = time.monotonic() + 60
        while marked(folder) and time.monotonic() < end:
            time.sleep(0.05)
        assert not marked(folder)
