"""Client-level privacy with secure aggregation, in a federation of participants in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from federation.participants import NAMES
from federation.secure_wire import Wire, equal, members, prepared, rounds, serve, server, simulate
from isonomy.config.files import read
from isonomy.errors import ConfigError
from isonomy.federation import charter as charters
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import codec
from isonomy.federation.flower.secure_client import SecureClient
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.noise import Key

SHARES = ["secure=true", "privacy.level=client", "privacy.clip=0.05", "privacy.noise=0.5"]
SHARES += ["privacy.allow=['preprocessing', 'evaluation']"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return prepared(tmp_path)


@pytest.fixture
def known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The participants' keys are that of privacy.seed = 4, so that a simulation can repeat them."""
    monkeypatch.setattr(Key, "fresh", classmethod(lambda _: Key.of_seed(4)))


@pytest.mark.parametrize(
    "overrides",
    [[], ["algorithm=fedfb", "privacy.bounds={cells=50.0}", "cohort.size=2"]],
    ids=["fedavg", "fedfb"],
)
def test_a_served_run_has_the_bytes_of_the_simulated_one(
    here: Path, known_keys: None, overrides: list[str]
) -> None:
    words = [*SHARES, *overrides]
    got = serve(here, words)
    expected = simulate(here, [*words, "privacy.seed=4"])
    simulate(here, [*words, "privacy.seed=5"], "other")
    assert equal(server(here / "served"), server(here / "simulated"))
    assert not equal(server(here / "served"), server(here / "other"))
    lines = [rounds(here / name) for name in ("served", "simulated")]
    assert not any("faults" in line for line in lines[0])
    for key in ("bytes_up", "bytes_down", "phases", "answered"):
        assert [line[key] for line in lines[0]] == [line[key] for line in lines[1]], key
    ledgers = [json.loads((here / f / "privacy.json").read_text()) for f in ("served", "simulated")]
    assert ledgers[0]["releases"] == ledgers[1]["releases"]
    assert got.facts["privacy"]["epsilon"] == expected.facts["privacy"]["epsilon"] > 0
    counted = ledgers[0]["clients"]
    for k, name in enumerate(NAMES):  # each participant counts by itself, if it was asked
        own = [json.loads(f.read_text()) for f in (here / "homes" / name).rglob("privacy.json")]
        assert [one["epsilon"] for one in own] == [counted[str(k)]] * (counted[str(k)] > 0)


def test_keys_are_the_participants_own(here: Path) -> None:
    serve(here, [*SHARES, "rounds=1"])
    simulate(here, [*SHARES, "rounds=1", "privacy.seed=4"])
    assert not equal(server(here / "served"), server(here / "simulated"))


def test_a_dropout_leaves_enough_noise_and_counts_as_no_change(here: Path) -> None:
    """'south' does not answer: the mean is over three, and the noise of one of two is counted."""

    def silent(name: str, head: dict[str, Any], request: bytes, reply: bytes) -> bytes | None:
        return None if name == "south" and "secure" in head else reply

    serve(here, [*SHARES, "rounds=1"], Wire(members(here), silent))
    (line,) = rounds(here / "served")
    assert line["answered"] == 2
    ledger = json.loads((here / "served/privacy.json").read_text())
    assert ledger["releases"][0]["clients"] == 3


def test_a_question_that_would_weight_by_size_is_refused(here: Path) -> None:
    """The organiser cannot give a client more weight than its noise is made for."""
    room = Wire(members(here))
    serve(here, [*SHARES, "rounds=1"], room)
    asked = next(c for _, head, c, _ in room.kept if head.get("phase") == "local")
    head, value = codec.unpack(asked)
    runner = next(iter(room.participants.values()))._runner
    masking = runner.masking  # type: ignore[union-attr]
    assert isinstance(masking, SecureClient)
    head["secure"]["weighting"] = "size"
    with pytest.raises(codec.MalformedError, match="weights clients by size"):
        masking.opened(head, value)


def test_a_spent_budget_ends_a_participant_before_it_sends(here: Path) -> None:
    """Six rounds at a budget of two: the organiser's plan ends first, and is not relied on."""
    config = read(here / "config.toml", [*SHARES, "rounds=6"])
    two = epsilon({Event(0.5): 2}, config.privacy.delta, "rdp")
    serve(here, [*SHARES, "rounds=6", f"privacy.epsilon={two * 1.001}"])
    assert len(rounds(here / "served")) == 2
    ledger = json.loads((here / "served/privacy.json").read_text())
    assert ledger["status"] == "ended by the budget after 2 of 6 rounds"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["privacy.seed=1"], "secret keys of their own"),
        (["privacy.colluding=2"], "no noise is left"),
    ],
)
def test_what_a_real_federation_cannot_have_is_refused(
    here: Path, more: list[str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        serve(here, [*SHARES, *more])


def test_without_noise_in_the_config_it_is_refused(here: Path) -> None:
    words = [w for w in SHARES if "noise" not in w]
    with pytest.raises(ConfigError, match=r"needs privacy\.noise"):
        serve(here, [*words, "privacy.epsilon=4.0"])


def test_the_consent_says_who_adds_the_noise_and_what_epsilon_is(here: Path) -> None:
    charter = charters.make(read(here / "config.toml", SHARES), NAMES)[0]
    text = " ".join(consent_text(charter))
    spent = epsilon({Event(0.5): 3}, 1e-5, "rdp")
    assert f"epsilon is {spent:.3g} at delta = 1e-05 after all 3 rounds" in text
    assert "your own program adds a share of the noise before it masks the reply" in text
    assert "the shares of 1 of the 2 or more participants of a sum are 0.5 times the clip" in text
    assert "the promise holds if at most one participant of a sum tells it the noise" in text
    assert "Not covered, and sent without noise: the preparation" in text
