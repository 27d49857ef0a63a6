"""One run: rounds, measurements, checkpoints, and an end; stopped at any moment, it resumes."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isonomy.config.schema import AlgorithmConfig, Config, DefenceConfig
from isonomy.core import tree
from isonomy.core.capabilities import FindsClusters, GivesVerdict, objectives
from isonomy.core.cohort import NoReplies
from isonomy.core.verdict import About
from isonomy.engines.base import Engine, Meter, sample
from isonomy.engines.batched.engine import Batched
from isonomy.errors import ConfigError, IsonomyError, RunError, TrainingError
from isonomy.metrics import Counts, client_loss, excess, faa, per_client, summarise
from isonomy.runs import front, middleware, surrogate
from isonomy.runs.build import Setting, build, engine_of, versions
from isonomy.runs.evaluate import evaluate_some
from isonomy.runs.folder import RunFolder
from isonomy.runs.middleware import Middleware
from isonomy.runs.record import Record
from isonomy.runs.saved_model import card_of


class Stopped(IsonomyError):
    """The run was asked to stop; it saved its state first."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Listener:
    """What a run tells whoever watches; every method may be replaced."""

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """A run starts, with so many rounds done already."""

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round is over; metrics if it was measured."""

    def end(self, label: str, seconds: float | None = None) -> None:
        """The run is complete, after so many seconds where another process made it."""

    def note(self, text: str) -> None:
        """Something the user should read."""


@dataclass
class _Progress:
    """What a checkpoint holds, in memory."""

    server: Any
    engine: Engine
    round: int = 0
    lost: int = 0  # rounds in which nobody answered
    metrics: dict[str, float] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)  # exchanges missed, by client


def run(
    config: Config,
    folder: Path | str | None = None,
    *,
    listener: Listener | None = None,
    overwrite: bool = False,
    keep: bool = False,
) -> Record:
    """Run an experiment, in a folder if one is given; returns its record.

    Where the method's verdict withholds the model, the folder has none, unless `keep` is true.
    """
    listener = listener or Listener()
    setting = build(config.model_copy(update={"versions": versions()}), listener.note)
    place = RunFolder(folder) if folder is not None else None
    if place is not None:
        place.create(setting.config, overwrite=overwrite)
    try:
        return go(setting, place, listener, keep=keep)
    except TrainingError:
        if place is not None and not place.checkpoints():
            place.remove()  # nothing in it is of use
        raise


def resume(folder: Path | str, *, listener: Listener | None = None, keep: bool = False) -> Record:
    """Go on with a run from its newest whole checkpoint, to the result it would have had.

    With `keep`, a complete run gives up the model that its verdict withheld.
    """
    listener = listener or Listener()
    place = RunFolder(folder)
    config = place.config()
    if place.complete and keep and place.withheld:
        place.reopen()
    if place.complete:
        listener.note(f"'{place.path}' is complete; nothing to do.")
        return record(place)
    now = versions()
    for name, then in config.versions.items():
        if now.get(name) != then:
            listener.note(
                f"this run began with {name} {then} and goes on with {now.get(name)}: the result "
                "may differ in rounding from an uninterrupted run."
            )
    if place.served:
        raise RunError(
            f"'{place.path}' is the run of a real federation; go on with `isonomy serve --resume "
            f"{place.path}`."
        )
    setting = build(config, listener.note)
    return go(setting, place, listener, keep=keep)


def method_label(config: Config) -> str:
    """The config's label, or the algorithm and the defence with the options they were given."""
    if config.label:
        return config.label
    label = _named(config.algorithm)
    if config.defence.name != "none":
        label += f" + {_named(config.defence)}"
    return label


def _named(table: AlgorithmConfig | DefenceConfig) -> str:
    options = ", ".join(f"{k}={v}" for k, v in table.options.items())
    return table.name + (f" ({options})" if options else "")


def record(place: RunFolder) -> Record:
    """A run folder as a record for reports."""
    config = place.config()
    table = place.clients()
    summary = place.summary()
    rounds = place.lines("rounds.jsonl")
    measured = [r["metrics"] for r in rounds if r.get("metrics")]
    metrics = summary.get("metrics") or (measured[-1] if measured else {})
    return Record(
        label=method_label(config),
        seed=config.seed,
        config=config.plain(),
        rounds=rounds,
        clients=table.to_pydict() if table is not None else {},
        metrics={k: math.nan if v is None else v for k, v in metrics.items()},
        seconds=sum(line["seconds"] for line in place.lines("timing.jsonl")),
        complete=place.complete,
        notes=tuple(summary.get("notes", ())),
        facts=summary.get("facts", {}),
        front=place.front(),
        verdict=place.verdict(),
    )


# --- the run itself ------------------------------------------------------------------------------


def go(
    setting: Setting,
    place: RunFolder | None,
    listener: Listener,
    make: Callable[..., Engine] = engine_of,
    *,
    keep: bool = False,
) -> Record:
    """All rounds from where the folder stands, with the config's engine or one made by `make`."""
    threads = torch.get_num_threads()
    try:
        return _rounds(setting, place, listener, make, keep)
    finally:
        torch.set_num_threads(threads)


def _rounds(
    setting: Setting,
    place: RunFolder | None,
    listener: Listener,
    make: Callable[..., Engine],
    keep: bool,
) -> Record:
    config, algorithm = setting.config, setting.algorithm
    label = method_label(config)
    now = _start(setting, place, listener, make)
    memory: list[dict[str, Any]] = []  # rounds of a run without a folder
    fronts: dict[str, list[Any]] = {}
    columns: list[dict[str, Any]] = []
    seconds = 0.0
    listener.begin(label, config.seed, now.round, config.rounds)
    with _signals() as asked:
        while now.round < config.rounds:
            begin = time.perf_counter()
            line = _one_round(setting, now)
            last = now.round == config.rounds
            if last:
                now.server = _finish(setting, now, line)
            if last or now.round % config.evaluate.every == 0:
                rows, found = _evaluated(setting, now, line, last)
                columns.append(rows)
                if last:
                    fronts = _fronts(setting, now, found)
                if place is not None:
                    if rows:
                        place.write_clients(now.round, rows)
                    if last and fronts:
                        place.write_front(fronts)
            _tell_faults(setting, now, line, listener)
            seconds += (spent := time.perf_counter() - begin)
            memory.append(line)
            if place is not None:
                due = last or now.round % config.checkpoint.every == 0
                place.append("rounds.jsonl", line, flush=True)
                place.append("timing.jsonl", {"round": line["round"], "seconds": spent})
                if due:
                    _save(place, now, setting)
            listener.round(now.round, config.rounds, line.get("metrics"))
            if isinstance(now.engine, Batched) and now.engine.programs.trouble:
                listener.note(f"compiling failed, going on without: {now.engine.programs.trouble}")
                now.engine.programs.trouble = None
            if asked and not last:
                if place is not None and not due:
                    _save(place, now, setting)
                where = f"; go on with `isonomy resume {place.path}`" if place is not None else ""
                raise Stopped(f"stopped after round {now.round}{where}.", asked[0])
    listener.end(label)
    lines = memory if place is None else place.lines("rounds.jsonl")
    notes = _notes(setting, now, lines)
    metrics = now.metrics or _last(memory)
    facts: dict[str, Any] = {"versions": config.versions}
    if not setting.remote:
        from isonomy.data.profile import describe  # brings scipy.stats: nobody waits for it before

        facts["data"] = describe(setting.clean, config.evaluate.split).facts()
    if setting.attack is not None:
        facts["malicious"] = setting.malicious.tolist()
    about = About(setting.task, setting.federation.attributes, setting.federation.labels)
    verdict = algorithm.verdict(now.server, about) if isinstance(algorithm, GivesVerdict) else None
    if place is not None:
        metrics = _last(place.lines("rounds.jsonl"))
        model = {"server": algorithm.deployed(now.server), "clients": now.engine.states.stacked}
        summary = {"metrics": metrics, "notes": list(notes), "facts": facts}
        place.finish(
            model if keep or verdict is None or not verdict.withholds else None,
            card_of(config, setting.task, setting.federation),
            summary,
            setting.federation.preprocessing,
            verdict.plain() if verdict is not None else None,
        )
        return record(place)
    columns = [part for part in columns if part]
    merged = {k: [v for part in columns for v in part[k]] for k in columns[0]} if columns else {}
    return Record(
        label=label,
        seed=config.seed,
        config=config.plain(),
        rounds=memory,
        clients=merged,
        metrics={k: math.nan if v is None else v for k, v in metrics.items()},
        seconds=seconds,
        notes=notes,
        facts=facts,
        front=fronts,
        verdict=verdict.plain() if verdict is not None else None,
    )


def _start(
    setting: Setting, place: RunFolder | None, listener: Listener, make: Callable[..., Engine]
) -> _Progress:
    """The state to begin with: a checkpoint's, or the initial one."""
    algorithm, task, params = setting.algorithm, setting.task, setting.params
    server = algorithm.init_server(task, params, len(setting.federation))
    initial = algorithm.init_client(task, params)
    found = place.newest() if place is not None else None
    chunks = found[2]["chunks"] if found else None
    engine = make(setting, listener.note, chunks)
    engine.reset(initial)
    if place is None:
        return _Progress(server, engine)
    if found is None:
        place.rewind(0)
        return _Progress(server, engine)
    round, trees, extra, damaged = found
    for text in damaged:
        listener.note(text)
    if extra.get("data", setting.fingerprint) != setting.fingerprint:
        raise RunError(
            f"the tables at '{setting.config.data.options.get('path')}' are not those that "
            f"'{place.path}' began with; put them back, or start again with --overwrite."
        )
    server = tree.like(server, trees["server"])
    engine.states.stacked = tree.like(engine.states.stacked, trees["clients"])
    place.rewind(round)
    return _Progress(server, engine, round, extra["lost"], faults=Counter(extra.get("faults", {})))


def _one_round(setting: Setting, now: _Progress) -> dict[str, Any]:
    """One round of the algorithm; returns the line that says what happened."""
    config, federation = setting.config, setting.federation
    count = config.cohort.size or len(federation)
    chosen = config.cohort.sampling
    ids = sample(federation, count, seed=config.seed, round=now.round, how=chosen)
    work = config.local.work()
    about = Middleware(setting)
    cohort = now.engine.cohort(
        ids,
        work=work,
        round=now.round,
        rate=work.rate(now.round, config.rounds),
        wrap=about.server_side(dropout=True),
        around=about.client_side(),
        combine=about.defence,
    )
    try:
        now.server = setting.algorithm.round(now.server, cohort)
    except NoReplies:
        about.check_diverged(now.round)
        now.lost += 1
    _check_finite(setting, now, ids)
    now.round += 1
    return {
        "round": now.round,  # rounds done, from 1
        "cohort": len(ids),
        "answered": len(cohort.ids) if about.meter.answered else 0,
        **_traffic(about.meter),
        **about.line(),
    }


def _finish(setting: Setting, now: _Progress, line: dict[str, Any]) -> Any:
    """The algorithm's last phase, with all clients; its traffic goes with the last round's."""
    work, rounds = setting.config.local.work(), setting.config.rounds
    everyone = now.engine.everyone()
    about = Middleware(setting)
    cohort = now.engine.cohort(
        everyone,
        work=work,
        round=rounds,
        rate=work.rate(rounds, rounds),
        wrap=about.server_side(),
        around=about.client_side(),
        combine=about.defence,
    )
    server = now.server
    try:
        server = setting.algorithm.finish(server, cohort)
    except NoReplies:
        now.lost += 1
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


def _check_finite(setting: Setting, now: _Progress, ids: torch.Tensor) -> None:
    if tree.finite(now.server) and tree.finite(now.engine.states.take(ids)):
        return
    lr = setting.config.local.lr
    raise TrainingError(
        f"round {now.round + 1}: training diverged, the model holds numbers that are not finite; "
        f"lower local.lr (now {lr:g}) or scale the features, and run again."
    )


def _evaluated(
    setting: Setting, now: _Progress, line: dict[str, Any], last: bool
) -> tuple[dict[str, Any], front.Fronts | None]:
    """Measure the clients that answer: metrics go into the line; their table, and fronts."""
    config = setting.config
    try:
        counts, ids = evaluate_some(
            setting.algorithm, now.server, now.engine, config.evaluate.split
        )
    except NoReplies:
        return {}, None
    # the method's own clusters, if they are wanted, are those of its end
    losses = surrogate.surrogate_losses(setting, now.server if last else None)
    if losses is not None:
        losses = losses[ids]
    found = front.measured(setting, now.server, now.engine, counts, ids, last=last)
    line["metrics"], rows = _measured(setting, counts, ids, losses, found, now, last)
    return rows, found


def _tell_faults(
    setting: Setting, now: _Progress, line: dict[str, Any], listener: Listener
) -> None:
    """Who did not answer as asked, and why: in the round's line, and to whoever watches."""
    faults = list(getattr(now.engine, "faults", ()))
    if not faults:
        return
    now.engine.faults.clear()  # type: ignore[attr-defined]
    line["faults"] = [
        {"client": setting.federation.name(f.client), "phase": f.phase, "why": f.why}
        for f in faults
    ]
    for fault in line["faults"]:
        now.faults[fault["client"]] += 1
        listener.note(f"round {line['round']}: '{fault['client']}' is left out: {fault['why']}.")


def _measured(
    setting: Setting,
    counts: Counts,
    ids: list[int],
    losses: NDArray[np.float64] | None,
    found: front.Fronts | None,
    now: _Progress,
    last: bool,
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """A round's metrics, and the same round's table of clients."""
    config, federation, round = setting.config, setting.federation, now.round
    if not np.isfinite(counts.loss).all():
        raise TrainingError(
            f"round {round}: the loss on the {config.evaluate.split} examples is not finite; lower "
            f"local.lr (now {config.local.lr:g}) or scale the features, and run again."
        )
    bootstrap = config.evaluate.bootstrap if last else 0
    benign = setting.benign[ids]  # all clients, unless there is an attack
    metrics = summarise(counts.only(benign), bootstrap=bootstrap, seed=config.seed)
    rows: dict[str, Any] = {
        "round": [round] * len(ids),
        "client": ids,
        "name": [federation.name(k) for k in ids],
        "split": [config.evaluate.split] * len(ids),
    }
    rows |= {k: v.tolist() for k, v in per_client(counts).items()}
    if setting.attack is not None:
        rows["malicious"] = (~benign).tolist()
    if found is not None:
        metrics |= found.metrics()
        rows["hv"] = found.volumes.tolist()
    elif front.names_of(setting) is not None:
        rows["hv"] = [math.nan] * len(ids)  # a front with someone silent; columns stay alike
    clusters = _clusters(setting, now)
    if clusters is not None:
        rows["cluster"] = clusters[ids].tolist()
    if losses is not None:
        above = excess(client_loss(counts), losses)
        metrics["faa"] = faa(above[benign], counts.sizes[benign])
        rows["excess_loss"] = above.tolist()
    elif clusters is not None and config.excess.clusters == "found":
        rows["excess_loss"] = [math.nan] * len(ids)  # known at the end; columns stay alike
    return {k: v if math.isfinite(v) else None for k, v in metrics.items()}, rows


def _fronts(setting: Setting, now: _Progress, found: front.Fronts | None) -> dict[str, list[Any]]:
    """The fronts at the end: as measured, and where preferences are chosen, on validation rows."""
    if found is None:
        return {}
    both = [found]
    own = objectives(setting.algorithm) and found.split != "validation"
    if own and bool((setting.federation.sizes("validation") > 0).any()):
        args = (setting, now.server, now.engine, "validation", found.names)
        chosen = front.learnt(*args, others=False)  # type: ignore[arg-type]
        both += [] if chosen is None else [chosen]
    return front.stored(both)


def _clusters(setting: Setting, now: _Progress) -> torch.Tensor | None:
    """Each client's cluster, where the method finds clusters."""
    algorithm = setting.algorithm
    return algorithm.clusters(now.server) if isinstance(algorithm, FindsClusters) else None


def _last(lines: list[dict[str, Any]]) -> dict[str, float]:
    measured = [line["metrics"] for line in lines if line.get("metrics")]
    return dict(measured[-1]) if measured else {}


def _notes(setting: Setting, now: _Progress, lines: list[dict[str, Any]]) -> tuple[str, ...]:
    notes = list(setting.federation.notes)
    notes += middleware.notes(setting, lines)
    stated = surrogate.statement(setting, now.server)
    if stated:
        notes.append(stated)
    found = _clusters(setting, now)
    if found is not None:
        sizes = sorted(Counter(found.tolist()).values(), reverse=True)
        which = ", ".join(str(size) for size in sizes)
        notes.append(f"Clusters of clients that the method found: {len(sizes)}, of size {which}.")
    if now.lost:
        notes.append(f"In {now.lost} rounds no client answered; they changed nothing.")
    notes += [
        f"'{name}' was left out of {count} exchanges; rounds.jsonl says why."
        for name, count in sorted(now.faults.items())
    ]
    return tuple(notes)


def _save(place: RunFolder, now: _Progress, setting: Setting) -> None:
    chunks = now.engine.chunks if isinstance(now.engine, Batched) else {}
    trees = {"server": now.server, "clients": now.engine.states.stacked}
    extra: dict[str, Any] = {"lost": now.lost, "chunks": chunks}
    if now.faults:
        extra["faults"] = dict(now.faults)
    if setting.fingerprint:
        extra["data"] = setting.fingerprint
    place.save_checkpoint(now.round, trees, extra, setting.config.checkpoint.keep)
    if hasattr(now.engine, "safe"):
        now.engine.safe = min(place.checkpoints())  # clients may forget what is before it


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, so that a round ends before the run does; twice is at once."""
    asked: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    old = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


__all__ = [
    "ConfigError",
    "Listener",
    "RunError",
    "Stopped",
    "method_label",
    "record",
    "resume",
    "run",
]
