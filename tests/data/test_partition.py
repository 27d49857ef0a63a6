import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from isonomy.data import partition
from isonomy.data.partition import PARTITIONS, Categories, Rows, allocate, plan, split
from isonomy.errors import ConfigError, DataError

NAMES = sorted(set(PARTITIONS) - {"column"})


@st.composite
def tables(draw):
    n = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(0, draw(st.integers(1, 6)), n)
    groups = rng.integers(0, draw(st.integers(1, 4)), n)
    levels = tuple("abcde"[: draw(st.integers(1, 5))])
    return Rows(labels, groups, {"c": Categories(rng.integers(0, len(levels), n), levels)})


def covers(parts, n):
    return torch.equal(torch.cat(parts).sort().values, torch.arange(n))


@settings(max_examples=60, deadline=None)
@given(
    rows=tables(),
    name=st.sampled_from(NAMES),
    clients=st.integers(1, 30),
    minimum=st.integers(1, 8),
    seed=st.integers(0, 2**63),
    skew=st.sampled_from([0.001, 0.3, 3.0, 1e4]),
    by=st.sampled_from(["label", "group", "label*group"]),
)
def test_every_row_once_and_the_minimum(rows, name, clients, minimum, seed, skew, by):
    assume(clients * minimum <= len(rows))
    options = {"minimum": minimum, "each": 1, "beta": skew, "exponent": min(skew, 9.0), "by": by}
    options = {key: value for key, value in options.items() if key in PARTITIONS[name].options}
    parts = PARTITIONS[name].function(rows, clients, seed, **options)
    assert len(parts) == clients
    assert covers(parts, len(rows))
    assert min(len(part) for part in parts) >= minimum
    assert all(torch.equal(part, part.sort().values) for part in parts)
    again = PARTITIONS[name].function(rows, clients, seed, **options)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))


@settings(max_examples=60, deadline=None)
@given(rows=tables(), minimum=st.integers(1, 60))
def test_by_column(rows, minimum):
    assume(minimum <= len(rows))
    parts = partition.by_column(rows, 0, 0, column="c", minimum=minimum)
    names = partition.column_names(rows, "c", minimum)
    assert len(parts) == len(names) == len(set(names))
    assert covers(parts, len(rows))
    assert min(len(part) for part in parts) >= minimum
    values = rows.columns["c"]
    for part, name in zip(parts, names, strict=True):
        if name in values.levels:
            assert {values.levels[v] for v in values.codes[part.numpy()]} == {name}


@settings(max_examples=100, deadline=None)
@given(
    rows=tables(),
    seed=st.integers(0, 2**63),
    weights=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
)
def test_split(rows, seed, weights):
    fractions = [w / sum(weights) for w in weights]
    index = torch.arange(len(rows))
    parts = split(index, rows.labels, rows.groups, fractions, seed)
    assert covers(list(parts.values()), len(rows))
    assert len(parts["train"]) >= 1
    again = split(index, rows.labels, rows.groups, fractions, seed)
    assert all(torch.equal(parts[name], again[name]) for name in parts)
    cells = rows.cells("label*group")
    for name, fraction in zip(parts, fractions, strict=True):
        assert abs(len(parts[name]) - fraction * len(rows)) <= 1.5
        counts = np.bincount(cells[parts[name].numpy()], minlength=cells.max() + 1)
        assert np.abs(counts - fraction * np.bincount(cells)).max() <= 3


def test_seeds_differ():
    rows = Rows(np.arange(300) % 3, np.arange(300) % 2)
    for name in NAMES:
        function = PARTITIONS[name].function
        one, two = (function(rows, 3, seed, minimum=5) for seed in (1, 2))
        assert any(not torch.equal(a, b) for a, b in zip(one, two, strict=True))
    one, two = (split(torch.arange(300), rows.labels, None, (0.5, 0.25, 0.25), s) for s in (1, 2))
    assert not torch.equal(one["test"], two["test"])


def test_literal_parts():
    """So that a seed means the same clients tomorrow and elsewhere."""
    rows = Rows(np.arange(12) % 3, np.arange(12) % 2)
    found = {
        name: [p.tolist() for p in PARTITIONS[name].function(rows, 3, 0, minimum=2)]
        for name in NAMES
    }
    assert found == LITERAL


LITERAL = {
    "dirichlet": [[0, 3, 5, 6, 9], [2, 8, 11], [1, 4, 7, 10]],
    "iid": [[5, 7, 9, 11], [0, 1, 6, 8], [2, 3, 4, 10]],
    "power_law": [[5, 6, 7, 8, 9, 11], [0, 1, 3], [2, 4, 10]],
    "shards": [[0, 1, 3, 7], [2, 5, 8, 11], [4, 6, 9, 10]],
    "uneven": [[3, 4, 6, 8, 9, 11], [1, 5, 7], [0, 2, 10]],
    "windows": [[0, 1, 3, 5, 10], [6, 8, 9, 11], [2, 4, 7]],
}


def test_windows():
    """Client k sees the labels k to k + 4 modulo 10, and sizes spread as the lognormal does."""
    rows = Rows(np.arange(20_000) % 10)
    parts = partition.windows(rows, 200, 0)
    for k, part in enumerate(parts):
        assert set(rows.labels[part.numpy()]) <= {(k + i) % 10 for i in range(5)}
    sizes = np.array([len(part) for part in parts])
    assert sizes.sum() == 20_000
    assert 0.5 < sizes.std() / sizes.mean() < 1.6  # of lognormal(3, 1) + 10: about 1
    alike = partition.windows(rows, 200, 0, spread=0.0, skew=0.0)
    assert {len(part) for part in alike} == {100}
    for option in ("spread", "skew"):
        with pytest.raises(ConfigError, match=option):
            partition.windows(rows, 200, 0, **{option: -1.0})
    with pytest.raises(ConfigError, match="each"):
        partition.windows(rows, 200, 0, each=0)


def test_a_label_in_nobodys_window_is_shared_by_size():
    rows = Rows(np.arange(300) % 10)
    parts = partition.windows(rows, 2, 0, each=3)
    assert sum(len(part) for part in parts) == 300
    assert all(9 in rows.labels[part.numpy()] for part in parts)


def test_power_law_sizes():
    rows = Rows(np.zeros(1000, dtype=np.int64))
    parts = partition.power_law(rows, 4, 0, exponent=1.0, minimum=10)
    # 10 + 960 * (1, 1/2, 1/3, 1/4) / (25/12) = 470.8, 240.4, 163.6, 125.2
    assert [len(part) for part in parts] == [471, 240, 164, 125]
    assert [len(p) for p in partition.power_law(rows, 4, 0, exponent=0.0)] == [250] * 4
    assert [len(p) for p in partition.iid(rows, 3, 0)] == [334, 333, 333]


def test_dirichlet_limits():
    labels = np.repeat([0, 1, 2, 3], 250)
    even = partition.dirichlet(Rows(labels), 5, 0, beta=1e9)
    assert all(np.bincount(labels[p.numpy()]).tolist() == [50] * 4 for p in even)
    skewed = partition.dirichlet(Rows(labels), 5, 0, beta=1e-6, minimum=1)
    sizes = sorted(len(p) for p in skewed)
    assert sizes[-1] >= 248  # a label sits at one client, but for what fills up the others
    assert sizes[0] == 1


def test_dirichlet_by_group_keeps_labels_of_a_group_together():
    rng = np.random.default_rng(0)
    groups, labels = np.repeat([0, 1], 5000), rng.integers(0, 2, 10000)
    parts = partition.dirichlet(Rows(labels, groups), 4, 3, beta=0.5, by="group")
    for part in parts:
        index = part.numpy()
        for g in (0, 1):
            mine = labels[index][groups[index] == g]
            assert len(mine) < 200 or abs(mine.mean() - 0.5) < 0.1


def test_uneven_mixes_are_centred_on_the_whole():
    labels = (np.arange(20000) % 4 == 0).astype(np.int64)
    close = partition.uneven(Rows(labels), 8, 0, beta=1e9)
    assert all(abs(labels[p.numpy()].mean() - 0.25) < 0.01 for p in close)
    spread = partition.uneven(Rows(labels), 8, 0, beta=2.0)
    assert np.std([labels[p.numpy()].mean() for p in spread]) > 0.1
    assert [len(p) for p in close] == [len(p) for p in spread]


def test_shards_hold_few_labels():
    labels = np.repeat(np.arange(10), 60)
    parts = partition.shards(Rows(labels), 10, 0, each=2)
    assert all(len(p) == 60 for p in parts)
    assert all(len(set(labels[p.numpy()])) <= 2 for p in parts)


def test_column_joins_the_rare():
    codes = np.repeat([0, 1, 2, 3], [30, 4, 20, 3])
    rows = Rows(codes, None, {"state": Categories(codes, ("CA", "NV", "OR", "WY"))})
    assert partition.column_names(rows, "state", 5) == ("CA", "OR", "NV or WY")
    assert partition.column_names(rows, "state", 10) == ("CA", "NV or OR or WY")
    assert partition.column_names(rows, "state", 3) == ("CA", "NV", "OR", "WY")
    with pytest.raises(DataError, match="makes 3 clients of at least 5 rows, not 4"):
        partition.by_column(rows, 4, 0, column="state", minimum=5)


@pytest.mark.parametrize("name", NAMES)
def test_impossible(name):
    rows = Rows(np.arange(20) % 2, np.arange(20) % 2)
    with pytest.raises(DataError, match=r"21 clients .* need 21 rows and there are 20"):
        PARTITIONS[name].function(
            rows, 21, 0, minimum=1, **({"each": 1} if name == "shards" else {})
        )
    with pytest.raises(DataError, match="fewer clients or a lower minimum"):
        PARTITIONS[name].function(rows, 5, 0, minimum=5)
    with pytest.raises(ConfigError, match="1 or more"):
        PARTITIONS[name].function(rows, 0, 0)
    with pytest.raises(ConfigError, match="1 row or more"):
        PARTITIONS[name].function(rows, 2, 0, minimum=0)


def test_shards_of_different_counts():
    """Sorted labels in ten shards of one label each; clients have 1, 2, 2, 2 and 3 of them."""
    labels = np.arange(200) % 10
    parts = partition.shards(Rows(labels), 5, 0, counts=(1, 2, 2, 2, 3))
    assert [len(set(labels[p.numpy()])) for p in parts] == [1, 2, 2, 2, 3]
    assert sorted(np.concatenate(parts)) == list(range(200))
    with pytest.raises(ConfigError, match="counts has 2 numbers for 5 clients"):
        partition.shards(Rows(labels), 5, 0, counts=(1, 2))
    with pytest.raises(ConfigError, match=r"counts is \[0, 2\]"):
        partition.shards(Rows(labels), 2, 0, counts=(0, 2))


def test_counts_of_shards_can_be_given_in_a_config():
    """Their default is an empty list, which does not tell the type of its items."""
    found, options = plan({"name": "shards", "counts": [1, 2, 2]})
    assert options["counts"] == (1, 2, 2)
    parts = found.function(Rows(np.arange(100) % 5), 3, 0, **options)
    assert [len(p) for p in parts] == [20, 40, 40]
    with pytest.raises(ConfigError, match=r"counts = \['a'\] .* give a list of whole numbers"):
        plan({"name": "shards", "counts": ["a"]})


def test_shards_that_do_not_reach_the_minimum():
    with pytest.raises(DataError, match="as few as 4 rows"):
        partition.shards(Rows(np.arange(29) % 2), 5, 0, each=2, minimum=5)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dirichlett", "Did you mean 'dirichlet'"),
        ({"name": "dirichlet", "bata": 1}, "Did you mean 'beta'"),
        ({"name": "dirichlet", "beta": "much"}, "give a number"),
        ({"name": "iid", "minimum": 2.5}, "give a whole number"),
        ({"beta": 0.5}, "has no name"),
    ],
)
def test_bad_specifications(spec, words):
    with pytest.raises(ConfigError, match=words):
        plan(spec)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: partition.dirichlet(r, 2, 0, beta=0.0), "beta is 0.0"),
        (lambda r: partition.dirichlet(r, 2, 0, beta=float("nan")), "beta is nan"),
        (lambda r: partition.dirichlet(r, 2, 0, by="group"), "needs a protected attribute"),
        (lambda r: partition.dirichlet(r, 2, 0, by="labels"), "Did you mean 'label'"),
        (lambda r: partition.power_law(r, 2, 0, exponent=-1.0), "exponent is -1.0"),
        (lambda r: partition.uneven(r, 2, 0, beta=-1.0, minimum=1), "beta is -1.0"),
        (lambda r: partition.shards(r, 2, 0, each=0), "each is 0"),
        (lambda r: partition.by_column(r, 2, 0), "give column"),
        (lambda r: partition.by_column(r, 2, 0, column="state"), "unknown column 'state'"),
        (lambda r: partition.iid(r, 2, -1), "seed is -1"),
    ],
)
def test_bad_values(call, words):
    with pytest.raises(ConfigError, match=words):
        call(Rows(np.arange(40) % 2))


@pytest.mark.parametrize(
    "fractions",
    [(0.5, 0.5), (0.5, 0.2, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (1, 0, float("nan"))],
)
def test_bad_fractions(fractions):
    with pytest.raises(ConfigError, match="add up to 1"):
        split(torch.arange(4), np.zeros(4, dtype=np.int64), None, fractions, 0)


def test_split_takes_the_rows_it_is_given():
    labels = np.arange(50) % 2
    parts = split(torch.arange(10, 30), labels, None, (0.5, 0.25, 0.25), 0)
    assert [len(parts[name]) for name in parts] == [10, 5, 5]
    assert torch.equal(torch.cat(list(parts.values())).sort().values, torch.arange(10, 30))
    assert sorted(np.bincount(labels[parts["train"].numpy()]).tolist()) == [5, 5]


def test_allocate_names_clients():
    codes = np.repeat([0, 1], 20)
    rows = Rows(np.arange(40) % 2, None, {"c": Categories(codes, ("north", "south"))})
    parts, names = allocate(rows, *plan({"name": "column", "column": "c"}), clients=0, seed=0)
    assert names == ("north", "south")
    assert [len(p) for p in parts["train"]] == [14, 14]
    parts, names = allocate(rows, *plan("iid"), clients=3, seed=0)
    assert names == ("client 0", "client 1", "client 2")


def test_options_have_meanings():
    for entry in PARTITIONS.values():
        assert entry.meaning
        assert "minimum" in entry.options
        assert all(option.meaning for option in entry.options.values())
