"""Pruning: a trial that is worse than the median of earlier ones is ended before its last round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from isonomy.runs.listener import Listener
from isonomy.studies.optuna_study import create

STARTUP = 5  # trials before TPE is used and before any is pruned; the first is the default


class Pruned(Exception):
    """Raised by `Pruning` to end a run that is not worth finishing."""

    def __init__(self, done: int, rounds: int) -> None:
        super().__init__(done, rounds)
        self.why = f"worse than the median of earlier trials after round {done} of {rounds}"


@dataclass
class Pruning(Listener):
    """Raises Pruned if a run's objective is worse than the median of earlier trials.

    The rule is Optuna's: the best value so far, against the others' values of that round.
    `earlier` are the values of complete trials by round. Nothing is pruned before `STARTUP` trials
    are complete, in the last round, or with several objectives, which have no median. `curve` are
    this run's values so far.
    """

    objective: str
    higher: bool
    earlier: tuple[dict[int, float], ...] = ()
    prunes: bool = True
    curve: dict[int, float] = field(default_factory=dict)

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """Keep the value of an evaluated round; raise Pruned if it is too bad."""
        value = (metrics or {}).get(self.objective)
        if value is None or not math.isfinite(value):
            return
        self.curve[done] = value
        if self.prunes and done < rounds and len(self.earlier) >= STARTUP and self._worse(done):
            raise Pruned(done, rounds)

    def _worse(self, done: int) -> bool:
        import optuna

        study = create([self.higher])
        for curve in self.earlier:
            study.add_trial(
                optuna.trial.create_trial(value=list(curve.values())[-1], intermediate_values=curve)
            )
        this = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            intermediate_values={r: v for r, v in self.curve.items() if r <= done},
        )
        return optuna.pruners.MedianPruner(n_startup_trials=STARTUP).prune(study, this)
