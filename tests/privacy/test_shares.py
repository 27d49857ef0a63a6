"""Noise in shares: what one client can change in a sum, and the noise that clients add together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from torch import Tensor

from isonomy import api
from isonomy.config.overrides import merge, parse_override
from isonomy.config.privacy import PrivacyConfig
from isonomy.config.schema import Config, SecureConfig, parse
from isonomy.core import tree
from isonomy.core.cohort import Ask, Cohort, Replies
from isonomy.core.work import Work
from isonomy.errors import ConfigError
from isonomy.privacy import discrete, shares
from isonomy.privacy.discrete import DEVIATION, discrete_gaussian
from isonomy.privacy.ledger import BudgetSpent, Ledger
from isonomy.privacy.noise import Key
from isonomy.privacy.own_shares import OwnShares
from isonomy.privacy.release import finite_only
from isonomy.privacy.secure.simulated import Quantised, room_of
from isonomy.privacy.shares import ShareRelease, Shares
from isonomy.robust.screen import Screen
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.studies.audit import audit
from privacy.exchanges import asked, terms

ORIGIN = torch.tensor([0.3, -0.2, 0.1])
MESSAGE = {"params": ORIGIN}
SHARES = Shares(multiplier=1.5, honest=2, clip=0.5, bounds={"loss": 2.0})
ANY = st.one_of(
    st.floats(-3, 3, width=32), st.floats(allow_nan=True, allow_infinity=True, width=32)
)


# --- discrete Gaussian integers -------------------------------------------------------------------


def test_integers_have_exactly_the_discrete_gaussian_probabilities(monkeypatch):
    """With s = 2, where single probabilities can be compared with those of the definition."""
    monkeypatch.setattr(discrete, "BITS", 1)
    monkeypatch.setattr(discrete, "DEVIATION", 2)
    monkeypatch.setattr(discrete, "_TWICE", 3)
    drawn = discrete_gaussian(Key.of_seed(1), 200_000, "small").numpy()
    weight = np.exp(-(np.arange(-60, 61) ** 2) / 8.0)
    wanted = (weight / weight.sum())[60 - 7 : 60 + 8]
    inside = drawn[abs(drawn) <= 7]
    found = np.bincount(inside + 7, minlength=15)
    assert stats.chisquare(found, wanted / wanted.sum() * len(inside)).pvalue > 1e-4


def test_integers_are_close_to_normal_numbers_and_follow_from_key_and_name():
    drawn = discrete_gaussian(Key.of_seed(1), 100_000, "large")
    assert stats.kstest(drawn.numpy() / DEVIATION, "norm").pvalue > 1e-4
    assert torch.equal(drawn[:10], discrete_gaussian(Key.of_seed(1), 100_000, "large")[:10])
    others = [(Key.of_seed(2), "large"), (Key.of_seed(1), "other")]
    for key, name in others:
        other = discrete_gaussian(key, 100_000, name)
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 5 / math.sqrt(100_000)


# --- what one client can change -------------------------------------------------------------------


def replies(count: int) -> st.SearchStrategy[dict[str, Tensor]]:
    each = arrays(np.float32, (count, 7), elements=ANY)
    return each.map(
        lambda a: {
            "params": torch.tensor(a[:, :3]),
            "slope": torch.tensor(a[:, 3:6]),
            "loss": torch.tensor(a[:, 6]),
        }
    )


def changed(reply: dict[str, Tensor]) -> float:
    """What a reply changes in the sum, in units of the sensitivity; from its exact integers."""
    declared = _ask(1).declared
    encoding, total = SHARES.encoding(declared, reply, 4), 0.0
    for name in declared.parts:
        whole = SHARES.integers(encoding, declared, name, MESSAGE, reply).tolist()
        total += sum(n * n for n in whole) / (SHARES.honest * DEVIATION**2)
    return math.sqrt(total) * SHARES.multiplier


@given(replies(1))
@settings(max_examples=80, deadline=None)
def test_one_client_changes_a_sum_by_at_most_its_sensitivity(value):
    assert changed(tree.take(value, 0)) <= 1


def test_the_bound_is_reached():
    reply = {"params": torch.full((3,), 9.0), "slope": torch.tensor([0, -50.0, 7])}
    assert changed({**reply, "loss": torch.tensor(1e20)}) == pytest.approx(1, abs=1e-4)


def long_reply(count: int, by: float) -> tuple[Shares, Any, dict[str, Tensor], Any]:
    """A vector at the clip whose numbers are all `by` steps above whole numbers."""
    made = Shares(multiplier=400.0, honest=1, clip=1.0, bounds={"loss": 1.0})
    declared = _ask(1).declared
    like = {name: torch.zeros(count) for name in ("params", "slope")}
    like["loss"] = torch.zeros(())
    scale = made.encoding(declared, like, 4).leaves[-1].scale
    value = (math.floor(scale / math.sqrt(count)) - 1 + by) / scale
    return made, declared, {**like, "slope": torch.full((count,), value).double()}, scale


def test_rounding_makes_no_vector_longer_and_rounding_to_the_nearest_would(monkeypatch):
    """An adversarial update: 100 numbers, all rounded up, are longer than the clip."""
    made, declared, reply, scale = long_reply(100, 0.9)

    def norm() -> float:
        encoding = made.encoding(declared, reply, 4)
        whole = made.integers(encoding, declared, "slope", {"params": reply["params"]}, reply)
        return math.sqrt(sum(n * n for n in whole.tolist()))

    assert 0 < norm() <= float(reply["slope"].norm()) * scale
    monkeypatch.setattr(torch.Tensor, "trunc", torch.Tensor.round)
    assert norm() > float(reply["slope"].norm()) * scale + 0.9


# --- the noise of a sum ---------------------------------------------------------------------------


def _ask(count: int) -> Ask:
    return Ask(asked, MESSAGE, Work(), 0, 0.1, torch.arange(count))


def summed(
    made: ShareRelease, value: dict[str, Tensor], threshold: int = 2, *, verb: str = "sum"
) -> dict[str, Tensor]:
    """What an algorithm is given for these replies, as a simulation computes it."""
    count = len(value["loss"])

    def exchange(ask: Ask) -> Iterator[Replies]:
        for first in range(0, count, 2):
            ids = ask.ids[first : first + 2]
            part = tree.tmap(lambda t: t[first : first + 2], value)  # noqa: B023
            yield Replies(part, ids, torch.ones(len(ids)))

    through, screen = exchange, Screen()
    room = room_of(torch.full((count,), 50))
    secure = Quantised(SecureConfig(enabled=True), threshold, room, made)
    for wrapper in (screen.learn, finite_only, screen, secure, made):
        through = wrapper(through)  # type: ignore[assignment]
    sizes = torch.full((count,), 50)
    more: dict[str, Any] = {"work": Work(), "round": 0, "rate": 0.1, "clients": 16}
    who = Cohort(through, torch.arange(count), sizes, release=made, **more)
    message = {"params": torch.zeros(value["params"].shape[1:])}
    return who.sum(asked, message) if verb == "sum" else who.mean(asked, message)


def nothing(count: int, width: int) -> dict[str, Tensor]:
    zero = torch.zeros(count, width)
    return {"params": zero, "slope": zero.clone(), "loss": torch.zeros(count)}


def enough_noise(seed: int = 3, width: int = 6000, clients: int = 3) -> None:
    """Fails unless the noise of a sum of `clients` replies has the stated standard deviation.

    Of 3 replies the noise of 2 is counted. A client without noise has a third of the variance;
    the test is of 4 standard errors, 3.7 % with 6,000 numbers.
    """
    ledger = Ledger(terms(secret=False))
    got = summed(ShareRelease(ledger, Key.of_seed(seed), SHARES), nothing(clients, width))
    for name in ("params", "slope"):
        stated = ledger.entries[0]["parts"][name]["noise"] * math.sqrt(clients / SHARES.honest)
        assert float(got[name].std()) == pytest.approx(stated, rel=4 / math.sqrt(2 * width))
        assert abs(float(got[name].mean())) < 4 * stated / math.sqrt(width)
    both = torch.stack([got["params"], got["slope"]])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / math.sqrt(width)


def test_the_noise_of_a_sum_has_the_stated_deviation():
    enough_noise()
    enough_noise(seed=4, clients=2)  # the least that is counted on


@pytest.mark.parametrize("fault", ["one client adds none", "all clients draw the same"])
def test_missing_or_repeated_noise_is_caught(monkeypatch, fault):
    def spoilt(key: Key, count: int, *name: Any) -> Tensor:
        first, *asked, client, part = name
        if fault == "one client adds none":
            return discrete_gaussian(key, count, *name) * (client != 1)
        return discrete_gaussian(key, count, first, *asked, part)

    monkeypatch.setattr(shares, "discrete_gaussian", spoilt)
    with pytest.raises(AssertionError):
        enough_noise()


def test_noise_is_never_drawn_twice_in_a_simulation():
    made = ShareRelease(Ledger(terms(secret=False, releases=2)), Key.of_seed(0), SHARES)
    summed(made, nothing(3, 4))
    with pytest.raises(RuntimeError, match="drawn twice"):
        summed(made, nothing(3, 4))


def test_a_participant_draws_new_noise_for_the_same_question(tmp_path, monkeypatch):
    """A planted fault, one key for two replies, is seen as equal noise."""
    head = {"round": 0, "exchange": 0, "phase": "local", "final": False}

    def two() -> list[Tensor]:
        own = OwnShares(PrivacyConfig(level="client"), SHARES, 0, tmp_path / "privacy.json")
        drawn = [own.draw(head) for _ in range(2)]
        return [discrete_gaussian(one.key, 2000, *one.name, "params") for one in drawn]

    assert abs(float(torch.corrcoef(torch.stack(two()))[0, 1])) < 5 / math.sqrt(2000)
    monkeypatch.setattr(Key, "fresh", classmethod(lambda _: Key.of_seed(0)))
    assert float(torch.corrcoef(torch.stack(two()))[0, 1]) == pytest.approx(1)


def test_sums_and_means_are_those_of_clipped_replies():
    """With noise of a millionth of the clip; one reply is clipped, and one is not finite."""
    fine = Shares(multiplier=1e-6, honest=2, clip=0.5, bounds={"loss": 2.0})
    value = nothing(3, 2)
    value["params"] = torch.tensor([[3.0, 4.0], [0.1, -0.2], [math.nan, 1.0]])
    value["loss"] = torch.tensor([1.0, 5.0, -0.5])
    for verb, by in (("sum", 1), ("mean", 3)):
        made = ShareRelease(Ledger(terms(secret=False)), Key.of_seed(0), fine)
        got = summed(made, value, verb=verb)
        wanted = torch.tensor([0.3 + 0.1, 0.4 - 0.2]).double() / by
        torch.testing.assert_close(got["params"].double(), wanted, rtol=0, atol=1e-5)
        assert float(got["loss"]) == pytest.approx(2.5 / by, abs=1e-4)


def test_it_is_counted_as_concentrated_differential_privacy_by_the_library():
    """dp-accounting as the oracle: rho = 1 / (2 z^2) for each of four releases."""
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    from isonomy.privacy.accounting import ORDERS

    ledger = Ledger(terms(secret=False, accountant="rdp"))
    for _ in range(4):
        summed(ShareRelease(ledger, Key.fresh(), SHARES), nothing(3, 4))
    oracle = RdpAccountant(ORDERS)
    oracle.compose(dp_accounting.ZCDpEvent(rho=1 / (2 * 1.5**2)), 4)
    assert ledger.epsilon() == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-9)
    parts = ledger.entries[0]["parts"].values()
    ratio = sum((p["sensitivity"] / p["noise"]) ** 2 for p in parts)
    assert ratio == pytest.approx(1.5**-2, rel=1e-9)


def test_a_participant_sends_nothing_beyond_its_budget(tmp_path):
    head = {"round": 0, "exchange": 0, "phase": "local", "final": False}
    free = OwnShares(PrivacyConfig(level="client"), SHARES, 0, tmp_path / "free.json")
    free.draw(head)
    one = free.count.epsilon()
    options = PrivacyConfig(level="client", epsilon=one * 1.0001)
    own = OwnShares(options, SHARES, 0, tmp_path / "own.json")
    own.draw(head)
    again = OwnShares(options, SHARES, 0, tmp_path / "own.json")  # after a restart
    with pytest.raises(BudgetSpent, match="allows no further replies to be sent"):
        again.draw(head)
    assert json.loads((tmp_path / "own.json").read_text())["epsilon"] == pytest.approx(
        one, rel=1e-5
    )


# --- runs -----------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "data": {"name": "synthetic", "clients": 6},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg"},
    "secure": True,
    "rounds": 4,
    "local": {"steps": 3, "batch": 8},
    "evaluate": {"scores": "never", "bootstrap": 0},
    "checkpoint": {"every": 2},
    "privacy": {"level": "client", "clip": 0.3, "noise": 1.0, "allow": ["evaluation"], "seed": 3},
}


def config(*overrides: str) -> Config:
    found = BASE
    for text in overrides:
        found = merge(found, parse_override(text))
    return parse(found)


def test_a_run_has_noise_and_a_ledger_and_engines_agree(tmp_path: Path) -> None:
    models = []
    for name in ("loop", "batched"):
        api.run(config(f"engine={name}"), tmp_path / name)
        models.append(dict(RunFolder(tmp_path / name).model().server.params))
    for one, other in zip(models[0].values(), models[1].values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    ledger = json.loads((tmp_path / "loop/privacy.json").read_text())
    assert ledger["accountant"] == "rdp"
    assert ledger["releases"][0]["added"] == "in shares by the clients; that of 3 is counted"
    api.run(config("engine=loop", "privacy.seed=4"), tmp_path / "other")
    other = dict(RunFolder(tmp_path / "other").model().server.params)
    moved = torch.cat([(models[0][n] - other[n]).flatten() for n in other])
    assert 0.01 < float(moved.std()) < 1


class Stop(Listener):
    def round(self, done: int, rounds: int, metrics: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt


def test_a_resumed_run_has_the_same_ledger(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    api.run(config(), whole)
    with pytest.raises(KeyboardInterrupt):
        api.run(config(), cut, listeners=[Stop()])
    api.resume(cut)
    for name in ("privacy.json", "rounds.jsonl", "summary.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


def test_a_budget_finds_the_noise_and_is_kept(tmp_path: Path) -> None:
    values = merge(BASE, {"privacy": {"epsilon": 6.0}})
    values["privacy"] = {k: v for k, v in values["privacy"].items() if k != "noise"}
    found = api.run(parse(values), tmp_path / "run")
    assert 5.9 < found.facts["privacy"]["epsilon"] <= 6


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("privacy.clip=adaptive",), "needs a fixed clip"),
    (("privacy.weights=size", "privacy.largest=50"), "weights all clients equally"),
    (("cohort.sampling=poisson", "cohort.size=4"), "counted without sampling"),
    (("secure.bits=20",), "secure.bits has no effect"),
    (("privacy.colluding=4",), "no noise is left to count on"),
    (("privacy.noise=1e-16",), "would not fit into 64 bits"),
    (("algorithm=fedeba",), "needs 'loss' of every client"),
]


@pytest.mark.parametrize(("overrides", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_it_cannot_have_is_refused(overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        api.run(config(*overrides))


def test_an_audit_is_refused() -> None:
    with pytest.raises(ConfigError, match="watches noise that the server adds"):
        audit(config())
