"""`reproduce`: a paper's experiment, with our numbers beside the paper's."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from isonomy.cli import output, study
from isonomy.cli.arguments import Jobs, Overwrite, Quiet, RunsFolder, read_seeds, split_names
from isonomy.cli.packaged_configs import packaged_configs
from isonomy.errors import ConfigError, unknown


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="PRESET", help="A preset; see `isonomy ls presets`.")
    ],
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N or A,B-C,...",
            help="The number of seeds, or a list such as 0-4; the preset's number by default.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="NAME",
            help="The size of the experiment: 'full', or one listed by `isonomy show PRESET`.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same as --scale quick: a first impression.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="METHOD",
            help="Run only this method: its label, or label and setting. May be repeated.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B",
            help="Run only the methods with these labels; give one that has a comma to --only.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings", metavar="SETTING", help="Run only this setting. May be repeated."
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            "--results",
            metavar="FOLDER",
            help="Also keep one row per run in FOLDER/PRESET.json, for the documentation's tables.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="Read the preset's data from this file or folder, as by `data.path` in a config.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the rows to this file."),
    ] = None,
    to: RunsFolder = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's experiment and print our numbers beside the paper's.

    Example: isonomy reproduce focus-synthetic --quick --json rows.json

    Example: isonomy reproduce fmtl-fashion --quick --jobs 2

    Example: isonomy reproduce pffl-acs-income --data acs_income.parquet

    Example: isonomy reproduce focus-rotated-mnist --only "FOCUS 3 outliers" --only FedMA

    Example: isonomy reproduce pffl-adult --methods FedAvg,PFFL --seeds 0-4 --results results
    """
    known = [n for n, values in packaged_configs().items() if "preset" in values]
    if name not in known:
        raise ConfigError(unknown("preset", name, known))
    from isonomy import api
    from isonomy.cli.progress import show_progress
    from isonomy.report import tables
    from isonomy.studies import reproduce as reproduction
    from isonomy.studies import results as kept

    if quick and scale not in (None, "quick"):
        raise ConfigError(f"--quick and --scale {scale} contradict each other; give one of them.")
    only = [*(only or ()), *(split_names(methods) or ())]
    preset = reproduction.find(name)
    if data is not None:
        if not data.exists():
            raise ConfigError(f"--data {data}: there is no such file or folder.")
        preset = reproduction.reading(preset, data.expanduser().absolute())
    chosen = reproduction.scaled(preset, "quick" if quick else scale)
    folder = to or Path("runs") / (name if chosen.name == preset.scale else f"{name}-{chosen.name}")
    which = reproduction.seeds_of(preset, chosen.name, read_seeds(seeds))
    missing = study.missing_runs(
        reproduction.methods_of(preset, chosen.name, only, settings or ()),
        which,
        folder,
        overwrite,
    )
    path = None if results is None else results / f"{name}.json"
    with show_progress(missing, quiet=quiet) as listener, ExitStack() as stack:
        finished = stack.enter_context(kept.keeping(path, preset, chosen.name)) if path else None
        rows = reproduction.reproduce(
            preset,
            folder,
            seeds=which,
            scale=chosen.name,
            only=only,
            settings=settings or (),
            overwrite=overwrite,
            jobs=jobs,
            listeners=[listener],
            finished=finished,
        )
    if preset.pair is None:
        output.print_table(tables.reproduction(rows, scale=chosen.name))
    else:
        _print_pairs(rows, preset.pair, folder)
    for row in rows:
        if row["note"]:
            where = ", ".join(filter(None, (row["method"], row["setting"], row["metric"])))
            typer.echo(f"{where}: {row['note']}.")
    for text in preset.notes:
        typer.echo(text)
    typer.echo(f"Scale {chosen.name}: {chosen.text}")
    records = api.load(folder)
    if "faa" in preset.metrics:
        for text in tables.surrogates(records):
            typer.echo(text)
    study.print_fronts(records)
    output.write_report(records, folder / "report.html", f"Isonomy: {name}")
    output.print_status(f"runs: {folder}")
    if path is not None:
        number = kept.keep(path, name, kept.rows_of(preset, chosen.name, records))
        output.print_status(f"results: {path} ({number} rows)")
    if json_file is not None:
        defined = [{k: None if v != v else v for k, v in row.items()} for row in rows]  # no NaN
        output.write_text(json_file, json.dumps(defined, indent=1, allow_nan=False) + "\n")
        output.print_status(f"rows: {json_file}")


def _print_pairs(rows: list[dict[str, Any]], pair: tuple[str, str], folder: Path) -> None:
    """Print our grid of mean and deviation and the paper's, and write the figure to a page."""
    from isonomy.report import markup, robustness_grid
    from isonomy.report.figures import Figure

    output.print_table(robustness_grid.grid(rows, pair))
    printed = robustness_grid.grid(rows, pair, "paper")
    if printed.rows:
        typer.echo()
        output.print_table(printed)
    views = robustness_grid.plane(rows, pair)
    if views:
        path = folder / "robustness_grid.html"
        caption = "One point per method. Further right is more accurate, lower is more even."
        figure = Figure("grid", "Under attack", caption, tuple(views))
        output.write_text(path, markup.document("Under attack", [markup.html_figure(figure)]))
        output.print_status(f"figure: {path}")
