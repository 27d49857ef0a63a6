"""The scikit-learn classifier: scikit-learn's own checks, and the runs that it stands for."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pandas
import pytest
import sklearn
from fairlearn.metrics import MetricFrame, demographic_parity_difference
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import isonomy
from isonomy import FairFederatedClassifier
from isonomy.errors import IsonomyError, RunError

EXPECTED: dict[str, str] = {}
"""Checks of scikit-learn that do not apply, with the reason."""


def patients(rows=240):
    draw = np.random.default_rng(3)
    frame = pandas.DataFrame(
        {"age": draw.integers(20, 80, rows), "ward": draw.choice(["er", "gp", "icu"], rows)}
    )
    sex = draw.choice(["f", "m"], rows)
    hospital = draw.choice(["north", "south", "west"], rows)
    late = frame.age + 15 * (sex == "m") + draw.normal(0, 5, rows) > 55
    return frame, np.where(late, "late", "early"), sex, hospital


def small(method="fedavg", **changes):
    given = {"model": "linear", "rounds": 5, "local": {"lr": 0.5}, **changes}
    return FairFederatedClassifier(method, **given)


@pytest.mark.slow
def test_checks_of_scikit_learn():
    found = check_estimator(
        FairFederatedClassifier(
            "fedavg",
            model={"name": "mlp", "hidden": [16]},
            rounds=15,
            local={"lr": 0.2, "batch": 16},
        ),
        expected_failed_checks=EXPECTED,
        on_skip=None,
        on_fail=None,
    )
    broken = {r["check_name"]: r["exception"] for r in found if r["status"] == "failed"}
    assert not broken
    assert {r["check_name"] for r in found if r["status"] == "xfail"} == set(EXPECTED)
    assert sum(r["status"] == "passed" for r in found) > 40


def test_the_run_is_that_of_the_same_table(tmp_path):
    frame, y, sex, hospital = patients()
    made = small().fit(frame, y, clients=hospital, sensitive_features={"sex": sex})
    whole = frame.astype({"age": float}).assign(
        sex=sex, label=(y == "late").astype(int), client=hospital
    )
    data = isonomy.federation(
        whole,
        label="label",
        client="client",
        protected=["sex"],
        numeric=["age"],
        task="classification",
        fractions=[0.9, 0.1, 0.0],
    )
    config = isonomy.make_config(
        model="linear",
        rounds=5,
        local={"lr": 0.5},
        evaluate={"every": 5, "split": "validation", "bootstrap": 0, "scores": "never"},
        excess="none",
        front={"rays": 0},
    )
    right = isonomy.run(config, tmp_path / "run", data=data)
    assert repr(made.record_.rounds) == repr(right.rounds)
    found = isonomy.predictor(tmp_path / "run").predict_rows(frame.to_dict("list"))
    assert made.predict(frame).tolist() == [["early", "late"][int(v)] for v in found.values]
    assert np.allclose(made.predict_proba(frame), found.probabilities, atol=1e-6)
    assert made.score(frame, y) == accuracy_score(y, made.predict(frame)) > 0.7
    assert made.classes_.tolist() == ["early", "late"]
    assert made.clients_ == ("north", "south", "west")


def test_clone_and_parameters():
    made = small("fedprox", options={"mu": 0.1}, random_state=3)
    other = clone(made)
    assert other.get_params() == made.get_params()
    assert other.set_params(rounds=2).rounds == 2
    assert not hasattr(other, "classes_")


def test_a_fitted_classifier_is_pickled():
    frame, y, _, hospital = patients(120)
    made = small().fit(frame, y, clients=hospital)
    again = pickle.loads(pickle.dumps(made))
    assert again.predict(frame).tolist() == made.predict(frame).tolist()


def test_folds_have_their_own_clients_and_groups():
    frame, y, sex, hospital = patients()
    with sklearn.config_context(enable_metadata_routing=True):
        made = small("fedfb", options={"alpha": 0.1}, rounds=3)
        made.set_fit_request(clients=True, sensitive_features=True)
        made.set_score_request(clients=True, sensitive_features=False)
        given = {"clients": hospital, "sensitive_features": pandas.Series(sex, name="sex")}
        scores = cross_val_score(made, frame, y, cv=3, params=given, error_score="raise")
        assert len(scores) == 3
        assert scores.min() > 0.6
        with pytest.raises(IsonomyError, match=r"protected|attribute|group"):  # not routed
            small("fedfb", rounds=3).fit(frame, y, clients=hospital)


def test_in_a_search_and_a_pipeline():
    frame, y, _, _ = patients(120)
    numbers = frame[["age"]].to_numpy(dtype=float)
    search = GridSearchCV(make_pipeline(StandardScaler(), small(rounds=2)), cv=2, param_grid={
        "fairfederatedclassifier__local": [{"lr": 0.001}, {"lr": 0.5}],
    })  # fmt: skip
    best = search.fit(numbers, y).best_params_
    assert best == {"fairfederatedclassifier__local": {"lr": 0.5}}


def test_with_fairlearn():
    frame, y, sex, hospital = patients()
    made = small().fit(frame, y == "late", clients=hospital, sensitive_features=sex)
    found = made.predict(frame)
    by_group = MetricFrame(
        metrics=accuracy_score, y_true=y == "late", y_pred=found, sensitive_features=sex
    ).by_group
    for level in ("f", "m"):
        assert by_group[level] == np.mean(found[sex == level] == (y == "late")[sex == level])
    gap = demographic_parity_difference(y == "late", found, sensitive_features=sex)
    assert gap == pytest.approx(abs(found[sex == "f"].mean() - found[sex == "m"].mean()))
    assert "group.sensitive_feature_0.demographic_parity" in made.record_.metrics


def test_a_model_for_each_client_needs_the_clients():
    frame, y, _, hospital = patients()
    made = small("local").fit(frame, y, clients=hospital)
    found = made.predict(frame, clients=hospital)
    assert made.score(frame, y, clients=hospital) == np.mean(found == y)
    alone = small("local").fit(frame[hospital == "west"], y[hospital == "west"])
    assert set(alone.clients_) == {"all rows"}
    one = made.predict(frame[:1], clients=["north"])
    assert one[0] == made.predict(frame, clients=["north"] * 240)[0]
    with pytest.raises(ValueError, match="give the client of every row"):
        made.predict(frame)
    with pytest.raises(IsonomyError, match="unknown client 'east'"):
        made.predict(frame[:1], clients=["east"])


def test_a_verdict_that_withholds_the_model_is_an_error():
    frame, y, sex, hospital = patients()
    given = {"clients": hospital, "sensitive_features": {"sex": sex}}
    with pytest.raises(RunError, match=r"verdict of 'pffl' is .* gives no model"):
        small("pffl", options={"zeta": 0.01}, rounds=2).fit(frame, y, **given)
    kept = small("pffl", options={"zeta": 0.01}, rounds=2, keep=True).fit(frame, y, **given)
    assert kept.record_.verdict["status"] != "met"
    assert len(kept.predict(frame)) == len(frame)


def test_a_feature_may_be_protected_too():
    frame, y, sex, hospital = patients()
    both = frame.assign(sex=sex, label=1.0)
    made = small().fit(both, y, clients=hospital, sensitive_features=both["sex"])
    features = made._predictor(None).model.card.features
    assert any(name.startswith("sex (feature)") for name in features)
    assert "group.sex.demographic_parity" in made.record_.metrics
    assert len(made.predict(both)) == len(both)


def test_wrong_inputs_are_refused():
    frame, y, sex, hospital = patients(60)
    with pytest.raises(ValueError, match="clients has 59"):
        small().fit(frame, y, clients=hospital[:-1])
    with pytest.raises(ValueError, match="sensitive feature 'sensitive_feature_0' has 59"):
        small().fit(frame, y, sensitive_features=sex[:-1])
    with pytest.raises(ValueError, match="one class only"):
        small().fit(frame, ["a"] * 60)
    made = small().fit(frame, y)
    with pytest.raises(ValueError, match="ward"):
        made.predict(frame[["age"]])


def test_without_scikit_learn_it_says_so():
    script = (
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "import isonomy\n"
        "try: isonomy.FairFederatedClassifier\n"
        "except isonomy.IsonomyError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == (
        "FairFederatedClassifier needs scikit-learn, which is not installed; run `pip install "
        "'isonomy[sklearn]'`.\n"
    )
