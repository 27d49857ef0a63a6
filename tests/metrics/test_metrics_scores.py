import numpy as np
import pytest
import torch
from metrics_by_hand import attributes
from torch import nn

from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, DataError
from isonomy.metrics.scores import BINS, Scores, bin_of, cut, histogram, positive_score

torch.set_num_threads(1)


def task(loss="logistic", classes=2, outputs=1, levels=()):
    return Task(lambda: nn.Linear(2, outputs), loss, classes, levels)


def batch(y, groups, weight):
    groups = torch.as_tensor(groups, dtype=torch.int64).reshape(len(y), -1)
    return Batch(torch.zeros(len(y), 2), torch.as_tensor(y), groups, torch.as_tensor(weight))


def test_the_score_is_the_predicted_probability_of_class_1():
    logits = torch.tensor([[0.3, 1.1], [2.0, -1.0], [0.0, 0.0], [-200.0, 900.0]])
    found = positive_score(task("cross_entropy", outputs=2), logits)
    torch.testing.assert_close(found, torch.softmax(logits.double(), -1)[:, 1])
    margin = torch.tensor([[-3.0], [0.0], [40.0]])
    found = positive_score(task("logistic"), margin)
    torch.testing.assert_close(found, 1 / (1 + torch.exp(-margin[:, 0].double())))


@pytest.mark.parametrize(("loss", "classes", "width"), [("hinge", 2, 1), ("cross_entropy", 3, 3)])
def test_a_task_without_scores_is_refused(loss, classes, width):
    with pytest.raises(ConfigError, match="scores are defined for two classes"):
        positive_score(task(loss, classes, width), torch.zeros(4, width))


def test_every_edge_belongs_to_the_bin_above_it_and_cuts_are_just_below():
    edges = torch.arange(BINS, dtype=torch.float64) / BINS
    assert bin_of(edges).tolist() == list(range(BINS))
    below = torch.nextafter(edges[1:], torch.zeros(()).double())
    assert bin_of(below).tolist() == list(range(BINS - 1))
    assert bin_of(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [0, BINS - 1]
    score = torch.cat([edges, below, torch.rand(2000, dtype=torch.float64)])
    for place in (0, 1, 57, 290, 500, 999):
        assert torch.equal(score > cut(place), bin_of(score) >= place)


@pytest.mark.parametrize(("loss", "width"), [("cross_entropy", 2), ("logistic", 1)])
def test_histogram_under_vmap_is_the_slow_count_of_each_client(loss, width):
    random = torch.Generator().manual_seed(3)
    clients, n, levels = 4, 61, (3, 2)
    outputs = 3 * torch.randn(clients, n, width, generator=random)
    outputs[0, 0] = float("nan")  # padding
    y = torch.randint(0, 2, (clients, n), generator=random)
    groups = torch.stack(
        [torch.randint(-1, each + 1, (clients, n), generator=random) for each in levels], -1
    )
    weight = (torch.rand(clients, n, generator=random) < 0.7).float()
    weight[3], weight[0, 0] = 0, 0
    page = Batch(torch.zeros(clients, n, 2), y, groups, weight)
    at = task(loss, 2, width, levels)
    found = torch.func.vmap(lambda o, *b: histogram(at, o, Batch(*b)))(outputs, *page)
    expected = torch.zeros(clients, 6, 2, BINS, dtype=torch.int64)
    edges = np.arange(1, BINS) / BINS
    for k in range(clients):
        for i in range(n):
            if weight[k, i] == 0:
                continue
            score = float(positive_score(at, outputs[k, i : i + 1])[0])
            place = int(np.searchsorted(edges, score, side="right"))
            where = [0]
            for start, level, group in zip((1, 4), levels, groups[k, i].tolist(), strict=True):
                where += [start + group] if 0 <= group < level else []
            for row in where:
                expected[k, row, int(y[k, i]), place] += 1
    assert found.dtype == torch.int64
    assert torch.equal(found, expected)
    assert found[:3].sum() > 0


def test_pages_and_clients_add_up():
    random = np.random.default_rng(0)
    first, second = (Scores(random.integers(0, 5, (3, 3, 2, 20)), attributes(2)) for _ in range(2))
    merged = first + second
    assert np.array_equal(merged.counts, first.counts + second.counts)
    joined = Scores.join([first, second])
    assert len(joined) == 6
    assert np.array_equal(joined.pooled().counts, merged.pooled().counts)
    assert np.array_equal(joined.only([4, 0]).counts, joined.counts[[4, 0]])
    assert np.array_equal(joined.sizes, joined.counts[:, 0].sum((1, 2)))
    assert joined.rows("a0") == slice(1, 3)
    with pytest.raises(DataError, match="merge pages of the same clients"):
        first.merge(joined)
    with pytest.raises(DataError, match="the same bins"):
        first.merge(Scores(np.zeros((3, 3, 2, 10), np.int64), attributes(2)))


def test_small_integers_do_not_overflow_when_clients_are_pooled():
    big = np.full((3, 1, 2, 1), 2**30, dtype=np.int32)
    assert Scores(big).pooled().counts.tolist() == [[[[3 * 2**30]] * 2]]
    assert Scores(big).merge(Scores(big)).counts.max() == 2**31
