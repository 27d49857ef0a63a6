"""Fitted from what clients report, the preprocessing is scikit-learn's on the pooled rows."""

import math
import statistics
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from isonomy.core.examples import SPLITS
from isonomy.data.arrow_values import from_arrow
from isonomy.data.tables import Preprocessing, Roles
from isonomy.data.tables.columns import Numbers, Table, column
from isonomy.data.tables.federate import assemble
from isonomy.data.tables.local_clients import LocalClients
from isonomy.data.tables.quantiles import order_statistics
from isonomy.data.tables.sources import Pieces
from isonomy.errors import DataError

SIZES = (3, 700, 41, 9)
PARTS = np.array(["train", "train", "train", "validation", "test"])
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


class clients:  # noqa: N801
    """Clients whose tables are in memory, each read by itself."""

    def __init__(self, tables):
        self.names = tuple(f"c{k}" for k in range(len(tables)))
        self._tables = [
            Table(
                {
                    name: column(
                        from_arrow(pa.array(np.asarray(values).tolist(), from_pandas=True))
                    )
                    for name, values in table.items()
                },
                len(table["y"]),
            )
            for table in tables
        ]

    def open(self, k):
        return self._tables[k]


def pooled(tables, name, train=True):
    """A column of all clients, as their training rows hold it."""
    values = np.concatenate([np.asarray(t[name]) for t in tables])
    parts = np.concatenate([np.asarray(t["part"]) for t in tables])
    return values[parts == "train"] if train else values


def in_order(tables, values):
    """A column's (or matrix's) rows as a federation has them: by client, then by split."""
    parts = np.concatenate([np.asarray(t["part"]) for t in tables])
    who = np.repeat(np.arange(len(tables)), [len(t["part"]) for t in tables])
    rank = np.array([SPLITS.index(part) for part in parts])
    return np.asarray(values)[np.lexsort([np.arange(len(parts)), rank, who])]


def encoder(federation, name):
    fitted = Preprocessing.model_validate(federation.preprocessing)
    return next(one for one in fitted.encoders if one.name == name)


def mixed(seed=0, sizes=SIZES):
    """Clients of very different size and offset, with gaps, constants and a wide column."""
    rng = np.random.default_rng(seed)
    out = []
    for k, rows in enumerate(sizes):
        far = 1e9 + 100.0 * k + rng.normal(size=rows)
        skewed = np.exp(rng.normal(3 * k, 1, rows))
        gaps = np.where(rng.random(rows) < 0.3, np.nan, rng.normal(5 * k, k + 1, rows))
        absent = np.full(rows, np.nan) if k == 1 else rng.normal(size=rows)
        part = PARTS[rng.integers(0, 5, rows)]
        part[0] = "train"
        whole = rng.integers(-3, 4, rows) * 10**6
        job = rng.choice(
            ["clerk", "farmer", "nurse", "judge", None], rows, p=[0.5, 0.3, 0.1, 0.01, 0.09]
        )
        out.append(
            {
                "far": far,
                "skewed": skewed,
                "gaps": gaps,
                "absent": absent,
                "constant": np.full(rows, 0.1),
                "whole": whole,
                "job": job,
                "age": rng.integers(18, 90, rows),
                "sex": rng.choice(["F", "M"], rows),
                "y": rng.integers(0, 2, rows),
                "part": part,
            }
        )
    return out


NUMBERS = ("far", "skewed", "gaps", "absent", "constant", "whole")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("impute", ["mean", "median", "zero"])
@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_numbers_are_imputed_and_scaled_as_scikit_learn_does(seed, impute, scale):
    tables = mixed(seed)
    roles = Roles(label="y", split="part", features=NUMBERS, impute=impute, scale=scale)
    federation = assemble(clients(tables), roles, 0)
    train = np.stack([pooled(tables, name).astype(float) for name in NUMBERS], 1)
    every = np.stack([pooled(tables, name, train=False).astype(float) for name in NUMBERS], 1)
    zero = {"strategy": "constant", "fill_value": 0.0}
    imputer = SimpleImputer(**({"strategy": impute} if impute != "zero" else zero)).fit(train)
    scaler = {"standard": StandardScaler, "minmax": MinMaxScaler}.get(scale)
    filled, wanted = imputer.transform(train), imputer.transform(every)
    if scaler is not None:
        fitted = scaler().fit(filled)
        wanted = fitted.transform(wanted)
    for i, name in enumerate(NUMBERS):
        ours = encoder(federation, name)
        assert math.isclose(ours.fill, imputer.statistics_[i], rel_tol=1e-9, abs_tol=1e-9)
        if scale == "standard":
            assert math.isclose(ours.shift, fitted.mean_[i], rel_tol=1e-9, abs_tol=1e-9), name
            assert math.isclose(ours.scale, fitted.scale_[i], rel_tol=1e-6), name
        if scale == "minmax":
            assert ours.shift == pytest.approx(fitted.data_min_[i], rel=1e-12)
            assert ours.shift + ours.scale == pytest.approx(
                fitted.data_max_[i] + (name == "constant"), rel=1e-12
            )
    if scale == "none":  # float32 holds seven digits
        np.testing.assert_allclose(federation.x.numpy(), in_order(tables, wanted), rtol=1e-6)
    else:
        np.testing.assert_allclose(federation.x.numpy(), in_order(tables, wanted), **CLOSE)


def test_the_mean_and_spread_of_large_numbers_are_exact():
    """Against exact rational arithmetic, where pooled sums of squares would lose every digit."""
    rng = np.random.default_rng(3)
    tables = [
        {"a": at + rng.normal(size=rows), "y": np.arange(rows) % 2, "part": ["train"] * rows}
        for rows, at in ((4, 1e9), (900, 1e9 + 5), (50, 1e9 - 7))
    ]
    federation = assemble(clients(tables), Roles(label="y", split="part"), 0)
    every = pooled(tables, "a").tolist()
    ours = encoder(federation, "a")
    assert math.isclose(ours.shift, statistics.mean(every), rel_tol=1e-15)
    assert math.isclose(ours.scale, statistics.pstdev(every), rel_tol=1e-7)


@pytest.mark.parametrize("at", [0.0, 1.0, 1e9, -1e9, 1e12])
def test_a_spread_is_a_spread_wherever_it_is(at):
    tables = [{"a": at + np.array([0.0, 0.5] * 20), "y": [0, 1] * 20, "part": ["train"] * 40}] * 2
    federation = assemble(clients(tables), Roles(label="y", split="part"), 0)
    assert encoder(federation, "a").scale == 0.25
    assert sorted(set(federation.x[:, 0].tolist())) == [-1.0, 1.0]


@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e11, 1e-300, 1e38])
@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_a_constant_column_is_only_centred(value, scale):
    rows = 97  # the mean of so many 0.1 is not 0.1
    tables = [{"a": np.full(rows, value), "y": np.arange(rows) % 2, "part": ["train"] * rows}] * 3
    tables[0] = tables[0] | {"a": np.where(np.arange(rows) < 5, np.nan, value)}
    federation = assemble(clients(tables), Roles(label="y", split="part", scale=scale), 0)
    assert encoder(federation, "a").scale == 1.0
    assert encoder(federation, "a").fill == value
    assert float(federation.x.abs().max()) <= 1e-7 * abs(value)


@pytest.mark.parametrize("rare", [1, 5, 40])
@pytest.mark.parametrize("seed", [0, 4])
def test_categories_are_encoded_as_scikit_learn_does(rare, seed):
    tables = mixed(seed, sizes=(60, 200, 11))
    tables[2]["job"][:] = "smith"  # one client has what others do not, and not what they have
    roles = Roles(label="y", split="part", features=("job",), rare=rare)
    federation = assemble(clients(tables), roles, 0)
    gone = "(none)"
    train = np.where(pooled(tables, "job") == None, gone, pooled(tables, "job"))  # noqa: E711
    every = pooled(tables, "job", train=False)
    every = np.where(every == None, gone, every)  # noqa: E711
    theirs = OneHotEncoder(
        min_frequency=rare, handle_unknown="infrequent_if_exist", sparse_output=False
    ).fit(train.reshape(-1, 1).astype(object))
    rest = theirs.infrequent_categories_[0]
    rest = [] if rest is None else rest.tolist()
    kept = [c for c in theirs.categories_[0] if c not in rest]
    wanted = theirs.transform(every.reshape(-1, 1).astype(object))[:, : len(kept)]
    words = sorted(kept, key=lambda word: (word == gone, word))
    names = ["job is missing" if word == gone else f"job={word}" for word in words]
    assert federation.features == (*names, "job=other")
    columns = [kept.index(word) for word in words]
    wanted = np.column_stack([wanted[:, columns], 1 - wanted.sum(1)])
    np.testing.assert_array_equal(federation.x.numpy(), in_order(tables, wanted))


def test_numbers_as_categories_are_encoded_as_scikit_learn_does():
    tables = [t | {"code": np.asarray(t["age"]) % 7} for t in mixed(2)]
    roles = Roles(label="y", split="part", features=("code",), categorical=("code",), rare=1)
    federation = assemble(clients(tables), roles, 0)
    theirs = OneHotEncoder(sparse_output=False).fit(pooled(tables, "code").reshape(-1, 1))
    wanted = theirs.transform(pooled(tables, "code", train=False).reshape(-1, 1))
    assert federation.features == (*(f"code={i}" for i in range(7)), "code=other")
    np.testing.assert_array_equal(federation.x[:, :-1].numpy(), in_order(tables, wanted))
    assert not federation.x[:, -1].any()


def test_groups_bins_and_intersections_are_numpys():
    tables = mixed(5)
    roles = Roles(
        label="y",
        split="part",
        protected=("age", "sex", "sex*age", "age*sex*job"),
        bins={"age": (25, 60)},
    )
    federation = assemble(clients(tables), roles, 0)
    age = np.digitize(pooled(tables, "age", train=False), [25, 60])
    sex = (pooled(tables, "sex", train=False) == "M").astype(int)
    levels = ["clerk", "farmer", "judge", "nurse", None]
    job = np.array([levels.index(j) for j in pooled(tables, "job", train=False)])
    wanted = np.stack([age, sex, sex * 3 + age, (age * 2 + sex) * 5 + job], 1)
    np.testing.assert_array_equal(federation.groups.numpy(), in_order(tables, wanted))
    ages = ("below 25", "25 to below 60", "60 and above")
    jobs = ("clerk", "farmer", "judge", "nurse", "missing")
    assert [a.levels for a in federation.attributes] == [
        ages,
        ("F", "M"),
        tuple(" & ".join(pair) for pair in product(("F", "M"), ages)),
        tuple(" & ".join(three) for three in product(ages, ("F", "M"), jobs)),
    ]
    assert not {"age", "sex", "job=clerk"} & set(federation.features)


@pytest.mark.parametrize("groups", [2, 3, 4, 7, 10])
@pytest.mark.parametrize("missing", [False, True])
def test_equally_large_groups_are_cut_where_numpy_would(groups, missing):
    tables = mixed(6)
    for k, table in enumerate(tables):
        if missing:
            table["skewed"][:: k + 2] = np.nan
    roles = Roles(label="y", split="part", protected=("skewed",), bins={"skewed": groups})
    federation = assemble(clients(tables), roles, 0)
    values = pooled(tables, "skewed", train=False)
    there = np.sort(values[~np.isnan(values)])
    edges = there[[len(there) * i // groups for i in range(1, groups)]]
    level = federation.preprocessing["table"]["groups"][0]
    np.testing.assert_array_equal(level["edges"], edges)
    for i, edge in enumerate(edges, start=1):  # the next one up where numpy would have two to take
        low = np.quantile(there, i / groups, method="inverted_cdf")
        high = np.quantile(there, i / groups, method="median_unbiased")
        assert edge == low or (len(there) * i % groups == 0 and low < high < edge)
    sizes = np.bincount(federation.groups[:, 0].numpy(), minlength=groups)
    assert sizes[:groups].max() - sizes[:groups].min() <= 1
    assert sizes[groups:].sum() == np.isnan(values).sum()
    assert level["levels"][groups:] == ["missing"] * missing


def test_what_cannot_be_cut_is_refused():
    tables = [{"a": np.zeros(40), "b": np.arange(40), "y": [0, 1] * 20, "part": ["train"] * 40}]
    with pytest.raises(DataError, match="'a' cannot be divided into 4 groups"):
        assemble(clients(tables), Roles(label="y", protected=("a",), bins={"a": 4}), 0)


WILD = st.floats(-3e38, 3e38, allow_nan=False) | st.integers(-3, 3).map(float)


@settings(max_examples=60)
@given(
    held=st.lists(st.lists(WILD, max_size=12), min_size=1, max_size=4).filter(any),
    data=st.data(),
)
def test_numbers_are_found_by_rank_among_any_numbers(held, data):
    """Also where most lie close together and one is far away, or next to nothing apart."""
    every = np.sort(np.concatenate([np.array(h, dtype=float) for h in held]))
    ranks = data.draw(st.lists(st.integers(1, len(every)), min_size=1, max_size=4))
    values = np.concatenate([np.array(h, dtype=float) for h in held])
    bounds = np.cumsum([0, *map(len, held)]).tolist()
    table = Table({"a": Numbers(values)}, len(values))
    ask = LocalClients(Pieces(table, bounds, [str(k) for k in range(len(held))]))
    found = order_statistics(ask, "a", ranks, train=False)
    assert found == [every[rank - 1] for rank in ranks]


GRID = st.integers(-50, 50).map(lambda i: i / 4)


@st.composite
def random_tables(draw):
    """Clients with numbers on a grid about an offset, gaps and texts."""
    offset = draw(st.sampled_from([0.0, 1e3, -1e6, 1e9]))
    number = st.none() | GRID.map(lambda v: v + offset)
    word = st.none() | st.sampled_from(["a", "b", "c", "other", "é"])
    out = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 12))
        many = {"min_size": rows, "max_size": rows}
        part = draw(st.lists(st.sampled_from(SPLITS), **many))
        part[0] = "train"
        y = [i % 2 for i in range(rows)]
        a = draw(st.lists(number, **many))
        w = draw(st.lists(word, **many))
        out.append({"a": np.array(a, dtype=float), "w": np.array(w), "y": y, "part": part})
    return out


@settings(max_examples=60)
@given(
    tables=random_tables(),
    impute=st.sampled_from(["mean", "median"]),
    scale=st.sampled_from(["standard", "minmax"]),
    rare=st.integers(1, 4),
)
def test_any_table_is_prepared_as_scikit_learn_would(tables, impute, scale, rare):
    train, every = pooled(tables, "a"), pooled(tables, "a", train=False)
    labels = pooled(tables, "y", train=False)
    assume(not np.isnan(train).all() and len(set(labels.tolist())) == 2)
    words = pooled(tables, "w", train=False)
    assume(any(word is not None for word in words))
    roles = Roles(
        label="y", split="part", impute=impute, scale=scale, rare=rare, categorical=("w",)
    )
    federation = assemble(clients(tables), roles, 0)
    imputer = SimpleImputer(strategy=impute).fit(train.reshape(-1, 1))
    scaler = {"standard": StandardScaler, "minmax": MinMaxScaler}[scale]()
    scaler.fit(imputer.transform(train.reshape(-1, 1)))
    wanted = scaler.transform(imputer.transform(every.reshape(-1, 1)))[:, 0]
    at = federation.features.index("a")
    np.testing.assert_allclose(federation.x[:, at].numpy(), in_order(tables, wanted), **CLOSE)
    seen = [word for word in pooled(tables, "w") if word is not None]
    kept = sorted({w for w in seen if seen.count(w) >= rare} - {"other"})
    shown = [w if w in kept else "other" for w in words]
    gone = len(pooled(tables, "w")) - len(seen) >= rare
    shown = [
        "w is missing" if word is None and gone else f"w={one}"
        for word, one in zip(words, shown, strict=True)
    ]
    x = np.array([[name == one for name in federation.features if name != "a"] for one in shown])
    rest = [i for i, name in enumerate(federation.features) if name != "a"]
    np.testing.assert_array_equal(federation.x[:, rest].numpy(), in_order(tables, x))
