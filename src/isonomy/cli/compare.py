"""`compare`: methods side by side, each with every seed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import study
from isonomy.cli.arguments import (
    Algorithms,
    Columns,
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
from isonomy.errors import ConfigError


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, then keys to change."),
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
    """Run methods side by side, each with every seed, and print one table.

    Complete runs in the folder are reused, and unfinished runs are continued.

    Example: isonomy compare quickstart rounds=10 --seeds 3

    Example: isonomy compare mine.toml --algorithms fedavg,local --format latex --out table.tex
    """
    from isonomy import api

    names = [a for a in arguments if "=" not in a or Path(a).exists()]
    overrides = [a for a in arguments if a not in names]
    if not names:
        raise ConfigError("no config was given; give a TOML file or the name of a packaged config.")
    configs = [
        study.without_other_methods(api.make_config(name, *overrides), overrides) for name in names
    ]
    configs = [with_trackers(one, track) for one in configs]
    label = "-".join(c.name or Path(n).stem for c, n in zip(configs, names, strict=True))
    study.run_and_print(
        api.methods(*configs, algorithms=split_names(algorithms)),
        api.seeds_of(configs[0], read_seeds(seeds)),
        to or Path("runs") / f"{label}-compare",
        study.TableOptions(format, out, columns),
        overwrite=overwrite,
        quiet=quiet,
        jobs=jobs,
    )
