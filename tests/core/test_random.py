"""Draws are pure functions of their key, and have the distributions they say."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.func import vmap

from isonomy.core import random

MASK = 2**64 - 1


def splitmix64(seed: int, count: int) -> list[int]:
    """Steele, Lea and Flood's generator in whole numbers, from its published C code."""
    out = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        out.append(z ^ (z >> 31))
    return out


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def test_mix64_reference_values() -> None:
    """The five outputs that implementations of SplitMix64 are tested with, seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert splitmix64(1234567, 5) == published
    states = torch.tensor([signed((1234567 + i * 0x9E3779B97F4A7C15) & MASK) for i in range(5)])
    assert random.mix64(states).tolist() == [signed(v) for v in published]


@given(st.integers(-(2**63), 2**63 - 1))
def test_mix64_is_splitmix64(seed: int) -> None:
    assert int(random.mix64(torch.tensor(seed))) == signed(splitmix64(seed & MASK, 1)[0])


def test_bits_are_a_splitmix_stream() -> None:
    """`bits` is the generator itself, started where (key, name) hash to."""
    key = random.key(3, 4)
    stream = int(random.mix64(key ^ random.mix64(torch.tensor(random.tag("name")))))
    expected = [signed(v) for v in splitmix64(stream & MASK, 6)]
    assert random.bits(key, "name", (2, 3)).flatten().tolist() == expected


def test_tag_is_the_crc() -> None:
    assert random.tag("123456789") == 0xCBF43926  # the check value of CRC-32


def test_draws_stay_the_same_between_versions() -> None:
    """Numbers kept from this implementation: a change of them changes every run ever made."""
    keys = random.key(0, 1, torch.arange(3))
    assert keys.tolist() == [6348422647138760783, 6015376111871117725, -6025178760540688667]
    assert random.uniform(random.key(0, 1), "coin", (3,)).tolist() == pytest.approx(
        [0.7345368266105652, 0.6925891041755676, 0.4341004490852356], rel=0, abs=0
    )
    order = random.permutation(random.key(0, 1), "batches", torch.tensor(5), 5, 2)
    assert order.tolist() == [[2, 4, 1, 3, 0], [4, 0, 3, 1, 2]]


# --- keys -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_a_key_of_integers_is_that_of_tensors(parts: list[int]) -> None:
    tensors = random.key(*(torch.tensor(part) for part in parts))
    assert random.key(*parts).dtype == torch.int64
    assert random.key(*parts).shape == ()
    assert torch.equal(random.key(*parts), tensors)
    assert torch.equal(random.key(*parts, torch.tensor([3])), random.key(*parts, 3).unsqueeze(0))
    assert torch.equal(random.key(torch.tensor([3]), *parts), random.key(3, *parts).unsqueeze(0))


def test_keys_of_many_clients_are_the_keys_of_each() -> None:
    ids = torch.arange(50)
    together = random.key(3, 9, ids)
    assert together.tolist() == [int(random.key(3, 9, int(k))) for k in ids]
    assert len(set(together.tolist())) == 50


def test_keys_depend_on_every_part_and_its_place() -> None:
    made = [random.key(*p) for p in [(1, 2, 3), (1, 3, 2), (3, 2, 1), (1, 2), (1, 2, 3, 0), (0,)]]
    assert len({int(k) for k in made}) == len(made)


def test_names_and_keys_give_other_draws() -> None:
    a, b = random.key(0, 1), random.key(0, 2)
    draws = [random.uniform(k, n, (200,)) for k in (a, b) for n in ("x", "y")]
    for i in range(4):
        for j in range(i):
            assert abs(float(torch.corrcoef(torch.stack([draws[i], draws[j]]))[0, 1])) < 0.25
            assert not bool((draws[i] == draws[j]).any())


def test_a_longer_draw_begins_like_a_shorter_one() -> None:
    key = random.key(8)
    assert torch.equal(random.uniform(key, "u", (9,))[:4], random.uniform(key, "u", (4,)))


def test_under_vmap_each_lane_draws_its_own() -> None:
    keys = random.key(1, torch.arange(6))

    def draw(key: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = random.permutation(key, "p", torch.tensor(5), 5, 2)
        return random.uniform(key, "u", (3,)), random.normal(key, "z", (3,)), order

    for lanes, alone in zip(
        vmap(draw)(keys), zip(*[draw(k) for k in keys], strict=True), strict=True
    ):
        assert torch.equal(lanes, torch.stack(alone))


# --- distributions --------------------------------------------------------------------------------

MANY = 200_000


def test_uniform_distribution() -> None:
    u = random.uniform(random.key(11), "u", (MANY,)).double()
    assert u.min() > 0
    assert u.max() < 1
    # six standard errors: of a mean sqrt(1/12/n), of a variance about sqrt(1/180/n)
    assert abs(float(u.mean()) - 1 / 2) < 6 * math.sqrt(1 / 12 / MANY)
    assert abs(float(u.var()) - 1 / 12) < 6 * math.sqrt(1 / 180 / MANY)
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4


def test_uniform_over_clients() -> None:
    """The first draw of each of many clients: keys must not be related."""
    u = random.uniform(random.key(11, 0, torch.arange(MANY)), "u").double()
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
    pairs = torch.corrcoef(torch.stack([u[1:], u[:-1]]))[0, 1]
    assert abs(float(pairs)) < 6 / math.sqrt(MANY)


def test_uniform_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([0, -1])  # all bits clear, all bits set
    monkeypatch.setattr(random, "bits", lambda *_: ends)
    assert random.uniform(torch.zeros(()), "u").tolist() == [2.0**-24, 1 - 2.0**-24]
    z = random.normal(torch.zeros(()), "z")
    assert z.tolist() == pytest.approx([-8.2095, 8.2095], abs=1e-3)  # stats.norm.ppf(2**-53)


def test_normal_distribution() -> None:
    z = random.normal(random.key(12), "z", (MANY,)).double()
    assert abs(float(z.mean())) < 6 / math.sqrt(MANY)
    assert abs(float(z.var()) - 1) < 6 * math.sqrt(2 / MANY)
    assert abs(float((z**3).mean())) < 6 * math.sqrt(15 / MANY)
    assert abs(float((z**4).mean()) - 3) < 6 * math.sqrt(96 / MANY)
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-4


# --- permutations ---------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 30), st.integers(1, 4), st.integers(0, 2**31))
def test_permutation_is_one_and_padding_changes_nothing(
    size: int, more: int, count: int, seed: int
) -> None:
    key, n = random.key(seed), torch.tensor(size)
    exact = random.permutation(key, "p", n, size, count)
    assert exact.shape == (count, size)
    assert exact.sort(-1).values.tolist() == [list(range(size))] * count
    padded = random.permutation(key, "p", n, size + more, count + 1)
    assert torch.equal(padded[:count, :size], exact)
    assert padded[:, size:].sort(-1).values.tolist() == [[*range(size, size + more)]] * (count + 1)


def test_permutations_of_clients_of_several_sizes() -> None:
    keys, sizes = random.key(1, torch.arange(3)), torch.tensor([2, 5, 9])
    together = random.permutation(keys, "p", sizes, 9, 4)
    for k, n in enumerate(sizes.tolist()):
        alone = random.permutation(keys[k], "p", sizes[k], n, 4)
        assert torch.equal(together[k, :, :n], alone)


@pytest.mark.parametrize("passes", [1, 3])
def test_numpy_and_torch_sort_alike(passes: int) -> None:
    """Also beside so many positions that they are sorted in another way."""
    keys, sizes = random.key(4, torch.arange(5)), torch.tensor([1, 2, 50, 700, 1000])
    made = random.permutation(keys, "p", sizes, 1000, passes)
    assert torch.equal(made, random.permutation(keys, "p", sizes, 1000, passes, plain=True))
    assert torch.equal(
        made, vmap(lambda k, n: random.permutation(k, "p", n, 1000, passes))(keys, sizes)
    )
    wide = random.permutation(keys[3:], "p", sizes[3:], (1 << 20) + 3, 1, plain=True)
    assert torch.equal(wide[0, :, :700], made[3, :1, :700])
    assert torch.equal(wide[1, :, :1000], made[4, :1])
    assert wide.sort(-1).values[1, 0].tolist() == list(range((1 << 20) + 3))


def test_permutations_are_uniform() -> None:
    """All 24 orders of four, over 24 000 clients and two passes each."""
    keys = random.key(2, torch.arange(24_000))
    orders = random.permutation(keys, "p", torch.full((24_000,), 4), 4, 2)
    code = (orders * torch.tensor([64, 16, 4, 1])).sum(-1)
    for p in (0, 1):
        _, counts = code[:, p].unique(return_counts=True)
        assert len(counts) == 24
        assert stats.chisquare(counts.numpy()).pvalue > 1e-4
    same = (code[:, 0] == code[:, 1]).double().mean()  # passes are independent: 1 in 24
    assert abs(float(same) - 1 / 24) < 6 * math.sqrt(1 / 24 / 24_000)
