import fairlearn.metrics as oracle
import moocore
import numpy as np
import pytest
import torch
from metrics_by_hand import attributes, counted, random_examples, some
from sklearn.metrics import accuracy_score

from isonomy.core.examples import Attribute
from isonomy.core.task import Batch, Task
from isonomy.metrics import (
    Counts,
    count,
    demographic_parity,
    demographic_parity_overall,
    equal_opportunity,
    equal_opportunity_overall,
    equalised_odds,
    group_accuracy,
    group_loss,
    max_loss,
    max_loss_given_label,
    min_accuracy,
    summarise,
)

GAPS = {
    demographic_parity: (oracle.demographic_parity_difference, "between_groups"),
    demographic_parity_overall: (oracle.demographic_parity_difference, "to_overall"),
    equal_opportunity: (oracle.equal_opportunity_difference, "between_groups"),
    equal_opportunity_overall: (oracle.equal_opportunity_difference, "to_overall"),
    equalised_odds: (oracle.equalized_odds_difference, "between_groups"),
}


def of(*groups, loss=None):
    """Counts of one client from the tables [label][prediction] of its groups."""
    tables = np.array(groups)
    losses = np.zeros(tables.shape[:2]) if loss is None else np.array(loss, dtype=float)
    return Counts(
        np.concatenate([tables.sum(0, keepdims=True), tables])[None],
        np.concatenate([losses.sum(0, keepdims=True), losses])[None],
        attributes(len(groups)),
    ).tally("a0")


def test_two_groups_by_hand():
    tally = of([[2, 1], [1, 4]], [[3, 1], [3, 1]], loss=[[3, 10], [8, 2]])
    # Predicted positive: 5/8 and 2/8, everyone 7/16.
    assert demographic_parity(tally).tolist() == [3 / 8]
    assert demographic_parity_overall(tally).tolist() == [3 / 16]
    # True positive rates: 4/5 and 1/4, everyone 5/9. False positive rates: 1/3 and 1/4.
    assert equal_opportunity(tally) == pytest.approx(0.55)
    assert equal_opportunity_overall(tally) == pytest.approx(5 / 9 - 1 / 4)
    assert equalised_odds(tally) == pytest.approx(0.55)
    assert group_accuracy(tally).tolist() == [[6 / 8, 4 / 8]]
    assert min_accuracy(tally).tolist() == [0.5]
    assert group_loss(tally).tolist() == [[13 / 8, 10 / 8]]
    assert max_loss(tally).tolist() == [13 / 8]
    # By group and label: 3/3, 10/5, 8/4, 2/4.
    assert max_loss_given_label(tally).tolist() == [2]


def test_false_positives_can_decide_equalised_odds():
    tally = of([[1, 3], [1, 1]], [[4, 0], [1, 1]])
    assert equal_opportunity(tally).tolist() == [0]
    assert equalised_odds(tally).tolist() == [0.75]


def test_three_classes_by_hand():
    # Each class against the rest; rows are labels, columns predictions.
    tally = of(
        [[2, 0, 0], [0, 2, 0], [0, 2, 2]],  # predicted 2, 4, 2 of 8
        [[1, 1, 0], [1, 1, 0], [0, 0, 4]],  # predicted 2, 2, 4 of 8
    )
    assert demographic_parity(tally).tolist() == [0.25]
    assert demographic_parity_overall(tally).tolist() == [0.125]
    # True positive rates: 1, 1, 1/2 and 1/2, 1/2, 1.
    assert equal_opportunity(tally).tolist() == [0.5]
    assert equal_opportunity_overall(tally).tolist() == [0.25]
    # False positive rates: 0, 2/6, 0 and 1/6, 1/6, 0.
    assert equalised_odds(tally).tolist() == [0.5]


def test_the_positive_class_of_two_is_class_one():
    # True negative rates differ, true positive rates do not.
    tally = of([[9, 1], [1, 1]], [[1, 9], [1, 1]])
    assert equal_opportunity(tally).tolist() == [0]


def test_a_group_without_examples_is_left_out():
    two = of([[2, 1], [1, 4]], [[3, 1], [3, 1]], loss=[[3, 10], [8, 2]])
    three = of([[2, 1], [1, 4]], [[0, 0], [0, 0]], [[3, 1], [3, 1]], loss=[[3, 10], [0, 0], [8, 2]])
    for metric in (*GAPS, min_accuracy, max_loss, max_loss_given_label):
        assert metric(three).tolist() == metric(two).tolist()
    assert np.isnan(group_accuracy(three)[0, 1])
    assert np.isnan(group_loss(three)[0, 1])


def test_gaps_need_the_label():
    # No positive label in the second group.
    tally = of([[2, 1], [1, 4]], [[3, 1], [0, 0]])
    assert demographic_parity(tally) == pytest.approx(5 / 8 - 1 / 4)
    assert np.isnan(equal_opportunity(tally))
    assert equal_opportunity_overall(tally).tolist() == [0]  # the only group is everyone
    assert np.isnan(equalised_odds(tally))  # though false positive rates could be compared
    # No negative label in the second group.
    assert np.isnan(equalised_odds(of([[2, 1], [1, 4]], [[0, 0], [3, 1]])))


def test_a_class_that_cannot_be_compared_is_left_out_of_the_maximum():
    # Only the first group has label 2; classes 0 and 1 have true positive rates 1 and 1/2.
    tally = of([[2, 0, 0], [0, 2, 0], [4, 0, 0]], [[1, 1, 0], [0, 2, 0], [0, 0, 0]])
    assert equal_opportunity(tally).tolist() == [0.5]


def test_nothing_at_all_is_undefined():
    tally = of([[0, 0], [0, 0]], [[0, 0], [0, 0]])
    for metric in (*GAPS, min_accuracy, max_loss, max_loss_given_label):
        assert np.isnan(metric(tally)).all()


def test_one_group_has_no_difference_but_a_loss():
    tally = of([[2, 1], [1, 4]], [[0, 0], [0, 0]], loss=[[4, 4], [0, 0]])
    assert np.isnan(demographic_parity(tally))
    assert demographic_parity_overall(tally).tolist() == [0]
    assert max_loss(tally).tolist() == [1]


def test_a_diverged_loss_is_not_left_out():
    tally = of([[2, 1], [1, 4]], [[3, 1], [3, 1]], loss=[[np.nan, 1], [1, 1]])
    assert np.isnan(max_loss(tally))
    assert np.isnan(max_loss_given_label(tally))
    assert demographic_parity(tally).tolist() == [3 / 8]


@pytest.mark.parametrize("metric", GAPS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_binary_gaps_agree_with_fairlearn(metric, seed):
    examples = random_examples(seed)
    counts = counted(examples, clients=5, classes=2, levels=(3,))
    theirs, method = GAPS[metric]
    expected = theirs(examples.y, examples.h, sensitive_features=examples.groups, method=method)
    assert expected > 0.01
    assert float(metric(counts.pooled().tally("a0"))[0]) == pytest.approx(expected, abs=1e-12)
    # And inside each client.
    local = metric(counts.tally("a0"))
    for k in range(5):
        own = some(examples, examples.client == k)
        expected = theirs(own.y, own.h, sensitive_features=own.groups, method=method)
        assert local[k] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", GAPS, ids=lambda each: each.__name__)
def test_many_class_gaps_are_fairlearns_largest_over_classes(metric):
    examples = random_examples(5, n=2000, classes=4)
    counts = counted(examples, clients=5, classes=4, levels=(3,))
    theirs, method = GAPS[metric]
    expected = max(
        theirs(examples.y == c, examples.h == c, sensitive_features=examples.groups, method=method)
        for c in range(4)
    )
    assert float(metric(counts.pooled().tally("a0"))[0]) == pytest.approx(expected, abs=1e-12)


def test_accuracy_and_loss_by_group_agree_with_fairlearn():
    examples = random_examples(6, classes=3, levels=(2, 4))
    pooled = counted(examples, clients=5, classes=3, levels=(2, 4)).pooled()
    for column, name in enumerate(("a0", "a1")):
        accuracy = oracle.MetricFrame(
            metrics=accuracy_score,
            y_true=examples.y,
            y_pred=examples.h,
            sensitive_features=examples.groups[:, column],
        )
        tally = pooled.tally(name)
        np.testing.assert_allclose(group_accuracy(tally)[0], accuracy.by_group.to_numpy())
        assert float(min_accuracy(tally)[0]) == pytest.approx(accuracy.group_min())
        loss = oracle.MetricFrame(
            metrics=lambda y, h: float(np.mean(h)),
            y_true=examples.y,
            y_pred=examples.loss,
            sensitive_features=np.stack([examples.groups[:, column], examples.y], 1),
        )
        assert float(max_loss_given_label(tally)[0]) == pytest.approx(loss.group_max())
        means = [
            examples.loss[examples.groups[:, column] == z].mean() for z in range(2 + 2 * column)
        ]
        np.testing.assert_allclose(group_loss(tally)[0], means)
        assert float(max_loss(tally)[0]) == pytest.approx(max(means))


def test_rates_of_each_group_are_fairlearns():
    random = np.random.default_rng(5)
    y, h, z = [*random.integers(2, size=(2, 400)).tolist(), random.integers(3, size=400).tolist()]
    task = Task(lambda: torch.nn.Linear(1, 2), classes=2, levels=(3,))
    outputs = torch.nn.functional.one_hot(torch.tensor(h), 2).float()
    batch = Batch(torch.zeros(400, 1), torch.tensor(y), torch.tensor(z)[:, None], torch.ones(400))
    page = {k: v[None] for k, v in count(task, outputs, batch).items()}
    found = summarise(Counts.of(page, (Attribute("z", ("a", "b", "c")),)))
    frame = oracle.MetricFrame(
        metrics={
            "positive_rate": oracle.selection_rate,
            "true_positive_rate": oracle.true_positive_rate,
            "false_positive_rate": oracle.false_positive_rate,
        },
        y_true=y,
        y_pred=h,
        sensitive_features=z,
    )
    for rate in frame.by_group:
        for level, expected in zip("abc", frame.by_group[rate], strict=True):
            assert found[f"group.z.{rate}.{level}"] == pytest.approx(expected)
    point = [[1 - found["accuracy"], found["group.z.demographic_parity_overall"]]]
    expected = moocore.hypervolume(point, ref=[1, 1])
    assert found["group.z.hypervolume"] == pytest.approx(expected)
