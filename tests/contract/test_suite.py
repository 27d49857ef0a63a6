"""`isonomy check`: every clause passes on a sound algorithm, and each can fail with a reason."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import isonomy
from contract import test_planted_declarations as declarations
from contract import test_planted_engines as engines
from contract import test_planted_faults as faults
from contract.planted import Planted, Sound, averaged
from isonomy.contract import suite
from isonomy.contract.running import LOOP
from isonomy.contract.suite import OF_A_CLASS, ON_AN_ENGINE
from isonomy.core.algorithm import Global
from isonomy.errors import ConfigError

CLAUSES = {*OF_A_CLASS, "phases pure", "recorded", *ON_AN_ENGINE}


@dataclass(frozen=True)
class OnlyPredicts(Planted):
    """Predicts in its own way, without a model."""

    def round(self, server, cohort):
        return averaged(server, cohort)

    def predict(self, task, server, state, x):
        return task.outputs(server.params, x)


PLANTED = {
    "declaration": faults.Thawed,
    "model": OnlyPredicts,
    "phases pure": faults.MutatesState,
    "inputs unchanged": faults.MutatesServer,
    "repeatable": faults.StateInGlobal,
    "resume": faults.StateInGlobal,
    "order": faults.ByPosition,
    "missing replies": faults.DividesByAsked,
    "padding": faults.CountsPadding,
    "engines agree": faults.CountsPadding,
    "serialisation": faults.FloatReply,
}


def test_a_sound_algorithm_passes():
    found = isonomy.check(Sound(), ["loop"])
    assert not found.failures
    assert found.passed
    assert {one.clause for one in found.results} == CLAUSES
    assert len(found.results) == len(CLAUSES)


@pytest.mark.slow
def test_a_sound_algorithm_passes_everywhere():
    found = isonomy.check(Sound())
    assert not found.failures
    assert {one.engine for one in found.results} == {"", "loop", "batched", "flower"}
    assert len(found.results) == 4 + 3 * len(ON_AN_ENGINE)


@pytest.mark.parametrize("clause", PLANTED)
def test_a_clause_can_fail(clause, monkeypatch):
    for table in (OF_A_CLASS, ON_AN_ENGINE):  # only this clause, and the two that are always run
        for other in set(table) - {clause}:
            monkeypatch.delitem(table, other)
    found = isonomy.check(PLANTED[clause], ["batched"])
    assert not found.passed
    (broken,) = [one for one in found.failures if one.clause == clause]
    assert broken.why
    assert "\n" not in broken.why
    assert broken.line.startswith("FAIL")
    assert broken.why in repr(found)


def test_the_other_clauses_can_fail(monkeypatch):
    """A wrong declaration, and an engine that changes clients outside the cohort."""
    found = isonomy.check(declarations.ModelAsStatistic, ["loop"])
    assert "recorded" in {one.clause for one in found.failures}
    assert {*PLANTED, "recorded", "outside untouched"} == CLAUSES
    for other in set(ON_AN_ENGINE) - {"outside untouched"}:
        monkeypatch.delitem(ON_AN_ENGINE, other)
    faulty = {"loop": engines._wrong_states(LOOP, engines._to_the_next)}
    monkeypatch.setattr(suite, "transports", lambda: faulty)
    assert "outside untouched" in {one.clause for one in isonomy.check(Sound()).failures}


def test_what_cannot_be_checked_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"unknown engine 'bached'.*Did you mean 'batched'"):
        isonomy.check("fedavg", ["bached"])
    with pytest.raises(ConfigError, match="give an algorithm"):
        isonomy.check(Global)
    monkeypatch.setattr("isonomy.contract.engines.has_flower", lambda: False)
    with pytest.raises(ConfigError, match=r"needs Flower.*isonomy\[flower\]"):
        isonomy.check("fedavg", ["flower"])
