"""The phases beside an algorithm's own, by the names that they have in messages."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.disclosure import even_predictions, withheld_counts
from isonomy.core.examples import SPLITS
from isonomy.core.phase import Phase
from isonomy.core.task import Task
from isonomy.robust.defence import LOSS, sent_loss
from isonomy.runs.client_counts import measure
from isonomy.runs.front import front_counts

LARGE = 4  # a loss that counts in full, in units of that of a uniform guess


def measurement(algorithm: Algorithm, name: str, most: float = math.inf) -> Phase:
    """What a client of a real federation measures, by its name: `test`, `test:own`, `loss`.

    A loss above `most` counts as `most`. Raises KeyError if there is no such measurement.
    """
    if name == LOSS:
        return sent_loss
    split, _, whose = name.partition(":")
    if split not in SPLITS or whose not in ("", "own", "joint"):
        raise KeyError(name)
    if not whose:
        return measure(algorithm, split, most)
    if not isinstance(algorithm, LearnsFront):
        raise KeyError(name)
    return front_counts(algorithm, split, whose)


def withholding(least: int, *, rounded: bool) -> Callable[[Algorithm, str], Phase]:
    """The measurements of a participant that counts no cell of fewer than `least` rows.

    If they are `rounded`, a single row does not show: counts of predictions in a cell are even
    numbers, and with classes, the loss of a row counts up to a limit, and sums of losses are
    rounded to multiples of this limit.
    """

    def find(algorithm: Algorithm, name: str) -> Phase:
        plain = measurement(algorithm, name)
        if name == LOSS or (least <= 1 and not rounded):
            return plain

        @functools.wraps(plain)
        def told_only(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
            step = LARGE * math.log(task.classes) if task.classes > 1 and rounded else math.inf
            reply, state = measurement(algorithm, name, step)(task, message, client)
            counts, loss = withheld_counts(reply["counts"], reply.get("loss"), task.levels, least)
            counts = even_predictions(counts) if rounded else counts
            if loss is None:
                return {"counts": counts}, state
            near = (loss / step).round() * step if step < math.inf else loss
            return {"counts": counts, "loss": near}, state

        return told_only

    return find
