"""Tuning: the hyper-parameters of several methods, with the same number of trials and rounds.

Every trial is a run that is evaluated on validation examples only. A study in a folder continues
where it was interrupted:

    METHOD/trials.journal     what was asked and told (Optuna's journal), see `Search`
    METHOD/trial-NNN/seed-N/  the run of a trial
    tuned.toml                the config with every method's best hyper-parameters
    tuned.json                all trials
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from isonomy.config.schema import CompareConfig, Config
from isonomy.engines.base import Note
from isonomy.errors import ConfigError, RunError, TrainingError, unknown
from isonomy.runs.build import build, effective
from isonomy.runs.evaluate import measurable
from isonomy.runs.files import write_atomically
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener, Listeners
from isonomy.studies import parallel
from isonomy.studies.claims import Claim, busy, claimed
from isonomy.studies.compare import Method, check_labels, listed, slug
from isonomy.studies.compare import methods as methods_of
from isonomy.studies.optuna_study import JOURNAL, require_optuna
from isonomy.studies.parallel import POLL
from isonomy.studies.search import (
    Search,
    Trial,
    check_fixed,
    check_objectives,
    label_of,
    trial_base,
)
from isonomy.studies.trial_run import Outcome, TrialJob, run_in_process, run_trial
from isonomy.studies.tuned import Tuned

__all__ = ["Search", "Trial", "Tuned", "Tuning", "prepared", "tune"]


class Tuning:
    """A study that is ready to run: every method was built and its earlier trials were read."""

    def __init__(
        self,
        config: Config,
        methods: Sequence[Method],
        folder: Path | None,
        *,
        trials: int,
        objectives: Sequence[str],
        seeds: Sequence[int],
        fixed: Sequence[str],
        jobs: int,
    ) -> None:
        self.config, self.methods, self.trials = config, list(methods), trials
        self.jobs = jobs
        self.objectives, self.seeds, self.folder = list(objectives), list(seeds), folder
        self.fixed = fixed
        self._claims: list[Claim] = []
        self.searches = [self._search(method) for method in methods]

    def _search(self, method: Method) -> Search:
        """The trials of a method, as they are now."""
        place = self._place(method.label)
        if place is None:
            return self._opened(method)
        while True:  # a search that does not exist yet is created by one process only
            with claimed(place) as claim:
                journal = place / JOURNAL
                if claim is not None or (journal.exists() and b"search" in journal.read_bytes()):
                    return self._opened(method, copied=claim is None)
            time.sleep(POLL)

    def _opened(self, method: Method, *, copied: bool = False) -> Search:
        place, first = self._place(method.label), self.config.seed
        options: dict[str, Any] = {"fixed": self.fixed, "copied": copied}
        return Search(method.config, self.objectives, first, place, **options)

    def _place(self, label: str) -> Path | None:
        return None if self.folder is None else self.folder / slug(label)

    def missing(self) -> list[tuple[str, int, int]]:
        """The runs that are still to be executed: label, seed and rounds."""
        found = []
        for search in self.searches:
            told = {t.number for t in search.trials if t.state != "open"}
            for number in range(self.trials):
                if number not in told:
                    label = f"{search.label}, trial {number}"
                    found += [(label, seed, self.config.rounds) for seed in self.seeds]
        return found

    def run(self, listener: Listener) -> Tuned:
        """Run all trials that are missing; writes the results to the folder.

        Several processes share the methods: the trials of one depend on each other.
        """
        left, told = list(range(len(self.methods))), False
        while left:
            with ExitStack() as stack:
                mine: list[int] = []
                for i in left:
                    if len(mine) < self.jobs and self._claim(self.methods[i], stack):
                        mine.append(i)
                        if self.folder is not None:  # another process may have told results
                            self.searches[i] = self._opened(self.methods[i])
                self._run_some([self.searches[i] for i in mine], listener)
                left = [i for i in left if i not in mine]
            if left and not mine:
                if not told:
                    listener.note(f"{len(left)} methods are being tuned by others; waiting for it.")
                    told = True
                time.sleep(POLL)
        return self._results(listener)

    def _claim(self, method: Method, stack: ExitStack) -> bool:
        """Claim a method, until the stack is closed; whether no other process has it."""
        place = self._place(method.label)
        if place is None:
            return True
        claim = stack.enter_context(claimed(place))
        if claim is None:
            return False
        self._claims.append(claim)
        return True

    def _run_some(self, searches: Sequence[Search], listener: Listener) -> None:
        """Run the trials of some methods that are missing."""
        if self.jobs > 1:
            self._run_at_once(searches, listener)
            return
        for search in searches:
            while search.remaining(self.trials):
                asked = search.ask()
                self._tell(search, asked, run_trial(self._job(search, asked), listener), listener)

    def _job(self, search: Search, asked: Config) -> TrialJob:
        place = self._place(search.label)
        number = search.number(asked)
        folder = None if place is None else place / f"trial-{number:03d}"
        return TrialJob(asked, folder, search.pruning())

    def _tell(self, search: Search, asked: Config, got: Outcome, listener: Listener) -> None:
        for claim in self._claims:
            claim.check()
        search.tell(asked, got.values, failed=got.failed, pruned=got.pruned, curve=got.curve)
        if got.failed is not None:
            listener.note(f"{asked.label} counts as failed: {got.failed}")
        elif got.pruned is not None:
            listener.note(f"{asked.label} was pruned: {got.pruned}.")

    def _run_at_once(self, searches: Sequence[Search], listener: Listener) -> None:
        """Several trials at once: of different methods, if there are as many methods as jobs.

        A method's trials then are those that it has alone. If there are fewer methods, a trial is
        drawn without the results of those of its method that are running.
        """
        while any(search.remaining(self.trials) for search in searches):
            left = self.jobs * parallel.PER_PROCESS
            running: dict[Future[tuple[Outcome, parallel.Report]], tuple[Search, Config]] = {}
            with parallel.processes(self.jobs, [one.config for one in self.methods]) as pool:
                while True:
                    while left and len(running) < self.jobs:
                        search = self._next(searches, [one for one, _ in running.values()])
                        if search is None:
                            break
                        asked = search.ask()
                        job = self._job(search, asked)
                        running[pool.submit(run_in_process, job)] = search, asked
                        left -= 1
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        search, asked = running.pop(future)
                        outcome, report = future.result()
                        report.replay(listener)
                        self._tell(search, asked, outcome, listener)

    def _next(self, searches: Sequence[Search], busy: Sequence[Search]) -> Search | None:
        """The search with the fewest trials running, of those that have trials left."""
        most = -(-self.jobs // len(searches))
        ready = [one for one in searches if one.remaining(self.trials)]
        ready = [one for one in ready if busy.count(one) < most]
        return min(ready, key=busy.count, default=None)

    def _results(self, listener: Listener) -> Tuned:
        rows = [row for search in self.searches for row in search.trials[: self.trials]]
        configs = {search.label: method.config for search, method in self._pairs()}
        found = Tuned(self.config, configs, self.objectives, self.seeds, rows, self.folder)
        if not found.usable:
            raise TrainingError(f"no trial of any method is complete: {rows[0].why}")
        for name in configs:
            if name not in found.usable:
                listener.note(f"no trial of {name} is complete, so it has no best one.")
        if self.folder is not None:
            text = json.dumps(found.plain(), indent=1)
            write_atomically(self.folder / "tuned.json", text.encode())
            write_atomically(self.folder / "tuned.toml", found.tuned_config().toml().encode())
        return found

    def _pairs(self) -> Iterator[tuple[Search, Method]]:
        return zip(self.searches, self.methods, strict=True)


@contextmanager
def prepared(
    config: Config,
    folder: Path | str | None = None,
    *,
    trials: int = 20,
    objectives: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    fixed: Sequence[str] = (),
    jobs: int = 1,
    overwrite: bool = False,
    note: Note = lambda _: None,
) -> Iterator[Tuning]:
    """Check everything before anything runs.

    The methods are those of the config's `compare` table, or its algorithm if there are none. A
    trial is run with every seed; the default is the config's own seed.
    """
    require_optuna()
    if trials < 1:
        raise ConfigError(f"trials = {trials}: give the number of trials per method, at least 1.")
    if jobs < 1:
        raise ConfigError(f"jobs = {jobs}: give the number of runs to make at once, at least 1.")
    if jobs > 1 and folder is None:
        raise ConfigError(f"jobs = {jobs} needs a folder for the runs; give a folder, or jobs = 1.")
    config = effective(config, note)
    which = listed("seeds", 1 if seeds is None else seeds, config.seed)
    chosen = [_started(method, which, note) for method in methods_of(config)]
    check_labels(chosen)
    check_fixed([method.config for method in chosen], fixed)
    if objectives is not None:
        check_objectives(objectives)
    wanted = _checked(chosen, objectives, which, note)
    options: dict[str, Any] = {"trials": trials, "objectives": wanted, "seeds": which}
    options |= {"fixed": fixed, "jobs": jobs}
    if folder is None:
        yield Tuning(config, chosen, None, **options)
        return
    place = Path(folder)
    _make(place)
    if overwrite:
        who = next(filter(None, (busy(place / slug(method.label)) for method in chosen)), None)
        if who is not None:
            raise RunError(
                f"{who} is tuning in '{place}'; leave out --overwrite to share the work, or stop "
                "that process first."
            )
        _remove(place, chosen)
    yield Tuning(config, chosen, place, **options)


def tune(
    config: Config,
    folder: Path | str | None = None,
    listeners: Sequence[Listener] = (),
    **options: Any,
) -> Tuned:
    """Tune the methods of a config, with the options of `prepared`."""
    listener = Listeners(listeners)
    with prepared(config, folder, note=listener.note, **options) as tuning:
        return tuning.run(listener)


def _started(method: Method, seeds: Sequence[int], note: Note) -> Method:
    """A method with the config that its trials start from: its label, its seeds, its data."""
    config = effective(method.config, note)
    label = label_of(config)
    changed = {"label": label, "compare": CompareConfig(seeds=list(seeds))}
    return Method(label, config.model_copy(update=changed))


def _checked(
    methods: Sequence[Method], objectives: Sequence[str] | None, seeds: Sequence[int], note: Note
) -> list[str]:
    """The objectives; raises ConfigError for a method that cannot run or cannot be measured."""
    wanted = list(objectives or ())
    for method in methods:
        base = trial_base(method.config, wanted).model_copy(update={"seed": seeds[0]})
        setting = build(base, note)
        if not wanted:
            wanted = ["accuracy" if setting.federation.classes > 1 else "loss"]
        sizes = setting.federation.sizes("validation")
        if not bool((sizes > 0).any()):
            raise ConfigError(
                f"'{setting.federation.source}' has no validation examples, and tuning never uses "
                "test examples; choose data, or options of the data, with a validation split."
            )
        known = measurable(setting)
        for name in wanted:
            if name not in known:
                raise ConfigError(unknown(f"metric of {method.label}", name, known))
    return wanted


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"the folder '{place}' cannot be created ({error.strerror or error}); choose another "
            "with --to."
        ) from None


def _remove(place: Path, methods: Sequence[Method]) -> None:
    """Delete the trials of these methods and the results, and nothing else."""
    for name in ("tuned.toml", "tuned.json"):
        (place / name).unlink(missing_ok=True)
    for method in methods:
        folder = place / slug(method.label)
        (folder / JOURNAL).unlink(missing_ok=True)
        for run in sorted(folder.glob("trial-*/seed-*")):
            if re.fullmatch(r"trial-\d+", run.parent.name) and RunFolder(run).exists:
                RunFolder(run).remove()
                if not any(run.parent.iterdir()):
                    run.parent.rmdir()
