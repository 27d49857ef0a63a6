"""Faults and equality with real processes over loopback, TLS and keys. Slow: `pytest -m slow`."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from federation.bad_participant import MEANINGS
from federation.participants import NAMES
from federation.real import Place, check_equal_to_loop, descendants, model, own, same, simulate
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.engines.loop import Loop
from isonomy.federation.flower import codec, keys, processes
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["fedavg", "fedeba", "fmtl", "finetune"])
def test_it_equals_the_loop_engine(tmp_path: Path, name: str) -> None:
    """One phase, two phases, personal state, a final phase."""
    with Place(tmp_path, algorithm=name, rounds=3) as place:
        check_equal_to_loop(place)


def test_every_process_ends_with_3_if_the_model_is_withheld(tmp_path: Path) -> None:
    changes = {"algorithm": "pffl", "algorithm.zeta": 0.0, "algorithm.B": 50.0, "rounds": 2}
    changes |= {"model": "logistic", "local.steps": 3, "local.batch": 0, "local.lr": 1.0}
    with Place(tmp_path, ("east", "north"), **changes) as place:
        place.may_fail = {"organiser", *NAMES}
        place.serve()
        for who in place.names:
            place.join(who)
        for who in ("organiser", *place.names):
            assert place.ends(who) == 3, place.logs()
            assert "verdict" in place.said(who)
        assert RunFolder(place.run).withheld


def test_the_command_of_the_readme(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    assert "`isonomy demo-federation`" in text
    with Place(tmp_path) as place:
        to = tmp_path / "demo"
        place.isonomy("demo", "demo-federation", "--to", str(to))
        assert place.ends("demo") == 0, place.logs()
        assert RunFolder(to / "run").complete
        assert "accuracy" in place.said("demo")


def test_a_participant_is_killed_in_a_round_and_comes_back(tmp_path: Path) -> None:
    with Place(tmp_path, algorithm="local", rounds=400) as place:
        place.serve()
        for who in NAMES:
            place.join(who)
        place.until("a round with all", lambda: len(place.rounds()) >= 1)
        north = place.processes["north"].pid
        assert descendants(north) == [north]  # a participant is one process
        place.crash("north")
        place.until("a round without it", lambda: place.rounds()[-1]["answered"] == 2)
        fault = next(f for line in place.rounds() for f in line.get("faults", []))
        assert fault["client"] == "north"
        states = next((tmp_path / "homes" / "north").glob("*/state"))
        kept = max(int(path.stem) for path in states.glob("*.safetensors"))
        place.join("north")
        place.until("a round with it", lambda: place.rounds()[-1]["answered"] == 3)
        place.processes["organiser"].send_signal(signal.SIGTERM)
        assert place.ends("organiser") == 128 + signal.SIGTERM
        assert "'north' is left out" in place.said("organiser")
        rounds = place.rounds()
        last = max(int(path.stem) for path in states.glob("*.safetensors"))
        answered = [line["answered"] for line in rounds]
        assert answered[-1] == 3  # the others went on, it came back
        assert set(answered) == {2, 3}
        # its own model has all the rounds that it was there for, before and after: the simulation
        # of a client that rested meanwhile (one round may be on its disk whose reply was lost)
        trained = list(range(kept + 1))
        trained += [line["round"] - 1 for line in rounds[kept + 1 :] if line["answered"] == 3]
        if last > trained[-1]:
            trained.append(last)
        content = (states / f"{last:08d}.safetensors").read_bytes()
        same(codec.unpack(content)[1], alone(place, 1, trained))


def alone(place: Place, k: int, rounds: list[int]) -> object:
    """The state of a client that trains by itself, in these rounds only, by the loop engine."""
    setting = build(read(place.folder / "config.toml", [*place.overrides, "engine=loop"]))
    engine = Loop(setting.task, setting.federation, seed=setting.config.seed)
    engine.reset(setting.algorithm.init_client(setting.task, setting.params))
    server = setting.algorithm.init_server(setting.task, setting.params, len(setting.federation))
    work, total = setting.config.local, setting.config.rounds
    for r in rounds:
        cohort = engine.cohort(torch.tensor([k]), work=work, round=r, rate=work.rate(r, total))
        setting.algorithm.round(server, cohort)
    return tree.take(engine.states.stacked, k)


def test_the_organiser_is_killed_and_resumes_to_the_same(tmp_path: Path) -> None:
    with Place(tmp_path, algorithm="local", rounds=5) as place:
        organiser = place.serve()
        for who in NAMES:
            place.join(who)
        place.until("two rounds", lambda: len(place.rounds()) >= 2)
        organiser.send_signal(signal.SIGKILL)
        organiser.wait()
        assert not RunFolder(place.run).complete
        place.serve("--resume", str(place.run))
        assert place.ends("organiser") == 0, place.logs()
        for who in NAMES:
            assert place.ends(who) == 0, place.logs()
        expected = model(simulate(place))
        for k, who in enumerate(NAMES):
            same(tree.take(own(place, who)["clients"], 0), tree.take(expected["clients"], k))
        lines = [
            RunFolder(f).lines("rounds.jsonl") for f in (place.run, place.folder / "simulated")
        ]
        assert [line["round"] for line in lines[0]] == [1, 2, 3, 4, 5]
        assert all("faults" not in line for line in lines[0])
        for a, b in zip(*lines, strict=True):
            if "metrics" in b:
                assert a["metrics"] == pytest.approx(b["metrics"], abs=1e-6, nan_ok=True)


def test_bad_replies_are_refused_and_named(tmp_path: Path) -> None:
    with Place(tmp_path, algorithm="fedavg", rounds=5) as place:
        place.serve()
        for who in ("east", "south"):
            place.join(who)
        place.join_badly("north")
        assert place.ends("organiser") == 0, place.logs()
        rounds = place.rounds()
        for line, meaning in zip(rounds, MEANINGS, strict=False):
            assert line["answered"] == 2
            assert [f["client"] for f in line["faults"]] == ["north"]
            assert meaning in line["faults"][0]["why"]
        assert rounds[4]["answered"] == 3  # it behaves at last, and counts again
        assert "faults" not in rounds[4]


def test_strangers_and_strange_tables_stay_out(tmp_path: Path) -> None:
    with Place(tmp_path, algorithm="fedavg", rounds=2) as place:
        keys.make(tmp_path / "others", ["stranger", "west"])
        shutil.copy(tmp_path / "others" / "west.pub", tmp_path / "keys")
        text = (tmp_path / "tables" / "north.csv").read_text()
        (tmp_path / "odd.csv").write_text(text.replace("income", "pay").replace("Female", "woman"))
        place.may_fail.add("north")
        place.isonomy("organiser", *place.serving(), "--clients", ",".join(place.names))
        place.until("it is open", lambda: "participants can join" in place.said("organiser"))
        other = tmp_path / "others"
        place.isonomy("unknown", "join", *place.joining("unknown", key=str(other / "stranger")))
        place.isonomy("west", "join", *place.joining("west", key=str(other / "west")))
        place.isonomy("elsewhere", "join", *place.joining("elsewhere", ca=str(other / "ca.crt")))
        raw = [processes.program("flower-supernode"), "--superlink", place.address]
        raw += ["--root-certificates", str(tmp_path / "keys/ca.crt"), "--port"]
        raw += [str(processes.free_port()), "--host", "127.0.0.1"]
        place.start("keyless", *raw, env=processes.environment(tmp_path / "stray"))
        place.join("north", table="odd.csv")
        assert place.ends("elsewhere") == 2
        assert "certificate" in place.said("elsewhere")
        assert place.ends("unknown") == 2
        assert "does not know the key" in place.said("unknown")
        assert place.ends("west") == 2
        assert "is not a client of this run; ask the organiser" in place.said("west")
        place.ends("keyless")  # Flower's program ends, with 0, when the gateway refuses its key
        assert "Starting Flower SuperNode" in place.said("keyless")
        assert "SuperNode ID" not in place.said("keyless")  # it was not let in
        assert place.ends("north") == 2
        said = place.said("north")
        assert "no column 'income'" in said
        assert "'woman', which the federation does not know" in said
        # nothing but participants' requests passes the gate: no app can be started from outside
        context = ssl.create_default_context(cafile=str(tmp_path / "keys/ca.crt"))
        for path in ("/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"https://{place.address}{path}", b"", context=context)
        register = ["supernode", "register", str(other / "stranger.pub"), processes.CONNECTION]
        processes.write_home(tmp_path / "away", place.address, tmp_path / "keys/ca.crt")
        done = subprocess.run(
            [processes.program("flwr"), *register],
            env=processes.environment(tmp_path / "away"),
            capture_output=True,
        )
        assert done.returncode != 0
