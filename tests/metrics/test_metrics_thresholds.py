import numpy as np
import pytest
import torch
from metrics_by_hand import attributes
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
from torch import nn

from isonomy.core.task import Batch, Task
from isonomy.metrics import count
from isonomy.metrics.scores import BINS, Scores, histogram
from isonomy.metrics.thresholds import Thresholds, best, decide, fit

torch.set_num_threads(1)
ORACLE = {"balanced": balanced_accuracy_score, "f1": f1_score, "accuracy": accuracy_score}


def examples(seed=0, n=300, levels=2):
    random = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=random) < 0.25).long()
    outputs = torch.randn(n, 1, generator=random) + 1.5 * y.unsqueeze(-1) - 2
    groups = torch.randint(-1, levels, (n, 1), generator=random)
    page = Batch(torch.zeros(n, 2), y, groups, torch.ones(n))
    return Task(lambda: nn.Linear(2, 1), "logistic", 2, (levels,)), outputs, page


@pytest.mark.parametrize("criterion", list(ORACLE))
def test_the_fitted_threshold_is_the_best_of_all_and_counts_what_was_fitted(criterion):
    task, outputs, page = examples(n=60)
    scores = Scores(histogram(task, outputs, page).unsqueeze(0).numpy(), attributes(2))
    found = fit(scores, criterion)
    decided = decide(task, outputs, page, found.tensor(), None)
    oracle, y = ORACLE[criterion], page.y.numpy()
    score = outputs.double().sigmoid().squeeze(-1).numpy()
    # the decisions change only at bins that have examples
    each = [oracle(y, score >= k / BINS) for k in {0, *(score * BINS).astype(int), BINS}]
    assert oracle(y, decided.numpy()) == pytest.approx(max(each), abs=1e-12)
    counts = count(task, outputs, page, decisions=decided)["counts"][0]
    above = np.arange(BINS) / BINS > found.everyone
    assert counts[:, 1].tolist() == scores.counts[0, 0][:, above].sum(-1).tolist()


def test_each_group_has_its_own_threshold_and_others_have_that_of_everyone():
    task, outputs, page = examples(1)
    # the scores of group 1 are lower, so its threshold is too
    outputs = torch.where(page.groups == 1, outputs - 1.5, outputs)
    scores = Scores(histogram(task, outputs, page).unsqueeze(0).numpy(), attributes(2))
    found = fit(scores, "balanced", "a0")
    assert found.column == 0
    assert found.groups[1] < found.groups[0]
    decided = decide(task, outputs, page, found.tensor(), 0)
    score = outputs.double().sigmoid().squeeze(-1)
    for group, threshold in ((-1, found.everyone), (0, found.groups[0]), (1, found.groups[1])):
        chosen = page.groups[:, 0] == group
        assert torch.equal(decided[chosen], (score[chosen] > threshold).long())
    lanes = torch.func.vmap(
        lambda o, g: decide(task, o, page._replace(groups=g), found.tensor(), 0)
    )(torch.stack([outputs, -outputs]), torch.stack([page.groups, page.groups]))
    assert torch.equal(lanes[0], decided)


def test_the_threshold_one_half_is_the_decision_of_the_task():
    task, outputs, page = examples(2)
    outputs[0] = 0.0  # exactly .5, which the task decides to be negative
    assert torch.equal(
        decide(task, outputs, page, Thresholds(0.5).tensor(), None), task.decide(outputs)
    )


def test_without_both_classes_there_is_nothing_to_fit():
    one = np.zeros((2, 20), np.int64)
    one[0, 3] = 5
    assert best(one, "f1", otherwise=0.25) == 0.25
    # equally good cuts from bin 4 to bin 16: the one nearest to .5 is taken
    apart = one.copy()
    apart[1, 16] = 5
    assert best(apart, "accuracy", 0.0) == pytest.approx(0.5)
    # nothing is better than to decide all, or none, to be positive
    wrong = apart[::-1]
    assert best(wrong, "f1", 0.0) < 0.2
    assert best(np.array([[0] * 19 + [9], [1] + [0] * 19]), "accuracy", 0.0) == 1.0
