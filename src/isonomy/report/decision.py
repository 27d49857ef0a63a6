"""The page of a decision, for the person who has to answer for the model.

It is made from the content of decision.json alone, works offline and contains no script.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from isonomy.report.decision_figure import trade_off
from isonomy.report.markup import escape

Facts = Mapping[str, Any]

_STATUS = {"met": "yes", "not met": "no", "cannot be told": "open"}

_QUESTIONS = (
    (
        "EU AI Act, Annex IV 1 and 2 (b): purpose, design choices, trade-offs",
        "what was required and maximised, the methods that were tried, why this one was chosen",
        "the intended purpose, the people affected, who is responsible",
    ),
    (
        "Annex IV 2 (d): data, where they come from, how they were prepared",
        "source, numbers of clients and examples, groups and warnings; the preparation is stored "
        "with the model",
        "how and why the data were collected, whether they represent the people affected",
    ),
    (
        "Annex IV 2 (g): validation and test, metrics for accuracy and discrimination",
        "split of the data, requirements with intervals, results by group and by client, the exact "
        "command",
        "a date and a signature; tests under the conditions of use",
    ),
    (
        "Annex IV 3 and 4: limits, accuracy for particular groups, why these metrics",
        "rates by group, what could not be measured, the statistical meaning of each answer",
        "why these definitions of fairness are the right ones here; human oversight",
    ),
    (
        "NIST AI RMF, MEASURE 2.3, 2.5 and 2.11: performance, validity, fairness",
        "measurements on examples that were used neither for training nor for the choice",
        "monitoring after deployment, harms that no metric shows",
    ),
    (
        "NIST AI RMF, MEASURE 2.10: privacy",
        "what each method reveals to the server",
        "the legal basis of the processing; unless a bound on epsilon was required, this page "
        "claims no differential privacy",
    ),
    (
        "NIST AI RMF, MANAGE 1.1: whether to proceed",
        "yes or no to the stated requirements, and the nearest trade-offs",
        "the decision itself",
    ),
)


def write_page(facts: Facts, path: Path) -> Path:
    """Write the page."""
    path.write_text(render(facts), encoding="utf-8")
    return path


def render(facts: Facts) -> str:
    """The page as HTML text."""
    body = [
        "<main>",
        _answer(facts),
        _requirements(facts),
        _proved(facts),
        _why(facts),
        _nearest(facts),
        _pictures(facts),
        _others(facts),
        _groups(facts),
        _clients(facts),
        _reveals(facts),
        _privacy(facts),
        _limits(facts),
        _questions(),
        _repeat(facts),
        "</main>",
    ]
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    style = resources.files("isonomy.report").joinpath("decision.css").read_text(encoding="utf-8")
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Decision: {escape(_verdict(facts))}</title>\n<style>{style}</style>\n</head>"
    )
    text = "\n".join(part for part in body if part)
    return f"{head}\n<body>\n{text}\n</body>\n</html>\n"


# --- sections ------------------------------------------------------------------------------------


def _verdict(facts: Facts) -> str:
    return "yes" if facts["outcome"] == "met" else "no"


def _answer(facts: Facts) -> str:
    verdict = _verdict(facts)
    lines = "".join(f"<p>{escape(line)}</p>" for line in facts["lines"])
    return f'<header class="{verdict}"><h1>Decision: {verdict}</h1>{lines}</header>'


def _requirements(facts: Facts) -> str:
    asked = facts["asked"]
    every = [*asked["requirements"], *([asked["epsilon"]] if asked.get("epsilon") else [])]
    text = f"{_listed(every)}; among the models that meet this, {asked['objective']}."
    if not facts["answers"]:
        rows = [
            [one, title, "not measured on test examples"]
            for one, title in zip(asked["requirements"], asked["titles"], strict=True)
        ]
        table = _table(["requirement", "what it bounds", "answer"], rows)
    else:
        rows = [
            [
                one["requirement"],
                one["title"],
                _mark(one["status"]),
                _number(one["value"]),
                f"{_number(one['low'])} to {_upper(one['high'])}",
                f"{one['examples']:,}",
                _extra(one),
            ]
            for one in facts["answers"]
        ]
        heads = [
            "requirement",
            "what it bounds",
            "answer",
            "measured",
            "interval",
            "test examples",
            "remark",
        ]
        table = _table(heads, rows)
    how = (
        "The intervals hold for all requirements together with "
        f"{facts['level']:.0%} confidence. Met: the whole interval is on the right side of the "
        "bound. Not met: the whole interval is on the wrong side. Cannot be told: the bound is "
        "inside the interval."
    )
    return _section("What was asked", f"<p>{escape(text)}</p>{table}<p>{escape(how)}</p>")


def _extra(one: Facts) -> str:
    parts = []
    if one["needed"]:
        parts.append(f"{one['needed']} test examples would be needed")
    if one["unmeasured"]:
        parts.append(f"no test examples: {', '.join(one['unmeasured'][:5])}")
    return "; ".join(parts)


def _proved(facts: Facts) -> str:
    texts = [*facts["proved"], *facts["also_known"]]
    if not texts:
        return ""
    return _section(
        "What is proved",
        _list(texts)
        + "<p>A proof is about the training examples, whose labels are known. It holds for every "
        "model of the kind that it names, tried or not.</p>",
    )


def _nearest(facts: Facts) -> str:
    if facts["outcome"] == "met" or not facts["nearest"]:
        return ""
    names = [text.rsplit(" ", 2)[0] for text in facts["asked"]["requirements"]]
    also = facts["objective"]["name"] not in names
    heads = ["model", *names, *([facts["objective"]["name"]] if also else [])]
    rows = [
        [
            row["name"],
            *(_number(v) for v in row["values"]),
            *([_number(row["objective"])] if also else []),
        ]
        for row in facts["nearest"]
    ]
    return _section(
        "The nearest trade-offs",
        "<p>If the requirements may be changed: models on validation examples, from the one that "
        "misses them by least to the one with the best objective. No other model that was tried is "
        "better in every column. They were not measured on test examples.</p>"
        + _table(heads, rows),
    )


def _why(facts: Facts) -> str:
    chosen = facts["chosen"]
    number, methods = len(facts["points"]), len(facts["methods"])
    text = (
        f"{number:,} models of {methods} methods were compared on validation examples; every "
        f"method had {facts['passes']} trial{'s' if facts['passes'] != 1 else ''}, the first with "
        "its defaults."
    )
    if chosen is None:
        return _section("Why there is none", f"<p>{escape(text)} {escape(_why_none(facts))}</p>")
    reason = {
        "clear": "It has the best objective of those that keep a margin from every bound. The "
        f"margin is such that the test examples are expected to confirm it in {facts['power']:.0%} "
        "of cases for each requirement; it follows from the numbers of examples.",
        "possible": "No model keeps the margin from every bound that the numbers of examples call "
        "for. This one is the likeliest to be confirmed by the test examples, with a probability "
        f"of about {chosen['chance']:.0%}.",
    }[chosen["standing"]]
    rows = [
        [text_of, _number(value), _number(margin)]
        for text_of, value, margin in zip(
            facts["asked"]["requirements"], chosen["values"], chosen["margins"], strict=True
        )
    ]
    settings = _settings(chosen)
    better = _better_text(facts)
    return _section(
        "Why this model",
        f"<p>{escape(text)} {escape(reason)} {escape(better)}</p><p><b>{escape(chosen['name'])}</b>"
        f"{': ' if settings else ''}{escape(settings)}</p>"
        + _table(["requirement", "on validation examples", "margin wanted"], rows),
    )


def _better_text(facts: Facts) -> str:
    """The model that would have been chosen if the test examples could confirm it."""
    better = facts["better_unshown"]
    if better is None:
        return ""
    return (
        f"{better['name']} has a better objective ({_number(better['objective'])}) and meets the "
        "requirements on validation examples too, but with too small a margin: "
        f"{better['needed']} test examples would be needed to show it."
    )


def _why_none(facts: Facts) -> str:
    """Why no model was measured on the test examples."""
    likely = facts["likeliest"]
    if likely is None:
        return (
            "None of them meets every requirement there and is better than a constant prediction "
            "by more than chance, so no model was measured on the test examples."
        )
    return (
        f"{likely['number']:,} of them meet every requirement there, but so narrowly that the test "
        f"examples would hardly confirm it: for {likely['name']}, the likeliest, the probability "
        f"is about {likely['chance']:.0%}, and {likely['needed']} test examples would be needed. "
        "So no model was measured on the test examples, and they can still be used."
    )


def _settings(row: Facts) -> str:
    given = ", ".join(f"{key} = {_short(value)}" for key, value in row["settings"].items())
    return given or "the method's defaults"


def _pictures(facts: Facts) -> str:
    figures = "".join(
        f"<figure>{trade_off(facts, i)}<figcaption>{escape(_caption(facts, i))}</figcaption>"
        "</figure>"
        for i in _pictured(facts)
    )
    return _section("The trade-off", figures)


def _pictured(facts: Facts) -> list[int]:
    """Requirements with a picture: all but one on the objective itself, if there are others."""
    names = [text.rsplit(" ", 2)[0] for text in facts["asked"]["requirements"]]
    others = [i for i, name in enumerate(names) if name != facts["objective"]["name"]]
    return others or list(range(len(names)))


def _caption(facts: Facts, i: int) -> str:
    asked = facts["asked"]["requirements"][i]
    return (
        f"Every point is a model, measured on validation examples. Shaded: where {asked} holds. "
        "A filled point meets every requirement as measured; the circled one was chosen."
    )


def _others(facts: Facts) -> str:
    heads = [
        "model",
        facts["objective"]["name"],
        *(text.rsplit(" ", 2)[0] for text in facts["asked"]["requirements"]),
        "meets all",
        "settings",
    ]
    word = {"clear": "yes, with margin", "possible": "yes, without margin", "missed": "no"}
    rows = [
        [
            row["name"],
            _number(row["objective"]),
            *(_number(v) for v in row["values"]),
            word[row["standing"]],
            _settings(row) if row["method"] != "Constant prediction" else "",
        ]
        for row in [*facts["candidates"], facts["constant"]]
    ]
    return _section(
        "What else was tried",
        "<p>The best model of each method on validation examples. A constant prediction gives "
        "everyone the most frequent label; no model is chosen that is not better.</p>"
        + _table(heads, rows),
    )


def _groups(facts: Facts) -> str:
    found = facts["by_group"]
    if not found:
        return ""
    binary = "positive_rate" in found[0]
    heads = ["attribute", "group", "test examples", "accuracy"]
    heads += ["predicted positive", "true positives", "false positives"] if binary else []
    keys = ["positive_rate", "true_positive_rate", "false_positive_rate"] if binary else []
    rows = [
        [
            row["attribute"],
            row["group"],
            f"{row['examples']:,}",
            _number(row["accuracy"]),
            *(_number(row[key]) for key in keys),
        ]
        for row in found
    ]
    return _section("By group, on test examples", _table(heads, rows))


def _clients(facts: Facts) -> str:
    found = facts["by_client"]
    if not found:
        return ""
    rows = [
        [
            row["client"],
            f"{row['examples']:,}",
            _number(row["accuracy"]),
            f"{_number(row['low'])} to {_number(row['high'])}",
        ]
        for row in sorted(found, key=lambda row: -1 if row["accuracy"] is None else row["accuracy"])
    ]
    table = _table(["client", "test examples", "accuracy", "95 % interval of this client"], rows)
    if len(rows) > 30:
        table = f"<details><summary>All {len(rows)} clients, worst first</summary>{table}</details>"
    return _section("By client, on test examples", table)


def _reveals(facts: Facts) -> str:
    rows = [[one["label"], one["reveals"], str(one["trials"])] for one in facts["methods"]]
    failures = [f"{one['label']}, {text}" for one in facts["methods"] for text in one["failures"]]
    failures += [f"{label} was left out: {why}" for label, why in facts["left_out"].items()]
    more = _list(failures)
    return _section(
        "What each method reveals to the server",
        "<p>Of each client, in training. Trained in a simulation, nothing left this machine.</p>"
        + _table(["method", "revealed", "trials"], rows)
        + (f"<h3>Not used</h3>{more}" if more else ""),
    )


_RELEASES = {
    "preprocessing:values_held": (
        "preprocessing: values of columns",
        "Gaussian noise on counts; shown above a threshold",
    ),
    "preprocessing:histograms": ("preprocessing: ranges of numbers", "Gaussian noise on counts"),
    "preprocessing:moments": ("preprocessing: means and variances", "Gaussian noise on sums"),
    "training": ("training of one trial", "Gaussian noise on clipped gradients or updates"),
    "counts:validation": ("predictions on validation examples", "Gaussian noise on counts"),
    "scores:validation": ("scores on validation examples", "Gaussian noise on counts"),
    "counts:test": ("predictions on test examples", "Gaussian noise on counts"),
}


def _privacy(facts: Facts) -> str:
    """What was released under a bound on epsilon; empty without one."""
    found = facts.get("privacy")
    if not found:
        return ""
    shown: dict[tuple[str, str, str], int] = {}
    for one in found["releases"]:
        alone = "" if one.get("epsilon") is None else f"{one['epsilon']:.3g}"
        key = (str(one["phase"]), f"{float(one['multiplier']):.3g}", alone)
        shown[key] = shown.get(key, 0) + 1
    rows = [
        [*_RELEASES.get(phase, (phase, "Gaussian noise on counts")), str(number), noise, alone]
        for (phase, noise, alone), number in shown.items()
    ]
    parts = ", ".join(f"{name} {value}" for name, value in found["by_split"].items())
    items = [
        f"Neighbouring data: {found['neighbours']}.",
        f"{found['composition']} Epsilon: {parts}.",
        f"Accounting: {found['accountant']}.",
        f"Taken as public: {', '.join(found['public'])}.",
        *(f"Not shown: {text}." for text in found["left_out"]),
        *(f"Not covered: {text}." for text in found["not_covered"]),
        "Counts and rates on this page have noise; the intervals include it.",
    ]
    head = (
        f"<p>{escape(facts['asked']['epsilon'])}: <b>{escape(found['status'])}</b>. Everything "
        f"that this decision released together has epsilon = {found['epsilon']} at delta = "
        f"{found['delta']}, for {escape(found['level'])}s.</p>"
    )
    heads = ["release", "mechanism", "times", "noise / sensitivity", "epsilon of one alone"]
    return _section("Differential privacy", head + _table(heads, rows) + _list(items))


def _limits(facts: Facts) -> str:
    data = facts["data"]
    sizes = data["sizes"]
    shown = "numbers of examples are not shown"
    if sizes is not None:
        shown = (
            f"{sizes['train']:,} training, {sizes['validation']:,} validation and "
            f"{sizes['test']:,} test examples"
        )
    items = [
        f"Data: {data['source']}, {data['clients']} clients, {shown}.",
        "The answers are about these clients and about people like those in the test examples. For "
        "other clients, other people or a later time, nothing was measured.",
        "The intervals take the test examples of a client or group as independent draws; related "
        "examples, such as several rows of one person, make them too narrow.",
        "The test examples were used once, for this one model. Repeating the search with other "
        "requirements until the answer is yes would make the stated confidence wrong.",
        "A requirement bounds what it names and nothing else; other notions of fairness are in the "
        "tables above.",
        *data["warnings"],
        *data["notes"],
    ]
    return _section("Limits", _list(items))


def _questions() -> str:
    rows = [list(row) for row in _QUESTIONS]
    return _section(
        "Questions of reviewers",
        "<p>Where this page has material for common questions, and what has to be added. It is not "
        "a statement of compliance.</p>"
        + _table(["question", "what is here", "what is not here"], rows),
    )


def _repeat(facts: Facts) -> str:
    repeat = facts["repeat"]
    versions = ", ".join(f"{name} {number}" for name, number in repeat["versions"].items())
    trials = f"--trials {facts['passes']}"
    command = repeat["command"] or "isonomy decide CONFIG"
    text = (
        f"<p>Command: <code>{escape(command)}</code></p>"
        f"<p>The number of trials depends on the speed of the machine: here it was "
        f"{facts['passes']} for each method, in {facts['seconds']:.0f} s. The same trials are made "
        f"with <code>{trials}</code> in place of a time. Seed {repeat['seed']}; "
        f"{escape(versions)}.</p>"
    )
    return _section("To repeat it", text)


# --- parts ---------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    if text in _STATUS:
        return f'<td class="{_STATUS[text]}">{escape(text)}</td>'
    return f"<td>{escape(text)}</td>"


def _mark(status: str) -> str:
    return status


def _list(items: Sequence[str]) -> str:
    rows = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _number(value: float | None) -> str:
    return "not defined" if value is None or math.isnan(value) else f"{value:.3f}"


def _upper(value: float | None) -> str:
    return "no upper limit" if value is None or math.isinf(value) else _number(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
