"""`sweep`: every combination of values, each with every seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import study
from isonomy.cli.arguments import (
    Algorithms,
    Columns,
    ConfigArgument,
    Format,
    Jobs,
    Overwrite,
    Quiet,
    RunsFolder,
    Seeds,
    TableFile,
    Track,
    Trust,
    read_seeds,
    split_names,
    with_trackers,
)


def sweep(
    config: ConfigArgument,
    axes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=V1,V2,...", help="Values to try; a single value changes the key."
        ),
    ],
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    format: Format = None,
    out: TableFile = None,
    to: RunsFolder = None,
    columns: Columns = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    track: Track = None,
    trust: Trust = None,
) -> None:
    """Try every combination of values, each with every seed, and print one table.

    For each notion of fairness, it then prints the settings that no other setting beats in both
    error and unfairness, and the area that they dominate. The report draws them.

    Example: isonomy sweep mine.toml algorithm.B=0,1,5,20 --algorithms pffl --seeds 3

    Example: isonomy sweep quickstart algorithm.mu=0,0.1,1 --algorithms fedprox --seeds 2
    """
    from isonomy import api
    from isonomy.studies.sweep import fixed_keys, grid

    fixed = fixed_keys(axes)
    base = study.without_other_methods(api.make_config(config, *fixed), fixed)
    base = with_trackers(base, track)
    which = api.seeds_of(base, read_seeds(seeds))
    narrowed = api.narrowed(base, split_names(algorithms))
    study.run_and_print(
        grid(narrowed, [axis for axis in axes if axis not in fixed]),
        which,
        to or Path("runs") / f"{base.name or Path(config).stem}-sweep",
        study.TableOptions(format, out, columns),
        overwrite=overwrite,
        quiet=quiet,
        jobs=jobs,
    )
