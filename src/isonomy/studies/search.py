"""The search of one method's hyper-parameters: asks for trials, and is told their results.

    search = Search(config, ["accuracy"], seed=0, folder="tuning/fedprox")
    for _ in range(20):
        asked = search.ask()  # the complete config of a trial; the first is the method's default
        search.tell(asked, {"accuracy": ...})  # or failed="training diverged"

Optuna's TPE draws the trials. What was asked and told is in a journal in the folder, so a search
can be continued in another process; trials that were asked and not told are asked again first. The
draws are functions of the seed, the number of the trial and what was told before.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from isonomy import algorithms
from isonomy.config.overrides import merge
from isonomy.config.schema import AlgorithmConfig, Config, parse
from isonomy.core.options import Option, options_of, search_spaces
from isonomy.core.search_space import SearchSpace
from isonomy.core.work import Work
from isonomy.errors import ConfigError, RunError, unknown
from isonomy.metrics.front import nondominated
from isonomy.metrics.names import parse as parse_metric
from isonomy.metrics.registry import COSTS
from isonomy.runs.results import method_label
from isonomy.studies.optuna_study import create, distribution, opened, require_optuna
from isonomy.studies.pruning import STARTUP, Pruning

if TYPE_CHECKING:
    import optuna

_ATTEMPTS = 20  # draws, at most, to find one that was not tried yet

State = Literal["complete", "pruned", "failed", "open"]


@dataclass(frozen=True)
class Trial:
    """One trial of a method: its hyper-parameters, and what became of it.

    `values` are the objectives, of complete trials. `parameters` has full names, such as
    'algorithm.mu' and 'local.lr'. `why` is the reason of a trial that failed or was pruned.
    """

    method: str
    number: int
    state: State
    parameters: dict[str, Any]
    values: dict[str, float]
    why: str
    config: Config

    @property
    def default(self) -> bool:
        """Whether this is the trial of the method's default."""
        return self.number == 0

    def plain(self) -> dict[str, Any]:
        """The trial as values of JSON, without its config."""
        return {
            "method": self.method,
            "number": self.number,
            "state": self.state,
            "default": self.default,
            "values": self.values,
            "parameters": self.parameters,
            "why": self.why,
        }


def space_of(config: Config, fixed: Sequence[str] = ()) -> dict[str, Option]:
    """The keys of the config that are tuned: those of its algorithm and of local training.

    `fixed` are keys that keep the config's value.
    """
    tables: dict[str, type] = {
        "algorithm": algorithms.find(config.algorithm.name),
        "local": Work,
    }
    options = {
        f"{table}.{name}": option
        for table, kind in tables.items()
        for name, option in options_of(kind).items()
    }
    return {key: options[key] for key in search_spaces(**tables) if key not in fixed}


def check_fixed(configs: Sequence[Config], fixed: Sequence[str]) -> None:
    """Raise ConfigError for a fixed key that none of these methods tunes."""
    known = {key for config in configs for key in space_of(config)}
    for key in fixed:
        if key not in known:
            raise ConfigError(unknown("key to fix", key, known))


def check_objectives(objectives: Sequence[str]) -> None:
    """Raise ConfigError unless these are different metrics with a better direction."""
    if not objectives:
        raise ConfigError("no objective was given; give one or more metrics, such as accuracy.")
    for name in objectives:
        if parse_metric(name).better is None:
            raise ConfigError(
                f"'{name}' cannot be an objective, because neither more nor less of it is better; "
                "choose another metric."
            )
        if name in COSTS:
            raise ConfigError(
                f"'{name}' is a cost of a run and not measured on validation examples, so it "
                "cannot be an objective; choose another metric."
            )
        if list(objectives).count(name) > 1:
            raise ConfigError(f"the objective '{name}' is given twice; remove one.")


def costs_of(trial: Trial, objectives: Sequence[str]) -> list[float]:
    """The objectives of a complete trial, all to be minimised."""
    higher = {name: parse_metric(name).better == "higher" for name in objectives}
    return [-trial.values[name] if higher[name] else trial.values[name] for name in objectives]


def front_of(trials: Sequence[Trial], objectives: Sequence[str]) -> list[Trial]:
    """The complete trials that no other one beats in all objectives; of equal ones, the first."""
    rows = [row for row in trials if row.state == "complete"]
    costs = [costs_of(row, objectives) for row in rows]
    if len(objectives) == 1:
        return [rows[costs.index(min(costs))]] if rows else []
    kept = nondominated(costs)
    return [row for row, good in zip(rows, kept, strict=True) if good]


def trial_base(config: Config, objectives: Sequence[str]) -> Config:
    """The config with everything measured on validation examples, and only what is needed."""
    evaluate = {"split": "validation", "bootstrap": 0}
    changed: dict[str, Any] = {"evaluate": config.evaluate.model_copy(update=evaluate)}
    if "faa" not in objectives:
        changed["excess"] = config.excess.model_copy(update={"clusters": "none"})
    if not any(name.startswith("hv") for name in objectives):
        changed["front"] = config.front.model_copy(update={"rays": 0})
    return config.model_copy(update=changed)


class Search:
    """The trials of one method, in memory or in a folder.

    `config` is the complete config of the method; its own values are the first trial. `objectives`
    are names of metrics. `fixed` are keys, such as 'local.optimiser', that are not tuned. With
    `copied`, nothing is asked or told: another process does.
    """

    def __init__(
        self,
        config: Config,
        objectives: Sequence[str],
        seed: int = 0,
        folder: Path | str | None = None,
        *,
        fixed: Sequence[str] = (),
        copied: bool = False,
    ) -> None:
        check_objectives(objectives)
        require_optuna()
        self.label = label_of(config)
        self.objectives = list(objectives)
        self.seed = seed
        self.base = trial_base(config.model_copy(update={"label": self.label}), objectives)
        self.space = space_of(config, fixed)
        self.higher = [parse_metric(name).better == "higher" for name in objectives]
        self._study = opened(folder, self.higher, copied=copied)
        self._check_same(folder)
        self._again = [trial.number for trial in self.trials if trial.state == "open"]
        self._asked: dict[str, int] = {}

    def ask(self) -> Config:
        """The complete config of the next trial; the first one is the method's default."""
        number = self._again.pop(0) if self._again else self._new()
        trial = self._study.trials[number]
        if trial.state.name == "WAITING":
            inside = {k: v for k, v in self._distributions().items() if k in _values(trial)}
            self._study.ask(inside)  # the only one that waits
        config = self._row(trial).config
        self._asked[str(config.label)] = number
        return config

    def tell(
        self,
        asked: Config | int,
        values: Mapping[str, float] | Sequence[float] | None = None,
        *,
        failed: str | None = None,
        pruned: str | None = None,
        curve: Mapping[int, float] | None = None,
    ) -> None:
        """The result of a trial: its objectives, or why it failed or was pruned.

        `values` may hold other metrics too. If an objective is missing or not finite, the trial
        counts as failed. `curve` are the values of the first objective by round.
        """
        import optuna

        number = asked if isinstance(asked, int) else self.number(asked)
        trial = optuna.trial.Trial(self._study, self._study.trials[number]._trial_id)
        listed = None
        if values is not None:
            listed, failed = self._listed(values)
        if pruned is not None or failed is not None:
            trial.set_user_attr("why", pruned or failed)
        if len(self.objectives) == 1:
            known = self._study.trials[number].intermediate_values
            for round, value in (curve or {}).items():
                if round not in known:
                    trial.report(value, round)
        states = optuna.trial.TrialState
        if listed is not None:
            self._study.tell(number, listed)
        elif pruned is not None:
            trial.set_user_attr("pruned", True)  # without a value, Optuna calls it failed
            self._study.tell(number, state=states.PRUNED if curve else states.FAIL)
        elif failed is not None:
            self._study.tell(number, state=states.FAIL)
        else:
            raise ConfigError("tell was given neither values nor a reason; give one of them.")

    def remaining(self, trials: int) -> int:
        """How many are to be asked until there are so many trials, all of them told or running."""
        again = sum(number < trials for number in self._again)
        return again + max(0, trials - len(self._study.trials))

    def pruning(self) -> Pruning:
        """A listener for the run of a trial, which raises Pruned by what was told so far."""
        curves = [
            dict(trial.intermediate_values)
            for trial in self._study.trials
            if trial.state.name == "COMPLETE" and trial.intermediate_values
        ]
        return Pruning(
            self.objectives[0], self.higher[0], tuple(curves), prunes=len(self.objectives) == 1
        )

    @property
    def trials(self) -> list[Trial]:
        """All trials in their order."""
        return [self._row(trial) for trial in self._study.trials]

    def best(self) -> list[Trial]:
        """The trials to choose from, see `front_of`; with one objective, one at most."""
        return front_of(self.trials, self.objectives)

    # --- Optuna ---------------------------------------------------------------------------------

    def _new(self) -> int:
        """Draw a trial and write it to the journal, at once with all its values."""
        number = len(self._study.trials)
        values = self._draw(number) if number else self._own()
        inside = {k: v for k, v in values.items() if _space(self.space[k]).contains(v)}
        self._study.enqueue_trial(inside)
        return number

    def _own(self) -> dict[str, Any]:
        """The config's own values of the keys that are tuned, some perhaps not in the space."""
        given = {"algorithm": self.base.algorithm.options, "local": vars(self.base.local)}
        found = {}
        for key, option in self.space.items():
            table, _, name = key.partition(".")
            found[key] = given[table].get(name, option.default)
        return found

    def _draw(self, number: int) -> dict[str, Any]:
        """Values from the space that the algorithm accepts, new ones if that is possible."""
        import optuna

        tried = [_values(trial) for trial in self._study.trials]
        found: dict[str, Any] | None = None
        refused = ""
        for attempt in range(_ATTEMPTS):
            seed = zlib.crc32(f"{self.seed} {number} {attempt}".encode())
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
            )
            study = create(self.higher, sampler)
            study.add_trials(list(self._history()))
            drawn = study.ask(self._distributions()).params
            values = {key: _rounded(drawn[key]) for key in self.space}
            config = self._config(number, values)
            try:
                algorithms.make(config.algorithm.name, config.algorithm.options)
            except ConfigError as error:  # an option of the config that goes with few others
                refused = str(error)
                continue
            found = values
            if values not in tried:
                break
        if found is None:
            raise ConfigError(
                f"{self.label}: no trial could be drawn, because the config's own options refuse "
                f"the search space ({refused.rstrip('.')}); fix the keys concerned, e.g. with "
                "--fix algorithm.B."
            )
        return found

    def _history(self) -> Iterator[optuna.trial.FrozenTrial]:
        """The trials whose values are all in the space, as the sampler sees them.

        One that failed counts as the worst of the complete ones, so that it is not tried again.
        """
        import optuna

        told = [trial.values for trial in self._study.trials if trial.state.name == "COMPLETE"]
        columns = zip(*told, strict=True) if told else ()
        worst = [min(v) if up else max(v) for v, up in zip(columns, self.higher, strict=bool(told))]
        for trial in self._study.trials:
            values, failed = _values(trial), trial.state.name == "FAIL"
            if values.keys() == self.space.keys() and (worst or not failed):
                yield optuna.trial.create_trial(
                    state=optuna.trial.TrialState.COMPLETE if failed else trial.state,
                    values=worst if failed else trial.values,
                    params=values,
                    distributions=self._distributions(),
                    intermediate_values=trial.intermediate_values,
                )

    def _distributions(self) -> dict[str, optuna.distributions.BaseDistribution]:
        return {key: distribution(option, _space(option)) for key, option in self.space.items()}

    # --- rows -----------------------------------------------------------------------------------

    def _row(self, trial: optuna.trial.FrozenTrial) -> Trial:
        names: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        state = names.get(trial.state.name, "open")
        values = {}
        if state == "complete":
            values = dict(zip(self.objectives, trial.values, strict=True))
        return Trial(
            method=self.label,
            number=trial.number,
            state="pruned" if trial.user_attrs.get("pruned") else state,
            parameters=_values(trial) if trial.number else self._own(),
            values=values,
            why=str(trial.user_attrs.get("why", "")),
            config=self._config(trial.number, _values(trial)),
        )

    def _config(self, number: int, values: Mapping[str, Any]) -> Config:
        """The complete config of a trial."""
        changed: dict[str, Any] = self.base.plain()
        for key, value in values.items() if number else ():
            table, _, name = key.partition(".")
            changed = merge(changed, {table: {name: value}})
        changed |= {"label": f"{self.label}, trial {number}", "series": self.label}
        return parse(changed, where=f"{self.label}, trial {number}")

    def number(self, config: Config) -> int:
        """The number of the trial whose config was asked."""
        if str(config.label) not in self._asked:
            raise ConfigError(f"'{config.label}' is not a trial that was asked; ask for one first.")
        return self._asked[str(config.label)]

    def _listed(
        self, values: Mapping[str, float] | Sequence[float]
    ) -> tuple[list[float] | None, str | None]:
        """The objectives in their order, or the reason why there are none."""
        if not isinstance(values, Mapping):
            values = dict(zip(self.objectives, values, strict=True))
        for name in self.objectives:
            if not math.isfinite(values.get(name, math.nan)):
                return None, f"{name} is not defined on the validation examples"
        return [float(values[name]) for name in self.objectives], None

    def _check_same(self, folder: Path | str | None) -> None:
        """Raise RunError if the folder holds the trials of another search."""
        config = {k: v for k, v in self.base.plain().items() if k != "versions"}
        space = {key: _space(option).text for key, option in self.space.items()}
        what = {
            "config": config,
            "objectives": self.objectives,
            "seed": self.seed,
            "space": space,
        }
        told = json.loads(json.dumps(what))
        known = self._study.user_attrs.get("search")
        if known is None:
            self._study.set_user_attr("search", told)
        elif known != told:
            changed = next(key for key in told if told[key] != known.get(key))
            raise RunError(
                f"'{folder}' holds a search with another {changed}; choose another folder with "
                "--to, or replace it with --overwrite."
            )


def label_of(config: Config) -> str:
    """The config's label, without the hyper-parameters that are tuned.

    >>> label_of(parse({"label": "FedProx (mu=0.1)", "algorithm": "fedprox"}))
    'FedProx'
    """
    bare = config.model_copy(update={"label": None})
    if config.label and config.label != method_label(bare):
        found = re.fullmatch(r"(.+) \((\w+)=[^()]*\)", config.label)
        tuned = found is not None and f"algorithm.{found[2]}" in space_of(config)
        return found[1] if found is not None and tuned else config.label
    algorithm = AlgorithmConfig(name=config.algorithm.name)
    return method_label(bare.model_copy(update={"algorithm": algorithm}))


def _values(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    """A trial's values, which were written before anything else of it."""
    return dict(trial.system_attrs["fixed_params"])


def _space(option: Option) -> SearchSpace:
    assert option.search is not None
    return option.search


def _rounded(value: Any) -> Any:
    """Numbers with three digits, which is all that a trial can tell apart."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
