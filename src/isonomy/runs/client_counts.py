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
from isonomy.core.cohort import NoReplies, Replies
from isonomy.core.examples import Split
from isonomy.core.phase import Phase, phase
from isonomy.core.task import Batch, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.metrics import Counts, count
from isonomy.metrics.errors import Errors, error_sums, has_errors
from isonomy.metrics.scores import Scores, has_scores, histogram
from isonomy.metrics.thresholds import Thresholds, decide
from isonomy.metrics.values import Values
from isonomy.postprocess import Rule

PAGE = 1024  # examples at a time
AT_ONCE = 1 << 16  # clients that are asked at once, at most


def measure(
    algorithm: Algorithm,
    split: Split,
    most: float = math.inf,
    using: Rule | Thresholds | None = None,
    powers: bool = False,
) -> Phase:
    """The phase in which a client counts its own predictions; no prediction leaves it.

    If an algorithm learns a front, the message may have a "ray": the client predicts with its model
    there. A loss above `most` counts as `most`. Decisions are those that `using` gives, if it is
    given: of thresholds, which the message has too, or of a rule, of which it has the client's row.
    With `powers`, the sums of squares and cubes of the losses are measured too.
    """
    parts: dict[str, Any] = {"counts": "group statistic", "loss": "group statistic"}
    parts |= {"powers": "group statistic"} if powers else {}

    @phase("gather", name=f"measure:{split}", **parts)
    def measured(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        total = total_of(
            algorithm,
            split,
            task,
            message,
            client,
            lambda outputs, page: count(
                task, outputs, page, most, _decided(task, outputs, page, message, using), powers
            ),
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


def measure_values(
    algorithm: Algorithm, task: Task, split: Split, using: Rule | Thresholds | None = None
) -> Phase:
    """The phase in which a client counts predictions as in `measure`, and what `Values` hold.

    The message is that of `measure`. All of it is computed from one pass over the examples.
    """
    parts: dict[str, Any] = {"counts": "group statistic", "loss": "group statistic"}
    parts |= {"scores": "group statistic"} if has_scores(task) else {}
    parts |= {"errors": "group statistic"} if has_errors(task) else {}

    @phase("gather", name=f"measure:{split}:values", **parts)
    def measured(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        def of_page(outputs: Tensor, page: Batch) -> Tree:
            decided = _decided(task, outputs, page, message, using)
            found = count(task, outputs, page, decisions=decided)
            if "scores" in parts:
                found["scores"] = histogram(task, outputs, page).to(torch.int32)
            if "errors" in parts:
                found["errors"] = error_sums(task, outputs, page)
            return found

        return total_of(algorithm, split, task, message, client, of_page), client.state

    return measured


def _decided(
    task: Task,
    outputs: Tensor,
    page: Batch,
    message: Message,
    using: Rule | Thresholds | None,
) -> Tensor | None:
    """The decisions of the message's thresholds or rule; None: those of the task."""
    if using is None:
        return None
    if isinstance(using, Rule):
        group = page.groups[:, using.about.column]
        return using.decide(message["rule"], task, outputs, page.x, group)
    return decide(task, outputs, page, message["thresholds"], using.column)


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
    using: Rule | Thresholds | None = None,
    clients: Tensor | None = None,
) -> tuple[Counts, list[int]]:
    """The counts of every client that answered after `done` rounds, and their numbers.

    `rays` [clients, objectives] are the points of their fronts at which clients predict. Decisions
    are those of the thresholds or the rule that is given. `clients` are asked, None: all.
    """
    question = measure(algorithm, split, using=using)
    replies = _asked(algorithm, server, engine, question, done, rays, using, clients)
    return _counts(replies, engine), replies.ids.tolist()


def _counts(replies: Replies, engine: Engine) -> Counts:
    return Counts(
        counts=replies.value["counts"].numpy().astype(np.int64),
        loss=replies.value["loss"].numpy().astype(np.float64),
        attributes=engine.federation.attributes,
    )


def values_answering(
    algorithm: Algorithm,
    server: Tree,
    engine: Engine,
    split: Split,
    done: int = 0,
    rays: Tensor | None = None,
    using: Rule | Thresholds | None = None,
    clients: Tensor | None = None,
) -> tuple[Counts, Values, list[int]]:
    """The counts and values of every client that answered, and their numbers.

    As `count_answering`.
    """
    question = measure_values(algorithm, engine.task, split, using)
    replies = _asked(algorithm, server, engine, question, done, rays, using, clients)
    found, named = replies.value, engine.federation.attributes
    values = Values(
        Scores(found["scores"].numpy(), named) if "scores" in found else None,
        Errors(found["errors"].numpy(), named) if "errors" in found else None,
    )
    return _counts(replies, engine), values, replies.ids.tolist()


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
    return found, replies.ids.tolist()


def _asked(
    algorithm: Algorithm,
    server: Tree,
    engine: Engine,
    question: Phase,
    done: int,
    rays: Tensor | None,
    using: Rule | Thresholds | None = None,
    clients: Tensor | None = None,
) -> Replies:
    """Every client's reply to a measurement of its model, or those of some clients."""
    ids = engine.everyone() if clients is None else clients
    message = {"model": algorithm.deployed(server)}
    each: Message = {} if rays is None else {"ray": rays}
    if isinstance(using, Rule):
        each["rule"] = using.stacked(len(engine.federation))
    elif using is not None:
        message["thresholds"] = using.tensor()
    found, pages = [], engine.federation.pages
    for some in torch.split(ids, AT_ONCE):
        cohort = engine.cohort(some, work=Work(steps=1), round=done)
        own = {k: tree.take(v, some) for k, v in each.items()}
        try:
            found.append(cohort.gather(question, message, each=own or None))
        except NoReplies:
            if len(some) == len(ids):
                raise
        if pages is not None:
            pages.release()
    if not found:
        raise NoReplies(f"round {done}: no client answered.")
    return Replies(*(tree.concat(part) for part in zip(*found, strict=True)))
