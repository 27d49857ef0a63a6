"""Decisions: what is chosen and why, on counts made by hand and with small real runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import isonomy
from isonomy.core.examples import Attribute
from isonomy.errors import ConfigError
from isonomy.metrics import Counts
from isonomy.metrics.requirements import answers, read_requirement, read_target
from isonomy.runs import build as building
from isonomy.runs.build import build
from isonomy.runs.listener import Listener
from isonomy.studies.decide import read_time, tried_methods, wish_of
from isonomy.studies.selection import (
    SHOWN,
    WORTH,
    Candidate,
    Selection,
    Wish,
    better_but_unshown,
    constant_candidate,
    judge,
    select,
    times_to_show,
    undominated,
)

SEX = Attribute("sex", ("f", "m"))


def counts(accuracy: float, gap: float, size: int = 4000, clients: int = 2) -> Counts:
    """Equal clients; half of the labels are 1, and groups of equal size differ by `gap`."""
    cells = np.zeros((clients, 3, 2, 2), np.int64)
    each = size // (4 * clients)  # of a group and a label
    for group, shift in ((1, -gap / 2), (2, gap / 2)):
        for label in (0, 1):
            right = round(each * (accuracy + (shift if label else -shift)))
            cells[:, group, label, label] = right
            cells[:, group, label, 1 - label] = each - right
    cells[:, 0] = cells[:, 1:].sum(1)
    return Counts(cells, np.zeros(cells.shape[:3]), (SEX,))


def candidate(name: str, accuracy: float, gap: float, size: int = 4000) -> Candidate:
    return Candidate(name, {}, f"runs/{name}", counts(accuracy, gap, size))


WISH = Wish(
    (read_requirement("demographic_parity(sex) <= 0.1", ["sex"]),),
    read_target("accuracy", ["sex"]),
    "higher",
)


def test_the_best_candidate_that_keeps_the_margin_is_chosen():
    found = select(
        WISH,
        [
            candidate("unfair", 0.9, 0.2),
            candidate("near the bound", 0.85, 0.095),
            candidate("fair", 0.8, 0.02),
            candidate("fair and worse", 0.7, 0.0),
        ],
        times=1.0,
    )
    assert found.chosen is not None
    assert found.chosen.candidate.method == "fair"
    assert [one.standing for one in found.judged] == ["missed", "possible", "clear", "clear"]
    assert [one.candidate.method for one in undominated(WISH, found.judged)] == [
        "unfair",
        "near the bound",
        "fair",
        "fair and worse",
    ]


def test_a_better_model_that_cannot_be_confirmed_is_named_with_what_it_needs():
    """Only one that meets the requirement as measured, and is better by more than chance."""
    rows = [
        candidate("unfair", 0.9, 0.2),
        candidate("near the bound", 0.85, 0.095),
        candidate("hardly better", 0.801, 0.095),
        candidate("fair", 0.8, 0.02),
    ]
    found = better_but_unshown(WISH, select(WISH, rows, times=1.0))
    assert found is not None
    assert found.candidate.method == "near the bound"
    assert times_to_show(WISH, found, 1.0) > 1
    for without in (rows[:1] + rows[2:], rows[:1]):
        assert better_but_unshown(WISH, select(WISH, without, times=1.0)) is None


def test_the_margin_follows_from_the_number_of_examples():
    """With many more examples, the candidate near its bound is clear and is chosen."""
    rows = [
        candidate("near the bound", 0.85, 0.085, 400_000),
        candidate("fair", 0.8, 0.02, 400_000),
    ]
    found = select(WISH, rows, times=1.0)
    assert found.chosen is not None
    assert found.chosen.candidate.method == "near the bound"


def test_without_a_clear_candidate_the_nearest_possible_one_is_chosen():
    rows = [candidate("a", 0.85, 0.098, 1600), candidate("b", 0.8, 0.06, 1600)]
    found = select(WISH, rows, times=1.0)
    assert found.chosen is not None
    assert (found.chosen.candidate.method, found.chosen.standing) == ("b", "possible")


def test_nothing_is_chosen_that_misses_a_requirement_or_is_no_better_than_a_constant():
    assert select(WISH, [candidate("unfair", 0.9, 0.2)], times=1.0).chosen is None
    assert select(WISH, [candidate("useless", 0.5, 0.0)], times=1.0).chosen is None
    almost = candidate("almost constant", 0.505, 0.0)  # better, but not by more than chance
    assert select(WISH, [almost], times=1.0).chosen is None


def test_the_nearest_trade_offs_are_not_beaten_by_others_and_not_useless():
    rows = [
        candidate("accurate", 0.9, 0.4),
        candidate("between", 0.85, 0.3),
        candidate("beaten", 0.8, 0.35),
        candidate("nearest", 0.7, 0.15),
        candidate("useless", 0.5, 0.12),
    ]
    found = select(WISH, rows, times=1.0)
    assert found.chosen is None
    assert [one.candidate.method for one in found.nearest] == ["nearest", "between", "accurate"]
    many = [candidate(str(i), 0.6 + 0.01 * i, 0.12 + 0.01 * i, 40_000) for i in range(20)]
    thinned = [one.candidate.method for one in select(WISH, many, times=1.0).nearest]
    assert len(thinned) == SHOWN
    assert (thinned[0], thinned[-1]) == ("0", "19")


def test_without_a_chance_to_be_confirmed_the_test_examples_are_not_used():
    """With 80 examples an interval is wider than the bound, so nothing is chosen."""
    found = select(WISH, [candidate("a", 0.9, 0.5, 80), candidate("b", 0.9, 0.0, 80)], times=1.0)
    assert found.chosen is None
    assert found.likeliest is not None
    assert found.likeliest.candidate.method == "b"
    assert found.likeliest.chance < WORTH
    factor = times_to_show(WISH, found.likeliest, 1.0)
    enough = candidate("b", 0.9, 0.0, math.ceil(80 * factor / 8 + 1) * 8)
    (answer,) = answers(WISH.requirements, enough.counts)
    assert answer.status == "met"


def test_of_models_that_no_test_could_confirm_the_one_that_needs_fewest_examples_is_named():
    """Not one at its bound, whose interval is a little narrower: no number would be enough."""
    low = counts(0.9, 0.0, 80)
    low.counts[:, 1, 0], low.counts[:, 2, 0] = [20, 0], [18, 2]  # few positive: narrow intervals
    low.counts[:, 1:, 1] = 0
    low.counts[:, 0] = low.counts[:, 1:].sum(1)
    rows = [Candidate("at the bound", {}, "runs/a", low), candidate("inside", 0.9, 0.0, 80)]
    wish = replace(WISH, objective=read_target("demographic_parity(sex)", ["sex"]), better="lower")
    judged = tuple(judge(wish, one, 1.0) for one in rows)
    assert [one.standing for one in judged] == ["possible", "possible"]
    assert [one.chance for one in judged] == [0, 0]
    assert judged[0].shortfall < judged[1].shortfall
    found = Selection(None, judged, judged[0], (), frozenset({0, 1})).likeliest
    assert found is not None
    assert found.candidate.method == "inside"
    needed = [times_to_show(wish, one, 1.0) for one in judged]
    assert needed[1] < 10 < needed[0] == math.inf


def test_the_constant_prediction_of_losses_is_the_share_of_labels():
    uneven = counts(0.9, 0.0)
    uneven.counts[:, :, 1] *= 3
    made = constant_candidate(uneven).counts
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert made.loss.sum((0, -1))[0] / made.sizes.sum() == pytest.approx(entropy)


def test_the_constant_prediction_is_the_most_frequent_label():
    uneven = counts(0.9, 0.0)
    uneven.counts[:, :, 1] *= 3
    made = constant_candidate(uneven).counts.counts
    assert made[..., 0].sum() == 0
    assert (made.sum(-1) == uneven.counts.sum(-1)).all()


def test_times_are_read():
    assert read_time("45") == 45
    with pytest.raises(ConfigError, match="give a time such as 90s"):
        read_time("soon")


def small(**values):
    """A config of a small federation with two groups and three clients."""
    return isonomy.make_config(
        data={"name": "synthetic"},
        model={"name": "logistic"},
        rounds=4,
        local={"epochs": 1, "batch": 64, "lr": 0.5},
        **values,
    )


def test_methods_aim_at_what_is_required():
    config = small(decide={"require": ["equal_opportunity <= 0.2"]})
    wish = wish_of(config, ["z"])
    found = dict(tried_methods(config, wish))
    assert {"FedAvg", "Local", "Focus", "FedEBA", "PFFL", "FMTL", "HetPFL", "FedFB"} <= set(found)
    assert found["FedFB"].algorithm.options == {"attribute": "z", "fairness": "eo"}
    with pytest.raises(ConfigError, match="no requirement was given"):
        wish_of(small(), ["z"])
    twice = {"require": ["accuracy >= 0.5", "accuracy >= 0.6"]}
    with pytest.raises(ConfigError, match="required twice"):
        wish_of(small(decide=twice), ["z"])


@pytest.fixture(scope="module")
def decided(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decide")
    found = isonomy.decide(
        small(),
        folder / "yes",
        require=["accuracy >= 0.6"],
        methods=["fedavg", "local"],
        trials=2,
    )
    return folder, found


def test_a_yes_comes_with_a_model_that_has_the_stated_accuracy(decided):
    _, found = decided
    assert found.outcome == "met"
    assert found.model is not None
    facts = json.loads((found.folder / "decision.json").read_text())
    assert facts["outcome"] == "met"
    assert facts["lines"][0].startswith("Yes: ")
    (answer,) = found.answers
    assert answer.status == "met"
    assert answer.low >= 0.6
    # the exported models, measured here on the test examples
    federation = build(small()).federation
    right = total = 0
    for k in range(len(federation)):
        own = facts["models"][k if len(facts["models"]) > 1 else 0]
        rows = federation.rows(k, "test")
        score = isonomy.load_model(found.folder / own).outputs(federation.x[rows]).squeeze(-1)
        right += int(((score > 0) == federation.y[rows].bool()).sum())
        total += len(score)
    assert right / total == pytest.approx(answer.value, abs=1e-9)
    assert total == answer.examples


def test_every_method_has_the_same_number_of_trials(decided):
    _, found = decided
    assert {one["trials"] for one in found.facts["methods"]} == {2}
    assert found.facts["passes"] == 2


def test_the_same_request_gives_the_same_answer_from_the_runs_that_are_there(decided):
    folder, found = decided
    again = isonomy.decide(
        small(),
        folder / "yes",
        require=["accuracy >= 0.6"],
        methods=["fedavg", "local"],
        trials=2,
    )
    same = ("outcome", "chosen", "answers", "candidates", "points", "lines")
    assert {k: again.facts[k] for k in same} == {k: found.facts[k] for k in same}
    assert not (found.folder / "earlier").exists()


def test_another_request_in_the_folder_keeps_the_earlier_answer_and_counts_it(tmp_path):
    def ask(*require):
        return isonomy.decide(
            small(), tmp_path / "all", require=require, methods=["fedavg"], trials=1
        )

    first = ask("accuracy >= 0.6")
    assert first.outcome == "met"
    page = (first.folder / "decision.html").read_bytes()
    second = ask("accuracy >= 0.999")  # no candidate: the test examples are not used
    assert second.outcome == "none"
    kept = tmp_path / "all" / "earlier" / "1"
    assert (kept / "decision.html").read_bytes() == page
    assert isonomy.load_model(kept / "model")
    assert not any("used" in line and "before" in line for line in second.lines)
    third = ask("accuracy >= 0.55")
    assert third.outcome == "met"
    assert [one["requirements"] for one in third.facts["earlier"]] == [["accuracy >= 0.6"]]
    assert any(line.startswith("The test examples were used once before") for line in third.lines)
    assert json.loads((kept.parent / "2" / "decision.json").read_text())["outcome"] == "none"


def test_a_feature_that_reveals_the_label_is_named_beside_the_answer(tmp_path):
    """Otherwise the answer is a yes with an accuracy that no use of the model will have."""
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 600)
    rows = pd.DataFrame(
        {
            "bank": draw.choice(["north", "south"], 600),
            "sex": draw.choice(["f", "m"], 600),
            "income": draw.normal(label * 0.2, 1.0),
            "collected": np.where(label == 1, "by court", "no"),
            "default": label,
        }
    )
    federation = isonomy.federation(rows, label="default", client="bank", protected=["sex"])
    config = isonomy.make_config(rounds=2, model={"name": "logistic"})
    found = isonomy.decide(
        config,
        tmp_path / "leak",
        require=["accuracy >= 0.5"],
        methods=["fedavg"],
        trials=1,
        data=federation,
    )
    (warning,) = [line for line in found.lines if line.startswith("Warning: ")]
    assert "A feature may reveal the label" in warning
    assert "collected" in warning
    assert warning[9:] in found.facts["data"]["warnings"]


def test_what_cannot_be_met_ends_in_a_no_with_the_nearest_trade_offs(tmp_path):
    found = isonomy.decide(
        small(), tmp_path / "no", require=["accuracy >= 0.999"], methods=["fedavg"], trials=1
    )
    assert found.outcome == "none"
    assert found.model is None
    assert not (tmp_path / "no" / "model").exists()
    assert found.answers == ()
    assert any(line.startswith("Trade-off: FedAvg, trial 0") for line in found.lines)
    page = (tmp_path / "no" / "decision.html").read_text()
    assert "Decision: no" in page


def test_what_no_predictions_meet_is_proved_and_tried_once(tmp_path):
    """The labels of the groups differ, so a small gap and a high accuracy exclude each other."""
    asked = ["demographic_parity <= 0.001", "accuracy >= 0.999"]
    found = isonomy.decide(small(), tmp_path / "no", require=asked, methods=["fedavg"], budget="1h")
    assert found.outcome == "none"
    assert found.facts["impossible"] == "any kind"
    assert found.facts["passes"] == 1  # not an hour of trials
    assert found.lines[0].startswith("No: it is proved that no model of any kind meets all 2")
    assert "No predictions at all, whatever the model" in found.lines[1]
    assert found.facts["nearest"]
    page = (tmp_path / "no" / "decision.html").read_text()
    assert "What is proved" in page
    assert "The nearest trade-offs" in page


class Noting(Listener):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_what_no_test_could_show_is_said_after_one_trial_of_each_method(tmp_path):
    """Not after all of the time, since no model that is found could change the answer."""
    asked, listener = ["accuracy >= 0.9999"], Noting()
    found = isonomy.decide(
        small(),
        tmp_path / "no",
        require=asked,
        methods=["fedavg"],
        budget="1h",
        listeners=[listener],
    )
    assert found.outcome == "none"
    assert found.facts["passes"] == 1
    (line,) = [line for line in found.lines if line.startswith("No result of ")]
    assert listener.notes[-2:] == [line, "the search ends here, with one trial of every method."]
    again = isonomy.decide(small(), tmp_path / "no", require=asked, methods=["fedavg"], trials=2)
    assert again.facts["passes"] == 2  # a number of trials that was asked for is kept


@pytest.mark.parametrize(("bound", "outcome"), [(0.02, "proved"), (5.0, "met")])
def test_a_bound_on_group_losses_is_met_or_proved_impossible(tmp_path, bound, outcome):
    found = isonomy.decide(
        small(),
        tmp_path / outcome,
        require=[f"worst_group_loss <= {bound}"],
        methods=["fedavg", "pffl", "hetpfl"],
        trials=1,
    )
    assert "HetPFL" in found.facts["left_out"]
    if outcome == "met":
        assert found.outcome == "met"
        (answer,) = found.answers
        assert 0 < answer.low <= answer.value <= answer.high <= bound
        assert "Some linear model meets worst_group_loss(z) <= 5" in found.facts["also_known"][0]
    else:
        assert found.outcome == "none"
        assert found.facts["impossible"] == "this kind"
        assert [text.split(" meets")[0] for text in found.facts["proved"]] == [
            "No linear model",
            "No set of linear models, one per client,",
        ]


def test_a_method_that_refuses_the_task_is_left_out_with_its_reason(tmp_path):
    """HetPFL needs the cross-entropy, which this model does not have; the others are tried."""
    found = isonomy.decide(
        small(),
        tmp_path / "out",
        require=["accuracy >= 0.6"],
        methods=["fedavg", "hetpfl"],
        trials=1,
    )
    assert list(found.facts["left_out"]) == ["HetPFL"]
    assert "set model.loss = 'cross_entropy'" in found.facts["left_out"]["HetPFL"]
    assert [one["label"] for one in found.facts["methods"]] == ["FedAvg"]


def test_pffl_aims_below_the_required_bound_on_losses():
    config = small(decide={"require": ["worst_group_loss <= 0.4", "worst_client_loss <= 0.6"]})
    found = dict(tried_methods(config, wish_of(config, ["z"])))
    pffl = [one.algorithm.options for one in found.values() if one.algorithm.name == "pffl"]
    assert [one["zeta"] for one in pffl] == [0.38, 0.34]
    assert all(list(one["attributes"]) == ["z"] for one in pffl)
    assert "AFL" in found
    assert "FedFB" not in found  # it aims at rates


def test_the_choice_does_not_depend_on_test_examples(tmp_path):
    """With other labels in the test split, the same model is chosen; only the answers differ."""

    def run(to):
        return isonomy.decide(
            small(), tmp_path / to, require=["accuracy >= 0.6"], methods=["fedavg"], trials=2
        )

    first = run("a")
    loaded = building.federation_of

    def flipped(config):
        found = loaded(config)
        for k in range(len(found)):
            rows = found.rows(k, "test")
            found.y[rows] = 1 - found.y[rows]
        return found

    federation = flipped(small())
    try:
        second = run("b")
    finally:
        flipped(small())  # back to what it was
    assert federation is loaded(small())
    assert first.facts["chosen"] == second.facts["chosen"]
    assert first.facts["points"] == second.facts["points"]
    assert second.outcome == "none"
    assert second.answers[0].value == pytest.approx(1 - first.answers[0].value)
    assert not math.isnan(second.answers[0].value)


def test_a_rule_for_the_decisions_is_a_candidate_and_is_exported(tmp_path):
    """A gap that plain averaging misses is met by thresholds by group."""
    asked = {"require": ["demographic_parity <= 0.25"], "methods": ["fedavg"], "trials": 1}
    found = isonomy.decide(small(), tmp_path / "rule", **asked)
    plain = next(p for p in found.facts["points"] if p["name"] == "FedAvg, trial 0")
    ruled = [p for p in found.facts["points"] if "thresholds" in p["name"]]
    assert plain["values"][0] > 0.25
    assert len(ruled) == 3
    assert min(p["values"][0] for p in ruled) < 0.15
    assert "thresholds" in found.facts["chosen"]["name"]
    assert found.answers[0].value == pytest.approx(found.facts["chosen"]["values"][0], abs=0.15)
