"""`tune`: the hyper-parameters of several methods, with equally many trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell, study
from isonomy.cli.arguments import (
    ConfigArgument,
    Format,
    Jobs,
    Overrides,
    Overwrite,
    Quiet,
    RunsFolder,
    TableFile,
    Track,
    Trust,
    read_seeds,
    split_names,
    with_trackers,
)


def tune(
    config: ConfigArgument,
    overrides: Overrides = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAME,...",
            help="The algorithms to tune; those of the config's compare table by default.",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, metavar="N", help="Trials of every method.")
    ] = 20,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            "--objective",
            metavar="METRIC",
            help="What is tuned for: a metric, such as group.sex.demographic_parity. May be "
            "repeated. By default the accuracy, or the loss if there are no classes.",
        ),
    ] = None,
    fix: Annotated[
        list[str] | None,
        typer.Option(
            "--fix",
            metavar="KEY",
            help="A key that keeps the config's value, such as local.optimiser. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N or A,B,...",
            help="Seeds that every trial is run with, their number or a list; one by default.",
        ),
    ] = None,
    format: Format = None,
    out: TableFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all trials as JSON instead of the table.")
    ] = False,
    to: RunsFolder = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    track: Track = None,
    trust: Trust = None,
) -> None:
    """Tune methods with the same number of trials and rounds, on validation examples only.

    The first trial of a method is its default. Trials that are clearly worse than earlier ones are
    pruned, and trials that diverge count as failed. A study that was interrupted continues from
    its folder. It writes tuned.toml, which `isonomy compare` runs on test examples. `isonomy show
    NAME` prints the search space of an algorithm.

    Example: isonomy tune quickstart --methods fedavg,fedprox,fedfb --trials 20

    Example: isonomy tune mine.toml --objective accuracy --objective group.sex.demographic_parity
    """
    from isonomy import api
    from isonomy.cli.progress import Job, show_progress
    from isonomy.studies.tune import prepared

    output.check_format(format)
    changes = list(overrides or [])
    made = study.without_other_methods(api.make_config(config, *changes), changes)
    made = with_trackers(made, track)
    folder = to or Path("runs") / f"{made.name or Path(config).stem}-tune"
    table_only = as_json or (format is not None and out is None)  # for another program to read
    with prepared(
        api.narrowed(made, split_names(methods)),
        folder,
        trials=trials,
        objectives=objectives,
        seeds=read_seeds(seeds),
        fixed=fix or (),
        jobs=jobs,
        overwrite=overwrite,
        note=shell.note,
    ) as tuning:
        planned = [Job(*run) for run in tuning.missing()]
        with show_progress(planned, quiet=quiet, to_stderr=table_only) as listener:
            tuned = tuning.run(listener)
    if as_json:
        typer.echo(json.dumps(tuned.plain(), indent=1))
    else:
        output.print_table(tuned.table(), format, out)
    output.print_status(f"trials: {folder}")
    output.print_status(f"compare them on test examples: isonomy compare {folder / 'tuned.toml'}")
