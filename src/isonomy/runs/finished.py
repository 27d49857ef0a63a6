"""The model of a finished run, to measure it again on any of its clients' examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.capabilities import LearnsFront
from isonomy.core.cohort import Replies
from isonomy.core.examples import Split
from isonomy.core.phase import Phase
from isonomy.core.preference import ray_of
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import DataError, RunError
from isonomy.metrics import Counts
from isonomy.metrics.scores import Scores
from isonomy.postprocess import Rule
from isonomy.privacy.guard import closed
from isonomy.runs import front
from isonomy.runs.build import Setting, build, engine_of
from isonomy.runs.client_counts import measure, measure_scores
from isonomy.runs.folder import RunFolder
from isonomy.runs.saved_model import SavedModel


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run with its data and its model; nothing of it is changed."""

    place: RunFolder
    setting: Setting
    saved: SavedModel
    engine: Engine

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients."""
        return tuple(self.setting.federation.name(k) for k in range(len(self.setting.federation)))

    @property
    def personal(self) -> bool:
        """Whether every client has a model of its own, and none is shared."""
        return self.setting.algorithm.personal(self.saved.server)

    def counts(
        self,
        split: Split,
        preference: tuple[float, ...] = (),
        rule: Rule | None = None,
        powers: bool = False,
    ) -> Counts:
        """Every client's counts on a split.

        `preference` is the point of the front that all clients use: of the common front if there is
        one, otherwise of each client's own. Decisions are those of the `rule`, if there is one.
        With `powers`, the sums of squares and cubes of the losses are measured too, which points
        of a front do not have.
        """
        if preference:
            return self.front_counts(split, torch.tensor([preference]))[0]
        question = measure(self.setting.algorithm, split, using=rule, powers=powers)
        replies = self._asked(question, rule)
        return Counts(
            counts=replies.value["counts"].numpy().astype(np.int64),
            loss=replies.value["loss"].numpy().astype(np.float64),
            attributes=self.setting.federation.attributes,
            powers=replies.value["powers"].numpy() if powers else None,
        )

    def scores(self, split: Split) -> Scores:
        """Every client's histograms of scores on a split."""
        replies = self._asked(measure_scores(self.setting.algorithm, split))
        found = replies.value["scores"].numpy()
        return Scores(found, self.setting.federation.attributes)

    def _asked(self, question: Phase, rule: Rule | None = None) -> Replies:
        everyone = self.engine.everyone()
        cohort = self.engine.cohort(everyone, work=Work(steps=1), round=0)
        each = None if rule is None else {"rule": rule.stacked(len(everyone))}
        return cohort.gather(question, {"model": self.saved.server}, each=each)

    def front_counts(self, split: Split, preferences: Tensor) -> list[Counts]:
        """Every client's counts at each of some preferences; losses are not measured."""
        algorithm = self.setting.algorithm
        if not isinstance(algorithm, LearnsFront):
            raise RunError(f"'{self.place.path}' learnt one model, not a front.")
        whose = "joint" if algorithm.joint(self.saved.server) else "own"
        message = {"model": self.saved.server, "rays": ray_of(preferences)}
        found = front.counted(algorithm, self.engine, split, message, whose, 0)
        assert found is not None  # all clients of a simulation reply
        attributes = self.setting.federation.attributes
        return [
            Counts(found[:, r], np.zeros(found[:, r].shape[:3]), attributes)
            for r in range(found.shape[1])
        ]


def reopen(folder: str | Path) -> FinishedRun:
    """The finished run in a folder; raises an error if its data are not the same any more."""
    place = RunFolder(folder)
    if place.served:
        raise RunError(
            f"'{place.path}' is the run of a real federation, whose examples are not here."
        )
    setting = build(place.config())
    require_same_data(place, setting)
    return opened(place, setting)


def opened(place: RunFolder, setting: Setting) -> FinishedRun:
    """The run's model with the data of a setting."""
    saved, threads = place.model(), torch.get_num_threads()
    engine = engine_of(setting)
    torch.set_num_threads(threads)
    engine.reset(setting.algorithm.init_client(setting.task, setting.params))
    if setting.privacy is not None and "evaluation" not in setting.config.privacy.allow:
        engine.guard = closed
    if saved.sparse is None:
        engine.states.put(engine.everyone(), tree.like(engine.states.initial, saved.clients))
    else:
        engine.load_some(saved.sparse.known())
    return FinishedRun(place, setting, saved, engine)


def require_same_data(place: RunFolder, setting: Setting) -> None:
    """Raise a DataError if the tables were changed since the run."""
    rounds = place.checkpoints()
    kept = place.load_checkpoint(rounds[0]).extra.get("data") if rounds else None
    if kept is not None and kept != setting.fingerprint:
        raise DataError("the tables were changed since the run")
