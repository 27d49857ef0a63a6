"""Counting predictions: every client counts on its own examples, and sends only the counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import LearnsFront
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Replies
from isonomy.core.examples import Split
from isonomy.core.phase import Phase, phase
from isonomy.core.task import Batch, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.metrics import Counts, count
from isonomy.metrics.scores import Scores, histogram
from isonomy.postprocess import Rule

PAGE = 1024  # examples at a time


def measure(
    algorithm: Algorithm, split: Split, most: float = math.inf, rule: Rule | None = None
) -> Phase:
    """The phase in which a client counts its own predictions; no prediction leaves it.

    If an algorithm learns a front, the message may have a "ray": the client predicts with its model
    there. A loss above `most` counts as `most`. With a `rule`, the message has the client's row of
    it as "rule", and decisions are those of the rule.
    """

    @phase("gather", name=f"measure:{split}", counts="group statistic", loss="group statistic")
    def measured(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        def decided(outputs: Tensor, page: Batch) -> Tensor | None:
            if rule is None:
                return None
            column = rule.about.column
            return rule.decide(message["rule"], task, outputs, page.x, page.groups[:, column])

        total = total_of(
            algorithm,
            split,
            task,
            message,
            client,
            lambda outputs, page: count(task, outputs, page, most, decided(outputs, page)),
        )
        return total, client.state

    return measured


def measure_scores(algorithm: Algorithm, split: Split) -> Phase:
    """The phase in which a client counts its own scores; no score leaves it.

    The message is that of `measure`. The task must have scores (`isonomy.metrics.scores`).
    """

    @phase("gather", name=f"measure:{split}:scores", scores="group statistic")
    def measured(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        total = total_of(
            algorithm,
            split,
            task,
            message,
            client,
            lambda outputs, page: histogram(task, outputs, page),
        )
        return {"scores": total.to(torch.int32)}, client.state  # half the memory of all clients

    return measured


def total_of(
    algorithm: Algorithm,
    split: Split,
    task: Task,
    message: Message,
    client: Client,
    of_page: Callable[[Tensor, Batch], Tree],
) -> Any:
    """The sum over a client's pages of a statistic of its outputs."""
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
        found = of_page(outputs, page)
        total = found if total is None else tree.add(total, found)
    return total


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
    rule: Rule | None = None,
) -> tuple[Counts, list[int]]:
    """The counts of every client that answered after `done` rounds, and their numbers.

    `rays` [clients, objectives] are the points of their fronts at which clients predict. Decisions
    are those of the `rule`, if there is one.
    """
    question = measure(algorithm, split, rule=rule)
    replies = _asked(algorithm, server, engine, question, done, rays, rule)
    counts = Counts(
        counts=replies.value["counts"].numpy().astype(np.int64),
        loss=replies.value["loss"].numpy().astype(np.float64),
        attributes=engine.federation.attributes,
    )
    return counts, [int(k) for k in replies.ids]


def scores_answering(
    algorithm: Algorithm,
    server: Tree,
    engine: Engine,
    split: Split,
    done: int = 0,
    rays: Tensor | None = None,
) -> tuple[Scores, list[int]]:
    """The histograms of every client that answered after `done` rounds, and their numbers.

    As `count_answering`. The task must have scores.
    """
    replies = _asked(algorithm, server, engine, measure_scores(algorithm, split), done, rays)
    found = Scores(replies.value["scores"].numpy(), engine.federation.attributes)
    return found, [int(k) for k in replies.ids]


def _asked(
    algorithm: Algorithm,
    server: Tree,
    engine: Engine,
    question: Phase,
    done: int,
    rays: Tensor | None,
    rule: Rule | None = None,
) -> Replies:
    """Every client's reply to a measurement of its model."""
    cohort = engine.cohort(engine.everyone(), work=Work(steps=1), round=done)
    message = {"model": algorithm.deployed(server)}
    each: Message = {} if rays is None else {"ray": rays}
    if rule is not None:
        each["rule"] = rule.stacked(len(engine.federation))
    return cohort.gather(question, message, each=each or None)
