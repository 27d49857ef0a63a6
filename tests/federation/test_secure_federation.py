"""Secure aggregation in a federation of participants without a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from federation.participants import NAMES, NODES
from federation.secure_wire import (
    SECURE,
    Wire,
    equal,
    members,
    prepared,
    rounds,
    serve,
    server,
    simulate,
)
from federation.uniformity import p_values, two_samples
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.errors import ConfigError
from isonomy.federation import charter as charters
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import codec
from isonomy.privacy.secure import primitives


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return prepared(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["algorithm=fmtl", "secure.bits=18", "secure.clip=4.0", "algorithm.weight=equal"],
        ["algorithm=fedfb", "cohort.size=2", "cohort.max_weight=0.5"],
    ],
    ids=lambda words: " ".join(words) or "fedavg",
)
def test_a_served_run_has_the_bytes_of_the_simulated_one(here: Path, overrides: list[str]) -> None:
    words = [*SECURE, *overrides]
    got, expected = serve(here, words), simulate(here, words)
    simulate(here, overrides[:1], "plain")
    assert equal(server(here / "served"), server(here / "simulated"))
    assert not equal(server(here / "served"), server(here / "plain"))
    lines = [rounds(here / name) for name in ("served", "simulated")]
    assert not any("faults" in line for line in lines[0])
    for key in ("bytes_up", "bytes_down", "phases", "answered"):
        assert [line[key] for line in lines[0]] == [line[key] for line in lines[1]], key
    assert "no single one" in " ".join(got.notes)
    assert "this is a simulation" in " ".join(expected.notes)


def test_the_mean_is_the_plain_one_within_half_a_step(here: Path) -> None:
    """One round of full batches, so that nothing but the mean itself differs."""
    words = ["rounds=1", "secure.clip=2.0", "secure.bits=12"]
    serve(here, [*SECURE, *words])
    simulate(here, ["rounds=1"])
    step = 2.0 / 2**11
    pairs = zip(
        tree.leaves(server(here / "served")), tree.leaves(server(here / "simulated")), strict=True
    )
    away = max(float((a - b).abs().max()) for a, b in pairs)
    assert step / 100 < away <= step / 2 + 1e-6


def test_no_plain_reply_and_no_single_one_is_sent(here: Path) -> None:
    room = Wire(members(here))
    serve(here, SECURE, room)
    trained = [(head, reply) for _, head, _, reply in room.kept if head.get("phase") == "local"]
    assert len(trained) == 9
    for head, reply in trained:
        assert "secure" in head
        assert set(codec.unpack(reply)[1]) == {"masked"}
    stages = [head["stage"] for _, head, _, _ in room.kept if head["kind"] == "secure"]
    assert stages.count("keys") == stages.count("shares") == 3  # once for all rounds
    assert stages.count("unmask") == 9


# --- what arrives ---------------------------------------------------------------------------------


def kept(here: Path, *words: str) -> list[torch.Tensor]:
    """The masked replies of a run of one round, of new participants."""
    for folder in ("served", "homes"):
        shutil.rmtree(here / folder, ignore_errors=True)
    room = Wire(members(here))
    serve(here, [*SECURE, "rounds=1", "model.hidden=[400]", *words], room)
    return room.masked()


def test_what_arrives_is_uniform_whatever_a_client_replies(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For two replies of 'east' that differ as much as can be, and as a planted fault masks off."""
    flip = ["attack=sign_flip", "attack.clients=[0]", "attack.factor=50.0"]
    honest, other = kept(here), kept(here, *flip)
    for vectors in (honest, other):
        assert len(vectors) == 3
        assert min(p_values(vectors)) > 1e-5
    assert two_samples(honest, other) > 1e-5
    monkeypatch.setattr(
        primitives, "mask", lambda key, length, dtype: torch.zeros(length, dtype=dtype)
    )
    bare = kept(here)
    assert min(p_values(bare)) < 1e-12
    assert two_samples(honest, bare) < 1e-12


# --- clients that drop out ------------------------------------------------------------------------


def test_a_client_that_leaves_after_masking_is_in_the_sum(here: Path) -> None:
    """In the second round, 'south' sends its masked reply and is gone."""
    room: Wire

    def change(name: str, head: dict[str, Any], _: bytes, reply: bytes) -> bytes | None:
        if name == "south" and head.get("stage") == "unmask" and head["slot"] == 1:
            room.away.add(NODES["south"])
            return None
        return reply

    room = Wire(members(here), change)
    notes: list[str] = []
    serve(here, [*SECURE, "rounds=2"], room, notes)
    simulate(here, [*SECURE, "rounds=2"])
    assert equal(server(here / "served"), server(here / "simulated"))
    assert "'south' sent its masked reply to 'local' and nothing after it" in " ".join(notes)


def test_a_client_that_leaves_before_masking_is_left_out_and_comes_back(here: Path) -> None:
    """Its reply of round 2 is lost; in round 3 it takes part again, with new keys."""

    def change(name: str, head: dict[str, Any], _: bytes, reply: bytes) -> bytes | None:
        lost = name == "east" and "secure" in head and head["round"] == 1
        return None if lost else reply

    room = Wire(members(here), change)
    serve(here, SECURE, room)
    lines = rounds(here / "served")
    assert [line["answered"] for line in lines] == [3, 2, 3]
    keys = [head["epoch"] for _, head, _, _ in room.kept if head.get("stage") == "keys"]
    assert len(set(keys)) == 2


def test_fewer_than_the_threshold_changes_nothing_and_says_so(here: Path) -> None:
    def change(name: str, head: dict[str, Any], _: bytes, reply: bytes) -> bytes | None:
        lost = name != "north" and "secure" in head and head["round"] == 1
        return None if lost else reply

    room = Wire(members(here), change)
    notes: list[str] = []
    got = serve(here, SECURE, room, notes)
    unmasked = [head["slot"] for _, head, _, _ in room.kept if head.get("stage") == "unmask"]
    assert set(unmasked) == {0}, "an epoch each before and after, and no shares in between"
    assert "round 2: 1 of 3 clients answered 'local', fewer than the 2" in " ".join(notes)
    assert [line.get("no_sum") for line in rounds(here / "served")] == [None, 1, None]
    assert any("fewer than 2 clients answered" in text for text in got.notes)
    assert len(got.rounds) == 3


def test_shares_that_do_not_fit_give_no_sum(here: Path) -> None:
    """A participant that tells false shares can stop an exchange, but not change its sum."""

    def change(name: str, head: dict[str, Any], _: bytes, reply: bytes) -> bytes | None:
        if name == "east" and head.get("stage") == "unmask":
            return codec.pack({"ok": True}, {"shares": torch.ones(3, 16, dtype=torch.uint8)})
        return reply

    notes: list[str] = []
    serve(here, [*SECURE, "rounds=1"], Wire(members(here), change), notes)
    assert "could not be recovered" in " ".join(notes)
    assert rounds(here / "served")[0]["no_sum"] == 1


def test_a_reply_that_is_not_finite_is_left_out_by_its_own_client(here: Path) -> None:
    words = [*SECURE, "attack=broken", "attack.clients=[1]"]
    got, _ = serve(here, words), simulate(here, words)
    assert equal(server(here / "served"), server(here / "simulated"))
    assert any("'north' was left out" in note for note in got.notes)


# --- configs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm=fedeba"], "phase 'measure' of 'fedeba' needs 'loss' of every client"),
        (["algorithm=q_fedavg"], "phase 'local' of 'q_fedavg' needs 'loss' of every"),
        (["algorithm=fedfb", "algorithm.fairness=client"], "phase 'loss' of 'fedfb'"),
        (["defence=median"], "defence 'median' examines every client's update"),
        (["cohort.size=1"], "a sum of one client's replies is its reply"),
        (["secure.threshold=4"], r"secure\.threshold = 4.*from 2 to 3"),
        (["secure.threshold=2", "cohort.size=3"], ""),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
@pytest.mark.parametrize("how", [serve, simulate])
def test_what_secure_aggregation_cannot_do_is_refused(
    here: Path, overrides: list[str], words: str, how: Any
) -> None:
    if not words:
        assert how(here, [*SECURE, *overrides, "rounds=1"]).rounds
        return
    with pytest.raises(ConfigError, match=words):
        how(here, [*SECURE, *overrides])
    assert not (here / "served").exists()
    assert not (here / "simulated").exists()


def test_the_consent_text_is_that_of_the_participants_installation(here: Path) -> None:
    def text(*overrides: str) -> str:
        config = read(here / "config.toml", list(overrides))
        return "\n".join(consent_text(charters.make(config, NAMES)[0]))

    assert "there is no secure aggregation" in text()
    shown = text(*SECURE, "secure.clip=4.0")
    assert "there is no secure aggregation" not in shown
    assert "only sums of replies" in shown
    assert "at least 2 participants' replies" in shown
    assert "cut to 4 and rounded to 32 bits" in shown
    assert "in preparation and evaluation each reply by itself" in shown
    assert "together with 1 or more participants" in shown


def test_numbers_that_were_cut_are_counted_and_named(here: Path) -> None:
    words = [*SECURE, "secure.clip=0.05", "rounds=2"]
    got, expected = serve(here, words), simulate(here, words)
    lines = [rounds(here / name) for name in ("served", "simulated")]
    assert [line["cut"] for line in lines[0]] == [line["cut"] for line in lines[1]]
    assert lines[0][0]["cut"] > 10
    for record in (got, expected):
        assert any("were cut to it; raise secure.clip (0.05" in text for text in record.notes)
