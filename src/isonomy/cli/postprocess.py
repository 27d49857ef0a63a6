"""`postprocess`: fit a rule of decisions to the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import Overwrite, Quiet, Report, Trust


def postprocess(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="logofair, fedfact, fair_lp or thresholds."),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="The folder of the new run.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPTION=VALUE", help="Its options, e.g. budget=0.02.", show_default=False
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    with_report: Report = True,
    trust: Trust = None,
) -> None:
    """Fit a rule of decisions to a run's model and write the result as a new run.

    Nothing is trained: each client reports how many of its validation examples of each group and
    label have which score, and the rule is fitted to these counts. The new run can be used like any
    other: report, predict, export, compare.

    Example: isonomy postprocess runs/mine logofair budget=0.02 --to runs/mine-fair

    Example: isonomy postprocess runs/mine fair_lp budget=0.05 local_budget=0.1 --to runs/mine-lp
    """
    from isonomy import api
    from isonomy.cli.progress import Job, show_progress
    from isonomy.config.overrides import parse_override

    given = {k: v for text in options or [] for k, v in parse_override(text).items()}
    source = api.load_one(folder)
    job = Job(f"{source.label} + {method}", source.seed, len(source.rounds))
    with show_progress([job], quiet=quiet) as listener:
        record = api.postprocess_run(
            folder, to, method, overwrite=overwrite, listeners=[listener], **given
        )
    output.print_run(record)
    output.print_status(f"run: {to}")
    if with_report:
        output.write_report([record], to / "report.html", f"Isonomy: {record.label}")
