"""`show`: everything about one algorithm, data set, model, ...; one file per kind of page.

A page is a function of a name that prints and returns True, or returns False if it has nothing of
that name.
"""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli.packaged_configs import packaged_configs
from isonomy.errors import ConfigError, unknown


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="An algorithm, post-processing method, data set, model, partition, attack, "
            "defence, preset or metric; 'config'; or the folder of a run.",
        ),
    ],
) -> None:
    """Show details: options, meaning, source, and what an algorithm reveals to the server.

    Example: isonomy show fedprox

    Example: isonomy show client.accuracy.worst10

    Example: isonomy show runs/quickstart
    """
    from isonomy.cli.show import config, preset, run

    if any(page.show(name) for page in (config, preset, run)):  # without importing torch
        return
    from isonomy.cli.show import (
        algorithm,
        attack,
        dataset,
        defence,
        metric,
        model,
        partition,
        postprocessing,
    )

    pages = (algorithm, postprocessing, dataset, model, attack, defence, metric)
    found = [page for page in pages if page.show(name)]  # a name may belong to several
    if not found and not partition.show(name):
        raise ConfigError(unknown("name", name, _names()))


def _names() -> list[str]:
    """Every name that has a page, except metrics and runs."""
    from isonomy.algorithms import registry
    from isonomy.data.datasets import DATASETS
    from isonomy.data.partition import IMAGE_PARTITIONS, PARTITIONS
    from isonomy.models import MODELS
    from isonomy.postprocess import METHODS
    from isonomy.robust.attacks import ATTACKS
    from isonomy.robust.combiners import COMBINERS

    kinds = (
        registry(),
        METHODS,
        DATASETS,
        MODELS,
        PARTITIONS,
        IMAGE_PARTITIONS,
        ATTACKS,
        COMBINERS,
    )
    names = [name for kind in kinds for name in kind]
    return list(dict.fromkeys([*names, *packaged_configs(), "config"]))
