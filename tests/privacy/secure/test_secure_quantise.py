"""Replies as integers: errors within half a step, exact sums, and no overflow at the limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isonomy.config.schema import SecureConfig
from isonomy.core import tree
from isonomy.core.phase import Declaration, Part
from isonomy.errors import ConfigError
from isonomy.privacy.secure.quantise import Encoding, GarbledError, room_for

BOTH = Declaration("both", ("mean",), {"params": Part("model"), "loss": Part("statistic")})
MODEL = Declaration("model", ("mean",), {"params": Part("model")})


def reply(numbers: list[float], loss: float | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"params": {"w": torch.tensor(numbers[:2]), "b": torch.tensor(numbers)}}
    return out if loss is None else {**out, "loss": torch.tensor(loss)}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_weighted_mean_is_within_half_a_step(data: Any) -> None:
    clients = data.draw(st.integers(1, 6))
    weights = data.draw(st.lists(st.integers(1, 10**6), min_size=clients, max_size=clients))
    bits = data.draw(st.integers(8, 40))
    given_ = SecureConfig(clip=4.0, bits=bits)
    number = st.floats(-4, 4, width=32)
    own = [
        reply(data.draw(st.lists(number, min_size=3, max_size=3)), data.draw(st.floats(-9e6, 9e6)))
        for _ in range(clients)
    ]
    encoding = Encoding.of(BOTH, own[0], room_for(sum(weights), clients), given_)
    total = sum(
        (encoding.vector(one, w) for one, w in zip(own, weights, strict=True)),
        start=torch.zeros(encoding.length, dtype=encoding.dtype),
    )
    stacked = encoding.summed(tree.stack(own), torch.tensor(weights))
    assert torch.equal(total, stacked)
    found = encoding.decoded(total)
    assert found.total == sum(weights)
    assert found.cut == 0
    want = tree.tmap(lambda t: torch.tensordot(
        torch.tensor(weights, dtype=torch.float64), t.double(), dims=1) / sum(weights),
        tree.stack(own))  # fmt: skip
    step = 4.0 / 2 ** (bits - 1)
    mean = tree.tmap(lambda t: t / found.total, found.value)
    for name in ("w", "b"):
        away = (mean["params"][name] - want["params"][name]).abs().max()
        assert float(away) <= step * (1 + 1e-6)  # 4 itself is a whole step too large
    fine = 63 - encoding.room - 24
    assert abs(float(mean["loss"] - want["loss"])) <= 2.0**-fine / 2 + 1e-9


@pytest.mark.parametrize("bits", [8, 16, 31, 32, 48])
@pytest.mark.parametrize("total", [1, 2, 3, 1000, 2**15, 2**16 - 1])
def test_no_sum_of_the_largest_replies_overflows(bits: int, total: int) -> None:
    """The integers of Python, which have no limit, say what the sum must be."""
    for end in (-1e30, 1e30):
        one = reply([end, end, end], end)
        for declared, own in ((BOTH, one), (MODEL, {"params": one["params"]})):
            room = room_for(total, 1)
            encoding = Encoding.of(declared, own, room, SecureConfig(bits=bits))
            vector = encoding.vector(own, total)
            wanted = [leaf.most for leaf in encoding.leaves for _ in range(math.prod(leaf.shape))]
            sign = int(math.copysign(1, end))
            assert vector.tolist()[:-2] == [sign * most * total for most in wanted]
            assert encoding.decoded(vector).total == total
            assert encoding.decoded(vector).cut == encoding.length - 2


def test_words_are_as_small_as_the_sum_allows() -> None:
    own = {"params": reply([0.0, 1.0, 2.0])["params"]}
    assert Encoding.of(MODEL, own, 12, SecureConfig(bits=20)).word == 32
    assert Encoding.of(MODEL, own, 13, SecureConfig(bits=20)).word == 64
    assert Encoding.of(BOTH, reply([0.0] * 3, 0.0), 2, SecureConfig(bits=8)).word == 64
    assert Encoding.of(MODEL, own, 12, SecureConfig(bits=20)).nbytes == 4 * 7


def test_what_does_not_fit_is_refused() -> None:
    own = {"params": reply([0.0, 1.0, 2.0])["params"]}
    with pytest.raises(ConfigError, match=r"secure\.bits = 48.*'model'.*lower secure\.bits"):
        Encoding.of(MODEL, own, 20, SecureConfig(bits=48))
    with pytest.raises(ConfigError, match=r"secure\.range.*lower secure\.range"):
        Encoding.of(BOTH, reply([0.0] * 3, 0.0), 30, SecureConfig(range=2.0**40))
    with pytest.raises(GarbledError, match="not finite"):
        Encoding.of(MODEL, own, 2, SecureConfig()).vector(tree.tmap(lambda t: t * math.nan, own), 1)
    with pytest.raises(ValueError, match="whole numbers"):
        Encoding.of(MODEL, own, 2, SecureConfig()).summed(tree.stack([own]), torch.tensor([0.5]))


def test_a_sum_that_no_replies_give_is_found() -> None:
    own = reply([0.0, 1.0, 2.0], 3.0)
    encoding = Encoding.of(BOTH, own, 4, SecureConfig())
    good = encoding.vector(own, 5)
    for spoilt in (good + 2**59, -good, torch.full_like(good, -(2**63))):
        with pytest.raises(GarbledError):
            encoding.decoded(spoilt)


@pytest.mark.parametrize(
    ("text", "enabled"),
    [(True, True), (False, False), ({"bits": 20}, True), ({"enabled": False, "bits": 20}, False)],
)
def test_short_forms_of_the_config(text: Any, enabled: bool) -> None:
    assert SecureConfig.model_validate(text).enabled is enabled
