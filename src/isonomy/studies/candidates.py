"""The candidates of a trial: its model, points of its front, rules for its decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isonomy.config.schema import Config
from isonomy.core.capabilities import LearnsFront
from isonomy.core.notions import NOTIONS
from isonomy.metrics import Counts
from isonomy.metrics.requirements import Requirement
from isonomy.metrics.scores import has_scores
from isonomy.postprocess import Rule, fit
from isonomy.runs.finished import FinishedRun, reopen
from isonomy.runs.front import preferences_of
from isonomy.runs.reapply import postprocess_run
from isonomy.studies.selection import Candidate

RAYS = 100  # preferences of a front, minus one
SHARED, LOCAL = "thresholds", "logofair"  # post-processing: the same for all clients, or by client
SHARES = (0.8, 0.5, 0.2)  # of the required bound, as budgets of rules


def of_trial(
    folder: str, method: str, trial: int, settings: dict[str, Any], losses: bool = False
) -> list[Candidate]:
    """The candidates of a finished trial, with their counts on validation examples.

    With `losses`, these include what limits of losses need.
    """
    run = reopen(folder)
    algorithm = run.setting.algorithm
    if isinstance(algorithm, LearnsFront):
        preferences = preferences_of(run.setting.config, algorithm, RAYS)
        counts = run.front_counts("validation", preferences)
        return [
            Candidate(method, settings, folder, one, trial, preference=tuple(at.tolist()))
            for at, one in zip(preferences, counts, strict=True)
        ]
    own = run.counts("validation", powers=losses)
    return [Candidate(method, settings, folder, own, trial)]


def rules_for(requirements: Sequence[Requirement]) -> list[dict[str, Any]]:
    """Options of post-processing that aim at the requirements on groups, strict ones last.

    One attribute can be treated, that of the first requirement on groups.
    """
    wanted = [one for one in requirements if one.target.quantity.rates in NOTIONS]
    if not wanted:
        return []
    first = wanted[0].target
    same = [one for one in wanted if one.target.attribute == first.attribute]
    notions = {one.target.quantity.rates for one in same}
    notion = notions.pop() if len(notions) == 1 else "equalised_odds"
    local = [one.bound for one in same if one.target.quantity.whose == "groups in each client"]
    out = []
    for share in SHARES:
        options: dict[str, Any] = {"name": LOCAL if local else SHARED}
        options |= {"attribute": first.attribute, "notion": notion}
        options["budget"] = share * min(one.bound for one in same)
        if local:
            options["local_budget"] = share * min(local)
        out.append(options)
    return out


def with_rules(candidate: Candidate, options: Sequence[dict[str, Any]]) -> list[Candidate]:
    """The candidate's model with rules for its decisions, fitted on validation examples."""
    if candidate.folder is None or candidate.preference:
        return []
    run = reopen(candidate.folder)
    if not has_scores(run.setting.task):
        return []
    scores, out = run.scores("validation"), []
    for one in options:
        rule = fit(scores=scores, seed=run.setting.config.seed, **one)
        text = f"{one['name']} with {one['notion']} budget {one['budget']:.3g}"
        losses = candidate.counts.powers is not None
        counts = run.counts("validation", rule=rule, powers=losses)
        made = replace(candidate, counts=counts, rule=one, rule_text=text)
        out.append(made)
    return out


def fitted_rule(run: FinishedRun, options: dict[str, Any]) -> Rule:
    """The rule with these options for a run's model, fitted on validation examples."""
    return fit(scores=run.scores("validation"), seed=run.setting.config.seed, **options)


def final_run(candidate: Candidate, place: Path) -> str:
    """The folder of the run with the candidate's model; one with its rule is made at `place`."""
    assert candidate.folder is not None  # a constant prediction is not a candidate
    if candidate.rule is None:
        return candidate.folder
    options = dict(candidate.rule)
    name = options.pop("name")
    postprocess_run(candidate.folder, place, name, options, overwrite=True)
    return str(place)


def test_counts(run: FinishedRun, candidate: Candidate) -> Counts:
    """The chosen candidate's counts on the test examples; `run` is its `final_run`."""
    losses = candidate.counts.powers is not None
    return run.counts("test", candidate.preference, run.saved.rule, losses)


def settings_of(config: Config, default: Config) -> dict[str, Any]:
    """What a trial's config has that the method's default has not: names and values."""
    found: dict[str, Any] = {}
    for table in ("algorithm", "local"):
        own, usual = config.plain()[table], default.plain()[table]
        found |= {f"{table}.{k}": v for k, v in own.items() if usual.get(k) != v}
    return found
