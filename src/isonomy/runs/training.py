"""Training: a run's rounds, with evaluation and checkpoints. An interrupted run can be resumed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from isonomy.config.schema import Config
from isonomy.core import tree
from isonomy.core.capabilities import EndsEarly, GivesVerdict
from isonomy.core.cohort import NoReplies
from isonomy.core.verdict import About, Verdict
from isonomy.engines.base import Engine, Meter
from isonomy.engines.distributed import ranks
from isonomy.engines.distributed.ranks import RankLost
from isonomy.errors import RunError, TrainingError
from isonomy.privacy.ledger import BudgetSpent
from isonomy.runs import (
    middleware,
    postprocessing,
    private,
    private_evaluation,
    processes,
    signals,
    trackers,
)
from isonomy.runs.build import Setting, build, engine_of, versions
from isonomy.runs.checkout import commit
from isonomy.runs.evaluate import evaluate, final_fronts
from isonomy.runs.folder import RunFolder
from isonomy.runs.front import learnt_facts
from isonomy.runs.listener import Listener, Listeners
from isonomy.runs.middleware import Middleware
from isonomy.runs.notes import notes
from isonomy.runs.processes import Processes
from isonomy.runs.progress import Progress
from isonomy.runs.record import Record
from isonomy.runs.results import joined, last_metrics, method_label, record, with_nan
from isonomy.runs.saved_model import card_of
from isonomy.runs.signals import Stopped
from isonomy.runs.start import MakeEngine, begin, save

__all__ = ["Listener", "Stopped", "method_label", "record", "resume", "run", "train"]

DESCRIBED = 1 << 16  # clients up to which a run's summary describes the data
NOTHING = Record("", 0, {}, [], {}, {}, 0.0)  # of a process that has nothing to do


def run(
    config: Config,
    folder: Path | str | None = None,
    *,
    listeners: Sequence[Listener] = (),
    overwrite: bool = False,
    keep: bool = False,
) -> Record:
    """Run an experiment and return its record; with a folder, the run can be resumed.

    If the algorithm's verdict withholds the model, the folder holds none, unless `keep` is true.
    """
    trackers.require(config)
    with processes.of_run(config) as group:
        listener = Listeners(listeners if group.leads else ())
        config = group.same(config).model_copy(update={"versions": versions()})
        setting = build(config, listener.note)
        place = RunFolder(folder) if folder is not None and group.leads else None
        begun = place is not None and processes.restarted() and place.holds(setting.config)
        if group.same(place is not None and begun and place.complete):
            return NOTHING if place is None else record(place)
        if place is not None and not begun:
            place.create(setting.config, overwrite=overwrite)
        with group.connected(None if place is None else place.to_continue):
            try:
                return train(setting, place, listener.listeners, keep=keep)
            except TrainingError:
                if place is not None and not place.checkpoints():
                    place.remove()  # there is nothing to resume from
                raise


def resume(folder: Path | str, *, listeners: Sequence[Listener] = (), keep: bool = False) -> Record:
    """Continue a run from its newest intact checkpoint; the result is that of an unbroken run.

    With `keep`, a complete run also writes the model that its verdict withheld.
    """
    place = RunFolder(folder)
    with processes.of_run(place.config() if processes.leads() else None) as group:
        if not group.leads:
            config = group.same(None)
            return NOTHING if config is None else train(build(config), None)
        return _resume(place, group, Listeners(listeners), keep=keep)


def _resume(place: RunFolder, group: Processes, listener: Listeners, *, keep: bool) -> Record:
    config = place.config()
    trackers.require(config)
    withheld = place.complete and keep and place.withheld
    if place.complete and not withheld:
        listener.note(f"'{place.path}' is complete; nothing to do.")
        group.same(None)
        return record(place)
    if place.served and withheld:
        raise RunError(
            f"'{place.path}' is the run of a real federation and its model was withheld; it cannot "
            "be written afterwards: change the algorithm's options and serve a new run."
        )
    if place.served:
        raise RunError(
            f"'{place.path}' is the run of a real federation; continue it with {place.to_continue}."
        )
    if withheld:
        place.reopen()
    now = versions()
    for name, then in config.versions.items():
        if now.get(name) != then:
            listener.note(
                f"this run began with {name} {then} and continues with {now.get(name)}: the result "
                "may differ in rounding from that of an uninterrupted run."
            )
    setting = build(group.same(config), listener.note)
    with group.connected(place.to_continue):
        return train(setting, place, listener.listeners, keep=keep)


def require_given(place: RunFolder, table: dict[str, Any]) -> None:
    """Raise a RunError if a run did not begin with the data from memory of this `data` table."""
    then = place.config().data
    if then.name != table["name"]:
        raise RunError(
            f"'{place.path}' is a run on '{then.name}' and not on data from memory; resume it "
            "without data."
        )
    if then.options.get("digest") != table["digest"]:
        raise RunError(
            f"the data given are not those that '{place.path}' began with (digest "
            f"{str(table['digest'])[:8]} instead of {str(then.options.get('digest'))[:8]}); give "
            "the same data, or start a new run in another folder."
        )


def train(
    setting: Setting,
    place: RunFolder | None,
    listeners: Sequence[Listener] = (),
    make: MakeEngine = engine_of,
    *,
    keep: bool = False,
) -> Record:
    """All rounds from where the folder stands, on the config's engine or one made by `make`."""
    threads = torch.get_num_threads()
    try:
        with contextlib.nullcontext() if place is None else place.locked():
            return _tracked(setting, place, Listeners(listeners), make, keep=keep)
    except RankLost as error:
        raise processes.explained(error, None if place is None else place.to_continue) from error
    finally:
        torch.set_num_threads(threads)


def _tracked(
    setting: Setting,
    place: RunFolder | None,
    listener: Listeners,
    make: MakeEngine,
    *,
    keep: bool,
) -> Record:
    """The run, also reported to the trackers of its config."""
    leads = (group := ranks.current()) is None or group.leads
    used = trackers.tracked(setting.config, place, listener.note) if leads else ()
    everyone = Listeners((*used, *listener.listeners))
    try:
        made = _Training(setting, place, everyone, make).record(keep=keep)
    except BaseException:
        for tracker in used:
            tracker.stop()
        raise
    for tracker in used:
        tracker.result(made)
    return made


class _Training:
    """One run: its state, and what was measured."""

    def __init__(
        self, setting: Setting, place: RunFolder | None, listener: Listener, make: MakeEngine
    ) -> None:
        self.setting, self.place, self.listener = setting, place, listener
        self.now = begin(setting, place, listener, make)
        self.saves = self.now.engine.everywhere(place is not None)[0]
        self.lines: list[dict[str, Any]] = []  # of the rounds since the start or the checkpoint
        self.tables: list[dict[str, list[Any]]] = []  # of clients, one per evaluation
        self.fronts: dict[str, list[Any]] = {}
        self.excess: dict[str, Any] = {}
        self.seconds = 0.0

    def record(self, *, keep: bool) -> Record:
        """Train, write the results, and return the run's record."""
        config = self.setting.config
        label = method_label(config)
        self.listener.begin(label, config.seed, self.now.round, config.rounds)
        with signals.collected() as received:
            while not _over(self.setting, self.now):
                saved = self._round()
                stop = [s for some in self.now.engine.everywhere(received) for s in some]
                if stop and not _over(self.setting, self.now):
                    self._stop(stop[0], saved)
        if self.setting.postprocess is not None and self.now.rule is None:
            self._fit_again()
        self.listener.end(label)
        place = self.place
        lines = self.lines if place is None else place.lines("rounds.jsonl")
        excess = self.excess if place is None else place.excess()
        metrics, remarks = last_metrics(lines), notes(self.setting, self.now, lines, excess)
        facts, verdict = _facts(self.setting, self.now), _verdict(self.setting, self.now)
        plain = None if verdict is None else verdict.plain()
        states = _states(self.now.engine) if self.saves else {}
        if place is None:
            for _ in states.get("known", (None, ()))[1]:
                pass  # sent to the process that leads
            return Record(
                label=label,
                seed=config.seed,
                config=config.plain(),
                rounds=self.lines,
                clients=joined(self.tables),
                metrics=with_nan(metrics),
                seconds=self.seconds,
                notes=remarks,
                facts=facts,
                front=self.fronts,
                excess=excess,
                verdict=plain,
            )
        model = {
            "server": self.setting.algorithm.deployed(self.now.server),
            **states,
        }
        withheld = verdict is not None and verdict.withholds and not keep
        for _ in states.get("known", (None, ()))[1] if withheld else ():
            pass  # other processes send them
        place.finish(
            None if withheld else model,
            card_of(config, self.setting.task, self.setting.federation),
            {"metrics": metrics, "notes": list(remarks), "facts": facts},
            self.setting.federation.preprocessing,
            plain,
            self.now.rule,
        )
        return record(place)

    def _round(self) -> bool:
        """One round with its evaluation and its lines; returns whether it was saved."""
        setting, now, place = self.setting, self.now, self.place
        config, begin = setting.config, time.perf_counter()
        now.rule = None  # that of a run that is made longer
        line = _one_round(setting, now)
        last = _over(setting, now)
        if last:
            now.server = _finish(setting, now, line)
            now.rule = postprocessing.fit_rule(setting, now, line)
        if last or now.round % config.evaluate.every == 0:
            self._evaluate(line, last)
        _report_faults(setting, now, line, self.listener)
        spent = time.perf_counter() - begin
        self.seconds += spent
        self.lines.append(line)
        due = last or now.round % config.checkpoint.every == 0
        if due and now.private is not None:
            now.private.ledger.mark(now.round)
        if place is not None:
            place.append("rounds.jsonl", line, flush=True)
            place.append("timing.jsonl", {"round": line["round"], "seconds": spent})
        if due and self.saves:
            save(place, now, setting)
        if due and place is not None and now.private is not None:
            place.write_privacy(private.ledger_of(setting, now.private))
        self.listener.round(now.round, config.rounds, line.get("metrics"))
        for text in now.engine.take_notes():
            self.listener.note(text)
        return due

    def _fit_again(self) -> None:
        """Fit the rule to a model whose rounds are done, and evaluate the last round with it."""
        place = self.place  # a run in memory fits it in its last round
        last = None if place is None else place.lines("rounds.jsonl")[-1]
        line: dict[str, Any] = self.now.engine.everywhere(last)[0] or {}
        for old in ("metrics", "metrics_at", "only_class", "constant", "thresholds"):
            line.pop(old, None)
        self.now.rule = postprocessing.fit_rule(self.setting, self.now, line)
        self._evaluate(line, last=True)
        if place is not None:
            place.replace_last("rounds.jsonl", line)
        save(place, self.now, self.setting)

    def _evaluate(self, line: dict[str, Any], last: bool) -> None:
        """Measure; metrics go into the round's line, tables into the folder."""
        if private.allowed(self.setting, "evaluation"):
            made = evaluate(self.setting, self.now, last=last)
        elif private_evaluation.due(self.setting, last=last):
            made = private_evaluation.evaluate_private(self.setting, self.now, last=last)
        else:
            return
        if made.metrics is not None:
            line["metrics"] = made.metrics
        if made.at is not None:
            line["metrics_at"] = made.at
        if made.only_class is not None:
            line["only_class"] = made.only_class
        if made.constant is not None:
            line["constant"] = made.constant
        if made.thresholds is not None:
            line["thresholds"] = made.thresholds
        if self.place is None:
            self.tables.append(made.clients)
        if last:
            self.fronts = final_fronts(self.setting, self.now, made)
        if made.excess is not None:
            self.excess = made.excess.plain()
            if self.place is not None:
                self.place.write_excess(self.excess)
        if self.place is not None and made.clients:
            self.place.write_clients(self.now.round, made.clients)
        if self.place is not None and self.fronts:
            self.place.write_front(self.fronts)

    def _stop(self, number: int, saved: bool) -> None:
        """Save, unless that was done, and raise Stopped."""
        where = ""
        if self.place is not None:
            where = f"; continue with {self.place.to_continue}"
        if self.saves and not saved:
            save(self.place, self.now, self.setting)
        config, at = self.setting.config, f"round {self.now.round}"
        inside = f"{method_label(config)}, seed {config.seed}, is at {at} of {config.rounds}"
        raise Stopped(f"stopped after {at}{where}.", number, inside)


def _states(engine: Engine) -> dict[str, Any]:
    """The clients' states for the run's model: all, or the initial one and those that differ."""
    if not engine.states.sparse:
        return {"clients": engine.all_states()}
    known = engine.known_clients(), engine.some_states("known")
    return {"clients": engine.states.initial, "known": known}


def _over(setting: Setting, now: Progress) -> bool:
    """Whether training is over: all rounds are done, or the algorithm or the budget ended it."""
    if now.round >= private.allowed_rounds(setting):
        return True
    algorithm = setting.algorithm
    return isinstance(algorithm, EndsEarly) and now.round > 0 and algorithm.ended(now.server)


def _one_round(setting: Setting, now: Progress) -> dict[str, Any]:
    """One round of the algorithm; returns its line for rounds.jsonl."""
    config = setting.config
    ids, empty = private.cohort_of(setting, now.private, now.round)
    work = config.local
    about = Middleware(setting, private.release_of(setting, now.private, empty=empty))
    charged, hidden = private.example_side(setting, now.private)
    cohort = now.engine.cohort(
        ids,
        work=work,
        round=now.round,
        rate=work.rate(now.round, config.rounds),
        wrap=(*about.server_side(dropout=True), *charged),
        around=(*hidden, *about.client_side()),
        combine=about.defence,
        max_weight=setting.config.cohort.max_weight,
        whole=about.whole,
        release=about.release,
    )
    recorded: dict[str, Any] = {}
    try:
        now.server = now.engine.agreed(setting.algorithm.round(now.server, cohort))
        recorded = cohort.recorded
        about.join(now.engine)
    except NoReplies:
        about.join(now.engine)
        about.check_diverged(now.round)
        now.lost += 1
    except BudgetSpent:
        now.lost += 1
    _check_finite(setting, now, ids)
    now.round += 1
    if now.private is not None:
        now.private.ledger.close_round()
    line = {
        "round": now.round,  # rounds done, from 1
        "cohort": len(ids),
        "answered": len(cohort.ids) if about.meter.answered else 0,
        **_traffic(about.meter),
        **about.line(),
        **({"recorded": recorded} if recorded else {}),
    }
    return private.public_line(line, now.private)


def _finish(setting: Setting, now: Progress, line: dict[str, Any]) -> Any:
    """The algorithm's last phase, with all clients, and what its verdict needs, with the benign.

    The traffic is added to the last round's.
    """
    work, algorithm = setting.config.local, setting.algorithm
    about = Middleware(setting, private.release_of(setting, now.private, empty=False))
    charged, hidden = private.example_side(setting, now.private)
    cohort = now.engine.cohort(
        now.engine.everyone(),
        work=work,
        round=now.round,
        rate=work.rate(now.round, setting.config.rounds),
        wrap=(*about.server_side(), *charged),
        around=(*hidden, *about.client_side()),
        combine=about.defence,
        max_weight=setting.config.cohort.max_weight,
        final=True,
        whole=about.whole,
        release=about.release,
    )
    server = now.server
    try:
        server = algorithm.finish(server, cohort)
        if isinstance(algorithm, GivesVerdict) and private.allowed(setting, "verdict"):
            benign = torch.from_numpy(setting.benign.nonzero()[0])
            if now.private is not None:  # it is allowed without noise
                cohort = now.engine.cohort(cohort.ids, work=work, round=now.round, final=True)
            server = algorithm.examine(server, cohort.only(benign))
        if cohort.recorded:
            line["recorded"] = {**line.get("recorded", {}), **cohort.recorded}
    except (NoReplies, BudgetSpent):
        now.lost += 1
    about.join(now.engine)
    for name, value in _traffic(about.meter).items():
        line[name] += value
    for name, value in about.line().items():
        line[name] = middleware.merged(line.get(name), value)
    return server


def _traffic(meter: Meter) -> dict[str, int]:
    return {
        "bytes_down": meter.down,
        "bytes_up": meter.up,
        "messages": meter.messages,
        "phases": meter.phases,
    }


def _check_finite(setting: Setting, now: Progress, ids: torch.Tensor) -> None:
    """Raise TrainingError if the model or a client's state is not finite."""
    if tree.finite(now.server) and now.engine.finite(ids):
        return
    lr = setting.config.local.lr
    raise TrainingError(
        f"round {now.round + 1}: training diverged, the model holds numbers that are not finite; "
        f"lower local.lr (now {lr:g}) or scale the features, and run again."
    )


def _report_faults(
    setting: Setting, now: Progress, line: dict[str, Any], listener: Listener
) -> None:
    """Record which clients' replies were not used, and why; show it to the listener."""
    faults = now.engine.take_faults()
    if not faults:
        return
    line["faults"] = [
        {"client": setting.federation.name(f.client), "phase": f.phase, "why": f.why}
        for f in faults
    ]
    for fault in line["faults"]:
        now.faults[fault["client"]] += 1
        listener.note(f"round {line['round']}: '{fault['client']}' is left out: {fault['why']}.")


def _facts(setting: Setting, now: Progress) -> dict[str, Any]:
    """What the summary says of the run beside its metrics."""
    facts: dict[str, Any] = {"versions": setting.config.versions}
    if made := commit():
        facts["commit"] = made
    facts |= learnt_facts(setting, now)
    if now.private is not None:
        facts["privacy"] = private.ledger_of(setting, now.private)
    many = len(setting.federation) > DESCRIBED
    if (
        not (setting.remote or many)
        and now.engine.leads
        and private.allowed(setting, "description")
    ):
        from isonomy.data.profile import describe  # imports scipy, which is slow

        facts["data"] = describe(setting.clean, setting.config.evaluate.split).facts()
    if setting.attack is not None:
        facts["malicious"] = setting.malicious.tolist()
    return facts


def _verdict(setting: Setting, now: Progress) -> Verdict | None:
    """The algorithm's verdict on its model, if it gives one."""
    if not isinstance(setting.algorithm, GivesVerdict) or not private.allowed(setting, "verdict"):
        return None
    federation = setting.federation
    about = About(setting.task, federation.attributes, federation.labels, _covered(setting))
    return setting.algorithm.verdict(now.server, about)


def _covered(setting: Setting) -> str:
    """Whom verdicts and metrics cover: all clients, or under an attack the benign ones."""
    number, benign = len(setting.federation), int(setting.benign.sum())
    return (
        f"all {number} clients" if benign == number else f"the {benign} benign of {number} clients"
    )
