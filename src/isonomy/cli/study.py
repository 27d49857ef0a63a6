"""Running many experiments and printing them side by side: for compare, sweep and reproduce."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from isonomy.cli import output

if TYPE_CHECKING:
    from isonomy.cli.progress import Job
    from isonomy.config.schema import Config
    from isonomy.runs.record import Record
    from isonomy.studies.compare import Method


class TableOptions(NamedTuple):
    """How the table of results is printed or written, as the options were given."""

    format: str | None
    file: Path | None
    columns: str | None


def run_and_print(
    methods: list[Method],
    seeds: list[int],
    folder: Path,
    table: TableOptions,
    *,
    overwrite: bool,
    quiet: bool,
    jobs: int,
) -> None:
    """Check every method, run each with every seed, print the table and write the report."""
    from isonomy import api
    from isonomy.cli.progress import show_progress
    from isonomy.report import summary
    from isonomy.report.tables import comparison
    from isonomy.runs.signals import Stopped

    output.check_format(table.format)
    columns = output.check_columns(table.columns)
    missing = missing_runs(methods, seeds, folder, overwrite)
    table_only = table.format is not None and table.file is None  # for another program to read
    with show_progress(missing, quiet=quiet, to_stderr=table_only) as listener:
        if missing:
            # an error in the last method should not appear after hours of the first
            api.check_methods(methods, seeds[0], columns=columns, listeners=[listener])
        try:
            records = api.run_methods(
                methods, seeds, folder, overwrite=overwrite, jobs=jobs, listeners=[listener]
            )
        except Stopped as stop:
            text = f"{str(stop).removesuffix('.')}; continue with `{_same_command()}`."
            raise Stopped(text, stop.number, stop.where) from None
        except KeyboardInterrupt:
            text = f"the comparison in '{folder}' was stopped; continue with `{_same_command()}`."
            raise Stopped(text, signal.SIGINT) from None
    output.print_table(comparison(records, columns), table.format, table.file)
    if not table_only:
        for sentence in summary.sentences(records):
            typer.echo(sentence)
        print_fronts(records)
    output.print_status(f"runs: {folder}")
    output.write_report(records, folder / "report.html", f"Isonomy: {folder.name}")
    output.exit_if_diverged(records)


def _same_command() -> str:
    """The command that was given, without --overwrite, which would start again."""
    return shlex.join(["isonomy", *(word for word in sys.argv[1:] if word != "--overwrite")])


def print_fronts(records: list[Record]) -> None:
    """Print the settings to choose from, if a method was run with several settings."""
    from isonomy.report import fronts

    found = fronts.fronts(records)
    if found:
        output.print_table(fronts.volumes_table(found))
        output.print_table(fronts.points_table(found))


def without_other_methods(config: Config, overrides: Sequence[str]) -> Config:
    """The config without its `compare.methods` if an override sets the algorithm."""
    keys = {override.partition("=")[0].strip() for override in overrides}
    if not keys & {"algorithm", "algorithm.name"}:
        return config
    alone = config.compare.model_copy(update={"methods": []})
    return config.model_copy(update={"compare": alone})


def missing_runs(
    methods: Sequence[Method], seeds: Sequence[int], folder: Path, overwrite: bool
) -> list[Job]:
    """The runs that are still to be executed, in order."""
    from isonomy.cli.progress import Job
    from isonomy.runs.folder import RunFolder
    from isonomy.studies.compare import slug

    return [
        Job(method.label, seed, method.config.rounds)
        for method in methods
        for seed in seeds
        if overwrite or not RunFolder(folder / slug(method.label) / f"seed-{seed}").complete
    ]
