"""`run`, `resume`, `report` and `predict`: one experiment, and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output, predict

if TYPE_CHECKING:
    from isonomy.config.schema import Config

ConfigArgument = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="A TOML file, or the name of a packaged config."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Keys to change, e.g. rounds=2 local.lr=0.05.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Plain lines instead of progress bars.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the model even if the method's verdict withholds it.")
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]


def add(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("run")(run)
    app.command("resume")(resume)
    app.command("report")(report)
    predict.add(app)


def run(
    config: ConfigArgument,
    overrides: Overrides = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="The run's folder; runs/NAME if left out."),
    ] = None,
    overwrite: Overwrite = False,
    keep: Keep = False,
    quiet: Quiet = False,
    with_report: Report = True,
) -> None:
    """Run one experiment in a folder of its own.

    Where the method ends with the verdict null, it gives no model and the exit code is 3.

    Example: isonomy run quickstart rounds=5 algorithm=local --to runs/local
    """
    from isonomy import api

    chosen = api.make_config(config, *(overrides or []))
    from isonomy.cli.progress import Job, watching
    from isonomy.runs.training import method_label

    folder = to or Path("runs") / _name(chosen)
    job = Job(method_label(chosen), chosen.seed, chosen.rounds)
    with watching([job], quiet=quiet) as listener:
        record = api.run(chosen, folder, overwrite=overwrite, keep=keep, listeners=[listener])
    output.put_one(record)
    output.put_verdict(record)
    output.tell(f"run: {folder}")
    if with_report:
        output.report([record], folder / "report.html", f"Isonomy: {record.label}")
    output.end_withheld([folder])


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or of a comparison.")
    ],
    keep: Keep = False,
    quiet: Quiet = False,
    with_report: Report = True,
) -> None:
    """Go on with an unfinished run, or with every unfinished run of a comparison.

    With --keep, complete runs also give the models that their verdicts withheld.

    Example: isonomy resume runs/quickstart
    """
    from isonomy import api
    from isonomy.cli.progress import Job, watching
    from isonomy.errors import RunError
    from isonomy.report.tables import comparison
    from isonomy.runs import training as runs
    from isonomy.runs.folder import RunFolder

    places = [RunFolder(path) for path in api.run_folders(folder)]
    if not places:
        raise RunError(f"there is no run in '{folder}'; give the folder of a run or a comparison.")
    left = [place for place in places if not place.complete or (keep and place.withheld)]
    jobs = []
    for place in left:
        config = place.config()
        jobs.append(Job(runs.method_label(config), config.seed, config.rounds))
    if not left:
        what = "is" if len(places) == 1 else f"and its {len(places)} runs are"
        output.tell(f"'{folder}' {what} complete; nothing to do.")
    with watching(jobs, quiet=quiet) as listener:
        for place in left:
            runs.resume(place.path, listeners=[listener], keep=keep)
    records = api.load(folder)
    output.put(comparison(records))
    for record in records:
        output.put_verdict(record, named=len(records) > 1)
    if with_report and left:
        output.report(records, folder / "report.html", f"Isonomy: {folder.name}")
    if len(places) == 1:
        output.end_withheld([place.path for place in places])


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs or of comparisons.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The page; report.html in the first RUN if left out."
        ),
    ] = None,
) -> None:
    """Write one HTML page on runs: tables, figures, configurations. It needs no network.

    Example: isonomy report runs/quickstart runs/mine --out both.html
    """
    from isonomy import api
    from isonomy.report.tables import comparison

    records = api.load(*folders)
    output.put(comparison(records))
    title = f"Isonomy: {', '.join(folder.name for folder in folders)}"
    output.report(records, out or folders[0] / "report.html", title)


def _name(config: Config) -> str:
    from isonomy.studies.compare import slug

    own = f"{config.data.name}-{config.algorithm.name}-seed{config.seed}"
    return slug(config.name or own)
