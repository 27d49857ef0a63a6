"""What one client can change, whatever it replies, and the noise that covers it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.errors import ConfigError
from isonomy.privacy import clipping
from isonomy.privacy import release as release_module
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.ledger import BudgetSpent, Ledger
from isonomy.privacy.noise import Key
from isonomy.privacy.release import COUNT, PACE, WEIGHT
from privacy.exchanges import EXPECTED, asked, cohort, release, terms, weighed

ORIGIN = torch.tensor([0.3, -0.2, 0.1])
MESSAGE = {"params": ORIGIN}
ANY = st.one_of(
    st.floats(-3, 3, width=32),
    st.floats(allow_nan=True, allow_infinity=True, width=32),
)


def replies(count: int) -> st.SearchStrategy[dict[str, Tensor]]:
    each = arrays(np.float32, (count, 7), elements=ANY)
    return each.map(
        lambda a: {
            "params": torch.tensor(a[:, :3]),
            "slope": torch.tensor(a[:, 3:6]),
            "loss": torch.tensor(a[:, 6]),
        }
    )


def without_last(value: dict[str, Tensor]) -> dict[str, Tensor]:
    return tree.tmap(lambda t: t[:-1], value)


def normalised(made: Any, key: str, difference: float) -> float:
    """A change of a part in units of the noise's sensitivity."""
    scale = made._at[False, 0][key]
    return difference * made.terms.multiplier / scale.noise


def changed(value: dict[str, Tensor], how: str, *, adaptive: bool, by_size: bool) -> float:
    """The norm of what the last client changes in the vector of an exchange (at most 1)."""
    found = []
    for replied in (value, without_last(value)):
        ledger = Ledger(terms())
        made = release(ledger, clip=None if adaptive else 0.5, largest=50 if by_size else None)
        if not adaptive:
            made._clip = 0.5
        who = cohort(made, replied)
        if how == "sum":
            got = who.sum(asked, MESSAGE)
            got["params"] = got["params"] - EXPECTED * ORIGIN  # public
        else:
            weights: list[float] = []
            plain = made._moved

            def seen(
                ask: Any, name: str, folded: Any, total: float, largest: float, count: float = 1.0
            ) -> Any:
                weights.append(total)  # noqa: B023
                return {"folded": folded}

            made._moved = seen  # type: ignore[method-assign]
            got = who.mean(asked, MESSAGE, weight="size" if by_size else "equal")
            got = {name: inner["folded"] for name, inner in got.items()}
            made._moved = plain  # type: ignore[method-assign]
            if by_size:
                got[WEIGHT] = torch.tensor(
                    float(made.size_weights(torch.arange(len(replied["loss"]))).sum())
                )
            else:
                assert weights == [EXPECTED] * 3  # the expected number, whoever takes part
        for name, clip in ledger.clips.items():
            part = name.split(".")[1]
            before = made._at[False, 0][part].clip
            share = 0.5 - math.log(clip / before) / PACE
            got[f"{COUNT}: {part}"] = torch.tensor(share * EXPECTED)
        found.append((got, made))
    (one, made), (other, _) = found
    moved = [
        normalised(made, name, float((one[name].double() - other[name].double()).norm()))
        for name in one
    ]
    return math.sqrt(sum(d**2 for d in moved))


@given(replies(3), st.sampled_from(["sum", "mean"]), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_one_client_changes_a_release_by_at_most_its_sensitivity(value, how, adaptive, by_size):
    assert changed(value, how, adaptive=adaptive, by_size=by_size and how == "mean") <= 1 + 1e-5


def test_the_bound_is_reached():
    far = {"params": torch.full((3, 3), 100.0), "slope": torch.full((3, 3), -100.0)}
    value = {**far, "loss": torch.full((3,), 100.0)}
    assert changed(value, "sum", adaptive=False, by_size=False) == pytest.approx(1, abs=1e-4)
    assert changed(value, "sum", adaptive=True, by_size=False) == pytest.approx(1, abs=1e-4)


def test_clipping_after_the_sum_is_caught(monkeypatch):
    def of_the_sum(rows: Tensor, clip: float) -> clipping.Clipped:
        whole = clipping.clip_rows(rows.sum(0, keepdim=True), clip).rows
        return clipping.Clipped(rows * (whole.norm() / rows.sum(0).norm()), rows.norm(dim=1))

    monkeypatch.setattr(release_module, "clip_rows", of_the_sum)
    opposed = torch.tensor([[9.0, 0, 0], [-20.0, 0, 0]])  # the last client turns the sum around
    value = {"params": ORIGIN + opposed, "slope": opposed, "loss": opposed[:, 0]}
    assert changed(value, "sum", adaptive=False, by_size=False) == pytest.approx(2, abs=0.01)


@given(replies(3))
@settings(max_examples=40, deadline=None)
def test_each_gathered_reply_is_clipped_and_changes_alone(value):
    made = release(Ledger(terms(secret=False)))
    got = cohort(made, value).gather(asked, MESSAGE).value
    assert (got["params"] - ORIGIN).norm(dim=1).max() <= 0.5 + 1e-6
    assert got["slope"].norm(dim=1).max() <= 0.5 + 1e-6
    assert got["loss"].abs().max() <= 2 + 1e-6


@given(replies(3), st.lists(st.floats(0, 5), min_size=3, max_size=3))
@settings(max_examples=40, deadline=None)
def test_public_weights_scale_the_noise(value, weights):
    """The noise of a mean with given weights covers the client with the largest weight."""
    made = release(Ledger(terms(secret=False)))
    scales = []
    plain = made._noised
    made._noised = lambda ask, name, folded, weight: (
        scales.append(weight)
        or plain(  # type: ignore
            ask, name, folded, weight
        )
    )
    given_weights = torch.tensor(weights, dtype=torch.float64)
    got = cohort(made, value).mean(asked, MESSAGE, weight=given_weights)
    total = float(given_weights.sum())
    if total > 0:
        assert scales == [float(given_weights.max())] * 3
        assert float((got["params"] - ORIGIN).norm()) <= 0.5 + 1e-6


@given(replies(1))
@settings(max_examples=40, deadline=None)
def test_a_participant_sends_nothing_longer_than_the_clip(value):
    """Client side, whatever the phase replies; the server's clip then changes it by rounding."""
    own = {**tree.take(value, 0), "count": torch.tensor([30, 40])}

    @phase("sum", params="model", slope="gradient", loss="statistic", count="statistic")
    def spoilt(task, message, client):
        return own, ()

    ask = Ask(spoilt, MESSAGE, Work(), 0, 0.1, torch.tensor([0]))
    side = clipping.ClippedReplies(0.5, {"loss": 2.0, "count": 10.0})
    got = side(ask, spoilt)(None, MESSAGE, None)[0]
    assert (got["params"] - ORIGIN).norm() <= 0.5 + 1e-6
    assert got["slope"].norm() <= 0.5 + 1e-6
    assert got["loss"].abs() <= 2 + 1e-6
    assert got["count"].tolist() == [5, 7]  # of the norm 10 in the same direction, rounded down
    if own["slope"].isfinite().all() and own["slope"].norm() < 0.49:
        assert torch.equal(got["slope"], own["slope"])


def test_tilted_weights_use_what_was_noised():
    value = {"params": ORIGIN + torch.eye(3), "loss": torch.tensor([0.1, 1.0, 9.0])}
    made = release(Ledger(terms(secret=False)))
    tilt = {"params": lambda seen: 3 * seen["loss"]}
    got = cohort(made, value).weigh(weighed, MESSAGE, seen=("loss",), tilt=tilt)
    assert got.seen.value["loss"].tolist() == pytest.approx([0.1, 1.0, 2.0], abs=1e-5)
    p = torch.softmax(3 * torch.tensor([0.1, 1.0, 2.0]), 0)
    torch.testing.assert_close(got.mean["params"], ORIGIN + 0.5 * p, rtol=1e-4, atol=1e-5)


def drawn(verb: str, rounds: int = 400) -> dict[str, Tensor]:
    """The noise of many exchanges whose replies are zero, in units of its standard deviation."""
    key, found = Key.of_seed(5), []
    value = {"params": ORIGIN.expand(3, 3), "slope": torch.zeros(3, 3), "loss": torch.zeros(3)}
    for round in range(rounds):
        made = release(Ledger(terms(secret=False)), key)
        who = cohort(made, value, round=round)
        got = who.sum(asked, MESSAGE) if verb == "sum" else who.gather(asked, MESSAGE).value
        base = (3 if verb == "sum" else 1) * ORIGIN
        got = {**got, "params": got["params"] - base}
        found.append({k: v.double() / made._at[False, 0][k].noise for k, v in got.items()})
    return tree.stack(found)


@pytest.mark.parametrize("verb", ["sum", "gather"])
def test_noise_has_the_stated_deviation_and_is_independent(verb):
    noise = drawn(verb)
    for part in noise.values():
        flat = part.reshape(len(part), -1)
        assert float(flat.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * flat.numel()))
        assert abs(float(flat.mean())) < 4 / math.sqrt(flat.numel())
    rows = torch.cat([part.reshape(len(part), -1) for part in noise.values()], 1)
    correlations = torch.corrcoef(rows.T)
    correlations.fill_diagonal_(0)
    assert float(correlations.abs().max()) < 5 / math.sqrt(len(rows))
    later = torch.corrcoef(torch.stack([rows[:-1, 0], rows[1:, 0]]))
    assert abs(float(later[0, 1])) < 5 / math.sqrt(len(rows))


def test_the_parts_share_one_mechanism():
    """The sum of squared sensitivities over noise is 1 / z^2: what the ledger charges."""
    for clip in (None, 0.5):
        ledger = Ledger(terms())
        made = release(ledger, clip=clip, largest=50)
        value = {"params": ORIGIN.expand(3, 3), "slope": torch.zeros(3, 3), "loss": torch.zeros(3)}
        cohort(made, value).mean(asked, MESSAGE)
        parts = ledger.entries[0]["parts"].values()
        ratio = sum((p["sensitivity"] / p["noise"]) ** 2 for p in parts)
        assert ratio == pytest.approx(1.5**-2, rel=1e-9)


def test_noise_is_never_drawn_twice():
    value = {"params": ORIGIN.expand(3, 3), "slope": torch.zeros(3, 3), "loss": torch.zeros(3)}
    made = release(Ledger(terms(releases=2)), Key.of_seed(0))
    who = cohort(made, value)
    first, second = who.sum(asked, MESSAGE), who.sum(asked, MESSAGE)
    assert not torch.equal(first["slope"], second["slope"])  # another exchange, other noise
    with pytest.raises(RuntimeError, match="drawn twice"):
        cohort(made, value).sum(asked, MESSAGE)  # the same round and exchange again


def test_nobody_drawn_releases_noise_only():
    value = {"params": ORIGIN.expand(1, 3) + 9, "slope": torch.ones(1, 3), "loss": torch.ones(1)}
    made = release(Ledger(terms()), empty=True, clip=None)
    got = cohort(made, value).mean(asked, MESSAGE)
    assert torch.equal(got["params"], ORIGIN)
    assert not got["slope"].any()
    made = release(Ledger(terms()), Key.of_seed(1), empty=True)
    got = cohort(made, value).mean(asked, MESSAGE)
    assert got["slope"].abs().min() > 0


def test_secret_cohorts_refuse_what_tells_who_took_part():
    value = {"params": ORIGIN.expand(3, 3), "slope": torch.zeros(3, 3), "loss": torch.zeros(3)}
    with pytest.raises(ConfigError, match="depends on who takes part"):
        cohort(release(Ledger(terms())), value).gather(asked, MESSAGE)
    weight = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(ConfigError, match="different weights"):
        cohort(release(Ledger(terms())), value).mean(asked, MESSAGE, weight=weight)


def test_sizes_do_not_reach_the_algorithm():
    value = {"params": ORIGIN.expand(3, 3), "slope": torch.zeros(3, 3), "loss": torch.zeros(3)}
    who = cohort(release(Ledger(terms(secret=False))), value)
    assert who.sizes.tolist() == [1, 1, 1]
    assert who.gather(asked, MESSAGE).sizes.tolist() == [1, 1, 1]


def test_ledger_counts_a_round_of_a_secret_cohort_as_one_event():
    ledger = Ledger(terms(2.0, releases=2))
    for _ in range(3):
        for _ in range(2):
            ledger.charge(torch.arange(3), 2.0, {}, final=False)
        ledger.close_round()
    ledger.charge(torch.arange(16), 2.0, {}, final=True)
    events = {Event(2.0 / math.sqrt(2), EXPECTED / 16): 3, Event(2.0): 1}
    assert ledger.epsilon() == pytest.approx(epsilon(events, 1e-5), rel=1e-12)
    assert len(ledger.entries) == 7


def test_ledger_counts_the_most_asked_client_of_known_cohorts():
    ledger = Ledger(terms(2.0, secret=False))
    for ids in ([0, 1], [1, 2], [1, 3]):
        ledger.charge(torch.tensor(ids), 2.0, {}, final=False)
        ledger.close_round()
    assert ledger.epsilon() == pytest.approx(epsilon({Event(2.0): 3}, 1e-5), rel=1e-9)
    each = ledger.plain()["clients"]
    assert next(iter(each)) == "1"
    assert list(each.values()) == sorted(each.values(), reverse=True)
    assert each["4"] == 0


def test_a_release_beyond_the_budget_is_not_computed():
    budget = epsilon({Event(2.0): 2}, 1e-5)
    ledger = Ledger(terms(2.0, secret=False, budget=budget))
    for _ in range(2):
        ledger.charge(torch.arange(16), 2.0, {}, final=False)
    before = ledger.saved()
    with pytest.raises(BudgetSpent, match="allows no further release"):
        ledger.charge(torch.arange(16), 2.0, {}, final=False)
    assert ledger.saved() == before
    ledger = Ledger(terms(2.0, budget=epsilon({Event(2.0, 0.25): 3}, 1e-5), rounds=3))
    for _ in range(3):
        ledger.charge(torch.arange(3), 2.0, {}, final=False)
        ledger.close_round()
    with pytest.raises(BudgetSpent):
        ledger.charge(torch.arange(3), 2.0, {}, final=False)


def test_a_restored_ledger_continues():
    one, other = Ledger(terms(2.0)), Ledger(terms(2.0))
    for ledger in (one, other):
        ledger.clips["local.params"] = 0.25
        ledger.charge(torch.arange(3), 2.0, {"round": 1}, final=False)
        ledger.close_round()
    other.restore(one.saved())
    for ledger in (one, other):
        ledger.charge(torch.arange(3), 2.0, {"round": 2}, final=False)
        ledger.close_round()
        ledger.mark(2)
    assert one.plain() == other.plain()
    assert one.saved() == other.saved()


def test_adaptive_clip_follows_the_median():
    norms = torch.tensor([0.2, 0.4, 0.9, 1.3, 3.0])
    ledger = Ledger(terms(0.5, secret=False, rounds=1000))
    value = {"params": ORIGIN + norms.unsqueeze(1) * torch.tensor([1.0, 0, 0])}
    value |= {"slope": torch.zeros(5, 3), "loss": torch.zeros(5)}
    for round in range(300):
        made = release(ledger, Key.of_seed(2), clip=None)
        cohort(made, value, round=round).sum(asked, MESSAGE)
    assert 0.5 < ledger.clips["asked.params"] < 1.6
