import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import attributes, counted, random_examples, some
from torch import nn

from isonomy.core.examples import Attribute
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, DataError
from isonomy.metrics import Counts, count

torch.set_num_threads(1)


def task(loss, classes, outputs, levels=()):
    return Task(lambda: nn.Linear(2, outputs), loss, classes, levels)


def batch(y, groups, weight):
    groups = torch.as_tensor(groups, dtype=torch.int64).reshape(len(y), -1)
    return Batch(torch.zeros(len(y), 2), torch.as_tensor(y), groups, torch.as_tensor(weight))


def slow_count(task, outputs, batch):
    """The definition, one example after another."""
    classes, rows = max(task.classes, 1), 1 + sum(task.levels)
    counts = torch.zeros(rows, classes, classes, dtype=torch.int64)
    loss = torch.zeros(rows, classes, dtype=torch.float64)
    losses, decided = task.each_loss(outputs, batch.y), task.decide(outputs)
    for i in range(len(batch.y)):
        if batch.weight[i] == 0:
            continue
        y, h = (int(batch.y[i]), int(decided[i])) if task.classes else (0, 0)
        where, start = [0], 1
        for column, levels in enumerate(task.levels):
            if 0 <= int(batch.groups[i, column]) < levels:
                where.append(start + int(batch.groups[i, column]))
            start += levels
        for row in where:
            counts[row, y, h] += 1
            loss[row, y] += losses[i].double()
    return counts, loss


def test_count_by_hand_with_padding():
    # Margins 2, -1, 3, -4 decide 1, 0, 1, 0; the last example is padding.
    outputs = torch.tensor([[2.0], [-1.0], [3.0], [-4.0]])
    page = batch([1, 1, 0, 0], [0, 1, 1, 0], [1.0, 1.0, 1.0, 0.0])
    found = count(task("hinge", 2, 1, (2,)), outputs, page)
    assert found["counts"].tolist() == [
        [[0, 1], [1, 1]],
        [[0, 0], [0, 1]],
        [[0, 1], [1, 0]],
    ]
    # Hinge losses: max(0, 1 - 2) = 0, 1 + 1 = 2, 1 + 3 = 4.
    assert found["loss"].tolist() == [[4, 2], [0, 0], [4, 2]]
    assert (found["counts"].dtype, found["loss"].dtype) == (torch.int64, torch.float64)


def test_count_of_regression_is_size_and_loss():
    outputs = torch.tensor([[1.0], [5.0], [0.0]])
    page = batch([3.0, 4.0, 9.0], [0, 1, 1], [1.0, 1.0, 0.0])
    found = count(task("squared", 0, 1, (2,)), outputs, page)
    assert found["counts"].tolist() == [[[2]], [[1]], [[1]]]
    assert found["loss"].tolist() == [[5], [4], [1]]


def test_an_unknown_group_is_counted_with_everyone_only():
    outputs = torch.tensor([[1.0], [1.0], [-1.0]])
    page = batch([1, 1, 1], [[0, -1], [1, 1], [2, 0]], [1.0, 1.0, 1.0])
    found = count(task("logistic", 2, 1, (2, 2)), outputs, page)
    # Everyone; a0 = 0, 1 (the value 2 is no level); a1 = 0, 1 (the value -1 is no level).
    assert found["counts"].sum((1, 2)).tolist() == [3, 1, 1, 1, 1]
    assert found["counts"][3].tolist() == [[0, 0], [1, 0]]


def test_padding_with_a_loss_that_is_not_a_number_adds_nothing():
    outputs = torch.tensor([[0.0, 0.0], [float("nan"), 0.0]])
    found = count(task("cross_entropy", 2, 2), outputs, batch([0, 0], [[], []], [1.0, 0.0]))
    assert found["loss"][0, 0].item() == pytest.approx(np.log(2))
    assert found["counts"].sum().item() == 1


@pytest.mark.parametrize(
    ("loss", "classes", "width", "levels"),
    [
        ("cross_entropy", 7, 7, (3, 2)),
        ("cross_entropy", 2, 2, ()),
        ("logistic", 2, 1, (2,)),
        ("hinge", 2, 1, (4,)),
        ("squared", 0, 1, (2, 3)),
    ],
)
def test_count_under_vmap_is_the_slow_count_of_each_client(loss, classes, width, levels):
    random = torch.Generator().manual_seed(3)
    clients, n = 4, 31
    # Double, because softplus in single precision rounds differently for other shapes.
    outputs = torch.randn(clients, n, width, generator=random, dtype=torch.float64)
    y = torch.randint(0, max(classes, 2), (clients, n), generator=random)
    y = y if classes else y.float()
    groups = torch.stack(
        [torch.randint(-1, level + 1, (clients, n), generator=random) for level in levels]
        or [torch.zeros(clients, n, dtype=torch.int64)],
        -1,
    )[..., : len(levels)]
    weight = (torch.rand(clients, n, generator=random) < 0.7).float()
    weight[3] = 0
    page = Batch(torch.zeros(clients, n, 2), y, groups, weight)
    at = task(loss, classes, width, levels)
    found = torch.func.vmap(lambda o, *b: count(at, o, Batch(*b)))(outputs, *page)
    for k in range(clients):
        counts, sums = slow_count(at, outputs[k], Batch(*(each[k] for each in page)))
        assert torch.equal(found["counts"][k], counts)
        torch.testing.assert_close(found["loss"][k], sums, rtol=1e-12, atol=1e-12)
    assert found["counts"][:3].sum() > 0


@pytest.mark.parametrize(
    ("loss", "classes", "width"), [("cross_entropy", 2, 3), ("logistic", 1, 1)]
)
def test_a_model_with_more_outputs_than_classes_is_refused(loss, classes, width):
    with pytest.raises(DataError, match="as many outputs"):
        count(task(loss, classes, width), torch.zeros(1, width), batch([0], [[]], [1.0]))


def test_of_takes_what_vmap_returns():
    page = {
        "counts": torch.tensor([[[[1, 2], [3, 4]]]]),
        "loss": torch.tensor([[[0.5, 1.5]]], dtype=torch.float64),
    }
    counts = Counts.of(page)
    assert counts.counts.dtype == np.int64
    assert counts.loss.tolist() == [[[0.5, 1.5]]]
    assert counts.sizes.tolist() == [10]


def test_rows_follow_the_attributes():
    sex, age = Attribute("sex", ("f", "m")), Attribute("age", ("young", "middle", "old"))
    counts = Counts.zeros(2, 2, (sex, age))
    assert counts.counts.shape == (2, 6, 2, 2)
    assert counts.rows("sex") == slice(1, 3)
    assert counts.rows("age") == slice(3, 6)
    with pytest.raises(ConfigError, match="Did you mean 'sex'"):
        counts.rows("sexe")


def test_tally_by_hand():
    counts = Counts(
        np.array([[[[5, 2], [4, 5]], [[2, 1], [1, 4]], [[3, 1], [3, 1]]]]),
        np.array([[[7.0, 9.0], [3.0, 5.0], [4.0, 4.0]]]),
        attributes(2),
    )
    tally = counts.tally("a0")
    assert tally.label.tolist() == [[[7, 9], [3, 5], [4, 4]]]
    assert tally.predicted.tolist() == [[[9, 7], [3, 5], [6, 2]]]
    assert tally.hit.tolist() == [[[5, 5], [2, 4], [3, 1]]]
    assert tally.loss.tolist() == counts.loss.tolist()
    assert tally.size.tolist() == [[16, 8, 8]]
    assert counts.group_sizes("a0").tolist() == [[8, 8]]
    assert counts.everyone().hit.tolist() == [[[5, 5]]]


def test_tally_takes_the_rows_of_the_named_attribute():
    examples = random_examples(0, levels=(2, 3))
    counts = counted(examples, clients=5, classes=2, levels=(2, 3))
    second = counted(
        examples._replace(groups=examples.groups[:, 1:]), clients=5, classes=2, levels=(3,)
    )
    assert np.array_equal(counts.tally("a1").predicted, second.tally("a0").predicted)
    assert np.array_equal(counts.group_sizes("a1"), second.group_sizes("a0"))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 300), st.integers(2, 4))
def test_merged_pages_are_everything_counted_at_once(seed, cut, classes):
    shape = {"clients": 5, "classes": classes, "levels": (3, 2)}
    examples = random_examples(seed, n=300, **shape)
    at = np.arange(300)
    first, second = (counted(some(examples, page), **shape) for page in (at < cut, at >= cut))
    whole = counted(examples, **shape)
    for merged in (first + second, second.merge(first)):
        assert np.array_equal(merged.counts, whole.counts)
        np.testing.assert_allclose(merged.loss, whole.loss, rtol=1e-12)


def test_joined_pooled_and_chosen_clients():
    shape = {"clients": 5, "classes": 3, "levels": (2,)}
    counts = counted(random_examples(1, **shape), **shape)
    left, right = counts.only([0, 1]), counts.only(np.array([False, False, True, True, True]))
    assert (len(left), len(right)) == (2, 3)
    assert np.array_equal(Counts.join([left, right]).counts, counts.counts)
    assert np.array_equal(Counts.join([left, right]).loss, counts.loss)
    assert np.array_equal(counts.only(3).counts, counts.counts[3:4])
    pooled = left.pooled() + right.pooled()
    assert np.array_equal(pooled.counts[0], counts.counts.sum(0))
    assert pooled.sizes.tolist() == [400]


def test_counts_that_do_not_fit_are_refused():
    counts = Counts.zeros(2, 2, attributes(2))
    with pytest.raises(DataError, match="same clients"):
        counts + Counts.zeros(3, 2, attributes(2))
    for other in (Counts.zeros(2, 3, attributes(2)), Counts.zeros(2, 2, attributes(1, 1))):
        with pytest.raises(DataError, match="same classes and attributes"):
            counts.merge(other)
        with pytest.raises(DataError, match="same classes and attributes"):
            Counts.join([counts, other])
    with pytest.raises(DataError, match="at least one"):
        Counts.join([])
    with pytest.raises(DataError, match="a row for everyone"):
        Counts(np.zeros((2, 2, 2, 2), dtype=np.int64), np.zeros((2, 2, 2)), attributes(2))
    with pytest.raises(DataError, match="loss sums"):
        Counts(np.zeros((2, 1, 2, 2), dtype=np.int64), np.zeros((2, 2)))
