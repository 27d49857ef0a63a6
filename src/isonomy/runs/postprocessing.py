"""Post-processing of a run: clients report statistics, and a rule of decisions is fitted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.examples import Split
from isonomy.core.notions import find_notion
from isonomy.core.phase import Phase, phase
from isonomy.core.task import Batch, Task, probabilities
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.engines.base import Meter
from isonomy.metrics import Counts
from isonomy.metrics.counts import Floats, Tally
from isonomy.metrics.group import accuracy, difference
from isonomy.metrics.scores import Scores
from isonomy.postprocess import Method, Rule
from isonomy.postprocess.fair_lp import FairLP
from isonomy.postprocess.fedfact import Answers, FedFACT
from isonomy.postprocess.rule import expected_tally
from isonomy.runs.build import Setting
from isonomy.runs.client_counts import count_answering, measure, measure_scores, total_of
from isonomy.runs.progress import Progress


def fit_rule(setting: Setting, now: Progress, line: dict[str, Any]) -> Rule | None:
    """The rule for the trained model, if the config names a method.

    What was measured goes into the last round's line, and the traffic is added to that line's.
    """
    method = setting.postprocess
    if method is None:
        return None
    meter = Meter()
    cohort = now.engine.cohort(
        now.engine.everyone(), work=Work(steps=1), round=now.round, wrap=(meter,), final=True
    )
    rule, expected = _fitted(setting, method, cohort, setting.algorithm.deployed(now.server))
    meter.join(now.engine.everywhere)
    found = {"bytes_down": meter.down, "bytes_up": meter.up, "messages": meter.messages}
    for name, value in {**found, "phases": meter.phases}.items():
        line[name] = line.get(name, 0) + value
    line["postprocess"] = _measured(setting, now, method, rule, expected)
    return rule


def _fitted(
    setting: Setting, method: Method, cohort: Cohort, deployed: Tree
) -> tuple[Rule, Floats | None]:
    """The rule, and the expected counts [clients, 1 + levels, C, C], if they are known."""
    algorithm, federation, seed = setting.algorithm, setting.federation, setting.config.seed
    message = {"model": deployed}
    if isinstance(method, FairLP):
        found = cohort.gather(measure(algorithm, method.split), message).value
        counts = Counts.of(found, federation.attributes)
        rule = method.fit_counts(counts, seed)
        rows = counts.counts[:, counts.rows(rule.about.attribute)].astype(np.float64)
        rest = counts.counts[:, 0] - rows.sum(1)  # of unknown group
        mixed = rule.mixed(rows)
        return rule, np.concatenate([(mixed.sum(1) + rest)[:, None], mixed], 1)
    if federation.classes == 2:
        found = cohort.gather(measure_scores(algorithm, method.split), message).value
        scores = Scores(found["scores"].numpy(), federation.attributes)
        fitted = method.fit(scores, seed)
        return fitted, fitted.counts(scores)
    assert isinstance(method, FedFACT)  # the builder refuses the others
    about = method.about(federation.attributes, federation.classes, seed)
    question = answer(algorithm, method.split, about.column, len(about.levels))

    def ask(gain: Floats, sharpness: float) -> Answers:
        each = {"gain": torch.from_numpy(gain.copy())}
        told = {**message, "sharpness": torch.tensor(sharpness, dtype=torch.float64)}
        replies = cohort.gather(question, told, each=each).value
        return Answers(replies["value"].numpy(), replies["counts"].numpy())

    return method.fit_answers(
        ask, len(federation), federation.attributes, about.classes, seed
    ), None


def answer(algorithm: Algorithm, split: Split, column: int, levels: int) -> Phase:
    """The phase in which a client answers to gains (`isonomy.postprocess.fedfact.Answers`)."""

    @phase("gather", name=f"postprocess:{split}", value="group statistic", counts="group statistic")
    def answered(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        def of_page(outputs: Tensor, page: Batch) -> Tree:
            eta = probabilities(task.loss_name, outputs.to(torch.float64))
            assert eta is not None  # the builder refuses other losses
            level = page.groups[:, column]
            known = (level.unsqueeze(-1) == torch.arange(levels)).to(eta.dtype)
            member = known * page.weight.to(eta.dtype).unsqueeze(-1)  # [n, levels]
            gain = message["gain"][level.clamp(0, levels - 1)]
            each = message["sharpness"] * (eta.unsqueeze(-1) * gain).sum(-2)
            value = (member.sum(-1) * torch.logsumexp(each, -1)).sum() / message["sharpness"]
            pairs = eta.unsqueeze(-1) * torch.softmax(each, -1).unsqueeze(-2)  # [n, C, C]
            counts = torch.einsum("na,nyc->ayc", member, pairs)
            return {"value": value, "counts": counts}

        total = total_of(algorithm, split, task, message, client, of_page)
        return total, client.state

    return answered


# --- what is told about a rule ----------------------------------------------------------------


def _measured(
    setting: Setting, now: Progress, method: Method, rule: Rule, expected: Floats | None
) -> dict[str, Any]:
    """Error and gaps on the examples of the fit: before, as drawn, and in expectation."""
    about, benign = rule.about, setting.benign

    def tally(used: Rule | None) -> Tally:
        counts = count_answering(
            setting.algorithm, now.server, now.engine, method.split, now.round, using=used
        )[0]
        return counts.only(benign).tally(about.attribute)

    before, after = tally(None), tally(rule)
    out: dict[str, Any] = {
        "method": about.method,
        "attribute": about.attribute,
        "notion": about.notion,
        "budget": about.budget,
        "split": method.split,
        "examples": int(before.size[:, 0].sum()),
        "before": _gaps(before, about.notion),
        "after": _gaps(after, about.notion),
    }
    if about.local_budget is not None:
        out["local_budget"] = about.local_budget
    if expected is not None:
        out["expected"] = _gaps(expected_tally(expected[benign]), about.notion)
    return out


def _gaps(tally: Tally, notion: str) -> dict[str, float | None]:
    """The error, the gap over all clients' examples, and the largest gap inside a client."""
    kind = find_notion(notion)
    pooled = Tally(*(part.sum(0) for part in (tally.label, tally.predicted, tally.hit, tally.loss)))
    local = difference(tally, kind)
    found = {
        "error": 1 - float(accuracy(pooled)),
        "gap": float(difference(pooled, kind)),
        "local_gap": float(np.nanmax(local)) if not np.isnan(local).all() else math.nan,
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def statement(found: dict[str, Any]) -> str:
    """The sentence about a rule, from the last round's line."""
    title = find_notion(found["notion"]).title
    before, after = found["before"], found.get("expected", found["after"])
    how = "in expectation" if "expected" in found else "as drawn"
    local = ""
    if "local_budget" in found:
        local = (
            f"; the largest gap inside a client is {_number(after['local_gap'])} (budget "
            f"{found['local_budget']:g}) instead of {_number(before['local_gap'])}"
        )
    return (
        f"Decisions of '{found['method']}': on {found['examples']:,} {found['split']} examples of "
        f"all clients the gap in {title} of '{found['attribute']}' is {_number(after['gap'])} "
        f"{how} (budget {found['budget']:g}) instead of {_number(before['gap'])}, and the error "
        f"{_number(after['error'])} instead of {_number(before['error'])}{local}. Metrics of "
        "earlier rounds are without the rule."
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
