"""`resume`: continue an unfinished run, or the unfinished runs of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import Keep, Quiet, Report, Trust


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a comparison.")
    ],
    keep: Keep = False,
    quiet: Quiet = False,
    with_report: Report = True,
    trust: Trust = None,
) -> None:
    """Continue an unfinished run, or every unfinished run of a comparison.

    With --keep, complete runs also write the models that their verdicts withheld.

    Example: isonomy resume runs/quickstart
    """
    from isonomy import api
    from isonomy.cli.progress import Job, show_progress
    from isonomy.errors import RunError
    from isonomy.report.tables import comparison
    from isonomy.runs.folder import RunFolder
    from isonomy.runs.processes import leads, refuse_under_torchrun, several_by_torchrun
    from isonomy.runs.training import method_label

    if not leads():  # rank 0 of those that torchrun started reads the folder
        api.resume(folder, keep=keep)
        return
    places = [RunFolder(path) for path in api.run_folders(folder)]
    if len(places) > 1:
        refuse_under_torchrun("resuming a comparison")
    if not places:
        raise RunError(f"there is no run in '{folder}'; give the folder of a run or a comparison.")
    left = [
        place
        for place in places
        if not place.complete or (keep and place.withheld) or several_by_torchrun()
    ]
    jobs = []
    for place in left:
        config = place.config()
        jobs.append(Job(method_label(config), config.seed, config.rounds))
    if not left:
        subject = "is" if len(places) == 1 else f"and its {len(places)} runs are"
        output.print_status(f"'{folder}' {subject} complete; nothing to do.")
    with show_progress(jobs, quiet=quiet) as listener:
        for place in left:
            api.resume(place.path, keep=keep, listeners=[listener])
    records = api.load(folder)
    output.print_table(comparison(records))
    for record in records:
        output.print_verdict(record, with_label=len(records) > 1)
    if with_report and left:
        output.write_report(records, folder / "report.html", f"Isonomy: {folder.name}")
    if len(places) == 1:
        output.exit_if_not_met(places[0].path)
        output.exit_if_budget_ended(records[0])
