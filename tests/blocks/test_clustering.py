"""k-means against scikit-learn, and the number of clusters on points whose number is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from isonomy.blocks.clustering import cluster_clients, count_clusters, halves, kmeans, points
from isonomy.core import tree
from isonomy.core.client import Client
from isonomy.core.phase import Part, phase
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import build
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop


def blobs(sizes: list[int], spread: float, d: int, seed: int) -> tuple[Tensor, list[int]]:
    """Clusters about corners of a simplex, and whose each point is."""
    rng = np.random.default_rng(seed)
    truth = [c for c, size in enumerate(sizes) for _ in range(size)]
    at = np.eye(max(d, len(sizes)))[:, :d][truth] + spread * rng.normal(size=(len(truth), d))
    return torch.from_numpy(at), truth


def same(labels: Tensor, truth: list[int]) -> bool:
    """The same partition, whatever the clusters are called."""
    pairs = set(zip(labels.tolist(), truth, strict=True))
    return len(pairs) == len(set(truth)) == len(set(labels.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_as_good_as_scikit_learn(seed: int) -> None:
    at, _ = blobs([12, 5, 4, 1], 0.25, 6, seed)
    weight = torch.from_numpy(np.random.default_rng(seed).uniform(0.2, 2, len(at)))
    for count in (1, 2, 3, 4):
        ours = kmeans(at, weight, torch.arange(len(at)), count)
        theirs = KMeans(count, n_init=50, random_state=0).fit(at.numpy(), sample_weight=weight)
        assert float(ours.dispersion) <= theirs.inertia_ * (1 + 1e-6)
        if float(ours.dispersion) > theirs.inertia_ * (1 - 1e-6):
            assert same(ours.labels, theirs.labels_.tolist())


def test_the_dispersion_is_that_of_the_labels() -> None:
    at, _ = blobs([4, 3], 1.0, 3, 0)
    weight = torch.tensor([1.0, 2, 3, 1, 2, 3, 4], dtype=torch.float64)
    got = kmeans(at, weight, torch.arange(7), 2)
    by_hand = 0.0
    for c in (0, 1):
        mine, w = at[got.labels == c], weight[got.labels == c].unsqueeze(-1)
        by_hand += float((w * (mine - (w * mine).sum(0) / w.sum()).square()).sum())
    assert float(got.dispersion) == pytest.approx(by_hand)


def test_the_heaviest_cluster_is_the_first_and_order_does_not_matter() -> None:
    at, truth = blobs([3, 9, 1], 0.05, 4, 1)
    ids = torch.arange(20, 33)
    weight = torch.ones(13, dtype=torch.float64)
    labels = kmeans(at, weight, ids, 3).labels
    names = {0: 1, 1: 0, 2: 2}
    assert labels.tolist() == [names[c] for c in truth]
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    assert kmeans(at[order], weight, ids[order], 3).labels.tolist() == labels[order].tolist()
    heavy = weight.clone()
    heavy[12] = 100.0
    assert kmeans(at, heavy, ids, 3).labels[12] == 0


def test_points_that_coincide() -> None:
    at = torch.zeros(5, 3, dtype=torch.float64)
    got = kmeans(at, torch.ones(5, dtype=torch.float64), torch.arange(5), 3)
    assert float(got.dispersion) == 0.0
    assert set(got.labels.tolist()) <= {0, 1, 2}
    assert count_clusters(at, at, torch.ones(5, dtype=torch.float64), torch.arange(5), 4) == 1


def test_points_keep_lengths_and_distances() -> None:
    rng = np.random.default_rng(0)
    stacked = {"a": torch.tensor(rng.normal(size=(4, 2, 3))), "b": torch.tensor(rng.normal(size=4))}
    flat = np.concatenate([stacked["a"].reshape(4, 6), stacked["b"].reshape(4, 1)], 1)
    at = points(stacked).numpy()
    np.testing.assert_allclose(at @ at.T, flat @ flat.T, atol=1e-12)


def count(sizes: list[int], spread: float, noise: float, d: int, seed: int) -> int:
    """What `how_many` says of clusters whose points are known up to `noise`."""
    rng = np.random.default_rng(seed + 1000)
    at, _ = blobs(sizes, spread, d, seed)
    n = len(at)
    first, second = (
        at + noise * 2**0.5 * torch.from_numpy(rng.normal(size=at.shape)) for _ in "ab"
    )
    signal, chance = points((first + second) / 2), points((first - second) / 2)
    return count_clusters(signal, chance, torch.ones(n, dtype=torch.float64), torch.arange(n), 10)


@pytest.mark.parametrize("sizes", [[9, 1], [7, 2, 1], [5, 2, 2, 1], [5, 5], [20, 20, 1], [4] * 6])
@pytest.mark.parametrize("spread", [0.0, 0.02])
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
def test_the_number_of_clusters(sizes: list[int], spread: float, seed: int) -> None:
    """Clusters at distance 1.4, with some true spread inside, and noise of 0.02 a coordinate."""
    assert count(sizes, spread, 0.02, 12, seed) == len(sizes)


@pytest.mark.parametrize("sizes", [[2, 1], [2, 1, 1], [2, 2, 2, 2, 1, 1], [2, 2, 1, 1, 1, 1, 1, 1]])
def test_more_clusters_than_half_of_the_clients(sizes: list[int]) -> None:
    for seed in range(3):
        assert count(sizes, 0.0, 0.01, 12, seed) == len(sizes)


@pytest.mark.parametrize(
    ("n", "d"), [(10, 2), (10, 12), (10, 500), pytest.param(30, 12, marks=pytest.mark.slow)]
)
def test_one_cluster_is_not_split(n: int, d: int) -> None:
    found_more = [count([n], 0.0, 1.0, d, seed) > 1 for seed in range(10)]
    assert sum(found_more) <= 1


def test_noise_as_large_as_the_distance_shows_nothing() -> None:
    assert [count([5, 5], 0.0, 2.0, 12, seed) for seed in range(5)] == [1] * 5


def test_clients_that_differ_gradually_are_not_clustered() -> None:
    """Twenty points along a line, known almost exactly: two clusters would halve the dispersion."""
    more = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        at = np.zeros((20, 12))
        at[:, 0] = rng.normal(size=20)
        noise = torch.from_numpy(0.02 * rng.normal(size=at.shape))
        signal = points(torch.from_numpy(at) + noise)
        weight = torch.ones(20, dtype=torch.float64)
        more += count_clusters(signal, points(noise), weight, torch.arange(20), 10) > 1
    assert more <= 1


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_points_for_clusters(n: int) -> None:
    at = torch.eye(n, dtype=torch.float64)
    assert count_clusters(at, 0 * at, torch.ones(n, dtype=torch.float64), torch.arange(n), 10) == 1


# --- gradients on two halves ----------------------------------------------------------------------

TASK = Task(lambda: nn.Linear(1, 1, bias=False), loss_name="squared", classes=0)
SIZES = (3, 1, 1500, 2)


def federation() -> tuple[Tensor, Tensor, list[Tensor], object]:
    rng = np.random.default_rng(3)
    x, y = (torch.tensor(rng.normal(size=sum(SIZES)), dtype=torch.float32) for _ in "xy")
    rows = list(torch.arange(sum(SIZES)).split(SIZES))
    none = torch.zeros(len(y), 0, dtype=torch.int64)
    made = build(x.unsqueeze(-1), y, none, {"train": rows}, classes=0)
    return x, y, rows, made


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_halves_by_hand(kind: type) -> None:
    """d/dw of the mean of (w x - y)^2 at w = 2, over rows 0, 2, ... and over rows 1, 3, ..."""
    x, y, rows, made = federation()

    @phase("gather", halves=Part("gradient", of="params"))
    def measured(task, message, client: Client):
        return {"halves": halves(task, message["params"], client)}, client.state

    engine = kind(TASK, made)
    message = {"params": {"weight": torch.tensor([[2.0]])}}
    got = engine.cohort(engine.everyone(), work=Work(), round=0).gather(measured, message)
    slope = 2 * x * (2 * x - y)
    for k, mine in enumerate(rows):
        first = slope[mine[0::2]].mean().item()
        second = slope[mine[1::2]].mean().item() if len(mine) > 1 else first
        assert got.value["halves"]["weight"][k].flatten().tolist() == pytest.approx(
            [first, second], rel=1e-4
        )


def test_small_clients_have_little_weight() -> None:
    """A client with one example is an outlier by chance; the real clusters are still found."""
    gradient = torch.tensor([0.0, 0.01, 0.02, 1.0, 1.01, 6.0])
    both = tree.stack([gradient, gradient]).T.reshape(6, 2, 1)
    sizes = torch.tensor([1000, 1000, 1000, 1000, 1000, 1])
    labels = cluster_clients({"w": both}, sizes, torch.arange(6), count=2, most=10)
    assert labels.tolist()[:5] == [0, 0, 0, 1, 1]
    equal = cluster_clients({"w": both}, torch.ones(6), torch.arange(6), count=2, most=10)
    assert equal.tolist() == [0, 0, 0, 0, 0, 1]


def test_labels_of_three_points_in_every_order() -> None:
    at = torch.tensor([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0]], dtype=torch.float64)
    for order in permutations(range(3)):
        labels = kmeans(at[list(order)], torch.ones(3).double(), torch.tensor(order), 2).labels
        assert [int(c) for c in labels] == [1 if k == 2 else 0 for k in order]
