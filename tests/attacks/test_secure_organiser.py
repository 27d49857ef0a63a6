"""A malicious organiser in secure aggregation: what participants refuse, and what it learns."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr")


from federation.participants import NAMES, NODES, Room, participant
from federation.secure_wire import (
    SECURE,
    Notes,
    Wire,
    members,
    prepared,
    rounds,
    serve,
)
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.config.files import read
from isonomy.config.schema import SecureConfig
from isonomy.contract.world import world
from isonomy.core.cohort import NoReplies
from isonomy.errors import ConfigError
from isonomy.federation import charter as charters
from isonomy.federation import organiser
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import codec, keys
from isonomy.federation.flower.engine import InProcessFlower
from isonomy.federation.flower.identity import fingerprint, public_line
from isonomy.federation.flower.secure_client import SecureClient, read_adverts, to_bytes
from isonomy.federation.flower.secure_server import SecureServer
from isonomy.federation.flower.transport import InProcessTransport
from isonomy.federation.participant import Participant
from isonomy.privacy.secure.member import KEY, Member, sealed_size
from isonomy.privacy.secure.simulated import room_of


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return prepared(tmp_path)


class Changed(InProcessTransport):
    """An organiser that changes its own messages of training."""

    change: Callable[[dict[str, Any], Any], Any]

    def ask(self, requests: Any) -> Any:
        made = {k: codec.pack(*self.change(*codec.unpack(v))) for k, v in requests.items()}
        return super().ask(made)


def refused(change: Callable[[dict[str, Any], Any], Any]) -> str:
    """What clients say to the messages of one secure exchange that were changed."""
    where = world()
    secure = SecureServer(SecureConfig(enabled=True), 2, room_of(where.federation.sizes()))
    engine = InProcessFlower(where.task, where.federation, secure=secure)
    engine.transport = Changed(engine.transport.clients)
    engine.transport.change = change
    cohort = engine.cohort(torch.tensor([0, 1, 2]), work=where.work, round=0)
    with contextlib.suppress(NoReplies):  # some changes concern one client only
        cohort.mean(FedAvg().local, {"params": where.params})
    return " ".join([*(fault.why for fault in engine.take_faults()), *engine.take_notes()])


def unmasked(head: dict[str, Any], value: Any) -> Any:
    if head["phase"] == "local":
        head = {k: v for k, v in head.items() if k != "secure"}
        value = value["ask"]
    return head, value


def chosen(**changes: Any) -> Callable[[dict[str, Any], Any], Any]:
    def change(head: dict[str, Any], value: Any) -> Any:
        if head["phase"] == "local":
            head = {**head, "secure": {**head["secure"], **changes}}
        return head, value

    return change


def stage(name: str, **changes: Any) -> Callable[[dict[str, Any], Any], Any]:
    return lambda head, value: (
        {**head, **changes} if head.get("stage") == name else head,
        value,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unmasked, "does not say how its reply is masked"),
        (chosen(weighting="given"), "weights clients as the organiser chooses"),
        (chosen(limit=1), "limits weights, which the charter does not"),
        (chosen(asked=[0, 1, 2, 3]), "clients that have shared"),
        (chosen(asked=[0]), "lack this one"),
        (chosen(slot=-1), "were used, or do not exist"),
        (chosen(epoch="another"), "no keys of this epoch"),
        (chosen(room="all"), "does not say how"),
        (chosen(room=-5), "no room for sums"),
        (stage("keys", members=[0]), "a sum has 2 at least"),
        (stage("keys", members=[0, 1]), "lack this one"),
        (stage("keys", slots=10**9), "too many exchanges"),
        (stage("unmask", answered=[0]), "2 are needed at least"),
        (stage("unmask", answered=[0, 1, 2, 3]), "other clients than those asked"),
        (stage("unmask", answered="all"), "list of clients cannot be read"),
        (stage("keys", stage="tell"), "no such message"),
    ],
)
def test_a_client_refuses_what_would_unmask_it(change: Any, words: str) -> None:
    assert words in refused(change)


def test_a_participant_refuses_to_answer_without_masks(here: Path) -> None:
    """An organiser that has agreed on secure aggregation, and asks as without it."""
    said: list[str] = []

    class Plain(Room):
        def ask(self, requests: Any, kind: str, seconds: float, group: int = 0) -> Any:
            made = {}
            for node, content in requests.items():
                head, value = codec.unpack(content)
                made[node] = content
                if head.get("phase") == "local":
                    made[node] = codec.pack(*unmasked(head, value))
            return super().ask(made, kind, seconds, group)

    serve(here, [*SECURE, "rounds=1"], Plain(members(here, note=said.append)))
    assert sum("does not say how its reply is masked" in text for text in said) == 3
    assert rounds(here / "served")[0]["no_sum"] == 1


def test_different_messages_to_different_clients_give_no_sum(here: Path) -> None:
    """Masks cancel only if all clients were told the same, here the same model."""
    notes: list[str] = []
    own = members(here)

    class Liar(Room):
        def ask(self, requests: Any, kind: str, seconds: float, group: int = 0) -> Any:
            made = dict(requests)
            for node, content in requests.items():
                head, value = codec.unpack(content)
                if head.get("phase") == "local" and node == NODES["north"]:
                    value["ask"]["params"]["linear1.bias"] += 1.0
                    made[node] = codec.pack(head, value)
            return super().ask(made, kind, seconds, group)

    serve(here, [*SECURE, "rounds=1"], Liar(own), notes)
    assert "could not be recovered" in " ".join(notes)


def test_a_plain_federation_has_no_secure_messages(here: Path) -> None:
    said: list[str] = []
    room = Room(members(here, note=said.append))
    serve(here, ["rounds=1"], room)
    one = next(iter(room.participants.values()))
    strict = participant(here, "east", secure=True)
    with pytest.raises(ConfigError, match="join without --secure"):
        strict._agree(one._charter, "0", 0)


def test_a_repeated_round_counts_against_the_charters_repeats(here: Path) -> None:
    """Sums over other clients of the same replies would differ by one reply."""
    words = [*SECURE, "rounds=2", "privacy.repeats=0", "checkpoint.every=1"]
    own, said = members(here, note=lambda text: said.append(text)), []
    room = Wire(own)
    plan = organiser.begin(read(here / "config.toml", words), here / "served", NAMES)
    organiser.conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0)
    first = next(request for n, head, request, _ in room.kept if head.get("phase") == "local")
    head, value = codec.unpack(first)
    one = own["east"]
    one._bound.ledger._write({"session": "f" * 32, "done": 0})
    one._bound.ledger.ended = False
    one._runner.store.rewind(0)
    asked = {"kind": "secure", "charter": head["charter"], "phase": "secure", "epoch": "again"}
    mates = [Mate(k) for k in (1, 2)]
    reply = one.answer(codec.pack(asked | {"stage": "keys", "members": [0, 1, 2], "slots": 2}))
    answered = again(one, codec.unpack(reply)[1], mates, asked, head, value["ask"])
    assert codec.header(answered)["ok"] is False
    assert "answered before, differently" in codec.header(answered)["why"]


class Mate:
    """Another client, which the organiser plays."""

    def __init__(self, number: int) -> None:
        self.number, self.member = number, Member(number, 2)
        self.advert = self.member.advertise("again", [0, 1, 2], 2)


def again(
    one: Participant, own: Any, mates: list[Mate], asked: Any, head: Any, message: Any
) -> bytes:
    """Ask a participant the same question with new keys."""
    stacked = {"box": own["box"], "slots": own["slots"].unsqueeze(0)}
    adverts = read_adverts([0], stacked, 2) | {m.number: m.advert for m in mates}
    value = {
        "box": to_bytes([a.box for a in adverts.values()], KEY),
        "slots": torch.stack([to_bytes(a.slots, KEY) for a in adverts.values()]),
        "signature": torch.zeros(3, 160, dtype=torch.uint8),
    }
    one.answer(codec.pack(asked | {"stage": "shares", "members": [0, 1, 2]}, value))
    sealed = [m.member.share("again", adverts)[0] for m in mates]
    how = {**head["secure"], "epoch": "again", "slot": 0, "owners": [1, 2]}
    content = {"ask": message, "sealed": to_bytes(sealed, sealed_size(2))}
    return one.answer(codec.pack({**head, "secure": how}, content))


# --- signed keys ----------------------------------------------------------------------------------


def with_keys(here: Path, change: Any = None) -> tuple[list[str], list[str], Any]:
    """A run whose charter lists the participants' keys; what was said, noted, and its rounds."""
    keys.make(here / "keys", NAMES)
    lines = {n: public_line(keys.public_key(here / "keys" / f"{n}.pub")) for n in NAMES}
    config = read(here / "config.toml", [*SECURE, "rounds=1"])
    plan = organiser.begin(config, here / "served", NAMES, peers=lines)
    said: list[str] = []
    notes: list[str] = []
    own = {
        name: participant(here, name, secure=True, key=here / "keys" / name, note=said.append)
        for name in NAMES
    }
    room = Wire(own, change)
    organiser.conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0, listeners=[Notes(notes)])
    return said, notes, rounds(here / "served")


def test_keys_are_signed_by_the_keys_of_the_charter(here: Path) -> None:
    said, _, lines = with_keys(here)
    assert not said
    assert lines[0]["answered"] == 3
    charter = next(iter((here / "homes").rglob("charter.json"))).read_text()
    shown = "\n".join(consent_text(json.loads(charter)))
    for name in NAMES:
        line = (here / "keys" / f"{name}.pub").read_text().strip()
        assert f"{name} {fingerprint(line)}" in shown
        assert fingerprint(line).startswith("SHA256:")
    assert "WARNING: the participants' keys" not in shown


def test_an_organiser_that_puts_its_own_keys_in_between_is_found(here: Path) -> None:
    """It answers the question for keys in place of 'north', whose shares it could then read."""
    mate = Member(1, 2)

    def change(name: str, head: dict[str, Any], _: bytes, reply: bytes) -> bytes | None:
        if name == "north" and head.get("stage") == "keys":
            value = codec.unpack(reply)[1]
            own = mate.advertise(head["epoch"], head["members"], head["slots"])
            value["box"], value["slots"] = to_bytes([own.box], KEY), to_bytes(own.slots, KEY)
            return codec.pack({"ok": True}, value)
        return reply

    said, notes, lines = with_keys(here, change)
    assert "not signed by its own key" in " ".join(said)
    assert lines[0]["no_sum"] == 1
    assert "secure sum needs" in " ".join(notes)


def test_a_charter_with_another_key_of_the_participant_is_refused(here: Path) -> None:
    keys.make(here / "keys", NAMES)
    lines = {n: public_line(keys.public_key(here / "keys" / f"{n}.pub")) for n in NAMES}
    lines["east"], lines["north"] = lines["north"], lines["east"]
    charter = charters.make(read(here / "config.toml", SECURE), NAMES, lines)[0]
    one = participant(here, "east", secure=True, key=here / "keys" / "east")
    with pytest.raises(ConfigError, match="another public key for 'east'"):
        one._agree(charter, "0", 0)
    with pytest.raises(ConfigError, match="joined without one"):
        participant(here, "east")._agree(charter, "0", 0)
    unsigned = {k: v for k, v in charter.items() if k != "peers"}
    with pytest.raises(ConfigError, match="take the place of all others"):
        one._agree(unsigned, "0", 0)
    for bad in ({**lines, "east": "no key"}, {"east": lines["east"]}, {**lines, "x": "y"}):
        with pytest.raises(ConfigError, match="cannot be trusted"):
            charters.check({**charter, "peers": bad})


def test_a_process_for_every_message_is_refused(here: Path) -> None:
    charter = charters.make(read(here / "config.toml", SECURE), NAMES)[0]
    with pytest.raises(ConfigError, match="a process of its own; take part with"):
        participant(here, "east", lasting=False)._agree(charter, "0", 0)


# --- messages of any form -------------------------------------------------------------------------

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9)
    | st.text(max_size=5) | st.just("e"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip
TENSORS = st.sampled_from(
    [torch.zeros(3, 32), torch.zeros(3, 2, 32, dtype=torch.uint8), torch.zeros(0), torch.ones(())]
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_messages_of_any_form_are_refused_with_a_reason(data: Any) -> None:
    """Nothing but a refusal, whatever the header and the arrays are."""
    one = SecureClient(0, 30, 2, SecureConfig(enabled=True), capped=True)
    one.answer(
        codec.pack(
            {"kind": "secure", "stage": "keys", "epoch": "e", "members": [0, 1, 2], "slots": 2}
        )
    )
    head: dict[str, Any] = {"stage": data.draw(st.sampled_from(["keys", "shares", "unmask", "x"]))}
    for name in ("epoch", "members", "slots", "slot", "answered"):
        head[name] = data.draw(st.just("e") | st.just([0, 1, 2]) | st.just(1) | ANY)
    value = {name: data.draw(TENSORS) for name in ("box", "slots", "signature")}
    with contextlib.suppress(codec.MalformedError):
        one.answer(codec.pack(head, value))
    names = ("epoch", "slot", "asked", "weighting", "limit", "room", "owners")
    how = {name: data.draw(st.just([0, 1]) | st.just(1) | ANY) for name in names}
    with pytest.raises(codec.MalformedError):
        one.opened(
            {"secure": data.draw(ANY | st.just(how))}, {"ask": {}, "sealed": data.draw(TENSORS)}
        )
