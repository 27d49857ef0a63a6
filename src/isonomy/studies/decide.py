"""From requirements to a decision: a model that meets them, with evidence, or an honest no.

0. What can be proved is proved first (`isonomy.studies.proofs`). If no model can meet the
   requirements, every method is tried once, for the nearest trade-offs.
1. Every method is tried with the same number of trials: first its defaults, then settings drawn by
   `isonomy.studies.search`. As many passes over all methods are made as fit into the time, or one
   if the test examples are too few to show that any model meets the requirements.
2. Candidates are compared on validation examples only (`isonomy.studies.selection`).
3. The chosen candidate, and no other, is measured once on the test examples. The intervals hold for
   all requirements together, so a requirement that is not fulfilled is called met in at most 2.5 %
   of cases.
4. If every requirement is met, the model is exported. Otherwise the answer is no.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isonomy import algorithms
from isonomy.config.schema import Config, parse
from isonomy.core.capabilities import LearnsFront
from isonomy.core.options import options_of
from isonomy.errors import ConfigError, IsonomyError, TrainingError
from isonomy.metrics import Counts
from isonomy.metrics.requirements import (
    Answer,
    Requirement,
    answers,
    read_requirement,
    read_target,
)
from isonomy.runs.build import Setting, build, effective
from isonomy.runs.finished import FinishedRun, reopen
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.studies import candidates as found_in
from isonomy.studies.compare import methods as compared
from isonomy.studies.compare import slug
from isonomy.studies.decision import (
    TRIALS,
    WITH_RULE,
    Decision,
    MethodTried,
    check_folder,
    data_warnings,
    too_few,
    too_few_line,
    written,
)
from isonomy.studies.parallel import Plan, at_once, run_or_resume
from isonomy.studies.private_decide import PrivateDecision, bound_of
from isonomy.studies.proofs import Proofs, prove
from isonomy.studies.selection import Candidate, Wish, judge, select

if TYPE_CHECKING:
    from isonomy.studies.search import Search

PLAIN = ("fedavg", "local")
SYSTEMS = ("focus", "fedeba", "pffl", "fmtl", "hetpfl")
FOR_GROUPS = ("fedfb", "fedfair", "equifl")
FOR_CLIENTS = ("q_fedavg", "fedfv")
FOR_CLIENT_LOSSES = ("afl",)
BELOW = (0.95, 0.85)  # shares of a required bound on losses that PFFL aims at
ALIKE = "accuracy"  # the name under which a search is told how good a trial is
PENALTY = 10.0  # weight of a missed requirement in what a search is told


_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")


def read_time(text: str) -> float:
    """A time in seconds.

    >>> read_time("90s"), read_time("10m"), read_time("1.5h")
    (90.0, 600.0, 5400.0)
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or not float(match[1]) > 0:
        raise ConfigError(f"budget '{text}': give a time such as 90s, 10m or 2h.")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]


@dataclass(frozen=True)
class Effort:
    """How much is tried: seconds or trials per method, and runs at once."""

    seconds: float | None = 600.0
    trials: int | None = None
    jobs: int = 1


def wish_of(config: Config, attributes: Sequence[str]) -> Wish:
    """What the config's table `decide` asks for. Raises ConfigError if it is not possible."""
    given = config.decide
    bound, texts = bound_of(given.require)
    if bound is None and not texts:
        raise ConfigError(
            "no requirement was given; give one or more, e.g. "
            "--require 'demographic_parity(sex) <= 0.05'."
        )
    required = tuple(read_requirement(text, attributes) for text in texts)
    for i, one in enumerate(required):
        if one.target in [other.target for other in required[:i]]:
            raise ConfigError(f"{one.target.text} is required twice; keep the stricter bound.")
    if given.minimise is not None:
        return Wish(required, read_target(given.minimise, attributes), "lower")
    objective = read_target(given.maximise, attributes)
    if objective.quantity.better == "lower":
        raise ConfigError(f"maximise {objective.text}: less of it is better; use minimise instead.")
    return Wish(required, objective, "higher")


def tried_methods(config: Config, wish: Wish) -> list[tuple[str, Config]]:
    """Labels and complete configs of the methods that are tried.

    They are those of `decide.methods` or, without it, plain averaging, local training, the five
    systems of the package, and further methods that aim at what is required.
    """
    of_groups = [one for one in wish.requirements if one.target.quantity.needs_attribute]
    groups = [one for one in of_groups if not one.target.quantity.is_loss]
    bounded = [one for one in of_groups if one.target.quantity.is_loss]
    clients = [one for one in wish.requirements if one.target.quantity.whose == "clients"]
    names: list[Any] = list(config.decide.methods)
    if not names:
        names = [*PLAIN, *SYSTEMS]
        names += FOR_GROUPS if groups else ()
        names += FOR_CLIENTS if clients else ()
        names += FOR_CLIENT_LOSSES if any(o.target.quantity.is_loss for o in clients) else ()
        if bounded:
            names.remove("pffl")
            names += [_bounding(bounded[0], share) for share in BELOW]
    tables = [{"algorithm": one} if isinstance(one, str) else dict(one) for one in names]
    changed = config.compare.model_copy(
        update={"methods": [_aimed(table, groups) for table in tables]}
    )
    found = compared(config.model_copy(update={"compare": changed}))
    return [(method.label, method.config) for method in found]


def _bounding(required: Requirement, share: float) -> dict[str, Any]:
    """PFFL with a share of the required bound on the losses of groups."""
    zeta = float(f"{share * required.bound:.4g}")
    options = {"name": "pffl", "zeta": zeta, "attributes": [required.target.attribute]}
    return {"label": f"PFFL, zeta {zeta:g}", "algorithm": options}


def _aimed(table: dict[str, Any], required: Sequence[Requirement]) -> dict[str, Any]:
    """The method with a label, and its options for notion and attribute set to what is required.

    Only options that are not given are set, and the first requirement on groups decides.
    """
    given = table["algorithm"]
    options = {"name": given} if isinstance(given, str) else dict(given)
    kind = algorithms.find(options["name"])
    table = {"label": kind.__name__, **table}
    if not required:
        return {**table, "algorithm": options}
    target = required[0].target
    known = options_of(kind)
    if "attribute" in known:
        options.setdefault("attribute", target.attribute)
    notion = {"eo": "eo", "equalised_odds": "eo"}.get(target.quantity.rates, "dp")
    for name in ("notion", "fairness"):
        if name in known and known[name].default == "dp":
            options.setdefault(name, notion)
    return {**table, "algorithm": options}


@dataclass
class _Tried:
    """A method in progress: its search, its candidates, and what went wrong."""

    label: str
    config: Config
    search: Search | None
    candidates: list[Candidate]
    failures: list[str]
    trials: int = 0
    seconds: float = 0.0


def decide(
    config: Config,
    folder: str | Path,
    effort: Effort,
    *,
    command: str = "",
    listener: Listener | None = None,
    overwrite: bool = False,
) -> Decision:
    """Search, choose, verify, and write the decision to a folder."""
    listener = listener or Listener()
    place, started = Path(folder), time.monotonic()
    check_folder(place)
    bound, _ = bound_of(config.decide.require)
    private: PrivateDecision | None = None
    if bound is not None:
        private = PrivateDecision(config, bound, place, listener.note, fresh=overwrite)
        config, setting = private.config, private.setting()
    else:
        config = effective(config, listener.note)
        setting = build(config, listener.note)
    _require_possible(setting)
    wish = wish_of(config, [a.name for a in setting.federation.attributes])
    for text in data_warnings(setting)[0]:
        listener.note(text)
    times = _times(setting)
    proofs = Proofs(None, ())
    if private is None:
        proofs = prove(setting, wish.requirements)
    else:
        private.check_wish(wish, setting)
        effort = Effort(None, effort.trials or 1, effort.jobs)
    for text in [*proofs.texts, *proofs.others]:
        listener.note(f"proved: {text}" if text in proofs.texts else text)
    if proofs.impossible:
        listener.note("every method is tried once, to find the nearest trade-offs.")
        effort = Effort(None, 1, effort.jobs)
    effort = _possible_effort(effort, listener)
    tried, left_out = _prepared(config, wish, effort, listener, private)
    passes = _search(tried, wish, times, place, effort, started, listener, overwrite, private)
    _add_rules(tried, wish, times, listener, private)
    every = [one for method in tried for one in method.candidates]
    if not every:
        reasons = "; ".join(f"{m.label}: {m.failures[-1]}" for m in tried if m.failures)
        raise TrainingError(f"no method could be trained ({reasons}).")
    selection = select(wish, every, times)
    chosen = selection.chosen
    run: FinishedRun | None = None
    counts: Counts | None = None
    found: tuple[Answer, ...] = ()
    if chosen is not None and private is not None:
        run = private.final_run(chosen.candidate, place / WITH_RULE)
        counts = private.test_counts(run, chosen.candidate)
    elif chosen is not None and chosen.candidate.folder is not None:
        run = reopen(found_in.final_run(chosen.candidate, place / WITH_RULE))
        counts = found_in.test_counts(run, chosen.candidate)
    if run is not None and counts is not None:
        found = answers(wish.requirements, counts, run.clients)
    return written(
        place,
        wish=wish,
        selection=selection,
        proofs=proofs,
        answers=found,
        counts=counts,
        run=run,
        setting=setting,
        times=times,
        methods=[_summary(method) for method in tried],
        left_out=left_out,
        passes=passes,
        seconds=time.monotonic() - started,
        command=command,
        privacy=None if private is None else private.facts(),
    )


def _require_possible(setting: Setting) -> None:
    if setting.federation.classes < 2:
        raise ConfigError("decide needs a task with classes; this one predicts a number.")
    if setting.attack is not None:
        raise ConfigError("decide is not for simulated attacks; remove the table `attack`.")
    for split in ("validation", "test"):
        if not int(setting.federation.sizes(split).sum()):
            raise ConfigError(
                f"the data have no {split} examples; decide chooses on validation examples and "
                "verifies on test examples, so it needs both."
            )


def _possible_effort(effort: Effort, listener: Listener) -> Effort:
    """The effort, or one trial of each method if settings cannot be searched."""
    if effort.trials == 1:
        return effort
    from isonomy.studies.optuna_study import require_optuna

    try:
        require_optuna()
    except ConfigError as error:
        listener.note(f"every method is tried with its defaults only: {error}")
        return Effort(None, 1, effort.jobs)
    return effort


def _times(setting: Setting) -> float:
    """How many test examples there are for each validation example.

    At privacy level 'client' sizes are not public, so it is taken as 1.
    """
    if setting.config.privacy.level == "client":
        return 1.0
    sizes = [int(setting.federation.sizes(split).sum()) for split in ("test", "validation")]
    return sizes[0] / sizes[1]


def _prepared(
    config: Config,
    wish: Wish,
    effort: Effort,
    listener: Listener,
    private: PrivateDecision | None,
) -> tuple[list[_Tried], dict[str, str]]:
    """The methods with their searches, and those that this task does not allow, with the reason."""
    tried: list[_Tried] = []
    settings: list[tuple[str, Setting]] = []
    left_out: dict[str, str] = {}
    for label, own in tried_methods(config, wish):
        try:
            made = build(own, lambda _: None)
            made.algorithm.init_server(made.task, made.params, len(made.federation))
            if wish.about_losses and isinstance(made.algorithm, LearnsFront):
                raise ConfigError("the losses of the models on a front are not measured.")
        except IsonomyError as error:
            left_out[label] = str(error)
            continue
        tried.append(_Tried(label, own, None, [], []))
        settings.append((label, made))
    if not tried:
        raise ConfigError(f"no method can be used: {'; '.join(left_out.values())}")
    for label, why in left_out.items():
        listener.note(f"{label} is left out: {why}")
    if private is not None:
        private.plan(settings, effort.trials or 1, wish)
        for one in tried:
            one.config = private.with_noise(one.config)
    if effort.trials != 1:
        from isonomy.studies.search import Search

        for one in tried:
            one.search = Search(one.config, [ALIKE], config.seed)
    return tried, left_out


def _search(
    tried: list[_Tried],
    wish: Wish,
    times: float,
    place: Path,
    effort: Effort,
    started: float,
    listener: Listener,
    overwrite: bool,
    private: PrivateDecision | None,
) -> int:
    """Passes over all methods, one trial each; returns their number."""
    passes, slowest = 0, 0.0
    while effort.trials is None or passes < effort.trials:
        spent = time.monotonic() - started
        if passes and effort.seconds is not None and spent + slowest > effort.seconds:
            break
        begun = time.monotonic()
        _one_pass(tried, wish, times, place, effort, listener, overwrite, private)
        passes += 1
        slowest = max(slowest, time.monotonic() - begun)
        if passes == 1 and _cannot_be_shown(tried, wish, times, listener) and effort.trials is None:
            listener.note("the search ends here, with one trial of every method.")
            break
        listener.note(_progress_text(passes, effort, time.monotonic() - started, slowest))
    return passes


def _cannot_be_shown(tried: list[_Tried], wish: Wish, times: float, listener: Listener) -> bool:
    """Say which requirements no model could be shown to meet, as test examples are too few."""
    counts = next((one.counts for method in tried for one in method.candidates), None)
    found = [] if counts is None else too_few(wish, counts, times)
    for one in found:
        listener.note(too_few_line(one))
    return bool(found)


def _progress_text(passes: int, effort: Effort, spent: float, slowest: float) -> str:
    """How far the search is, and how long it may still take."""
    done = f"{passes} trial{'s' if passes > 1 else ''} of every method done in {spent:.0f} s"
    if effort.trials is not None:
        return f"{done}; about {(effort.trials - passes) * slowest:.0f} s left."
    left = max((effort.seconds or 0.0) - spent, 0.0)
    return f"{done}; time for about {int(left // max(slowest, 1e-9))} more."


def _one_pass(
    tried: list[_Tried],
    wish: Wish,
    times: float,
    place: Path,
    effort: Effort,
    listener: Listener,
    overwrite: bool,
    private: PrivateDecision | None,
) -> None:
    """One trial of every method."""
    asked, plans, trained = [], [], []
    for method in tried:
        config = method.config if method.search is None else method.search.ask()
        config = _cheap(config)
        number, method.trials = method.trials, method.trials + 1
        if private is not None:
            why = private.charge_trial(method.label, number, config)
            if why is not None:
                method.failures.append(f"trial {number}: {why}")
                if method.search is not None:
                    method.search.tell(number, failed=why)
                continue
        trained.append((method, number))
        asked.append(config)
        where = place / TRIALS / slug(method.label) / _digest(config)
        plans.append(Plan(config, RunFolder(where), overwrite, keep=True))
    for (method, number), config, plan, error in zip(
        trained, asked, plans, _run(plans, effort.jobs, listener), strict=True
    ):
        if error is not None:
            method.failures.append(f"trial {number}: {error}")
            if method.search is not None:
                method.search.tell(number, failed=str(error))
            continue
        settings = found_in.settings_of(config, method.config)
        folder = str(plan.place.path)
        if private is not None:
            new = private.of_trial(folder, method.label, number, settings)
        else:
            new = found_in.of_trial(folder, method.label, number, settings, wish.about_losses)
        method.candidates += new
        best = max(_worth(wish, one, times) for one in new)
        if method.search is not None:
            method.search.tell(number, {ALIKE: best})


_NAMES = ("label", "series", "versions", "track")  # keys that do not change a result


def _digest(config: Config) -> str:
    """The name of a trial's folder: the same for the same config, so that its run is used again."""
    values = {k: v for k, v in config.plain().items() if k not in _NAMES}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def _add_rules(
    tried: list[_Tried],
    wish: Wish,
    times: float,
    listener: Listener,
    private: PrivateDecision | None,
) -> None:
    """Add candidates with post-processing: of each method, its model of best objective.

    In a private decision, only the model of best objective of all methods gets rules.
    """
    options = found_in.rules_for(wish.requirements)
    if private is not None:
        options = private.possible_rules(options)
        tried = _with_best(tried, wish, times)
    for method in tried if options else ():
        plain = [one for one in method.candidates if not one.preference]
        if not plain:
            continue
        best = max(plain, key=lambda one: wish.gain(judge(wish, one, times).objective))
        try:
            if private is not None:
                method.candidates += private.with_rules(best, options)
            else:
                method.candidates += found_in.with_rules(best, options)
        except IsonomyError as error:
            listener.note(f"no rule for the decisions of {method.label}: {error}")


def _with_best(tried: list[_Tried], wish: Wish, times: float) -> list[_Tried]:
    """The method whose model has the best objective, as a list of one; empty without any."""
    found = [
        (max(wish.gain(judge(wish, one, times).objective) for one in plain), i)
        for i, method in enumerate(tried)
        if (plain := [one for one in method.candidates if not one.preference])
    ]
    return [tried[max(found)[1]]] if found else []


def _cheap(config: Config) -> Config:
    """The config without what a trial does not need: only the last round is evaluated."""
    values = config.plain()
    values["evaluate"] |= {"split": "validation", "bootstrap": 0, "every": config.rounds}
    values["excess"] |= {"clusters": "none"}
    values["front"] |= {"rays": found_in.RAYS}
    values["checkpoint"] |= {"every": max(config.rounds, 1)}
    return parse(values)


def _worth(wish: Wish, candidate: Candidate, times: float) -> float:
    """What a search is told: the objective, less a penalty for what is missed."""
    judged = judge(wish, candidate, times)
    return wish.gain(judged.objective) - PENALTY * judged.missed


def _run(plans: list[Plan], jobs: int, listener: Listener) -> list[TrainingError | None]:
    """Make these runs; the error of each that diverges."""
    out: list[TrainingError | None] = []
    if jobs > 1:
        for report in at_once(plans, jobs):
            report.replay(listener)
            out.append(report.error)
        return out
    for plan in plans:
        try:
            run_or_resume(plan, listener)
        except TrainingError as error:
            out.append(error)
        else:
            out.append(None)
    return out


def _summary(method: _Tried) -> MethodTried:
    kind = algorithms.find(method.config.algorithm.name)
    return MethodTried(
        label=method.label,
        algorithm=method.config.algorithm.name,
        trials=method.trials,
        failures=tuple(method.failures),
        reveals=getattr(kind, "reveals", ""),
    )
