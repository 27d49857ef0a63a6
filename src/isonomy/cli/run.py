"""`run`: one experiment in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import (
    ConfigArgument,
    Keep,
    Overrides,
    Overwrite,
    Quiet,
    Report,
    Track,
    Trust,
    with_trackers,
)

if TYPE_CHECKING:
    from isonomy.config.schema import Config


def run(
    config: ConfigArgument,
    overrides: Overrides = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="The folder of the run; runs/NAME by default."),
    ] = None,
    overwrite: Overwrite = False,
    keep: Keep = False,
    quiet: Quiet = False,
    with_report: Report = True,
    track: Track = None,
    trust: Trust = None,
) -> None:
    """Run one experiment and write its results to a folder.

    If the method ends with another verdict than "met", no model is written (unless --keep is given)
    and the exit code is 3. If the privacy budget ends training early, the exit code is 4.

    Example: isonomy run quickstart rounds=5 algorithm=local --to runs/local
    """
    from isonomy import api

    chosen = with_trackers(api.make_config(config, *(overrides or [])), track)
    from isonomy.cli.progress import Job, show_progress
    from isonomy.runs.processes import leads
    from isonomy.runs.training import method_label

    folder = to or Path("runs") / _default_name(chosen)
    job = Job(method_label(chosen), chosen.seed, chosen.rounds)
    with show_progress([job], quiet=quiet or not leads()) as listener:
        record = api.run(chosen, folder, overwrite=overwrite, keep=keep, listeners=[listener])
    if not leads():  # rank 0 of those that torchrun started reports the result
        return
    output.print_run(record)
    output.print_verdict(record)
    output.print_status(f"run: {folder}")
    if with_report:
        output.write_report([record], folder / "report.html", f"Isonomy: {record.label}")
    output.exit_if_not_met(folder)
    output.exit_if_budget_ended(record)


def _default_name(config: Config) -> str:
    from isonomy.studies.compare import slug

    return slug(config.name or f"{config.data.name}-{config.algorithm.name}-seed{config.seed}")
