"""The phases beside an algorithm's own, by the names that they have in messages."""

from __future__ import annotations

from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.core.examples import SPLITS
from isonomy.core.phase import Phase
from isonomy.robust.defence import LOSS, sent_loss
from isonomy.runs.client_counts import measure
from isonomy.runs.front import front_counts


def measurement(algorithm: Algorithm, name: str) -> Phase:
    """What a client of a real federation measures, by its name: `test`, `test:own`, `loss`.

    Raises KeyError if there is no such measurement.
    """
    if name == LOSS:
        return sent_loss
    split, _, whose = name.partition(":")
    if split not in SPLITS or whose not in ("", "own", "joint"):
        raise KeyError(name)
    if not whose:
        return measure(algorithm, split)
    if not isinstance(algorithm, LearnsFront):
        raise KeyError(name)
    return front_counts(algorithm, split, whose)
