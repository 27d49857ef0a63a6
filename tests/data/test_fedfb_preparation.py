"""The partition "paper" against pandas, and against numbers that papers printed."""

import numpy as np
import pytest
import torch

from isonomy.core.task import Batch
from isonomy.data import fedfb_preparation, load
from isonomy.data.datasets import DATASETS, adult, bank, compas
from isonomy.data.download.fetch import fetch
from isonomy.errors import ConfigError, DataError, FetchError
from isonomy.metrics import front, group
from isonomy.metrics.counts import Counts, count
from isonomy.models import make_task

TABLES = ("adult", "compas", "bank")


@pytest.fixture(scope="session")
def federation():
    """Each data set's federation "paper", loaded once."""
    loaded = {}

    def of(name):
        if name not in loaded:
            try:
                loaded[name] = load(name, partition="paper")
            except FetchError as error:
                pytest.skip(f"{name} is neither cached nor available here: {error}")
        return loaded[name]

    return of


# --- an untrained network, which needs data, splits, order, group and metric to be right ----------


def point(federation, seed, x=None):
    """(error, distance to demographic parity) of an untrained network on all test rows."""
    task = make_task("mlp", federation, {"hidden": [4]})
    rows = torch.cat([torch.arange(*federation._bounds(k, "test")) for k in range(len(federation))])
    x = (federation.x if x is None else x)[rows]
    batch = Batch(x, federation.y[rows], federation.groups[rows], torch.ones(len(rows)))
    page = count(task, task.outputs(task.init(seed), x), batch)
    told = {key: value[None] for key, value in page.items()}
    tally = Counts.of(told, federation.attributes).tally(federation.attributes[0].name)
    error = 1 - float(tally.hit[0, 0].sum() / tally.size[0, 0])
    return error, float(group.demographic_parity_overall(tally)[0])


def untrained(federation, x=None):
    return float(np.mean([front.hypervolume([point(federation, seed, x)]) for seed in (0, 1, 2)]))


@pytest.mark.parametrize(
    ("name", "hypervolume"),
    [("synthetic", 0.4682), ("compas", 0.5138), ("bank", 0.1380), ("adult", 0.5010)],
)
def test_the_untrained_network_of_hetpfls_table(federation, name, hypervolume):
    """HetPFL's first table, row "LFT+Fedavg", global: .468 .514 .138 .501.

    Those models were never trained, so the row is a check of everything else. Four digits come
    out as measured on the papers' code; three are asked, for one row near the boundary may fall
    on the other side with another machine's rounding.
    """
    assert untrained(federation(name)) == pytest.approx(hypervolume, abs=5e-4)


@pytest.mark.parametrize("name", ["bank", "adult"])
def test_that_check_can_fail(federation, name):
    """Features in another order, or scaled otherwise, give another number.

    (COMPAS is left out: there the untrained networks give everyone the same label.)
    """
    it = federation(name)
    right = untrained(it)
    assert abs(untrained(it, it.x.flip(1)) - right) > 2e-3
    scaled = (it.x - it.x.mean(0)) / it.x.std(0).clamp(min=1e-6)
    assert abs(untrained(it, scaled) - right) > 2e-3


def test_init_is_torchs_own(federation):
    it = federation("bank")
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(38, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    task = make_task("mlp", it, {"hidden": [4]})
    assert torch.equal(task.outputs(task.init(1), it.x[:50]), net(it.x[:50]))


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "features", "train", "test", "groups"),
    [
        ("adult", 107, [20129, 12432], [9982, 6299], 2),
        ("compas", 448, [3747, 1302], [1606, 559], 4),
        ("bank", 38, [14287, 5724, 11636], [6144, 2418, 5002], 5),
    ],
)
def test_sizes(federation, name, features, train, test, groups):
    it = federation(name)
    both = it.sizes("train") + it.sizes("validation")
    assert both.tolist() == train
    assert it.sizes("train").tolist() == [int(0.9 * n) for n in train]
    assert it.sizes("test").tolist() == test
    assert it.x.shape == (sum(train) + sum(test), features) == (len(it.y), len(it.features))
    assert len(it.attributes) == 1
    assert len(it.attributes[0].levels) == groups
    assert it.features[-1] == "z"
    assert torch.equal(it.x[:, -1], it.groups[:, 0].float())
    assert it.groups.unique().tolist() == list(range(groups))
    assert "public code of FedFB and HetPFL, including its faults" in it.notes[0]


@pytest.mark.parametrize("name", TABLES)
def test_the_seed_changes_nothing(federation, name):
    one, two = federation(name), load(name, partition="paper", seed=7)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.ranges, two.ranges)


def test_adults_first_client_validates_on_others(federation):
    """Private employees come first in its list: 18,156 of 20,129, of which 18,116 train."""
    it = federation("adult")
    private = it.x[:, it.features.index("workclass=Private")]
    assert float(private[it.rows(0, "train")].mean()) == 1
    assert int(private[it.rows(0, "validation")].sum()) == 18_156 - 18_116
    assert round(float(it.y[it.rows(0, "validation")].float().mean()), 3) == 0.287
    both = slice(it.rows(0, "train").start, it.rows(0, "validation").stop)
    assert round(float(it.y[both].float().mean()), 3) == 0.225


def test_compas_label_is_turned_round(federation):
    it = federation("compas")
    assert it.labels == ("rearrested", "not rearrested")
    assert int(it.y.sum()) == 7_214 - 3_251
    assert int((it.groups >= 2).sum()) == 1_395  # women
    assert int((it.groups % 2 == 1).sum()) == 3_696  # African-American


# --- pandas as oracle -----------------------------------------------------------------------------


def prepared(pd, frame, label, positive, group, numbers, categories):
    """Scale, make indicators, append z: as pandas does it."""
    frame = pd.get_dummies(frame, columns=categories)
    for name in numbers:
        frame[name] = (frame[name] - frame[name].min()) / (frame[name].max() - frame[name].min())
    y = (frame[label] == positive).to_numpy().astype(np.int64)
    frame = frame.drop(columns=label)
    frame["z"] = group
    return frame, y


def same(federation, frames, clients):
    """Whether the federation is `frames` (x, y of training rows, x, y of test rows) at clients.

    `clients[k]` is the training and the test list of client k, in order.
    """
    (x, y), (x_test, y_test) = frames
    xs, ys = [], []
    for mine, test in clients:
        xs += [x[mine], x_test[test]]
        ys += [y[mine], y_test[test]]
    np.testing.assert_array_equal(federation.x.numpy(), np.concatenate(xs).astype(np.float32))
    np.testing.assert_array_equal(federation.y.numpy(), np.concatenate(ys))


@pytest.fixture
def legacy():
    """NumPy's old global generator with seed 1, put back afterwards."""
    before = np.random.get_state()
    np.random.seed(1)
    yield np.random
    np.random.set_state(before)


def test_adult_against_pandas(federation, legacy):
    pd = pytest.importorskip("pandas")
    it = federation("adult")
    files = fetch(*adult.FILES)
    names = [*adult.COLUMNS[:-1], "salary"]
    if len(files) == 2:
        form = {"header": None, "names": names, "skipinitialspace": True}
        train = pd.read_csv(files[0].path, **form)
        test = pd.read_csv(files[1].path, skiprows=1, **form)
        test["salary"] = test["salary"].str.rstrip(".")
    else:
        both = pd.read_csv(files[0].path, header=0, names=names)
        train, test = both[:32_561].copy(), both[32_561:].reset_index(drop=True)
    frames = []
    for frame in (train, test):
        z = (frame.pop("sex") == "Male").to_numpy().astype(np.int64)
        frames.append(
            prepared(pd, frame, "salary", ">50K", z, adult.NUMBERS, list(adult.PAPER_CATEGORIES))
        )
    (x, y), (x_test, y_test) = frames
    x_test["native-country_Holand-Netherlands"] = 0
    x_test = x_test[x.columns]
    assert it.features == tuple(
        "=".join(name.rsplit("_", 1)) if "_" in name else name for name in x.columns
    )
    clients = [[], []]
    for frame in (x, x_test):
        private = frame.index[frame["workclass_Private"] == 1]
        rest = frame.index[frame["workclass_Private"] == 0]
        first = np.concatenate(
            [
                legacy.choice(private, int(0.8 * len(private)), replace=False),
                legacy.choice(rest, int(0.2 * len(rest)), replace=False),
            ]
        )
        clients[0].append(first)
        clients[1].append(np.array(list(set(frame.index) - set(first))))
    same(it, ((x.to_numpy(), y), (x_test.to_numpy(), y_test)), clients)


def test_compas_against_pandas(federation):
    pd = pytest.importorskip("pandas")
    it = federation("compas")
    frame = pd.read_csv(fetch(*compas.FILES)[0].path)
    numbers = ["age", *compas.COUNTS]
    categories = ["age_cat", "c_charge_degree", "c_charge_desc"]
    group = 2 * (frame["sex"] == "Female") + (frame["race"] == "African-American")
    frame = frame[[*numbers, *categories, "two_year_recid"]]
    x, y = prepared(pd, frame, "two_year_recid", 0, group, numbers, categories)
    cut = int(0.7 * len(x))
    older = (x["age"] > 0.1).to_numpy()
    clients = [(np.flatnonzero(side[:cut]), np.flatnonzero(side[cut:])) for side in (older, ~older)]
    x = x.to_numpy().astype(np.float64)
    same(it, ((x[:cut], y[:cut]), (x[cut:], y[cut:])), clients)


def test_bank_against_pandas(federation, legacy):
    pd = pytest.importorskip("pandas")
    it = federation("bank")
    frame = pd.read_csv(fetch(*bank.FILES)[0].path)
    age = frame["age"]
    group = sum((age > age.quantile(q)).astype(int) for q in (0.2, 0.4, 0.6, 0.8))
    numbers, categories = list(bank.PAPER_NUMBERS), list(bank.PAPER_CATEGORIES)
    frame = frame[[*numbers, *categories, "y"]]
    x, y = prepared(pd, frame, "y", "yes", group, numbers, categories)
    x["label"] = y
    x = x.sample(frac=1).reset_index(drop=True)
    y = x.pop("label").to_numpy()
    cut, no_loan = int(0.7 * len(x)), x["loan_no"].to_numpy()
    lists = []
    for side in (no_loan[:cut], no_loan[cut:]):
        without, having = np.flatnonzero(side), np.flatnonzero(~side)
        a, b = int(len(without) * 0.5), int(len(without) * 0.6)
        c, d = int(len(having) * 0.2), int(len(having) * 0.8)
        pieces = [(without[:a], having[:c]), (without[a:b], having[c:d]), (without[b:], having[d:])]
        lists.append([np.concatenate(piece) for piece in pieces])
    for mine in lists[0]:
        legacy.shuffle(mine)
    x = x.to_numpy().astype(np.float64)
    same(it, ((x[:cut], y[:cut]), (x[cut:], y[cut:])), list(zip(*lists, strict=True)))


# --- what is refused, and the pieces --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("adult", {"clients": 3}, "'paper' of 'adult' has 2 clients, not 3"),
        ("bank", {"clients": 2}, "'paper' of 'bank' has 3 clients, not 2"),
        ("adult", {"options": {"protected": ["race"]}}, "is fixed; remove 'protected'"),
        ("compas", {"options": {"rows": "all"}}, "is fixed; remove 'rows'"),
        ("bank", {"options": {"duration": True}}, "is fixed; remove 'duration'"),
        ("bank", {"options": {"fractions": [0.5, 0.2, 0.3]}}, "remove 'fractions'"),
    ],
)
def test_what_is_fixed(name, arguments, words):
    with pytest.raises(ConfigError, match=words):
        load(name, partition="paper", **arguments)


@pytest.mark.parametrize("name", ["german", "credit_card", "bank_additional"])
def test_others_have_none(name):
    assert "paper" not in DATASETS[name].partitions


def test_another_order_is_refused(federation, tmp_path):
    """The counts are right and the papers' row numbers mean other people."""
    federation("compas")
    source = fetch(*compas.FILES)[0].path
    lines = source.read_bytes().splitlines(keepends=True)
    other = tmp_path / "sorted.csv"
    other.write_bytes(b"".join([lines[0], *sorted(lines[1:])]))
    assert load("compas", options={"path": str(other)}).x.shape[0] == 6_172
    with pytest.raises(DataError, match="not in the published order"):
        load("compas", partition="paper", options={"path": str(other)})
    again = load("compas", partition="paper", options={"path": str(source)})
    assert torch.equal(again.x, federation("compas").x)


def test_cut():
    parts = fedfb_preparation.cut([np.arange(19), np.arange(5)], [np.arange(3), np.arange(0)])
    assert [len(p) for p in parts["train"]] == [17, 4]
    assert parts["validation"][0].tolist() == [17, 18]
    assert [len(p) for p in parts["test"]] == [3, 0]
