"""Test rows that follow the training rows, and the partition of turned images."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isonomy.data import partition, test_split
from isonomy.data.partition import IMAGE_PARTITIONS, PARTITIONS, Rows, plan
from isonomy.data.test_split import allocate_tested, follow
from isonomy.errors import ConfigError, DataError

NAMES = sorted(set(PARTITIONS) - {"column"})


@st.composite
def divided(draw):
    """Training and test rows with labels, and sometimes groups, that need not be alike."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grouped = draw(st.booleans())

    def rows(n):
        labels = rng.integers(0, draw(st.integers(1, 6)), n)
        return Rows(labels, rng.integers(0, draw(st.integers(1, 3)), n) if grouped else None)

    return rows(draw(st.integers(1, 250))), rows(draw(st.integers(0, 120)))


def cells(rows: Rows) -> list[tuple[int, int]]:
    groups = np.zeros(len(rows), dtype=int) if rows.groups is None else rows.groups
    return list(zip(rows.labels.tolist(), groups.tolist(), strict=True))


def exact(members, train, test):
    """By the definition, in fractions: {cell: share of each client}."""
    held = [[cells(train)[i] for i in part.tolist()] for part in members]
    out = {}
    for cell in set(cells(test)):
        counts = [mine.count(cell) for mine in held]
        if not sum(counts):
            counts = [len(mine) for mine in held]
        out[cell] = [Fraction(c * cells(test).count(cell), sum(counts)) for c in counts]
    return out


@settings(max_examples=150)
@given(
    both=divided(),
    name=st.sampled_from(NAMES),
    clients=st.integers(1, 25),
    seed=st.integers(0, 2**63),
    skew=st.sampled_from([0.001, 0.3, 3.0, 1e4]),
)
def test_every_test_row_once_and_within_one_of_proportion(both, name, clients, seed, skew):
    train, test = both
    assume(clients <= len(train))
    known = {"minimum": 1, "each": 1, "beta": skew, "exponent": min(skew, 9.0)}
    options = {key: v for key, v in known.items() if key in PARTITIONS[name].options}
    members = PARTITIONS[name].function(train, clients, seed, **options)
    parts = follow(members, train, test, seed)
    assert len(parts) == clients
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(test)))
    for cell, shares in exact(members, train, test).items():
        for part, share in zip(parts, shares, strict=True):
            mine = sum(cells(test)[i] == cell for i in part.tolist())
            assert abs(mine - share) < 1
    again = follow(members, train, test, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=300)
@given(
    labels=st.integers(1, 8),
    each=st.integers(1, 12),
    factor=st.integers(1, 5),
    clients=st.integers(1, 20),
    seed=st.integers(0, 2**63),
)
def test_an_even_deal_has_even_test_sets(labels, each, factor, clients, seed):
    """Labels as frequent in test as in training, rows dealt at random in equal numbers."""
    test = np.repeat(np.arange(labels), each)
    train = np.repeat(test, factor)
    assume(clients <= len(train))
    rows, tested = Rows(train), Rows(test)
    members = partition.iid(rows, clients, seed, minimum=1)
    sizes = [len(part) for part in follow(members, rows, tested, seed)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("clients", [2, 3, 7, 10, 30, 64, 100])
def test_digits_dealt_evenly_are_tested_evenly(clients):
    """MNIST's own counts of labels, which differ between training and test."""
    train = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    test = np.repeat(np.arange(10), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    for seed in range(5):
        rows = Rows(train)
        members = partition.iid(rows, clients, seed)
        sizes = [len(part) for part in follow(members, rows, Rows(test), seed)]
        assert max(sizes) - min(sizes) <= (0 if 10_000 % clients == 0 else 1)


def test_by_hand():
    train = Rows(np.array([0] * 8 + [1] * 4))
    test = Rows(np.array([0, 0, 0, 0, 1, 1, 2, 2, 2]))
    members = [torch.arange(0, 6), torch.tensor([6, 7, 8, 9, 10, 11])]
    one, two = follow(members, train, test, seed=3)
    # label 0: 6 and 2 of 8 give 3 and 1 of 4; label 1 is all the second's;
    # label 2 is nobody's, and 1.5 each: the one with 3 so far has one less to come
    counts = [np.bincount(test.labels[p.numpy()], minlength=3).tolist() for p in (one, two)]
    assert counts[0][:2] == [3, 0]
    assert counts[1][:2] == [1, 2]
    assert sorted([counts[0][2], counts[1][2]]) == [1, 2]


def test_literal_parts():
    """So that a seed means the same test rows tomorrow and elsewhere."""
    train, test = Rows(np.arange(30) % 3), Rows(np.arange(11) % 3)
    members = partition.dirichlet(train, 3, 0, minimum=2)
    assert [part.tolist() for part in follow(members, train, test, 0)] == LITERAL


LITERAL = [[0, 3, 5, 6, 9], [2, 8], [1, 4, 7, 10]]


def test_groups_are_followed_too():
    labels = np.zeros(40, dtype=np.int64)
    groups = np.repeat([0, 1], 20)
    rows = Rows(labels, groups)
    members = [torch.arange(0, 20), torch.arange(20, 40)]
    one, two = follow(members, rows, Rows(labels[::2], groups[::2]), seed=0)
    assert one.tolist() == list(range(10))
    assert two.tolist() == list(range(10, 20))


def test_seeds_choose_other_rows():
    rows, test = Rows(np.zeros(100, dtype=np.int64)), Rows(np.zeros(50, dtype=np.int64))
    members = partition.iid(rows, 5, 0)
    one, two = (follow(members, rows, test, seed) for seed in (0, 1))
    assert [len(p) for p in one] == [len(p) for p in two] == [10] * 5
    assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_who_gets_the_odd_row_is_drawn():
    rows, test = Rows(np.zeros(40, dtype=np.int64)), Rows(np.zeros(1, dtype=np.int64))
    members = partition.iid(rows, 4, 0)
    lucky = {[len(p) for p in follow(members, rows, test, seed)].index(1) for seed in range(40)}
    assert lucky == {0, 1, 2, 3}


def test_totals_are_mended_by_moving_through_others():
    """A unit can only get from the first client to the last through the one between them."""
    up = np.array([[True, False], [False, True], [False, False]])
    broken = np.array([[True, False], [True, True], [False, True]])
    assert not test_split._moved(up, broken, np.array([0.5, 0.0, -0.5]))
    assert test_split._moved(up, broken, np.array([1.0, 0.0, -1.0]))
    assert up.tolist() == [[False, False], [True, False], [False, True]]
    assert not test_split._moved(up, broken, np.array([1.0, 0.0, -1.0]))  # it has none to give


def test_allocate_tested():
    labels, test = np.arange(600) % 3, np.arange(90) % 3
    parts, names = allocate_tested(
        Rows(labels), Rows(test), *plan("iid"), clients=6, seed=4, validation=0.25
    )
    assert names == tuple(f"client {k}" for k in range(6))
    assert [len(p) for p in parts["train"]] == [75] * 6
    assert [len(p) for p in parts["validation"]] == [25] * 6
    assert [len(p) for p in parts["test"]] == [15] * 6
    trained = torch.cat([*parts["train"], *parts["validation"]])
    assert torch.equal(trained.sort().values, torch.arange(600))
    assert torch.equal(torch.cat(parts["test"]).sort().values, torch.arange(600, 690))
    for train, valid in zip(parts["train"], parts["validation"], strict=True):
        share = np.bincount(labels[valid]) / np.bincount(labels[torch.cat([train, valid])])
        assert np.abs(share - 0.25).max() < 0.05  # stratified
    whole, _ = allocate_tested(Rows(labels), Rows(test), *plan("iid"), clients=6, seed=4)
    assert [len(p) for p in whole["validation"]] == [0] * 6
    for validation in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="at least 0 and below 1"):
            allocate_tested(
                Rows(labels), Rows(test), *plan("iid"), clients=6, seed=4, validation=validation
            )


def test_no_rows_to_share_out():
    none = Rows(np.zeros(0, dtype=np.int64))
    with pytest.raises(DataError, match="no rows"):
        allocate_tested(none, none, *plan("iid"), clients=1, seed=0)


# --- rotations -----------------------------------------------------------------------------------


def test_rotations_deal_rows_as_iid_does():
    rows = Rows(np.arange(100) % 10)
    entry = IMAGE_PARTITIONS["rotations"]
    parts = entry.function(rows, 0, 5, degrees=(0, 45), counts=(3, 2))
    assert [p.tolist() for p in parts] == [p.tolist() for p in partition.iid(rows, 5, 5)]
    assert entry.angles(degrees=(0, 45), counts=(3, 2), minimum=1) == (0, 0, 0, 45, 45)
    assert entry.counts
    assert "rotations" not in PARTITIONS


def test_rotations_name_the_angle():
    chosen = plan({"name": "rotations", "counts": [1, 2, 1]}, IMAGE_PARTITIONS)
    rows = Rows(np.arange(100) % 10)
    _, names = allocate_tested(rows, rows, *chosen, clients=0, seed=0)
    assert names == (
        "client 0, 0 degrees",
        "client 1, 90 degrees",
        "client 2, 90 degrees",
        "client 3, 180 degrees",
    )


@pytest.mark.parametrize(
    ("options", "clients", "words"),
    [
        ({}, 9, r"counts \[7, 2, 1\] make 10 clients, not 9"),
        ({"degrees": [0.0, 90.0]}, 0, "2 degrees and 3 counts"),
        ({"degrees": [], "counts": []}, 0, "0 degrees and 0 counts"),
        ({"degrees": [0, 90, 360]}, 0, "every cluster a different angle"),
        ({"degrees": [0, 90, float("nan")]}, 0, "finite numbers"),
        ({"counts": [7, 2, 0]}, 0, "give every cluster 1 client or more"),
        ({"counts": [7, 2, 1.5]}, 0, "give a list of whole numbers"),
        ({"counts": [7, 2, True]}, 0, "give a list of whole numbers"),
        ({"degrees": ["a", 0, 1]}, 0, "give a list of numbers"),
    ],
)
def test_rotations_refused(options, clients, words):
    rows = Rows(np.arange(1000) % 10)

    def use():
        chosen = plan({"name": "rotations", **options}, IMAGE_PARTITIONS)
        allocate_tested(rows, rows, *chosen, clients=clients, seed=0)

    with pytest.raises(ConfigError, match=words) as error:
        use()
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_options_of_rotations_have_meanings():
    entry = IMAGE_PARTITIONS["rotations"]
    assert list(entry.options) == ["degrees", "counts", "minimum"]
    assert all(option.meaning for option in entry.options.values())
