"""`decide`: state requirements; get a model that meets them, with evidence, or an honest no."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.cli.arguments import (
    ConfigArgument,
    Overrides,
    Overwrite,
    Quiet,
    Track,
    Trust,
    split_names,
    with_trackers,
)

NONE_FOUND = 3  # the exit code of a no


def decide(
    config: ConfigArgument,
    overrides: Overrides = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            metavar="REQUIREMENT",
            help="A bound that must hold, e.g. 'demographic_parity(sex) <= 0.05', "
            "'worst_client_accuracy >= 0.75' or 'epsilon <= 4'. May be repeated; replaces those of "
            "the config.",
        ),
    ] = None,
    maximise: Annotated[
        str | None,
        typer.Option(
            "--maximise", metavar="QUANTITY", help="What to maximise; accuracy by default."
        ),
    ] = None,
    minimise: Annotated[
        str | None,
        typer.Option("--minimise", metavar="QUANTITY", help="What to minimise instead."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help="Time for all trials, e.g. 90s, 10m or 2h."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", min=1, metavar="N", help="Trials of each method, in place of a time."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", metavar="NAME,...", help="Try only these algorithms."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="The folder; one in runs/ by default."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            metavar="N",
            help="How many trials to run in parallel; by default one per core.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    track: Track = None,
    trust: Trust = None,
) -> None:
    """Search for a model that meets requirements, verify it on test data, and say yes or no.

    Methods are tuned with the same number of trials each. The choice is made on validation examples
    with a margin, and the chosen model is measured once on the test examples. With a yes, the model
    is exported and the exit code is 0; with a no, it is 3. The page decision.html has the evidence.

    With 'epsilon <= E', everything that the decision releases (preprocessing, all trials, choice
    and test) is differentially private within E, and every method is tried once unless --trials is
    given, because each training costs budget.

    Example: isonomy decide quickstart

    Example: isonomy decide mine.toml --require "equal_opportunity(sex) <= 0.1" --budget 5m
    """
    from isonomy import api, api_search
    from isonomy.cli.progress import show_trials

    made = with_trackers(api.make_config(config, *(overrides or [])), track)
    given: dict[str, Any] = {
        "require": require,
        "maximise": maximise,
        "minimise": minimise,
        "budget": budget,
        "trials": trials,
        "methods": split_names(methods),
    }
    changed = {key: value for key, value in given.items() if value is not None}
    if budget is not None:
        changed.setdefault("trials", None)
    made = made.model_copy(update={"decide": made.decide.model_copy(update=changed)})
    folder = to or Path("runs") / (made.name or Path(config).stem)
    with show_trials(quiet=quiet) as listener:
        found = api_search.decide(
            made,
            folder,
            jobs=jobs or os.cpu_count() or 1,
            overwrite=overwrite,
            command=shlex.join(["isonomy", *sys.argv[1:]]),
            listeners=[listener],
        )
    typer.echo("")
    for line in found.lines:
        typer.echo(line)
    if found.outcome != "met":
        raise typer.Exit(NONE_FOUND)
