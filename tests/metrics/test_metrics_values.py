"""Values of scores and errors against scikit-learn and fairlearn, and by hand."""

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from metrics_by_hand import attributes
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from torch import nn

from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError
from isonomy.metrics import Counts, count, intervals, per_client, summarise
from isonomy.metrics.errors import Errors, error_sums
from isonomy.metrics.scores import BINS, Scores, bin_of, histogram, positive_score
from isonomy.metrics.values import Values

torch.set_num_threads(1)
LEVELS = (3,)


def made(loss, classes, width, *, clients=4, n=150, seed=0, scale=2.0):
    """A task, and random outputs [clients, n, o] with examples that they are of some use for."""
    random = torch.Generator().manual_seed(seed)
    outputs = scale * torch.randn(clients, n, width, generator=random)
    if classes:
        y = torch.randint(0, classes, (clients, n), generator=random)
        tilt = torch.nn.functional.one_hot(y, classes).float()
        outputs = outputs + (tilt if width == classes else 2 * y.unsqueeze(-1) - 1)
    else:
        y = 50 + 2 * outputs.squeeze(-1) + torch.randn(clients, n, generator=random)
        outputs = 50 + 2 * outputs
    groups = torch.randint(-1, LEVELS[0], (clients, n, 1), generator=random)
    weight = (torch.rand(clients, n, generator=random) < 0.8).float()
    page = Batch(torch.zeros(clients, n, 2), y, groups, weight)
    return Task(lambda: nn.Linear(2, width), loss, classes, LEVELS), outputs, page


def measured(task, outputs, page):
    """The counts and values of all clients, under vmap."""
    named = attributes(*LEVELS)

    def of(statistic):
        return torch.func.vmap(lambda o, *b: statistic(task, o, Batch(*b)))(outputs, *page)

    scores = None
    if task.classes == 2:
        scores = Scores(of(histogram).to(torch.int32).numpy(), named)
    errors = Errors(of(error_sums).numpy(), named)
    return Counts.of(of(count), named), Values(scores, errors)


def parts(page):
    """Whose examples there are: everyone, the groups, and each client's."""
    real, group = page.weight > 0, page.groups[..., 0]
    yield "", real
    for level in range(LEVELS[0]):
        yield f"g{level}", real & (group == level)
    for k in range(len(real)):
        yield k, real & (torch.arange(len(real)).unsqueeze(1) == k)


def value_of(found, each, name, where):
    """The value of one of the `parts`."""
    if isinstance(where, int):
        return each[name][where]
    return found[f"group.a0.{name}.{where}" if where else name]


def by_hand_calibration(y, score):
    """Ten bins of equal width, each with its mean probability and share of positives."""
    place, total = np.minimum((score * 10).astype(int), 9), 0.0
    for b in range(10):
        inside = place == b
        if inside.any():
            total += inside.mean() * abs(score[inside].mean() - y[inside].mean())
    return total


@pytest.mark.parametrize(("loss", "width"), [("cross_entropy", 2), ("logistic", 1)])
def test_two_classes_agree_with_scikit_learn(loss, width):
    task, outputs, page = made(loss, 2, width)
    counts, values = measured(task, outputs, page)
    found, each = summarise(counts, values), per_client(counts, values)
    score = positive_score(task, outputs.flatten(0, 1)).reshape(page.y.shape)
    binned, decided = bin_of(score), task.decide(outputs)
    for where, chosen in parts(page):
        y, p, b, h = (at[chosen].numpy() for at in (page.y, score, binned, decided))

        def value(name, where=where):
            return value_of(found, each, name, where)

        assert value("auc") == pytest.approx(roc_auc_score(y, b), rel=1e-12)
        assert value("average_precision") == pytest.approx(average_precision_score(y, b), rel=1e-12)
        assert value("brier") == pytest.approx(brier_score_loss(y, p), rel=1e-9)
        assert value("balanced_accuracy") == pytest.approx(balanced_accuracy_score(y, h))
        assert value("f1") == pytest.approx(f1_score(y, h))
        assert abs(value("calibration_error") - by_hand_calibration(y, p)) <= 0.5 / BINS + 1e-9
        assert abs(value("auc") - roc_auc_score(y, p)) < 2e-3
    assert found["auc_resolution"] < 2e-3


def test_the_auc_of_bins_is_wrong_by_half_of_the_pairs_in_a_bin_at_most():
    """Few wide bins: the stated bound is nearly reached, and never exceeded."""
    random, reached = np.random.default_rng(0), []
    for seed in range(40):
        n = int(random.integers(5, 60))
        y = np.r_[0, 1, random.integers(0, 2, n)]
        score = np.clip(random.normal(0.5, 0.02, n + 2) + (0.01 if seed % 2 else -0.01) * y, 0, 1)
        counts = np.zeros((1, 1, 2, 20), np.int64)
        np.add.at(counts[0, 0], (y, (score * 20).astype(int)), 1)
        of = Values(Scores(counts)).drawn(np.ones((1, 1)))
        bound, gap = of["auc_resolution"][0, 0], abs(of["auc"][0, 0] - roc_auc_score(y, score))
        assert gap <= bound + 1e-12
        reached.append(gap / bound)
    assert max(reached) > 0.5


def test_more_classes_agree_with_scikit_learn():
    task, outputs, page = made("cross_entropy", 4, 4)
    counts, values = measured(task, outputs, page)
    found, each = summarise(counts, values), per_client(counts, values)
    chances, decided = outputs.double().softmax(-1), task.decide(outputs)
    for where, chosen in parts(page):
        y, p, h = (at[chosen].numpy() for at in (page.y, chances, decided))
        given = {name: value_of(found, each, name, where) for name in ("brier", "f1")}
        assert given["brier"] == pytest.approx(brier_score_loss(y, p, labels=range(4)), rel=1e-6)
        assert given["f1"] == pytest.approx(f1_score(y, h, average="macro"))
        balanced = value_of(found, each, "balanced_accuracy", where)
        assert balanced == pytest.approx(balanced_accuracy_score(y, h))
    assert not [name for name in found if "auc" in name or "precision" in name]


def test_regression_agrees_with_scikit_learn():
    task, outputs, page = made("squared", 0, 1)
    counts, values = measured(task, outputs, page)
    found, each = summarise(counts, values), per_client(counts, values)
    oracle = {"rmse": root_mean_squared_error, "mae": mean_absolute_error, "r2": r2_score}
    for where, chosen in parts(page):
        y, p = page.y[chosen].double().numpy(), outputs.squeeze(-1)[chosen].double().numpy()
        for name, expected in oracle.items():
            assert value_of(found, each, name, where) == pytest.approx(expected(y, p), rel=1e-9)
    assert found["client.r2.worst5"] == pytest.approx(min(each["r2"]))
    assert found["client.rmse.worst5"] == pytest.approx(max(each["rmse"]))
    assert not [name for name in found if "f1" in name or "accuracy" in name or "brier" in name]


def test_gaps_agree_with_fairlearn():
    task, outputs, page = made("logistic", 2, 1, seed=3)
    counts, values = measured(task, outputs, page)
    found = summarise(counts, values)
    known = (page.weight > 0) & (page.groups[..., 0] >= 0)
    score = positive_score(task, outputs.flatten(0, 1)).reshape(page.y.shape)
    y, b, p, h, z = (
        at[known].numpy()
        for at in (page.y, bin_of(score), score, task.decide(outputs), page.groups[..., 0])
    )
    for name, oracle, given in (
        ("auc", roc_auc_score, b),
        ("average_precision", average_precision_score, b),
        ("brier", brier_score_loss, p),
        ("f1", f1_score, h),
        ("balanced_accuracy", balanced_accuracy_score, h),
    ):
        frame = MetricFrame(metrics=oracle, y_true=y, y_pred=given, sensitive_features=z)
        expected = frame.difference(method="between_groups")
        assert found[f"group.a0.{name}_gap"] == pytest.approx(expected, rel=1e-9), name


def test_intervals_are_those_of_clients_drawn_one_by_one():
    task, outputs, page = made("logistic", 2, 1, clients=6, n=40, seed=1)
    page = page._replace(y=torch.where(torch.arange(6).unsqueeze(1) == 2, 0, page.y))
    counts, values = measured(task, outputs, page)
    found = intervals(counts, values=values, replicates=60, level=0.9, seed=5)
    drawn = np.random.default_rng(5).integers(6, size=(60, 6))
    slow = [summarise(counts.only(index), values.only(index)) for index in drawn]
    for name in ("auc", "brier", "group.a0.auc_gap", "calibration_error", "client.brier.std"):
        expected = np.nanquantile([each[name] for each in slow], [0.05, 0.95])
        assert found[name] == pytest.approx(tuple(expected), rel=1e-9), name
    # The AUC of client 2 is undefined, and the other five are drawn.
    alone = per_client(counts, values)["auc"]
    assert np.isnan(alone).tolist() == [k == 2 for k in range(6)]
    means = alone[~np.isnan(alone)][np.random.default_rng(5).integers(5, size=(60, 5))].mean(1)
    assert found["client.auc.mean"] == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])))
    whole = summarise(counts, values, bootstrap=20)
    assert whole["client.auc.left_out"] == 1
    assert whole["client.auc.mean"] == pytest.approx(np.nanmean(alone))
    assert "client.brier.left_out" not in whole
    ends = {name for name in whole if name.endswith((":low", ":high"))}
    counted = {"client.number", "client.left_out", "client.auc.left_out"}
    counted |= {"client.average_precision.left_out"}
    assert {f"{n}:low" for n in set(whole) - ends - counted} <= ends


def test_pages_and_clients_merged_are_everything_together():
    task, outputs, page = made("logistic", 2, 1)
    counts, values = measured(task, outputs, page)
    halves = [
        measured(task, outputs[:, at], Batch(*(t[:, at] for t in page)))[1]
        for at in (slice(0, 70), slice(70, None))
    ]
    merged = Values(halves[0].scores + halves[1].scores, halves[0].errors + halves[1].errors)
    joined = Values(
        Scores.join([values.scores.only([0, 1]), values.scores.only([2, 3])]),
        Errors.join([values.errors.only([0, 1]), values.errors.only([2, 3])]),
    )
    pooled = Values(values.scores.pooled(), values.errors.pooled())
    expected = summarise(counts, values)
    for other in (merged, joined):
        assert summarise(counts, other) == pytest.approx(expected, rel=1e-12)
    together = summarise(counts.pooled(), pooled)
    names = [name for name in expected if not name.startswith("client.")]
    assert {n: together[n] for n in names} == pytest.approx({n: expected[n] for n in names})


def test_undefined_values():
    named = attributes(2)
    one_class = np.zeros((1, 3, 2, 20), np.int64)
    one_class[:, :2, 1, 4] = 3  # positives of group 0 only
    sums = np.array([[[3.0, 0.3], [3.0, 0.3], [0.0, 0.0]]])
    counts = Counts(
        np.array([[[[0, 0], [3, 0]]] * 2 + [[[0, 0], [0, 0]]]]), np.zeros((1, 3, 2)), named
    )
    found = summarise(counts, Values(Scores(one_class, named), Errors(sums, named)))
    for name in ("auc", "average_precision", "group.a0.auc_gap", "group.a0.brier_gap"):
        assert np.isnan(found[name]), name
    assert found["brier"] == pytest.approx(0.1)
    assert found["calibration_error"] == pytest.approx(1 - 4.5 / 20)
    assert np.isnan(found["client.auc.mean"])
    assert found["client.auc.left_out"] == 1
    equal = Errors(np.array([[[3.0, 1.0, 1.0, 3e6, 3e12]]]))  # labels 1e6, 1e6, 1e6
    assert np.isnan(Values(None, equal).of_clients()["r2"]).all()


def test_the_hinge_loss_has_no_probabilities():
    task, outputs, page = made("hinge", 2, 1)
    with pytest.raises(ConfigError, match="defines no probabilities"):
        error_sums(task, outputs[0], Batch(*(t[0] for t in page)))
