import doctest
import importlib
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_by_hand import counted, random_examples
from sklearn.metrics import accuracy_score, log_loss
from torch import nn

import isonomy.metrics
from isonomy.core.examples import Attribute
from isonomy.core.notions import NOTIONS
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError
from isonomy.metrics import (
    Counts,
    better,
    count,
    describe,
    interval,
    intervals,
    names,
    parse,
    per_client,
    registry,
    summarise,
)
from isonomy.metrics.client import gini, mean

SPREAD = ["mean", "variance", "std", "worst5", "worst10", "best5", "jain", "gini", "entropy", "cv"]
SEX = (Attribute("sex", ("f", "m")),)


def two_clients():
    """The second has no men. Client tables: [everyone, f, m][label][prediction]."""
    f0, m0, f1, m1 = [[2, 1], [1, 4]], [[3, 1], [3, 1]], [[2, 0], [2, 0]], [[0, 0], [0, 0]]
    groups = np.array([[f0, m0], [f1, m1]])
    losses = np.array([[[3.0, 10.0], [8.0, 2.0]], [[1.0, 3.0], [0.0, 0.0]]])
    return Counts(
        np.concatenate([groups.sum(1, keepdims=True), groups], 1),
        np.concatenate([losses.sum(1, keepdims=True), losses], 1),
        SEX,
    )


def test_summary_by_hand():
    found = summarise(two_clients())
    expected = {
        "client.number": 2,
        "client.left_out": 0,
        "accuracy": 12 / 20,
        "loss": 27 / 20,
        "balanced_accuracy": (7 / 9 + 5 / 11) / 2,
        "f1": 2 * 5 / (2 * 5 + 2 + 6),
        # Everyone: [[5, 2], [4, 5]] and [[2, 0], [2, 0]].
        "client.balanced_accuracy.mean": ((5 / 7 + 5 / 9) / 2 + 1 / 2) / 2,
        "client.f1.worst5": 0,
        "client.f1.best5": 10 / 16,
        "group.sex.balanced_accuracy.f": (4 / 5 + 4 / 7) / 2,
        "group.sex.balanced_accuracy.m": (3 / 4 + 1 / 4) / 2,
        "group.sex.balanced_accuracy_gap": (4 / 5 + 4 / 7) / 2 - 1 / 2,
        "group.sex.f1.f": 8 / 12,
        "group.sex.f1.m": 2 / 6,
        "group.sex.f1_gap": 1 / 3,
        "client.accuracy.mean": (10 / 16 + 1 / 2) / 2,
        "client.accuracy.variance": (1 / 16) ** 2,
        "client.accuracy.std": 1 / 16,
        "client.accuracy.worst5": 1 / 2,
        "client.accuracy.worst10": 1 / 2,
        "client.accuracy.best5": 10 / 16,
        "client.accuracy.jain": (9 / 8) ** 2 / (2 * (25 / 64 + 16 / 64)),
        "client.accuracy.gini": (1 / 8) * 2 / (2 * 2 * 9 / 8),
        "client.accuracy.cv": (1 / 16) / (9 / 16),
        "client.loss.mean": (23 / 16 + 1) / 2,
        "client.loss.worst5": 23 / 16,
        "client.loss.best5": 1,
        # Pooled: women [[4, 1], [3, 4]], men [[3, 1], [3, 1]].
        "group.sex.demographic_parity": 5 / 12 - 2 / 8,
        "group.sex.demographic_parity_overall": 7 / 20 - 2 / 8,
        "group.sex.equal_opportunity": 4 / 7 - 1 / 4,
        "group.sex.equal_opportunity_overall": 5 / 11 - 1 / 4,
        "group.sex.equalised_odds": 4 / 7 - 1 / 4,
        "group.sex.max_loss": 17 / 12,
        "group.sex.max_loss_given_label": 2,
        "group.sex.min_accuracy": 4 / 8,
        "group.sex.accuracy.f": 8 / 12,
        "group.sex.accuracy.m": 4 / 8,
        "group.sex.loss.f": 17 / 12,
        "group.sex.loss.m": 10 / 8,
        "group.sex.positive_rate.f": 5 / 12,
        "group.sex.positive_rate.m": 2 / 8,
        "group.sex.true_positive_rate.f": 4 / 7,
        "group.sex.true_positive_rate.m": 1 / 4,
        "group.sex.false_positive_rate.f": 1 / 5,
        "group.sex.false_positive_rate.m": 1 / 4,
        "group.sex.hypervolume": 12 / 20 * (1 - (7 / 20 - 2 / 8)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert all(type(value) is float for value in found.values())
    assert set(found) - set(expected) == {
        "client.accuracy.entropy",
        *(f"client.loss.{s}" for s in SPREAD if s not in ("mean", "worst5", "best5")),
        *(f"client.f1.{s}" for s in SPREAD if s not in ("worst5", "best5")),
        *(f"client.balanced_accuracy.{s}" for s in SPREAD if s != "mean"),
    }


def test_per_client_by_hand():
    found = per_client(two_clients())
    np.testing.assert_array_equal(found["size"], [16, 4])
    np.testing.assert_array_equal(found["accuracy"], [10 / 16, 1 / 2])
    np.testing.assert_array_equal(found["loss"], [23 / 16, 1])
    np.testing.assert_array_equal(found["group.sex.demographic_parity"], [3 / 8, np.nan])
    np.testing.assert_array_equal(found["group.sex.demographic_parity_overall"], [3 / 16, 0])
    np.testing.assert_allclose(found["group.sex.equalised_odds"], [0.55, np.nan])
    np.testing.assert_array_equal(found["group.sex.max_loss"], [13 / 8, 1])
    assert all(len(column) == 2 for column in found.values())


def test_each_attribute_is_measured_on_its_own_groups():
    shape = {"clients": 5, "classes": 3}
    examples = random_examples(1, levels=(2, 3), **shape)
    both = counted(examples, levels=(2, 3), **shape)
    second = counted(examples._replace(groups=examples.groups[:, 1:]), levels=(3,), **shape)
    for measure in (summarise, per_client, lambda at: intervals(at, replicates=20)):
        found, alone = measure(both), measure(second)
        names = [name for name in alone if name.startswith("group.a0.")]
        assert len(names) >= 8
        for name in names:
            np.testing.assert_allclose(found[name.replace("a0", "a1", 1)], alone[name])


def test_clients_without_examples_are_left_out_and_counted():
    counts = two_clients()
    padded = Counts.join([Counts.zeros(1, 2, SEX), counts, Counts.zeros(2, 2, SEX)])
    found, expected = summarise(padded, bootstrap=50), summarise(counts, bootstrap=50)
    assert (found.pop("client.left_out"), expected.pop("client.left_out")) == (3, 0)
    assert found == pytest.approx(expected, nan_ok=True)
    assert np.isnan(per_client(padded)["accuracy"]).tolist() == [True, False, False, True, True]
    assert per_client(padded)["size"].tolist() == [0, 16, 4, 0, 0]


def test_regression_has_losses_only():
    counts = Counts(
        np.array([[[[4]], [[3]], [[1]]], [[[2]], [[2]], [[0]]]]),
        np.array([[[8.0], [3.0], [5.0]], [[1.0], [1.0], [0.0]]]),
        SEX,
    )
    found = summarise(counts)
    assert [name for name in found if "client." not in name] == [
        "loss",
        "group.sex.max_loss",
        "group.sex.loss.f",
        "group.sex.loss.m",
    ]
    assert [name for name in found if name.startswith("client.accuracy")] == []
    assert (found["loss"], found["group.sex.max_loss"], found["group.sex.loss.f"]) == (1.5, 5, 0.8)
    assert found["client.loss.mean"] == 1.25
    assert list(per_client(counts)) == ["size", "loss", "group.sex.max_loss"]
    assert set(intervals(counts, replicates=10)) == {n for n in found if not n.endswith(("r", "t"))}


def test_nothing_counted_gives_undefined_and_no_warning():
    for clients in (0, 2):
        found = summarise(Counts.zeros(clients, 2, SEX), bootstrap=5)
        assert found.pop("client.number") == 0
        assert found.pop("client.left_out") == clients
        assert np.isnan(list(found.values())).all()


def test_a_diverged_loss_shows_and_does_not_warn():
    for lost in (np.nan, np.inf):
        counts = two_clients()
        counts.loss[0, :2] = lost
        found = summarise(counts, bootstrap=20)
        for name in ("loss", "client.loss.mean", "client.loss.worst5", "group.sex.max_loss"):
            assert not np.isfinite(found[name]), name
            assert np.isnan(found[f"{name}:low"]), name
        assert found["accuracy"] == 0.6


def test_metrics_of_logits_agree_with_scikit_learn():
    random = torch.Generator().manual_seed(0)
    clients, n, classes = 6, 50, 4
    logits = torch.randn(clients, n, classes, generator=random)
    y = torch.randint(0, classes, (clients, n), generator=random)
    page = Batch(
        torch.zeros(clients, n, 1),
        y,
        torch.zeros(clients, n, 0, dtype=torch.int64),
        torch.ones(clients, n),
    )
    task = Task(lambda: nn.Linear(1, classes), "cross_entropy", classes)
    counts = Counts.of(torch.func.vmap(lambda o, *b: count(task, o, Batch(*b)))(logits, *page))
    chances = logits.double().softmax(-1).numpy()
    found, each = summarise(counts), per_client(counts)
    flat = chances.reshape(-1, classes)
    assert found["accuracy"] == pytest.approx(accuracy_score(y.flatten(), flat.argmax(1)))
    assert found["loss"] == pytest.approx(log_loss(y.flatten(), flat), rel=1e-6)
    for k in range(clients):
        assert each["accuracy"][k] == pytest.approx(accuracy_score(y[k], chances[k].argmax(1)))
        expected = log_loss(y[k], chances[k], labels=range(classes))
        assert each["loss"][k] == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.permutations(range(5)), st.integers(2, 4))
def test_the_order_of_clients_does_not_matter(seed, order, classes):
    shape = {"clients": 5, "classes": classes, "levels": (3, 2)}
    counts = counted(random_examples(seed, n=60, **shape), **shape)
    found, other = summarise(counts), summarise(counts.only(order))
    assert found == pytest.approx(other, nan_ok=True, rel=1e-9, abs=1e-12)
    here, there = per_client(counts), per_client(counts.only(order))
    for name, column in here.items():
        np.testing.assert_array_equal(column[list(order)], there[name])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_pooled_metrics_do_not_depend_on_who_holds_an_example(seed):
    shape = {"clients": 5, "classes": 2, "levels": (3,)}
    examples = random_examples(seed, n=100, **shape)
    found = summarise(counted(examples, **shape))
    moved = examples._replace(client=np.random.default_rng(seed).permutation(examples.client))
    other = summarise(counted(moved, **shape))
    pooled = [name for name in found if not name.startswith("client.")]
    assert {n: found[n] for n in pooled} == pytest.approx({n: other[n] for n in pooled})


def test_intervals_are_those_of_clients_drawn_one_by_one():
    shape = {"clients": 8, "classes": 3, "levels": (2,)}
    counts = counted(random_examples(2, **shape), **shape)
    drawn = np.random.default_rng(5).integers(8, size=(200, 8))
    slow = [summarise(counts.only(index)) for index in drawn]
    found = intervals(counts, replicates=200, level=0.9, seed=5)
    assert set(found) == set(slow[0]) - {"client.number", "client.left_out"}
    for name, ends in found.items():
        expected = np.nanquantile([each[name] for each in slow], [0.05, 0.95])
        assert ends == pytest.approx(tuple(expected), rel=1e-9, abs=1e-12), name


def test_intervals_agree_with_those_of_one_summary():
    shape = {"clients": 30, "classes": 2, "levels": (2,)}
    counts = counted(random_examples(3, n=900, **shape), **shape)
    each = per_client(counts)
    found = intervals(counts, ["client.accuracy.mean", "client.loss.gini"], replicates=300, seed=2)
    assert list(found) == ["client.accuracy.mean", "client.loss.gini"]
    assert found["client.accuracy.mean"] == interval(each["accuracy"], mean, replicates=300, seed=2)
    assert found["client.loss.gini"] == interval(each["loss"], gini, replicates=300, seed=2)


def test_summarise_adds_the_ends_of_the_intervals():
    counts = two_clients()
    found = summarise(counts, bootstrap=100, seed=3)
    ends = intervals(counts, replicates=100, seed=3)
    plain = summarise(counts)
    assert {n: v for n, v in found.items() if n in plain} == pytest.approx(plain, nan_ok=True)
    assert len(found) == len(plain) + 2 * len(ends)
    low, high = ends["accuracy"]
    assert (found["accuracy:low"], found["accuracy:high"]) == (low, high) == (0.5, 0.625)


def test_bootstrap_is_seeded():
    shape = {"clients": 20, "classes": 2, "levels": (2,)}
    counts = counted(random_examples(0, **shape), **shape)
    found = summarise(counts, bootstrap=50, seed=3)
    assert summarise(counts, bootstrap=50, seed=3) == found
    assert summarise(counts, bootstrap=50, seed=4)["loss:low"] != found["loss:low"]


def test_a_replicate_without_a_group_is_left_out():
    # Only the first client has men: without it the gap is undefined, with it known.
    found = intervals(two_clients(), ["group.sex.demographic_parity"], replicates=400)
    low, high = found["group.sex.demographic_parity"]
    assert (low, high) == pytest.approx((5 / 12 - 1 / 4, 5 / 8 - 1 / 4))


def test_intervals_of_an_unknown_name_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'accuracy'"):
        intervals(two_clients(), ["acuracy"])


def test_a_thousand_replicates_take_well_under_a_second():
    shape = {"clients": 100, "classes": 2, "levels": (2, 3)}
    counts = counted(random_examples(4, n=3000, **shape), **shape)
    began = time.process_time()
    intervals(counts, replicates=1000)
    assert time.process_time() - began < 1


def test_every_name_has_a_meaning_and_most_a_direction():
    shape = {"clients": 5, "classes": 2, "levels": (2,)}
    counts = counted(random_examples(0, **shape), **shape)
    names = [*summarise(counts, bootstrap=2), *per_client(counts), "excess", "faa", "hypervolume"]
    for name in names:
        for inside in (False, True):
            text = describe(name, inside_client=inside)
            assert text.endswith("."), name
            assert text[0].isupper(), name
            assert "{" not in text, name
        plain = name in ("size", "client.number", "client.left_out", "excess")
        undirected = plain or ":" in name or "positive_rate." in name
        assert (better(name) is None) == undirected, name
        metric = parse(name)
        assert metric.name == name
        assert metric.title
        assert metric.over in ("clients", "examples", None)
    sentences = {describe(name) for name in set(names)}
    assert len(sentences) == len(set(names))


@pytest.mark.parametrize(
    ("name", "direction", "sentence"),
    [
        ("loss", "lower", "Over all clients' examples together, the mean loss."),
        (
            "client.loss.worst5",
            "lower",
            "The mean loss of the highest-loss clients, 5 % of the clients rounded up.",
        ),
        (
            "client.accuracy.best5",
            "higher",
            "The mean accuracy of the highest-accuracy clients, 5 % of the clients rounded up.",
        ),
        ("group.age.min_accuracy", "higher", "the smallest accuracy of a group of age."),
        ("group.age.accuracy.low", "higher", "the share predicted correctly in group low of age."),
        ("group.a.b.max_loss", "lower", "the largest mean loss of a group of a.b."),
        ("group.{x}.loss.{y}", "lower", "the mean loss in group {y} of {x}."),
        ("accuracy:low", None, "Lower end of the bootstrap percentile interval over clients of"),
    ],
)
def test_meaning_and_direction(name, direction, sentence):
    assert better(name) == direction
    assert sentence in describe(name)


def test_the_meaning_inside_a_client():
    text = describe("group.sex.demographic_parity", inside_client=True)
    assert text.startswith("Over the client's own examples, the largest difference in the share")


def test_an_unknown_name_is_refused():
    for name in ("client.accuracy.median", "group.sex.theil", "precision"):
        with pytest.raises(ConfigError, match="unknown metric"):
            describe(name)


def test_a_name_is_parsed_into_its_parts():
    gap = parse("group.a.b.equal_opportunity_overall")
    assert (gap.attribute, gap.kind, gap.level) == ("a.b", "equal_opportunity_overall", None)
    assert gap.compares_groups
    assert gap.title == "equal-opportunity gap to everyone (a.b)"
    rate = parse("group.a.b.positive_rate.x.y")
    assert (rate.attribute, rate.kind, rate.level) == ("a.b", "positive_rate", "x.y")
    assert not rate.compares_groups
    end = parse("client.loss.worst10:high")
    assert end.end_of == parse("client.loss.worst10")
    assert [parse(name).scope for name in ("faa", "accuracy", "bytes", "hv")] == [
        "over clients",
        "over examples",
        "per run",
        "",
    ]


def test_an_unknown_name_is_found_without_a_direction():
    found = names.find_metric("my.number")
    assert (found.title, found.better, found.scope) == ("my.number", None, "")
    assert found.meaning().endswith(".")


def test_every_notion_has_its_metrics():
    for notion in NOTIONS.values():
        assert notion.name in registry.GROUP_METRICS
        assert (notion.overall_name in registry.GROUP_METRICS) == (len(notion.given) == 1)


def test_the_public_names_are_there_and_documented():
    assert isonomy.metrics.__all__ == sorted(isonomy.metrics.__all__)
    for name in isonomy.metrics.__all__:
        assert getattr(isonomy.metrics, name).__doc__


@pytest.mark.parametrize(
    "module",
    ["counts", "client", "group", "excess", "front", "names", "scores", "summary", "values"],
)
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"isonomy.metrics.{module}"))
    assert found.attempted > 0
    assert found.failed == 0
