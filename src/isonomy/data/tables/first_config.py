"""Write a first config for a user's tables: the guesses as TOML, each with its reason."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from isonomy.core.work import Work
from isonomy.data.tables.columns import MISSING
from isonomy.data.tables.guess import Guess

PLACEHOLDER = "LABEL"

USUAL = (("FedAvg", '"fedavg"'), ("Local", '"local"'))
FAIR_TO_CLIENTS = (("FMTL (Ditto)", '"fmtl"'), ("FedEBA+", '"fedeba"'))
FAIR_TO_GROUPS = (("FedFB", '"fedfb"'), ("EquiFL", '"equifl"'), ("HetPFL", '"hetpfl"'))
"""Labels and algorithms of `compare.methods`; fairness to groups needs two classes."""


def starter(guess: Guess, *, name: str, path: str, command: str, held: str) -> str:
    """Return the text of the config. `command` made it; `held` describes what is at the path.

    It is valid TOML whatever the names of columns are. If no label could be guessed, it contains
    PLACEHOLDER instead.
    """
    parts = [
        _comment(
            f"Made by `{command}` from a sample of the tables. Lines marked `guess` may be wrong: "
            "read and correct them. `isonomy show tables` explains the keys of [data], "
            "`isonomy show config` all others."
        ),
        f"name = {_text(name)}",
        "seed = 0",
        f"rounds = {guess.sizes.rounds}",
        "",
        "[data]",
        *_data(guess, path, held),
        "",
        "[model]",
        *_model(guess),
        "",
        "[algorithm]",
        'name = "fedavg"',
        "",
        "[local]",
        "epochs = 1",
        f"batch = {guess.sizes.batch}",
        *_rate(guess),
        *_cohort(guess),
        "",
        _comment("The methods that `isonomy compare` runs, each with every seed."),
        "[compare]",
        f"seeds = {guess.sizes.seeds}",
        *[line for label, changes in _methods(guess) for line in _method(label, changes)],
        *_decide(guess),
    ]
    return "\n".join(parts) + "\n"


def _data(guess: Guess, path: str, held: str) -> list[str]:
    why = guess.why
    lines = [f"path = {_text(path)}  # {_plain(held)}; relative to this file"]
    if guess.exclude:
        lines += _guessed("these files look different from the others", "exclude", guess.exclude)
    if guess.encoding != "utf-8":
        lines += _guessed("not UTF-8", "encoding", guess.encoding)
    if guess.client:
        lines += _guessed(why["client"], "client", guess.client)
    elif guess.clients:
        lines += [_comment(f"guess: {why['client']}"), f"clients = {guess.clients}"]
        lines += ['partition = { name = "iid" }']
    lines += _guessed(why["label"], "label", guess.label or PLACEHOLDER)
    if guess.positive:
        reason = f"{why['positive']}; rates of groups are shares of this value"
        lines += _guessed(reason, "positive", guess.positive)
    reason = why["protected"]
    if guess.protected:
        reason += "; not used as features unless keep_protected = true"
    if len(guess.protected) > 1:
        both = "*".join(guess.protected[:2])
        reason += f"; add {_text(both)} to also measure their intersection"
    lines += _guessed(reason, "protected", list(guess.protected))
    if guess.bins:
        lines += _guessed(why["bins"], "bins", dict(guess.bins))
    if guess.split:
        lines += _guessed(why["split"], "split", guess.split)
    lines += _listed("not used as features", "drop", guess.drop)
    for name, figure in guess.twins.items():
        lines.append(_comment(f"guess: {name} stays, though alone it predicts the label: {figure}"))
    if guess.categorical or why.get("categorical"):
        lines += _listed(why.get("categorical", ""), "categorical", guess.categorical)
    if guess.missing:
        lines += _guessed(why["missing"], "missing", [*MISSING, *guess.missing])
    return lines


def _rate(guess: Guess) -> list[str]:
    """The learning rate; the package's default is left out, so that methods may recommend one."""
    if guess.sizes.lr != Work().lr:
        return [f"lr = {guess.sizes.lr}"]
    return [
        _comment(
            f"lr is {guess.sizes.lr}, unless a method recommends another (`isonomy show NAME`); an "
            "lr set here holds for all methods"
        )
    ]


def _methods(guess: Guess) -> list[tuple[str, str]]:
    """Methods that need no further knowledge: usual ones, and fair ones of several kinds."""
    if not guess.classes:
        return [*USUAL[:1], ("FedProx (mu=0.1)", '{ name = "fedprox", mu = 0.1 }'), *USUAL[1:]]
    groups = len(guess.classes) == 2 and bool(guess.protected)
    return [*USUAL, *FAIR_TO_CLIENTS, *(FAIR_TO_GROUPS if groups else ())]


def requirements(guess: Guess) -> list[str]:
    """Requirements to begin with; empty for a target that is a number.

    That on clients is somewhat below the share of the most frequent class, because an accuracy is
    shown on a client's test rows only up to their interval.
    """
    if not guess.classes or not guess.majority:
        return []
    wanted = [f"demographic_parity({name}) <= 0.1" for name in guess.protected[:1]]
    least = math.floor(100 * guess.majority - 10) / 100
    return [*wanted, f"worst_client_accuracy >= {max(least, 0.1):g}"]


def _decide(guess: Guess) -> list[str]:
    """Requirements on the model, as comments: they are for the user to decide."""
    wanted = requirements(guess)
    if not wanted:
        return []
    why = (
        "guess: requirements on the model, to be replaced by yours. Remove the # of the three "
        "lines below to ask `isonomy decide` for the method that meets them and has the best "
        f"accuracy. Always predicting the most frequent class has an accuracy of "
        f"{guess.majority:.3f}."
    )
    return [
        "",
        _comment(why),
        "# [decide]",
        f"# require = {toml(wanted)}",
        '# maximise = "accuracy"',
    ]


def _model(guess: Guess) -> list[str]:
    if guess.sizes.hidden:
        return ['name = "mlp"', f"hidden = {list(guess.sizes.hidden)}"]
    return ['name = "linear"']


def _cohort(guess: Guess) -> list[str]:
    if guess.sizes.cohort is None:
        return []
    return ["", "[cohort]", f"size = {guess.sizes.cohort}  # clients per round"]


def _method(label: str, algorithm: str) -> list[str]:
    return ["", "[[compare.methods]]", f"label = {_text(label)}", f"algorithm = {algorithm}"]


def _guessed(reason: str, key: str, value: Any) -> list[str]:
    return [_comment(f"guess: {reason}"), f"{key} = {toml(value)}"]


def _listed(reason: str, key: str, items: Mapping[str, str]) -> list[str]:
    """Write a list with a reason after each item."""
    if not items:
        return [_comment(f"guess: {reason}"), f"{key} = []"] if key != "drop" else []
    rows = [f"    {_text(name)},  # {_plain(why)}" for name, why in items.items()]
    return [_comment(f"guess: {reason}"), f"{key} = [", *rows, "]"]


def _comment(text: str) -> str:
    return textwrap.fill(
        _plain(text), 98, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False
    )


def _plain(text: str) -> str:
    """Return a text on one line without control characters, as TOML comments require."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def toml(value: Any) -> str:
    """Write a value as TOML on one line.

    >>> toml({"age": [30, 60], "years old": 3})
    '{ age = [30, 60], "years old" = 3 }'
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        items = [f"{_key(str(key))} = {toml(item)}" for key, item in value.items()]
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(toml(item) for item in value)}]"
    return str(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    """Write a text in quotes; the escapes of JSON are valid in TOML except for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
