"""A decision: what was asked, the answer, and the evidence; as values, as JSON and as text."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from isonomy.core.examples import SPLITS
from isonomy.deploy.card import is_model
from isonomy.deploy.export import export
from isonomy.deploy.folder import check_target
from isonomy.errors import RunError
from isonomy.metrics import Counts
from isonomy.metrics.counts import ratio
from isonomy.metrics.requirements import LEVEL, POWER, Answer, Cells, Requirement, read_target
from isonomy.report.decision import write_page
from isonomy.runs.build import Setting, versions
from isonomy.runs.files import write_atomically
from isonomy.runs.finished import FinishedRun
from isonomy.runs.private import allowed
from isonomy.studies import earlier
from isonomy.studies.compare import slug
from isonomy.studies.proofs import Proofs
from isonomy.studies.selection import (
    Candidate,
    Judged,
    Selection,
    Wish,
    better_but_unshown,
    constant_candidate,
    perfect_candidate,
    times_to_show,
    undominated,
)

JSON, PAGE, MODEL = "decision.json", "decision.html", "model"
KEY, PLAN = "noise.key", "privacy-plan.json"  # of a decision with a bound on epsilon
TRIALS, WITH_RULE = "trials", "with-rule"
GRAVE = ("leak", "label-absent")  # kinds of warnings about data that belong beside the answer


@dataclass(frozen=True)
class MethodTried:
    """A method that was tried: how often, what failed, and what it reveals to the server."""

    label: str
    algorithm: str
    trials: int
    failures: tuple[str, ...]
    reveals: str


@dataclass(frozen=True)
class Decision:
    """The answer to a request, and where it was written.

    `outcome` is "met" if one model meets all requirements on the test examples, and "none"
    otherwise. `answers` say it for each requirement; they are empty if no candidate was worth
    measuring on the test examples. `facts` is the content of decision.json, and `selection` has
    every candidate.
    """

    outcome: Literal["met", "none"]
    lines: tuple[str, ...]
    answers: tuple[Answer, ...]
    folder: Path
    facts: dict[str, Any] = field(repr=False)
    selection: Selection = field(repr=False)

    @property
    def model(self) -> Path | None:
        """The folder of the exported model; None if the answer is no."""
        return self.folder / MODEL if self.outcome == "met" else None

    def text(self) -> str:
        """The answer in a few lines."""
        return "\n".join(self.lines)


def written(
    place: Path,
    *,
    wish: Wish,
    selection: Selection,
    proofs: Proofs,
    answers: tuple[Answer, ...],
    counts: Counts | None,
    run: FinishedRun | None,
    setting: Setting,
    times: float,
    methods: Sequence[MethodTried],
    left_out: Mapping[str, str],
    passes: int,
    seconds: float,
    command: str,
    privacy: dict[str, Any] | None = None,
) -> Decision:
    """Write model, decision.json and decision.html; the model only if everything is met.

    `privacy` is the section of a decision with a bound on epsilon.
    """
    met = counts is not None and all(one.status == "met" for one in answers)
    met = met and (privacy is None or privacy["status"] == "met")
    cautions, others = data_warnings(setting)
    facts: dict[str, Any] = {
        "format": 1,
        "outcome": "met" if met else "none",
        "asked": {
            "requirements": [one.text for one in wish.requirements],
            "objective": _objective_text(wish),
            "titles": [one.target.title for one in wish.requirements],
            "epsilon": "" if privacy is None else f"epsilon <= {privacy['bound']:g}",
        },
        "privacy": privacy,
        "level": LEVEL,
        "power": POWER,
        "chosen": _row(selection.chosen) if selection.chosen else None,
        "answers": [_answer(one) for one in answers],
        "objective": _objective(wish, selection, counts),
        "constant": _row(selection.constant),
        "proved": proofs.texts,
        "also_known": proofs.others,
        "impossible": proofs.impossible,  # "any kind", "this kind", or "" if nothing is proved
        "nearest": [_row(one) for one in selection.nearest],
        "likeliest": _likeliest(wish, selection, times),
        "better_unshown": _better_unshown(wish, selection, times),
        "candidates": [_row(one) for one in _shown(wish, selection)],
        "points": [_point(one) for one in selection.judged],
        "methods": [asdict(one) for one in methods],
        "left_out": dict(left_out),
        "by_group": _by_group(counts),
        "by_client": _by_client(counts, run),
        "too_few": too_few(wish, selection.judged[0].candidate.counts, times),
        "data": _data(
            setting,
            [*cautions, *others],
            sizes=privacy is None or privacy["level"] == "example",
        ),
        "cautions": cautions,
        "passes": passes,
        "seconds": round(seconds, 1),
        "repeat": {"command": command, "seed": setting.config.seed, "versions": versions()},
        "config": setting.config.plain(),
    }
    place.mkdir(parents=True, exist_ok=True)
    check_folder(place)
    facts["earlier"] = earlier.set_aside(place, _plain(facts), (JSON, PAGE, MODEL))
    if (place / MODEL).exists():
        shutil.rmtree(place / MODEL)  # of the same decision: `check_folder` made sure
    facts["models"] = []
    if met and run is not None and selection.chosen is not None:
        facts["models"] = _export(place, run, selection.chosen.candidate)
    facts["lines"] = list(_lines(facts, place))
    write_atomically(place / JSON, json.dumps(_plain(facts), indent=1, allow_nan=False).encode())
    write_page(_plain(facts), place / PAGE)
    return Decision(
        "met" if met else "none", tuple(facts["lines"]), answers, place, _plain(facts), selection
    )


def check_folder(place: Path) -> None:
    """Raise a RunError unless the folder is absent, empty, or holds only what a decision writes."""
    if place.exists() and not place.is_dir():
        raise RunError(f"'{place}' is not a folder; choose another one with --to.")
    found = sorted(path.name for path in place.iterdir()) if place.exists() else []
    known = (JSON, PAGE, MODEL, TRIALS, WITH_RULE, KEY, PLAN, earlier.EARLIER)
    other = [name for name in found if name not in known]
    if other or (MODEL in found and JSON not in found):
        raise RunError(
            f"'{place}' is not empty and not a decision (it holds '{(other or [MODEL])[0]}'); "
            "choose another folder with --to."
        )
    if MODEL in found:
        model = place / MODEL
        for one in [model] if is_model(model) else sorted(model.iterdir()):
            check_target(one, overwrite=True)


def _export(place: Path, run: FinishedRun, candidate: Candidate) -> list[str]:
    """Write the chosen model, or one for each client; returns the folders below `place`."""
    front = {"preference": candidate.preference, "force": True} if candidate.preference else {}
    by_client = run.saved.rule is not None and run.saved.rule.rows > 1
    if not run.personal and not by_client:
        export(run.place.path, place / MODEL, **front)  # type: ignore[arg-type]
        return [MODEL]
    out = []
    for k, name in enumerate(run.clients):
        where = f"{MODEL}/{slug(name)}" if slug(name) != "run" else f"{MODEL}/client-{k}"
        export(run.place.path, place / where, client=k, **front)  # type: ignore[arg-type]
        out.append(where)
    return out


# --- rows ----------------------------------------------------------------------------------------


def _row(one: Judged) -> dict[str, Any]:
    """A candidate on validation examples."""
    candidate = one.candidate
    return {
        "name": candidate.name,
        "method": candidate.method,
        "trial": candidate.trial,
        "settings": candidate.settings,
        "preference": list(candidate.preference),
        "rule": candidate.rule_text,
        "objective": one.objective,
        "values": list(one.values),
        "margins": list(one.margins),
        "standing": one.standing,
        "chance": one.chance,
    }


def _likeliest(wish: Wish, selection: Selection, times: float) -> dict[str, Any] | None:
    """If nothing was worth a test: the model that is likeliest to be confirmed, and what it needs.

    None if something was chosen, or if no model meets the requirements as measured.
    """
    one = selection.likeliest
    if selection.chosen is not None or one is None:
        return None
    examples = round(int(one.candidate.counts.sizes.sum()) * times)
    needed = _needed(times_to_show(wish, one, times), examples)
    number = sum(selection.judged[i].standing != "missed" for i in selection.useful)
    return {**_row(one), "needed": needed, "number": number}


def _better_unshown(wish: Wish, selection: Selection, times: float) -> dict[str, Any] | None:
    """A model with a better objective that the test examples are too few to confirm."""
    one = better_but_unshown(wish, selection)
    if one is None:
        return None
    examples = round(int(one.candidate.counts.sizes.sum()) * times)
    return {**_row(one), "needed": _needed(times_to_show(wish, one, times), examples)}


def _point(one: Judged) -> dict[str, Any]:
    return {
        "method": one.candidate.method,
        "name": one.candidate.name,
        "objective": one.objective,
        "values": list(one.values),
        "standing": one.standing,
    }


def _shown(wish: Wish, selection: Selection) -> list[Judged]:
    """The best candidate of each method, and the chosen one, best first."""
    best: dict[str, Judged] = {}
    for one in selection.judged:
        now = best.get(one.candidate.method)
        if now is None or _rank(wish, one) > _rank(wish, now):
            best[one.candidate.method] = one
    if selection.chosen is not None:
        best[selection.chosen.candidate.method] = selection.chosen
    kept = {id(one) for one in undominated(wish, selection.judged)}
    return sorted(best.values(), key=lambda one: (_rank(wish, one), id(one) in kept), reverse=True)


def _rank(wish: Wish, one: Judged) -> tuple[int, float, float]:
    order = {"clear": 2, "possible": 1, "missed": 0}[one.standing]
    return order, -one.missed, wish.gain(one.objective)


def _answer(one: Answer) -> dict[str, Any]:
    return {
        "requirement": one.requirement.text,
        "title": one.requirement.target.title,
        "status": one.status,
        "value": one.value,
        "low": one.low,
        "high": one.high,
        "examples": one.examples,
        "needed": None if one.times is None else _needed(one.times, one.examples),
        "unmeasured": list(one.unmeasured),
    }


def _needed(times: float, examples: int) -> str:
    if math.isinf(times):
        return f"more than {1e6 * examples:,.0f}"
    number = times * examples
    digits = max(0, math.floor(math.log10(max(number, 1))) - 1)
    return f"about {math.ceil(number / 10**digits) * 10**digits:,.0f}"


def _objective_text(wish: Wish) -> str:
    return f"{'maximise' if wish.better == 'higher' else 'minimise'} {wish.objective.text}"


def _objective(wish: Wish, selection: Selection, counts: Counts | None) -> dict[str, Any]:
    """The objective of the chosen model on validation and on test examples."""
    target = wish.objective
    out: dict[str, Any] = {"name": target.text, "title": target.title}
    if selection.chosen is not None:
        out["validation"] = selection.chosen.objective
    if counts is not None:
        cells = Cells.of(counts)
        low, high = target.limits(cells, (1 - LEVEL) / 2)
        out |= {"test": target.value(cells), "low": low, "high": high}
    return out


def _by_group(counts: Counts | None) -> list[dict[str, Any]]:
    """Accuracy and rates of every group on the test examples."""
    if counts is None:
        return []
    out = []
    pooled = counts.pooled()
    for attribute in counts.attributes:
        tally = pooled.tally(attribute.name)
        size, hit = tally.size[0, 1:], tally.hit[0, 1:].sum(-1)
        for i, level in enumerate(attribute.levels):
            row: dict[str, Any] = {
                "attribute": attribute.name,
                "group": str(level),
                "examples": int(size[i]),
                "accuracy": float(ratio(hit, size)[i]),
            }
            if tally.classes == 2:
                predicted, label = tally.predicted[0, 1 + i], tally.label[0, 1 + i]
                right = tally.hit[0, 1 + i]
                row["positive_rate"] = float(ratio(predicted[1:], size[i : i + 1])[0])
                row["true_positive_rate"] = float(ratio(right[1:], label[1:])[0])
                row["false_positive_rate"] = float(ratio(predicted[1:] - right[1:], label[:1])[0])
            out.append(row)
    return out


def _by_client(counts: Counts | None, run: FinishedRun | None) -> list[dict[str, Any]]:
    """Every client's accuracy on its test examples, with its own 95 % interval."""
    if counts is None or run is None or len(counts) != len(run.clients):
        return []  # with noise, nothing may be known of single clients
    target = read_target("accuracy", ())
    out = []
    for k, name in enumerate(run.clients):
        own = Cells.of(counts.only(k))
        size = int(counts.sizes[k])
        low, high = target.limits(own, (1 - LEVEL) / 2) if size else (math.nan, math.nan)
        out.append(
            {
                "client": name,
                "examples": size,
                "accuracy": target.value(own),
                "low": low,
                "high": high,
            }
        )
    return out


def too_few(wish: Wish, counts: Counts, times: float) -> list[dict[str, Any]]:
    """Requirements that no model could be shown to meet with so few test examples.

    A perfect model and a constant prediction are considered, with the labels of the validation
    examples, of which any model's `counts` tell, scaled to the number of test examples.
    """
    number = max(len(wish.requirements), 1)
    alpha = (1 - LEVEL) / (2 * number)
    out = []
    for one in wish.requirements:
        if one.target.quantity.is_loss:
            continue  # a perfect model has no losses to take limits from
        cells = [
            Cells.of(make(counts).counts).scaled(times)
            for make in (perfect_candidate, constant_candidate)
        ]
        if not any(_shows(one, each, alpha) for each in cells):
            name, size = _smallest(one, cells[0])
            out.append(
                {
                    "requirement": one.text,
                    "examples": int(counts.sizes.sum() * times),
                    "smallest": name,
                    "number": round(size),
                }
            )
    return out


def _smallest(requirement: Requirement, cells: Cells) -> tuple[str, float]:
    """The group or client with the fewest examples of those that a requirement compares."""
    found = [
        (float(size), name)
        for family in requirement.target.families(cells)
        for name, size in zip(family.names, family.size, strict=True)
    ]
    return min(found)[1], min(found)[0]


def _shows(requirement: Requirement, cells: Cells, alpha: float) -> bool:
    low, high = requirement.target.limits(cells, alpha)
    return requirement.holds(high if requirement.sign == "<=" else low)


def _data(setting: Setting, warnings: list[str], *, sizes: bool) -> dict[str, Any]:
    federation = setting.federation
    return {
        "source": federation.source,
        "clients": len(federation),
        "sizes": {s: int(federation.sizes(s).sum()) for s in SPLITS} if sizes else None,
        "attributes": {a.name: [str(level) for level in a.levels] for a in federation.attributes},
        "labels": [str(label) for label in federation.labels],
        "notes": list(federation.notes),
        "warnings": warnings,
    }


def data_warnings(setting: Setting) -> tuple[list[str], list[str]]:
    """Warnings about the data that can make every answer worthless, and the others.

    Without a permission to describe private data, only those of the loader are known.
    """
    loaded = list(setting.federation.warnings)
    if not allowed(setting, "description"):
        return [], loaded
    from isonomy.data.profile import describe  # imports scipy, which is slow

    found = describe(setting.federation).warnings
    grave = [one.text for one in found if one.kind in GRAVE]
    return grave, [one.text for one in found if one.kind not in GRAVE]


# --- text ----------------------------------------------------------------------------------------


def _lines(facts: Mapping[str, Any], place: Path) -> list[str]:
    """The answer in a few lines that need no explanation."""
    number = len(facts["asked"]["requirements"]) + (facts["privacy"] is not None)
    every = "the requirement" if number == 1 else f"all {number} requirements"
    out = []
    if facts["outcome"] == "met":
        chosen = facts["chosen"]
        out.append(f"Yes: {chosen['name']} meets {every}.")
    elif facts["impossible"]:
        out.append(f"No: it is proved that no model of {facts['impossible']} meets {every}.")
    elif facts["likeliest"] is not None:
        likely = facts["likeliest"]
        out.append(
            f"No: {likely['number']:,} of {len(facts['points']):,} models meet {every} on "
            "validation examples, but there are too few test examples to show it for any of them "
            f"({likely['needed']} would be needed). The test examples were not used."
        )
    elif facts["chosen"] is None:
        tried = len(facts["methods"])
        out.append(
            f"No: none of the {len(facts['points']):,} models of {tried} methods meets {every} on "
            "validation examples and is better than a constant prediction "
            f"({facts['objective']['name']} {facts['constant']['objective']:.3f}) by more than "
            "chance."
        )
    else:
        out.append(f"No: it could not be shown that {facts['chosen']['name']} meets {every}.")
    out += [f"Proved: {text}" for text in facts["proved"]] if facts["outcome"] == "none" else []
    out += [answer_line(one) for one in facts["answers"]]
    if facts["privacy"] is not None:
        out.append(epsilon_line(facts["privacy"]))
    if not facts["answers"]:
        out += [_nearest_line(facts, one) for one in facts["nearest"][:3]]
    if not facts["impossible"]:
        out += [too_few_line(one) for one in facts["too_few"]]
    objective = facts["objective"]
    constant = facts["constant"]
    if "test" in objective:
        out.append(
            f"{objective['name']} {objective['test']:.3f} on test examples (95 % interval "
            f"{objective['low']:.3f} to {objective['high']:.3f}); a constant prediction has "
            f"{constant['objective']:.3f} on validation examples."
        )
    better = facts["better_unshown"]
    if facts["outcome"] == "met" and better is not None:
        out.append(
            f"{better['name']} has {objective['name']} {better['objective']:.3f} on validation "
            f"examples and meets {every} there, but {better['needed']} test examples would be "
            "needed to show it."
        )
    out += [f"Warning: {text}" for text in facts["cautions"]]
    if facts["answers"] and facts["earlier"]:
        out.append(earlier.line(facts["earlier"], facts["level"]))
    where = place / PAGE
    if facts["models"]:
        many = len(facts["models"]) > 1
        what = f"{len(facts['models'])} models, one per client, in" if many else "The model is in"
        out.append(f"{what} {place / MODEL}; the evidence is in {where}.")
    else:
        out.append(f"No model was exported; the evidence is in {where}.")
    return out


def answer_line(one: Mapping[str, Any]) -> str:
    """One requirement's answer as a sentence."""
    shown = "not measured" if one["value"] is None else f"{one['value']:.3f}"
    text = (
        f"{one['requirement']}: {one['status']} ({shown} on {one['examples']:,} test examples, "
        f"{_between(one['low'], one['high'])} with 95 % confidence for all requirements together)"
    )
    if one["unmeasured"]:
        text += f"; without test examples: {', '.join(one['unmeasured'][:5])}"
    if one["needed"]:
        text += f"; {one['needed']} test examples would be needed"
    return f"{text}."


def epsilon_line(privacy: Mapping[str, Any]) -> str:
    """The answer to a bound on epsilon as a sentence."""
    trainings = sum(one["phase"] == "training" for one in privacy["releases"])
    others = len(privacy["releases"]) - trainings
    return (
        f"epsilon <= {privacy['bound']:g}: {privacy['status']} ({privacy['epsilon']:g} at delta = "
        f"{privacy['delta']:g} for {privacy['level']}s, computed for "
        f"{'the training' if trainings == 1 else f'all {trainings} trainings'} and {others} other "
        "releases of this decision)."
    )


def _between(low: float, high: float | None) -> str:
    if high is None or math.isinf(high):
        return f"above {low:.3f}"
    return f"between {low:.3f} and {high:.3f}"


def _nearest_line(facts: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    asked = [text.rsplit(" ", 2)[0] for text in facts["asked"]["requirements"]]
    found = dict(zip(asked, one["values"], strict=True))
    found.setdefault(facts["objective"]["name"], one["objective"])
    values = [
        f"{name} {'undefined' if v is None or math.isnan(v) else f'{v:.3f}'}"
        for name, v in found.items()
    ]
    listed = values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
    return f"Trade-off: {one['name']}, with {listed} on validation examples."


def too_few_line(one: Mapping[str, Any]) -> str:
    """A requirement that no model could be shown to meet as a sentence."""
    why, what = "", "more test examples are needed"
    if one["smallest"] != "all examples":
        why = f", because about {one['number']:,} of them are of '{one['smallest']}'"
        what += ", or larger groups"
    return (
        f"No result of {one['examples']:,} test examples could show {one['requirement']}, not even "
        f"that of a perfect model{why}: {what}."
    )


def _plain(value: Any) -> Any:
    """As JSON values: None for a number that is not finite."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
