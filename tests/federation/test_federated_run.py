"""A whole federation without a network: the organiser, its participants, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy import api
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.errors import ConfigError, DataError, RunError
from isonomy.federation import organiser
from isonomy.federation.flower import codec
from isonomy.federation.participant import NOT_FITTING
from isonomy.runs import saved_model
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, Stopped


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_tables(tmp_path / "tables")
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


class Notes(Listener):
    def __init__(self, stop_after: int = 0) -> None:
        self.notes: list[str] = []
        self.stop_after = stop_after

    def note(self, text: str) -> None:
        self.notes.append(text)

    def round(self, done: int, rounds: int, metrics: object) -> None:
        if done == self.stop_after:
            raise Stopped("enough", 15)


def model(folder: Path) -> dict:
    saved = saved_model.read(folder / "model")
    return {"server": saved.server, "clients": saved.clients}


def serve(here: Path, room: Room, *overrides: str, listener: Listener | None = None, **more):
    config = read(here / "config.toml", list(overrides))
    plan = organiser.begin(config, here / "served", NAMES)
    return conduct(plan, room, listener, **more)


def conduct(plan, room, listener=None, nodes=NODES, wait=0.0):
    return organiser.conduct(
        plan, room, nodes=nodes, wait=wait, timeout=5.0, listeners=[listener or Listener()]
    )


def everyone(here: Path, **options: object) -> dict:
    return {name: participant(here, name, **options) for name in NAMES}


def same(a, b) -> None:
    for s, t in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(s, t, rtol=1e-5, atol=1e-6)


def test_fronts_are_measured_where_the_rows_are(here: Path) -> None:
    words = ["algorithm=hetpfl", "local.optimiser=adam", "local.lr=0.005", "rounds=2"]
    words += ["algorithm.fusion_steps=3", "model.hidden=[4]", "front.rays=20"]
    got = serve(here, Room(everyone(here, share_rows=True)), *words)
    expected = api.run(read(here / "config.toml", [*words, "engine=loop"]), here / "simulated")
    assert any(key.startswith("front.least.error.") for key in expected.metrics)
    for key, value in expected.metrics.items():
        assert got.metrics[key] == pytest.approx(value, abs=1e-6, nan_ok=True), key
    assert got.rounds[-1]["metrics_at"] == expected.rounds[-1]["metrics_at"]
    assert got.front == expected.front
    assert (here / "served" / "front.parquet").exists()


@pytest.mark.parametrize("name", ["fedavg", "fedeba", "fmtl", "finetune", "focus", "fedma"])
def test_it_equals_the_simulation(here: Path, name: str) -> None:
    got = serve(here, Room(everyone(here)), f"algorithm={name}")
    config = read(here / "config.toml", [f"algorithm={name}", "engine=loop"])
    expected = api.run(config, here / "simulated")
    same(model(here / "served")["server"], model(here / "simulated")["server"])
    for key, value in expected.metrics.items():
        assert got.metrics[key] == pytest.approx(value, abs=1e-6, nan_ok=True), key
    lines = [RunFolder(here / f).lines("rounds.jsonl") for f in ("served", "simulated")]
    assert [r["bytes_up"] for r in lines[0]] == [r["bytes_up"] for r in lines[1]]
    prepared = [
        (here / f / "model" / "preprocessing.json").read_text() for f in ("served", "simulated")
    ]
    assert prepared[0] == prepared[1]
    tables = [pq.read_table(here / f / "clients.parquet") for f in ("served", "simulated")]
    assert tables[0].column_names == tables[1].column_names
    # every participant holds the model and its own part of it, and predicts as the server would
    states = model(here / "simulated")["clients"]
    for k, who in enumerate(NAMES):
        own = next((here / "homes" / who).glob("*/result"))
        same(model(own)["server"], model(here / "served")["server"])
        if tree.leaves(states):
            same(tree.take(model(own)["clients"], 0), tree.take(states, k))
        x = torch.zeros(
            2, len(got.config and json.loads((own / "model/model.json").read_text())["features"])
        )
        predicted = api.predictor(own, client=who).outputs(x)
        same(predicted, api.predictor(here / "simulated", client=who).outputs(x))


def test_stopped_and_resumed_it_ends_the_same(here: Path) -> None:
    calm: list[str] = []
    room = Room(everyone(here, note=calm.append))
    serve(here, room, "algorithm=local", "rounds=5", "checkpoint.every=2")
    assert not any("started again" in text for text in calm)
    first = {who: model(next((here / "homes" / who).glob("*/result"))) for who in NAMES}
    (here / "served").rename(here / "straight")
    for who in NAMES:
        (here / "homes" / who).rename(here / f"old-{who}")
    # the server dies in round 4: its checkpoint is of round 2, clients are ahead of it
    with pytest.raises(Stopped):
        serve(
            here,
            Room(everyone(here)),
            "algorithm=local",
            "rounds=5",
            "checkpoint.every=2",
            listener=Notes(stop_after=3),
        )
    plan = organiser.reopen(here / "served")
    assert plan.place.to_continue.startswith(f"`isonomy serve --resume {here / 'served'}`")
    with pytest.raises(RunError, match="isonomy serve --resume"):
        api.resume(here / "served")
    assert plan.place.checkpoints() == [2]
    said: list[str] = []
    conduct(plan, Room(everyone(here, note=said.append)))  # participants were started again as well
    assert said == ["the server has started again and continues after round 2."] * len(NAMES)
    for name in ("rounds.jsonl", "clients.parquet"):
        assert (here / "served" / name).read_bytes() == (here / "straight" / name).read_bytes()
    for who in NAMES:
        again = model(next((here / "homes" / who).glob("*/result")))
        same_bits = [
            torch.equal(a, b)
            for a, b in zip(tree.leaves(again), tree.leaves(first[who]), strict=True)
        ]
        assert all(same_bits)
    with pytest.raises(RunError, match="complete"):
        organiser.reopen(here / "served")


def test_a_participant_whose_process_lasts_one_message(here: Path) -> None:
    """As a ClientApp in a Flower project of one's own: all that stays is on its disk."""

    class Fleeting(Room):
        def ask(self, *args: object, **more: object):  # type: ignore[override]
            self.participants = {100 + k: participant(here, name) for k, name in enumerate(NAMES)}
            yield from super().ask(*args, **more)  # type: ignore[arg-type]

    serve(here, Fleeting(everyone(here)), "algorithm=local")
    api.run(read(here / "config.toml", ["algorithm=local", "engine=loop"]), here / "simulated")
    expected = model(here / "simulated")["clients"]
    for k, who in enumerate(NAMES):
        own = model(next((here / "homes" / who).glob("*/result")))["clients"]
        same(tree.take(own, 0), tree.take(expected, k))


def test_a_median_is_found_from_counts_at_even_marks(here: Path) -> None:
    """Participants do not answer to marks of the server's choice, so it is not exact."""
    serve(here, Room(everyone(here)), "data.impute=median", "data.scale=minmax", "rounds=1")
    config = read(here / "config.toml", ["data.impute=median", "data.scale=minmax", "rounds=1"])
    api.run(config, here / "simulated")

    def encoder(folder: str) -> dict:
        text = (here / folder / "model" / "preprocessing.json").read_text()
        return next(e for e in json.loads(text)["encoders"] if e["name"] == "income")

    served, exact = encoder("served"), encoder("simulated")
    assert (served["shift"], served["scale"]) == (exact["shift"], exact["scale"])
    assert served["fill"] == pytest.approx(exact["fill"], abs=exact["scale"] / 128)
    assert served["fill"] != exact["fill"]


def spoilt(reply: bytes, change) -> bytes:
    head, value = codec.unpack(reply)
    return codec.pack(head, tree.tmap(change, value))


SPOILS = {
    "not finite": lambda reply: spoilt(reply, lambda t: t * float("nan")),
    "shape": lambda reply: spoilt(reply, lambda t: t.unsqueeze(0)),
    "too large": lambda reply: reply + b"\0" * 1_000_000,
    "malformed": lambda reply: b"\x80\x04nonsense" + reply[11:],
    "other parts": lambda reply: codec.pack({"ok": True}, {"else": torch.zeros(2)}),
    "holds": lambda reply: spoilt(reply, lambda t: t.double()),
    "refused": lambda reply: codec.pack({"ok": False}),
}


@pytest.mark.parametrize("what", SPOILS)
def test_a_bad_reply_is_left_out_and_named(here: Path, what: str) -> None:
    def spoil(name: str, request: bytes, reply: bytes) -> bytes:
        bad = name == "north" and codec.header(request)["kind"] == "phase"
        return SPOILS[what](reply) if bad else reply

    notes = Notes()
    record = serve(here, Room(everyone(here), spoil), listener=notes)
    assert any("'north'" in note and what in note for note in notes.notes), notes.notes
    assert not any(
        "'east'" in note or "'south'" in note for note in notes.notes if "left out" in note
    )
    for line in RunFolder(here / "served").lines("rounds.jsonl"):
        assert line["answered"] == 2
        assert {fault["client"] for fault in line["faults"]} == {"north"}
    assert set(record.clients["name"]) == {"east", "south"}
    assert any("'north' was left out" in note for note in record.notes)


def test_one_that_leaves_and_comes_back(here: Path) -> None:
    room = Room(everyone(here))

    class Coming(Notes):
        def round(self, done: int, rounds: int, metrics: object) -> None:
            room.away = {101} if done == 1 else set()
            if done == 2:  # it is another process now, with what it kept on its disk
                room.participants[101] = participant(here, "north")

    listener = Coming()
    serve(here, room, "algorithm=local", "rounds=4", listener=listener)
    answered = [line["answered"] for line in RunFolder(here / "served").lines("rounds.jsonl")]
    assert answered == [3, 2, 3, 3]
    # its own model is that of a client that rested in round 2
    states = model(next((here / "homes" / "north").glob("*/result")))["clients"]
    config = read(here / "config.toml", ["algorithm=local", "rounds=4", "engine=loop"])
    from isonomy.engines.loop import Loop
    from isonomy.runs.build import build

    setting = build(config)
    engine = Loop(setting.task, setting.federation, seed=config.seed)
    engine.reset(setting.algorithm.init_client(setting.task, setting.params))
    work = config.local
    server = setting.algorithm.init_server(setting.task, setting.params, len(setting.federation))
    for r in (0, 2, 3):
        cohort = engine.cohort(torch.tensor([1]), work=work, round=r, rate=work.rate(r, 4))
        server = setting.algorithm.round(server, cohort)
    same(tree.take(states, 0), tree.take(engine.states.stacked, 1))


def test_who_did_not_confirm_the_model_is_not_said_to_be_without_it(here: Path) -> None:
    def lost(name: str, request: bytes, reply: bytes) -> bytes | None:
        return None if name == "north" and codec.header(request)["kind"] == "end" else reply

    listener = Notes()
    serve(here, Room(everyone(here), lost), "algorithm=fedavg", "rounds=1", listener=listener)
    assert list((here / "homes" / "north").glob("*/result/model"))  # it has the model
    said = [text for text in listener.notes if text.startswith("'north' was")]
    assert said == ["'north' was sent the model and left without confirming it; it may have it."]


def test_a_table_that_does_not_fit_is_told_why_before_anything_is_sent(here: Path) -> None:
    table = here / "tables" / "north.csv"
    text = table.read_text().replace("Female", "F").replace("income", "incom")
    table.write_text(text)
    (here / "example").mkdir()
    (here / "tables" / "east.csv").rename(here / "example" / "east.csv")
    (here / "tables" / "east.csv").write_text((here / "example" / "east.csv").read_text())
    participants = everyone(here)
    sent: list[bytes] = []

    def watch(name: str, request: bytes, reply: bytes) -> bytes:
        if name == "north":
            sent.append(reply)
        return reply

    notes = Notes()
    with pytest.raises(RunError, match="north"):
        serve(
            here,
            Room(participants, watch),
            "data.path=" + str(here / "example"),
            listener=notes,
        )
    told = next(text for text in notes.notes if text.startswith("'north' refused"))
    assert "your example (data.path) differ in a column" in told
    assert "F" not in told.split("refused", 1)[1]  # no value
    trouble = participants["north"].error
    assert isinstance(trouble, DataError)
    assert "no column 'income'" in str(trouble)
    assert "Did you mean 'incom'?" in str(trouble)
    assert "'F'" in str(trouble)
    assert "the organiser's example lacks them" in str(trouble)
    assert {codec.header(reply)["ok"] for reply in sent} == {False}
    assert {codec.header(reply)["why"] for reply in sent} == {NOT_FITTING}  # a fixed text, no data
    assert all(len(reply) < 300 for reply in sent)


def test_consent_is_asked_once_and_a_no_is_a_no(here: Path) -> None:
    asked: list[dict] = []

    def no(charter: dict) -> bool:
        asked.append(charter)
        return False

    participants = everyone(here) | {"north": participant(here, "north", decide=no)}
    with pytest.raises(RunError, match="not here: north"):
        serve(here, Room(participants))
    assert len(asked) >= 1
    assert isinstance(participants["north"].error, ConfigError)
    assert asked[0]["config"]["algorithm"]["name"] == "fedavg"


def test_it_runs_no_code_that_is_not_isonomys(here: Path) -> None:
    participants = everyone(here)
    with pytest.raises(RunError, match="not here"):
        serve(here, Room(participants), "model=torch.nn:Linear")
    assert "--trust torch.nn:Linear" in str(participants["north"].error)
