"""What clients say: counts and sums, the same as of the pooled rows."""

import numpy as np
import pytest
import torch
from profile_data import federation

from isonomy.data import load
from isonomy.data.profile import statistics as statistics_module
from isonomy.data.profile.statistics import Shape, collect, sums, tally


def rows(n=50, width=3, labels=3, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((n, width)) + 5).float()
    y, g = (torch.from_numpy(rng.integers(0, k, n)) for k in (labels, 2))
    return x, y, g[:, None]


def test_a_client_counts_and_adds_up():
    x, y, g = rows()
    shape = Shape(3, (2,), np.arange(3), ((0, 1),))
    said = tally([(x, y, g), (x[:10], y[:10], g[:10]), (x[:0], y[:0], g[:0])], shape)
    assert said.labels.tolist() == [
        [int((y == i).sum()) for i in range(3)],
        [int((y[:10] == i).sum()) for i in range(3)],
        [0, 0, 0],
    ]
    assert said.groups[0][0, 1, 1] == int(((y == 1) & (g[:, 0] == 1)).sum())
    assert said.total[:3] == pytest.approx(x.double().sum(0).numpy())
    assert said.total[3] == int((g == 1).sum())
    assert said.between.tolist() == [50, 50, 50, 0]

    powers = sums((x, y, g), shape, np.full(4, 0.5))
    away = x.double().numpy() - 0.5
    for i, part in enumerate((powers.first, powers.second, powers.third, powers.fourth)):
        for label in range(3):
            assert part[label, :3] == pytest.approx((away[y == label] ** (i + 1)).sum(0))
    assert powers.groups[0][1] == pytest.approx(away[g[:, 0] == 1].sum(0))


def test_blocks_change_nothing(monkeypatch):
    x, y, g = rows(1000)
    shape = Shape(3, (2,), np.arange(3))
    whole = sums((x, y, g), shape, np.zeros(3))
    monkeypatch.setattr(statistics_module, "_BLOCK", 50)
    again = sums((x, y, g), shape, np.zeros(3))
    assert whole.fourth == pytest.approx(again.fourth)
    assert whole.groups[0] == pytest.approx(again.groups[0])


def test_the_sum_of_clients_is_the_whole():
    threads = torch.get_num_threads()
    data = load("synthetic", clients=5, options={"examples": 800})
    one = collect(data)
    train = torch.cat([torch.arange(800)[data.rows(k)] for k in range(5)])
    x, y, z = data.x[train].double(), data.y[train], data.groups[train, 0]
    assert one.centre[:3] == pytest.approx(x.mean(0).numpy())
    assert one.first.sum((0, 1)) == pytest.approx(0, abs=1e-8)
    assert one.second.sum((0, 1))[:3] / len(x) == pytest.approx(x.var(0, correction=0).numpy())
    assert one.rows.sum(0).tolist() == torch.bincount(y).tolist()
    assert one.groups[0][:, 0].sum((0, 1)).tolist() == torch.bincount(z).tolist()
    assert torch.get_num_threads() == threads


def test_regression_adds_up_targets():
    data = load("linear", clients=4, options={"n": 50, "d": 3})
    one = collect(data)
    x, y = data.x[data.rows(1)].double().numpy(), data.y[data.rows(1)].double().numpy()
    every = np.concatenate([data.y[data.rows(k)].double().numpy() for k in range(4)])
    off = y - every.mean()
    assert one.target[1] == pytest.approx([off.sum(), (off**2).sum()])
    assert one.cross[1] == pytest.approx(off @ (x - one.centre))


def test_of_many_features_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(statistics_module, "MOST_SUMS", 200)
    rng = np.random.default_rng(0)
    data = federation([rng.standard_normal((40, 100)) for _ in range(4)], [np.arange(40) % 2] * 4)
    one = collect(data)
    assert len(one.shape.features) == 25
    assert one.shape.features[[0, -1]].tolist() == [0, 99]
    chosen = data.x[data.rows(2)][:, torch.from_numpy(one.shape.features)].double()
    assert one.first[2].sum(0) / 40 + one.centre == pytest.approx(chosen.mean(0).numpy())


def test_images_are_flat_rows():
    rng = np.random.default_rng(0)
    images = [rng.random((30, 1, 4, 4)) for _ in range(2)]
    flat = collect(federation([x.reshape(30, -1) for x in images], [np.arange(30) % 2] * 2))
    one = collect(federation(images, [np.arange(30) % 2] * 2))
    assert one.second == pytest.approx(flat.second)


def test_an_intersection_adds_no_columns_to_its_parts():
    names = ("sex", "race", "sex*race")
    from isonomy.core.examples import Attribute
    from isonomy.data.federation import Federation

    levels = (("f", "m"), ("a", "b", "c"), tuple("123456"))
    data = Federation(
        torch.randn(8, 2),
        torch.arange(8) % 2,
        torch.zeros(8, 3, dtype=torch.int64),
        torch.tensor([[[0, 4], [4, 4], [4, 4]], [[4, 8], [8, 8], [8, 8]]]),
        2,
        tuple(map(Attribute, names, levels)),
    )
    assert collect(data).shape.indicators == ((0, 1), (1, 0), (1, 1), (1, 2))
