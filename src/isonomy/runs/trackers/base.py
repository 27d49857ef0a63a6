"""What a tracker of experiments is given, and how its faults are kept from ending a run."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isonomy.config.schema import Config, TrackConfig
from isonomy.core.importing import reason
from isonomy.core.nested import flat
from isonomy.errors import IsonomyError, RunError
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener
from isonomy.runs.record import Record

KNOWN = "trackers.json"  # in a run's folder: the run's name in each tracker, and its last round


@dataclass(frozen=True)
class About:
    """A run that is to be tracked."""

    name: str  # the method and the seed
    config: Mapping[str, Any]  # nested
    flat: Mapping[str, Any]  # by full keys, such as "local.lr"
    toml: str
    folder: Path | None


@dataclass(frozen=True)
class Finished:
    """A complete run: its record, and the files to keep with it."""

    record: Record
    verdict: str  # as JSON; empty if the method gave none
    report: Path
    config: Path
    model: Path | None  # the folder of the model; None if there is none


class Backend(Protocol):
    """One tracker. `start` is called first, with the run's name there if it is resumed."""

    def start(self, given: TrackConfig, about: About, known: str | None) -> str:
        """Begin or continue a run; returns its name or number in the tracker."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a round."""

    def finish(self, result: Finished) -> None:
        """Keep the last metrics, the verdict and the files, and end the run as complete."""

    def stop(self) -> None:
        """End the run as not complete."""


class Tracker(Listener):
    """Passes a run on to a backend.

    If the backend cannot begin, the run is not begun either. A fault later on is reported once, and
    the run continues without this tracker: training is worth more than its log.
    """

    def __init__(
        self,
        backend: Backend,
        given: TrackConfig,
        about: About,
        place: RunFolder | None,
        note: Callable[[str], None],
    ) -> None:
        self.backend, self.given, self.about = backend, given, about
        self.place, self.tell, self.active = place, note, False
        self.name, self.last = "", 0  # the run's name in the tracker, and its last round there

    def begin(self, label: str, seed: int, done: int, rounds: int) -> None:
        """The run starts or is resumed; rounds that were not reported before are reported now."""
        known, self.last = self._known()
        try:
            self.name = self.backend.start(self.given, self.about, known)
        except IsonomyError:
            raise
        except Exception as error:
            raise RunError(
                f"tracking with {self.given.name} cannot begin ({reason(error)}); check its "
                "settings, or run without it."
            ) from None
        self.active = True
        self._remember()
        for line in self.place.lines("rounds.jsonl") if self.place is not None else ():
            if line["round"] <= done:
                self.round(line["round"], rounds, line.get("metrics"))

    def _all_known(self) -> dict[str, Any]:
        """The content of the folder's file on trackers."""
        path = None if self.place is None else self.place.path / KNOWN
        try:
            return dict(json.loads(path.read_text())) if path is not None else {}
        except (OSError, ValueError, TypeError):
            return {}

    def _known(self) -> tuple[str | None, int]:
        """The run's name in the tracker, if it was begun before, and its last round there."""
        found = self._all_known().get(self.given.name)
        try:
            return (str(found["run"]), int(found["round"])) if found else (None, 0)
        except (TypeError, LookupError, ValueError):
            return None, 0

    def _remember(self) -> None:
        if self.place is not None:
            about = {"run": self.name, "round": self.last}
            text = json.dumps({**self._all_known(), self.given.name: about}, indent=1)
            self.place.write(KNOWN, text.encode())

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """A round ends; one that is repeated after an interruption was reported before."""
        if metrics and done > self.last:
            kept = {
                name: float(value)
                for name, value in metrics.items()
                if value is not None and math.isfinite(value) and ":" not in name
            }
            self._try(lambda: self._log(done, kept))

    def _log(self, done: int, metrics: Mapping[str, float]) -> None:
        self.backend.log(done, metrics)
        self.last = done
        self._remember()

    def result(self, record: Record) -> None:
        """The run is complete: keep its results and files."""
        with tempfile.TemporaryDirectory() as folder:
            self._try(lambda: self.backend.finish(self._finished(record, Path(folder))))
        self.active = False

    def _finished(self, record: Record, folder: Path) -> Finished:
        import isonomy

        report = isonomy.write_report(record, folder / "report.html")
        config = folder / "config.toml"
        config.write_text(self.about.toml)
        model = None if self.place is None else self.place.path / "model"
        return Finished(
            record=record,
            verdict="" if record.verdict is None else json.dumps(record.verdict, indent=1),
            report=report,
            config=config,
            model=model if model is not None and any(model.glob("*")) else None,
        )

    def stop(self) -> None:
        """The run ends early: it was interrupted, or it failed."""
        self._try(self.backend.stop)
        self.active = False

    def _try(self, action: Callable[[], None]) -> None:
        if not self.active:
            return
        try:
            action()
        except Exception as error:
            self.active = False
            self.tell(
                f"tracking with {self.given.name} failed ({reason(error)}); the run continues "
                "without it."
            )


def about_run(config: Config, label: str, place: RunFolder | None) -> About:
    """What trackers receive about a run."""
    plain = {key: value for key, value in config.plain().items() if key != "track"}
    return About(
        name=f"{label}, seed {config.seed}",
        config=plain,
        flat=flat(plain),
        toml=config.toml(),
        folder=None if place is None else place.path,
    )
