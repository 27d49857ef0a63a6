"""Counting predictions: every client counts on its own examples, and sends only the counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.examples import Split
from isonomy.core.phase import Phase, phase
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.metrics import Counts, count

PAGE = 1024  # examples at a time


def measure(algorithm: Algorithm, split: Split, most: float = math.inf) -> Phase:
    """The phase in which a client counts its own predictions; no prediction leaves it.

    If an algorithm learns a front, the message may have a "ray": the client predicts with its model
    there. A loss above `most` counts as `most`.
    """

    @phase("gather", name=f"measure:{split}", counts="group statistic", loss="group statistic")
    def measured(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        total: Any = None
        model, at = message["model"], message.get("ray")
        chosen = None
        if at is not None and isinstance(algorithm, LearnsFront):
            chosen = algorithm.at(task, model, client.state, at)
        for page in client.pages(split, PAGE):
            if chosen is None:
                outputs = algorithm.predict(task, model, client.state, page.x)
            else:
                outputs = task.outputs(chosen, page.x)
            counted = count(task, outputs, page, most)
            total = counted if total is None else tree.add(total, counted)
        return total, client.state

    return measured


def count_all(algorithm: Algorithm, server: Tree, engine: Engine, split: Split) -> Counts:
    """The counts of every client on a split."""
    return count_answering(algorithm, server, engine, split)[0]


def count_answering(
    algorithm: Algorithm,
    server: Tree,
    engine: Engine,
    split: Split,
    done: int = 0,
    rays: Tensor | None = None,
) -> tuple[Counts, list[int]]:
    """The counts of every client that answered after `done` rounds, and their numbers.

    `rays` [clients, objectives] are the points of their fronts at which clients predict.
    """
    cohort = engine.cohort(engine.everyone(), work=Work(steps=1), round=done)
    message = {"model": algorithm.deployed(server)}
    each = None if rays is None else {"ray": rays}
    replies = cohort.gather(measure(algorithm, split), message, each=each)
    counts = Counts(
        counts=replies.value["counts"].numpy().astype(np.int64),
        loss=replies.value["loss"].numpy().astype(np.float64),
        attributes=engine.federation.attributes,
    )
    return counts, [int(k) for k in replies.ids]
