"""Descriptions: the facts a run keeps, and the warnings, each raised and not raised."""

import gc
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from profile_data import draw, federation
from sklearn.metrics import roc_auc_score

from isonomy.data import load
from isonomy.data.profile import describe, leakage
from isonomy.data.profile.statistics import collect
from isonomy.errors import FetchError

RNG = np.random.default_rng(0)


def made(count=6, rows=2000, share=0.5, test=0.5, **more):
    """Clients without anything to warn of."""
    rng = np.random.default_rng(1)
    drawn = [draw(rng, rows, share, "normal") for _ in range(count)]
    groups = [rng.integers(0, 2, rows) for _ in range(count)]
    return federation([x for x, _ in drawn], [y for _, y in drawn], groups, test=test, **more)


def kinds(data):
    return [one.kind for one in describe(data).warnings]


def text(data, kind):
    (found,) = [one.text for one in describe(data).warnings if one.kind == kind]
    assert found.endswith((".", ".)"))
    assert "\n" not in found
    return found


# --- facts ---


def test_facts_are_plain_and_complete():
    data = load("synthetic", clients=5, options={"examples": 800})
    said = describe(data)
    facts = said.facts()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["sizes"] == data.sizes().tolist()
    assert facts["evaluated_sizes"] == data.sizes("test").tolist()
    assert facts["split_sizes"]["test"] == int(data.sizes("test").sum())
    assert facts["labels"] == ["0", "1"]
    for k in range(5):
        y = data.y[data.rows(k)]
        z = data.groups[data.rows(k), 0]
        assert facts["label_shares"][k] == pytest.approx(
            [float((y == i).double().mean()) for i in (0, 1)], abs=1e-6
        )
        assert facts["groups"]["z"]["shares"][k][1] == pytest.approx(float(z.double().mean()))
    assert sum(facts["groups"]["z"]["evaluated"]) == facts["split_sizes"]["test"]
    assert set(facts["clients"]) == {"label", "group.z", "feature", "relation"}
    assert {len(column) for column in facts["clients"].values()} == {5}


def test_regression_has_no_labels():
    facts = describe(load("linear", clients=4, options={"n": 100})).facts()
    assert "labels" not in facts
    assert {row["about"] for row in facts["measures"]} == {
        "sizes",
        "features",
        "relation to the target",
    }


def test_an_answer_is_kept_as_long_as_its_data():
    from isonomy.data import profile as package

    data = made(2, 50)
    assert describe(data) is describe(data)
    before = len(package._known)
    del data
    gc.collect()
    assert len(package._known) < before


def test_without_test_rows_training_rows_are_measured():
    assert describe(made(test=0.0)).evaluated == "train"
    assert describe(made()).evaluated == "test"


def test_the_same_data_give_the_same_facts():
    one, two = (load("synthetic", clients=4, options={"examples": 600}) for _ in range(2))
    assert describe(one).facts() == describe(two).facts()


# --- warnings ---


def test_nothing_to_say():
    assert kinds(made()) == []


def test_small_groups_and_cells():
    data = made()
    groups = data.groups.clone()
    groups[:] = 0
    for k in range(len(data)):
        at = data.rows(k, "test")
        groups[at.start : at.start + 15] = 1
    groups[data.rows(0)][:100] = 1
    small = replace(data, groups=groups)
    said = text(small, "small-group")
    assert "g b has 90" in said
    assert "±0.10" in said
    y = data.y.clone()
    groups = data.groups.clone()
    for k in range(len(data)):
        at = data.rows(k, "test")
        mine = groups[at, 0] == 1
        y[at] = torch.where(mine, torch.zeros_like(y[at]), y[at])
        y[at.start + int(mine.nonzero()[0])] = 1
    assert "g b with '1' has 6" in text(replace(data, y=y), "small-cell")


def test_a_lacking_group():
    data = made()
    groups = data.groups.clone()
    groups[data.rows(2)] = 0
    said = text(replace(data, groups=groups), "group-absent")
    assert said.startswith("1 of 6 clients (client 2) has no rows of g b")


def test_one_label_and_a_label_at_one():
    data = made()
    y = data.y.clone()
    y[data.rows(1)] = 0
    assert text(replace(data, y=y), "one-label").startswith("1 of 6 clients (client 1) has one")
    y = data.y.clone()
    y[data.rows(3).start] = 2
    assert "'2' at client 3" in text(replace(data, y=y, classes=3), "label-at-one")


def test_an_unlearnable_label():
    data = made()
    y = data.y.clone()
    y[data.rows(0, "test").start] = 2
    said = describe(replace(data, y=y, classes=3)).warnings[0]
    assert (said.kind, said.weight) == ("label-absent", 3)
    assert "1 label has no training row (2) but 1 other" in said.text


def test_small_clients_and_none_to_measure():
    said = text(made(rows=60), "small-client")
    assert "30 test rows" in said
    assert "0.09" in said  # sqrt(1/4 / 30)
    data = made(rows=40, test=0.4)
    assert "6 of 6 clients" in text(data, "small-client")
    ranges = data.ranges.clone()
    ranges[4, 2] = ranges[4, 2, 0]
    assert "1 of 6 clients (client 4) has no test rows" in text(
        replace(data, ranges=ranges), "no-rows"
    )


def test_a_dominant_client():
    rng = np.random.default_rng(0)
    drawn = [draw(rng, n, 0.5, "normal") for n in (20_000, 2000, 2000, 2000)]
    data = federation([x for x, _ in drawn], [y for _, y in drawn], test=0.5)
    assert "client 0 has 77 %" in text(data, "dominant")
    half = federation([x[:2000] for x, _ in drawn], [y[:2000] for _, y in drawn], test=0.5)
    assert "dominant" not in kinds(half)


def test_imbalance():
    assert "right for 95 % of the test rows" in text(made(share=0.05), "imbalance")
    assert "imbalance" not in kinds(made(share=0.15))


def test_label_and_group_shift():
    rng = np.random.default_rng(0)
    drawn = [draw(rng, 2000, p, "normal") for p in (0.2, 0.5, 0.8, 0.5)]
    groups = [(rng.random(2000) < p).astype(int) for p in (0.5, 0.1, 0.5, 0.9)]
    data = federation([x for x, _ in drawn], [y for _, y in drawn], groups, test=0.5)
    said = describe(data).warnings
    assert [one.kind for one in said] == ["label-shift", "group-shift"]
    assert re.search(r"overall shares is 0\.1[456] .* at client [02]", said[0].text)
    assert re.search(r"at client [13] with (89|90|91) % g [ab]", said[1].text)


def test_concept_shift_is_named_with_what_differs():
    rng = np.random.default_rng(0)
    drawn = [draw(rng, 2000, 0.5, "normal") for _ in range(5)]
    ys = [1 - y if k == 2 else y for k, (_, y) in enumerate(drawn)]
    data = federation([x for x, _ in drawn], ys, test=0.5, features=tuple("abcdefgh"))
    said = describe(data).warnings[0]
    assert (said.kind, said.weight) == ("concept-shift", 3)
    assert "differs at 1 of 5 clients (client 2), and is reversed at 1: " in said.text
    assert re.search(
        r"'[a-h]' is 0\.[3-7] sd lower among '1' than among '0' at client 2", said.text
    )
    assert re.search(r"and 0\.5 sd higher at other clients", said.text)


def test_feature_shift():
    rng = np.random.default_rng(0)
    drawn = [draw(rng, 2000, 0.5, "normal") for _ in range(5)]
    xs = [x + (0.9 if k == 1 else 0) * np.eye(8)[4] for k, (x, _) in enumerate(drawn)]
    data = federation(xs, [y for _, y in drawn], test=0.5, features=tuple("abcdefgh"))
    assert kinds(data) == ["feature-shift"]
    assert "'e' is 0.9 sd higher at client 1" in text(data, "feature-shift")


def with_column(data, column):
    return replace(data, x=torch.cat([data.x, column[:, None].float()], 1))


def test_leaks():
    data = made()
    exact = with_column(data, data.y)
    assert describe(exact).warnings[0].kind == "leak"
    assert "'feature 8'" in text(exact, "leak")
    noise = torch.randn(len(data.y), generator=torch.Generator().manual_seed(0))
    assert "AUC about 0.99" in text(with_column(data, 4 * data.y + noise), "leak")
    assert "leak" not in kinds(with_column(data, 2 * data.y + noise))
    part = (data.y == 1) & (noise > 1.5)  # tells a fifteenth of the rows for certain
    assert "100 % of the rows with 'feature 8' are '1'" in text(with_column(data, part), "leak")


def test_a_leak_of_a_target():
    data = load("linear", clients=4, options={"n": 200})
    assert "leak" not in kinds(data)
    assert "correlation of 1.000" in text(with_column(data, 3 * data.y), "leak")


def test_proxies_and_the_group_itself():
    data = made()
    noise = torch.randn(len(data.y), generator=torch.Generator().manual_seed(0))
    near = with_column(data, 2.5 * data.groups[:, 0] + noise)
    assert "'feature 8' reveals g" in text(near, "proxy")
    same = with_column(data, data.groups[:, 0])
    assert "is g a itself" in text(same, "proxy")
    assert "proxy" not in kinds(with_column(data, data.groups[:, 0] + noise))


def test_the_chance_of_telling_apart_is_the_auc():
    data = made()
    noise = torch.randn(len(data.y), generator=torch.Generator().manual_seed(0))
    more = with_column(data, 3 * data.groups[:, 0] + noise)
    (one,) = leakage.of_groups(collect(more), 0)
    at = torch.cat([torch.arange(len(more.y))[more.rows(k)] for k in range(len(more))])
    right = roc_auc_score(more.groups[at, 0] == one.level, more.x[at, 8])
    assert one.auc == pytest.approx(max(right, 1 - right), abs=0.003)


def test_base_rates():
    data = made()
    y = data.y.clone()
    y[(data.groups[:, 0] == 1) & (data.x[:, 0] > 0.5)] = 1
    assert "demographic-parity gap of 0." in text(replace(data, y=y), "base-rate")


def test_constant_features():
    data = made()
    assert "1 feature is the same" in text(
        with_column(data, torch.full((12_000,), 3.7)), "constant"
    )
    assert "constant" not in kinds(with_column(data, torch.zeros(12_000)))  # a level nobody has


def test_what_the_loader_says_is_passed_on():
    data = made()
    object.__setattr__(data, "warnings", ("Half of 'age' is missing.",))
    assert text(data, "loading") == "Half of 'age' is missing."


def test_a_thousand_clients_make_a_few_lines():
    data = load("synthetic", clients=1000, options={"examples": 20_000})
    said = describe(data).warnings
    assert len(said) == len({one.kind for one in said}) <= 12
    assert max(len(one.text) for one in said) < 700
    assert [one.weight for one in said] == sorted((one.weight for one in said), reverse=True)


@pytest.fixture(scope="module")
def adult():
    try:
        return load("adult")
    except FetchError as error:
        pytest.skip(str(error))


def test_adult_as_it_comes(adult):
    """Label shift is the default partition's; what the features tell and the shares are ADULT's."""
    said = {one.kind: one.text for one in describe(adult).warnings}
    assert {"label-shift", "proxy", "base-rate"} <= set(said) <= {
        "label-shift", "proxy", "base-rate", "loading"
    }  # fmt: skip
    assert "of the rows with 'relationship=Husband' are sex Male" in said["proxy"]
    assert "'>50K' is the label of 30 % of sex Male and 11 % of Female" in said["base-rate"]


def test_adult_dealt_at_random_has_no_shift(adult):
    from isonomy.data.profile import Measure

    data = load("adult", clients=20, partition="iid")
    found: dict[tuple[str, str], Measure] = {(m.about, m.name): m for m in describe(data).measures}
    assert all(m.p is None or m.p > 0.001 for m in found.values())
    assert not [m for m in found.values() if m.name.startswith("clients that differ") and m.value]


def test_adult_with_flipped_labels_at_one_client(adult):
    y = adult.y.clone()
    for split in ("train", "test"):
        at = adult.rows(6, split)
        y[at] = 1 - y[at]
    said = text(replace(adult, y=y), "concept-shift")
    assert "differs at 1 of 10 clients (client 6), and is reversed at 1" in said


@pytest.mark.slow
def test_turned_digits_are_found():
    """MNIST's clients 7 to 9 see their images turned; nobody else is named."""
    try:
        data = load("mnist", partition="rotations")
    except FetchError as error:
        pytest.skip(str(error))
    said = text(data, "concept-shift")
    assert "at 3 of 10 clients (client 9, 180 degrees, client" in said
    assert "is reversed at 3" in said
    assert "label-shift" not in kinds(data)


@pytest.mark.slow
def test_digits_dealt_by_label_shift_in_labels_only():
    try:
        data = load("mnist", clients=20, partition={"name": "dirichlet", "beta": 0.3})
    except FetchError as error:
        pytest.skip(str(error))
    assert set(kinds(data)) <= {"label-shift", "small-client", "one-label", "label-at-one"}
