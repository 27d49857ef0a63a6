"""A decision under differential privacy: `--require "epsilon <= 4"`.

All trials, the measurements by which candidates are compared, and the test of the chosen one are
within one budget (`isonomy.privacy.decision`). Nothing that depends on the clients' examples is
shown without noise: no proofs, no exact counts, no sizes of clients at level `client`.

The folder of the decision holds the key of the noise and the plan. The same command again draws the
same noise, so it releases nothing new; another plan in the same folder is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isonomy.config.schema import AlgorithmConfig, Config
from isonomy.core.capabilities import LearnsFront
from isonomy.core.examples import Split
from isonomy.engines.base import sample
from isonomy.errors import ConfigError, RunError
from isonomy.metrics import Counts
from isonomy.metrics.counts import Noise
from isonomy.metrics.requirements import LEVEL, Cells
from isonomy.metrics.scores import Scores, has_scores
from isonomy.postprocess import Rule, fit
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.decision import DecisionBudget, Spent, Training
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.guard import guard
from isonomy.privacy.ledger import rounded_up
from isonomy.privacy.noise import Key
from isonomy.runs import preparation, saved_model
from isonomy.runs.build import Setting, build, effective
from isonomy.runs.files import write_atomically
from isonomy.runs.finished import FinishedRun, reopen
from isonomy.runs.private import counting_of
from isonomy.runs.private_evaluation import entry_of
from isonomy.studies.candidates import rules_for
from isonomy.studies.decision import KEY, PLAN
from isonomy.studies.selection import Candidate, Wish

FEW = 5  # points of a learnt front that are measured
BINS = 40  # of scores, from which rules are fitted

Note = Callable[[str], None]


def bound_of(require: Sequence[str]) -> tuple[float | None, list[str]]:
    """The bound on epsilon among requirements, None without one, and the other requirements.

    >>> bound_of(["accuracy >= 0.8", "epsilon <= 4"])
    (4.0, ['accuracy >= 0.8'])
    """
    found, others = [], []
    for text in require:
        name, _, rest = text.replace("≤", "<=").partition("<=")
        if name.strip() == "epsilon":
            try:
                value = float(rest)
            except ValueError:
                value = math.nan
            if not 0 < value < math.inf:
                raise ConfigError(f"requirement '{text}': write epsilon <= and a number above 0.")
            found.append(value)
        elif text.strip().startswith("epsilon"):
            raise ConfigError(f"requirement '{text}': less epsilon is better; write epsilon <= 4.")
        else:
            others.append(text)
    if len(found) > 1:
        raise ConfigError("epsilon is required twice; keep the stricter bound.")
    return (found[0] if found else None), others


def private_config(config: Config, bound: float, note: Note) -> Config:
    """The config of all trials, with a level and a bound; raises ConfigError for what cannot be."""
    given = config.privacy
    changes: dict[str, Any] = {"epsilon": bound, "noise": None, "evaluate": "never"}
    if given.epsilon is not None and given.epsilon != bound:
        raise ConfigError(
            f"privacy.epsilon = {given.epsilon:g} and the requirement epsilon <= {bound:g} differ; "
            "remove one of them."
        )
    if given.noise is not None:
        raise ConfigError(
            "privacy.noise is set, but the requirement on epsilon decides the noise; remove it."
        )
    if given.allow:
        raise ConfigError(
            f"privacy.allow = {given.allow}: what is released without noise has no epsilon; remove "
            "it, or the requirement on epsilon."
        )
    if given.level == "none":
        changes["level"] = "example"
        note(
            "epsilon is required and privacy.level is not set: level 'example' is used, which "
            "protects single examples, also from the server. Set privacy.level = 'client' to "
            "protect clients as a whole."
        )
    if given.clip == "adaptive" and changes.get("level", given.level) == "example":
        changes["clip"] = 1.0
        note("privacy.clip is not set: gradients of single examples are clipped to the norm 1.")
    return config.model_copy(update={"privacy": given.model_copy(update=changes)})


class PrivateDecision:
    """One decision within a bound on epsilon: its key, its plan, and what it has released."""

    def __init__(
        self, config: Config, bound: float, place: Path, note: Note, *, fresh: bool = False
    ) -> None:
        self.place, self._note = place, note
        for name in (KEY, PLAN) if fresh else ():
            (place / name).unlink(missing_ok=True)
        config = private_config(config, bound, note)
        self.key = self._key(config)
        self.config = _placeholder(effective(config, note, key=self.key))
        self.budget = DecisionBudget(
            options=self.config.privacy.model_copy(update={"epsilon": bound, "noise": None}),
            prepared=tuple(float(e["multiplier"]) for e in preparation.releases(self.config)),
            reserved=preparation.reserved(self.config),
        )
        for entry in preparation.releases(self.config):
            alone = epsilon({Event(float(entry["multiplier"])): 1}, self.budget.delta)
            self.budget.entries.append({**entry, "split": "prepared", "epsilon": alone})
        self.noise = 1.0
        self._rules: dict[str, Rule] = {}
        self._trainings: dict[str, Training] = {}

    def setting(self) -> Setting:
        """The data and the task, with a method that every level can train."""
        plain = self.config.model_copy(
            update={"algorithm": AlgorithmConfig(name="fedavg"), "local": self.config.local}
        )
        return build(plain, self._note)

    def _key(self, config: Config) -> Key:
        if config.privacy.seed is not None:
            return Key.of_seed(config.privacy.seed)
        path = self.place / KEY
        if path.exists():
            return Key.read(path.read_text().strip())
        if (self.place / PLAN).exists():
            raise RunError(
                f"'{path}' is missing, so what was measured would be released again with other "
                "noise; restore it, or choose another folder with --to."
            )
        return Key.fresh()  # stored with the plan

    # --- the plan ---------------------------------------------------------------------------------

    def check_wish(self, wish: Wish, setting: Setting) -> None:
        """Raise ConfigError for quantities that have no noise, and bounds that nothing can show."""
        targets = [wish.objective, *(one.target for one in wish.requirements)]
        for target in targets:
            if target.quantity.is_loss:
                raise ConfigError(
                    f"{target.text}: losses have no bound, so they cannot be measured with noise; "
                    "leave it out, or the requirement on epsilon."
                )
            alone = target.quantity.whose in ("clients", "groups in each client")
            if alone and self.budget.level == "client":
                raise ConfigError(
                    f"{target.text} is a fact about one client, which privacy.level = 'client' "
                    "protects; leave it out, or set privacy.level = 'example'."
                )
        best = self._best_case(setting)
        alpha = (1 - LEVEL) / (2 * max(len(wish.requirements), 1))
        for one in wish.requirements:
            low, high = one.target.limits(Cells.of(best), alpha)
            if not one.holds(high if one.sign == "<=" else low):
                few = (
                    f" with {len(setting.federation)} clients; with so few, protect examples "
                    "instead (privacy.level = 'example')"
                    if self.budget.level == "client"
                    else ""
                )
                raise ConfigError(
                    f"epsilon <= {self.budget.bound:g}: the noise in the test counts is so large "
                    f"that not even a perfect model could be shown to meet {one.text}{few}. "
                    "Nothing was trained. Raise the bound, or use more test examples or clients."
                )

    def _best_case(self, setting: Setting) -> Counts:
        """Counts of a perfect model, with groups and labels of equal size, and the test's noise."""
        data, counting = setting.federation, counting_of(setting, self.budget.test)
        sizes = data.sizes("test").double().numpy()
        if counting.level == "client":  # sizes are not public; no client counts more
            sizes = np.array([float(len(data) * counting.counted)])
        levels = counting.levels or (1,)
        cells = np.zeros((len(sizes), sum(levels), data.classes, data.classes))
        each = np.concatenate([np.full(n, 1 / n) for n in levels])
        for c in range(data.classes):
            cells[:, :, c, c] = sizes[:, None] * each / data.classes
        noised = counting.with_everyone(cells)
        return _noisy(noised.counts, noised.variance, 1.0, setting)

    def plan(self, methods: Sequence[tuple[str, Setting]], trials: int, wish: Wish) -> None:
        """Divide the budget between so many trials of each method; finds the noise of training."""
        rules = self.possible_rules(rules_for(wish.requirements))
        fronts = [isinstance(made.algorithm, LearnsFront) for _, made in methods]
        number = trials * sum(FEW if front else 1 for front in fronts)
        self.budget.measurements = number + (1 + len(rules) if rules else 0)
        self._trainings = {label: training_of(made) for label, made in methods}
        self.noise = self.budget.noise([(one, trials) for one in self._trainings.values()])
        plan = {
            "noise": self.noise,
            "measurements": self.budget.measurements,
            "trials": trials,
            "digest": self._digest([label for label, _ in methods], trials, wish),
        }
        path = self.place / PLAN
        if path.exists() and json.loads(path.read_text())["digest"] != plan["digest"]:
            raise RunError(
                f"'{self.place}' holds a private decision with other settings, whose releases are "
                "not counted in this one; choose another folder with --to, and add both epsilons."
            )
        self.place.mkdir(parents=True, exist_ok=True)
        if self.config.privacy.seed is None:
            write_atomically(self.place / KEY, self.key.text.encode(), mode=0o600)
        write_atomically(path, json.dumps(plan, indent=1).encode())
        models = len(methods) * trials
        self._note(
            f"epsilon <= {self.budget.bound:g} at delta = {self.budget.options.delta:g}, level "
            f"'{self.budget.level}': the budget is divided between {models} training"
            f"{'s' if models != 1 else ''} ({trials} of each method; noise {self.noise:.3g}), up "
            f"to {self.budget.measurements} noisy measurements on validation examples and one on "
            "test examples. Fewer methods (--methods) or trials leave more for each."
        )

    def _digest(self, labels: list[str], trials: int, wish: Wish) -> str:
        values = {k: v for k, v in self.config.plain().items() if k not in ("versions", "track")}
        text = json.dumps([values, labels, trials, wish.text, self.budget.bound], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_noise(self, config: Config) -> Config:
        """A method's config with the noise of the plan."""
        changed = config.privacy.model_copy(update={"noise": self.noise})
        return config.model_copy(update={"privacy": changed})

    # --- what is released -------------------------------------------------------------------------

    def charge_trial(self, label: str, number: int, config: Config) -> str | None:
        """Charge a trial's training before it begins; why not, if it was not planned so.

        The first trial has the settings that the plan was made with.
        """
        planned = self._trainings[label](self.noise)
        if number and training_of(build(config))(self.noise) != planned:
            return "its settings release something else than what was planned for it"
        self.budget.charge_training(f"{label}, trial {number}", planned, self.noise)
        return None

    def of_trial(
        self, folder: str, method: str, trial: int, settings: dict[str, Any]
    ) -> list[Candidate]:
        """The candidates of a finished trial, with noisy counts on validation examples."""
        run = reopen(folder)
        algorithm = run.setting.algorithm
        base = Candidate(method, settings, folder, Counts.zeros(1, 2), trial)
        if not isinstance(algorithm, LearnsFront):
            return [self._measured(run, "validation", base)]
        from isonomy.runs.front import preferences_of

        some = preferences_of(run.setting.config, algorithm, FEW - 1)[:FEW]
        return [
            self._measured(run, "validation", replace(base, preference=tuple(at.tolist())))
            for at in some
        ]

    def possible_rules(self, options: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rules that can be fitted with noise: those that all clients share."""
        return [one for one in options if "local_budget" not in one]

    def with_rules(
        self, candidate: Candidate, options: Sequence[dict[str, Any]]
    ) -> list[Candidate]:
        """A candidate's model with rules for its decisions, fitted on noisy validation scores."""
        assert candidate.folder is not None
        run, out = reopen(candidate.folder), []
        if not has_scores(run.setting.task):
            return []
        scores = self._scores(run, candidate)
        for one in options:
            rule = fit(scores=scores, seed=run.setting.config.seed, **one)
            text = f"{one['name']} with {one['notion']} budget {one['budget']:.3g}"
            self._rules[text] = rule
            made = replace(candidate, rule=one, rule_text=text)
            out.append(self._measured(run, "validation", made))
        return out

    def final_run(self, candidate: Candidate, place: Path) -> FinishedRun:
        """The run with the candidate's model; one with its rule is made at `place`."""
        assert candidate.folder is not None
        if candidate.rule is None:
            return reopen(candidate.folder)
        if place.exists():
            shutil.rmtree(place)
        shutil.copytree(candidate.folder, place)
        found = saved_model.read(place / "model")
        saved_model.write(
            place / "model",
            found.server,
            found.clients,
            found.card,
            found.preprocessing,
            self._rules[candidate.rule_text],
        )
        return reopen(place)

    def test_counts(self, run: FinishedRun, candidate: Candidate) -> Counts:
        """The chosen candidate's noisy counts on the test examples."""
        return self._measured(run, "test", candidate).counts

    def _measured(self, run: FinishedRun, split: Split, candidate: Candidate) -> Candidate:
        """A candidate with noisy counts on a split, which are charged before they are asked."""
        z = self.budget.test if split == "test" else self.budget.validation
        counting = counting_of(run.setting, z)
        entry = entry_of(counting, f"counts:{split}", candidate.name)
        self.budget.charge(split, entry)
        run.engine.guard = guard(self.budget, after=len(self.budget.entries) - 1)
        rule = self._rules[candidate.rule_text] if candidate.rule is not None else None
        exact = run.counts(split, candidate.preference, rule)
        noised = counting.noised(exact.counts, self.key, split, candidate.name, _model_of(run))
        later = (self.budget.test / z) ** 2
        return replace(candidate, counts=_noisy(noised.counts, noised.variance, later, run.setting))

    def _scores(self, run: FinishedRun, candidate: Candidate) -> Scores:
        """All clients' noisy histograms of scores together, with as many examples as counted."""
        counting = counting_of(run.setting, self.budget.validation)
        self.budget.charge("validation", entry_of(counting, "scores:validation", candidate.name))
        run.engine.guard = guard(self.budget, after=len(self.budget.entries) - 1)
        exact = run.scores("validation").counts
        shape = (*exact.shape[:3], BINS, exact.shape[3] // BINS)
        coarse = exact.reshape(shape).sum(-1)
        noised = counting.noised(coarse, self.key, "scores", candidate.name, _model_of(run))
        cells = noised.counts.sum(0)  # [rows, labels, bins]
        totals = candidate.counts.counts.sum(0).sum(-1)  # [rows, labels], with less noise
        whole = np.zeros(exact.shape[1:], dtype=np.int64)
        for at in np.ndindex(cells.shape[:2]):
            whole[at] = spread(projected(cells[at], max(float(totals[at]), 1.0)), exact.shape[3])
        if counting.levels:  # everyone is the sum of the groups of the first attribute
            whole[0] = whole[1 : 1 + counting.levels[0]].sum(0)
        return Scores(whole[None], run.setting.federation.attributes)

    # --- what is shown ----------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """The privacy section of a decision."""
        budget = self.budget
        spent = budget.epsilon()
        example = budget.level == "example"
        return {
            "level": budget.level,
            "bound": budget.bound,
            "epsilon": rounded_up(spent),
            "delta": budget.options.delta,
            "status": "met" if spent <= budget.bound * (1 + 1e-9) else "not met",
            "by_split": {name: rounded_up(v) for name, v in budget.by_split().items()},
            "neighbours": (
                "data of a client with and without one example; sizes of clients, and the split "
                "that a row is in, are public"
                if example
                else "federations in which one client's data are there or are replaced by an empty "
                "contribution"
            ),
            "composition": (
                "An example is in one split, so training, validation and test do not add up; the "
                "largest of their epsilons counts."
                if example
                else "A client's training, validation and test examples count together, so all "
                "releases add up."
            ),
            "accountant": f"dp-accounting, {budget.options.accountant}",
            "releases": [
                {**one, "epsilon": rounded_up(one["epsilon"])} if "epsilon" in one else one
                for one in budget.entries
            ],
            "left_out": [
                "proofs that no model meets the requirements, which use exact labels",
                *([] if example else ["the sizes of clients and everything about single clients"]),
            ],
            "public": [
                "names and kinds of columns",
                "the number of clients",
                *(["the sizes of clients and of their splits"] if example else []),
                *(
                    [f"the values that the config lists: {', '.join(self._listed())}"]
                    if self._listed()
                    else []
                ),
            ],
            "not_covered": (
                ["the noise comes from privacy.seed: whoever knows the seed can remove the noise"]
                if budget.options.seed is not None
                else []
            )
            + [
                "checkpoints, clients' own models and noise.key in the folder: give away only the "
                "model, decision.json and decision.html",
            ],
        }

    def _listed(self) -> list[str]:
        return [*self.config.privacy.ranges, *self.config.privacy.categories]


def _model_of(run: FinishedRun) -> str:
    """A digest of a run's model, so that another model has other noise."""
    content = (run.place.path / "model" / saved_model.TENSORS).read_bytes()
    return hashlib.sha256(content).hexdigest()


def _placeholder(config: Config) -> Config:
    """The config of trials before their noise is known."""
    changed = config.privacy.model_copy(update={"noise": 1.0, "epsilon": None})
    return config.model_copy(update={"privacy": changed})


def _noisy(counts: Any, variance: Any, later: float, setting: Setting) -> Counts:
    return Counts(
        counts,
        np.zeros(counts.shape[:3]),
        setting.federation.attributes,
        noise=Noise(variance, later),
    )


def projected(cells: Any, total: float) -> Any:
    """The nearest cells that are not negative and add up to a total (Euclidean projection).

    >>> projected(np.array([5.0, -1.0, 2.0]), 5.0).tolist()
    [4.0, 0.0, 1.0]
    """
    ordered = np.sort(cells)[::-1]
    over = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    last = np.flatnonzero(ordered - over > 0)[-1]
    return np.maximum(cells - over[last], 0.0)


def spread(cells: Any, bins: int) -> Any:
    """Coarse cells divided evenly into fine bins, as whole numbers whose sums stay near.

    >>> spread(np.array([3.2, 1.0]), 4).tolist()
    [2, 1, 1, 0]
    """
    times = bins // len(cells)
    sums = np.rint(np.cumsum(np.repeat(cells / times, times)))
    return np.diff(sums, prepend=0.0).astype(np.int64)


def training_of(setting: Setting) -> Training:
    """What a run's training releases with a noise multiplier, as its ledger counts it."""
    terms, config, data = setting.privacy, setting.config, setting.federation
    assert terms is not None
    count, how = config.cohort.size or len(data), config.cohort.sampling
    asked = torch.zeros(len(data), dtype=torch.int64)
    if terms.level == "example" or not terms.secret:
        for round in range(config.rounds):
            asked[sample(data, count, seed=config.seed, round=round, how=how)] += 1

    def of_examples(z: float) -> Spent:
        out = []
        for k in range(len(data)):
            times = int(asked[k]) * terms.releases + terms.final
            one = training_events(
                config.local, data.size(k), z / math.sqrt(max(terms.calls, 1)),
                config.privacy.batches,
            )  # fmt: skip
            out.append(Counter({event: n * times for event, n in one.items()}))
        return out

    def of_clients(z: float) -> Spent:
        found: Counter[Event] = Counter()
        whole = terms.final + (0 if terms.secret else int(asked.max()) * terms.releases)
        if terms.secret and terms.releases:
            found[Event(z / math.sqrt(terms.releases), terms.rate)] += config.rounds
        if whole:
            found[Event(z / math.sqrt(whole))] += 1
        return [found]

    return of_examples if terms.level == "example" else of_clients
