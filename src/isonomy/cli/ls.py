"""`ls`: algorithms, post-processing, data sets, models, partitions, attacks, defences, presets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli.packaged_configs import opening_comment, packaged_configs
from isonomy.cli.printing import print_columns, print_line
from isonomy.cli.shell import console, first_sentence
from isonomy.errors import ConfigError, unknown

if TYPE_CHECKING:
    from rich.console import Console


def ls(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="WHAT",
            help="algorithms, postprocessing, data, models, partitions, attacks, defences or "
            "presets; all of them by default.",
        ),
    ] = None,
) -> None:
    """List algorithms, post-processing methods, data sets, models, partitions, attacks, defences
    and presets.

    Example: isonomy ls algorithms
    """
    if what is not None and what not in _LISTS:
        raise ConfigError(unknown("list", what, _LISTS))
    out = console()
    for kind in _LISTS if what is None else [what]:
        _LISTS[kind](out)
    if what is None:
        print_line(
            out,
            "Details of any of them: isonomy show NAME. Every key of a config: isonomy show "
            "config.",
        )


def _algorithms(out: Console) -> None:
    from isonomy.algorithms import registry

    rows = [
        (name, kind.family, first_sentence(kind.__doc__), kind.paper)
        for name, kind in registry().items()
    ]
    print_columns(out, "Algorithms", ("name", "family", "what it is", "paper"), rows)


def _postprocessing(out: Console) -> None:
    from isonomy.postprocess import METHODS

    rows = [(name, first_sentence(kind.__doc__), kind.paper) for name, kind in METHODS.items()]
    print_columns(out, "Post-processing", ("name", "what it is", "paper"), rows)


def _data(out: Console) -> None:
    from isonomy.data.datasets import DATASETS

    rows = sorted((name, dataset.description) for name, dataset in DATASETS.items())
    print_columns(out, "Data sets", ("name", "what it is"), rows)


def _models(out: Console) -> None:
    from isonomy.models import MODELS

    rows = [(name, entry.description) for name, entry in MODELS.items()]
    print_columns(out, "Models", ("name", "what it is"), rows)


def _partitions(out: Console) -> None:
    from isonomy.data.partition import IMAGE_PARTITIONS, PARTITIONS

    shared = PARTITIONS | IMAGE_PARTITIONS
    rows = [(name, partition.meaning) for name, partition in shared.items()]
    print_columns(out, "Partitions", ("name", "what it is"), rows)


def _attacks(out: Console) -> None:
    from isonomy.robust.attacks import ATTACKS

    rows = [(name, first_sentence(kind.__doc__), kind.paper) for name, kind in ATTACKS.items()]
    print_columns(out, "Attacks", ("name", "what it is", "paper"), rows)


def _defences(out: Console) -> None:
    from isonomy.robust.combiners import COMBINERS

    rows = [(name, first_sentence(kind.__doc__), kind.paper) for name, kind in COMBINERS.items()]
    print_columns(out, "Defences", ("name", "what it is", "paper"), rows)


def _presets(out: Console) -> None:
    rows = []
    for name, values in packaged_configs().items():
        head = values.get("preset")
        verbs = "isonomy reproduce" if head else "isonomy run, compare, sweep"
        scales = ", ".join([*values.get("scale", {}), "full"]) if head else ""
        rows.append((name, head["title"] if head else opening_comment(name), verbs, scales))
    print_columns(out, "Presets", ("name", "what it is", "used by", "scales"), rows)


_LISTS: dict[str, Callable[[Console], None]] = {
    "algorithms": _algorithms,
    "postprocessing": _postprocessing,
    "data": _data,
    "models": _models,
    "partitions": _partitions,
    "attacks": _attacks,
    "defences": _defences,
    "presets": _presets,
}
