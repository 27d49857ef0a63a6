"""`compare`, `sweep` and `reproduce`: many runs, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isonomy.cli import catalogue, output
from isonomy.cli.single import ConfigArgument, Overwrite, Quiet
from isonomy.errors import ConfigError, unknown

if TYPE_CHECKING:
    from isonomy.config.schema import Config
    from isonomy.runs.record import Record
    from isonomy.studies.compare import Method

Algorithms = Annotated[
    str | None,
    typer.Option("--algorithms", metavar="NAME,...", help="Only these, or these instead."),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="N or A,B,...", help="How many seeds, or which."),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", metavar="|".join(output.FORMATS), help="The table's form."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write the table there (.md, .tex, .csv, .txt)."),
]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="FOLDER", help="The runs' folder; below runs/ if left out."),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="METRIC,...", help="The table's columns."),
]
Jobs = Annotated[
    int,
    typer.Option("--jobs", min=1, metavar="N", help="How many runs at once, each a process."),
]


def add(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("compare")(compare)
    app.command("sweep")(sweep)
    app.command("reproduce")(reproduce)


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG|KEY=VALUE", help="Configs, then keys to change."),
    ],
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    format: FormatOption = None,
    out: Out = None,
    to: To = None,
    columns: Columns = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run methods side by side, each with every seed, and show one table.

    What is complete in the folder is used again, and what is unfinished goes on.

    Example: isonomy compare quickstart rounds=10 --seeds 3

    Example: isonomy compare mine.toml --algorithms fedavg,local --format latex --out table.tex
    """
    from isonomy import api

    names = [a for a in arguments if "=" not in a or Path(a).exists()]
    overrides = [a for a in arguments if a not in names]
    if not names:
        raise ConfigError("no config was named; give a TOML file or a packaged config's name.")
    configs = [_named(api.make_config(name, *overrides), overrides) for name in names]
    chosen = api.methods(*configs, algorithms=_names(algorithms))
    which = api.seeds_of(configs[0], _seeds(seeds))
    label = "-".join(c.name or Path(n).stem for c, n in zip(configs, names, strict=True))
    folder = to or Path("runs") / f"{label}-compare"
    _go(chosen, which, folder, overwrite, quiet, columns, format, out, jobs)


def sweep(
    config: ConfigArgument,
    axes: Annotated[
        list[str],
        typer.Argument(metavar="KEY=V1,V2,...", help="Values to try; one value changes the key."),
    ],
    algorithms: Algorithms = None,
    seeds: Seeds = None,
    format: FormatOption = None,
    out: Out = None,
    to: To = None,
    columns: Columns = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Try every combination of values, each with every seed, and show one table.

    Then, for each notion of fairness, the settings that no other beats in both error and
    unfairness, and the area they dominate; the report draws them.

    Example: isonomy sweep mine.toml algorithm.B=0,1,5,20 --algorithms pffl --seeds 3

    Example: isonomy sweep quickstart algorithm.mu=0,0.1,1 --algorithms fedprox --seeds 2
    """
    from isonomy import api
    from isonomy.studies.sweep import fixed_keys, grid

    fixed = fixed_keys(axes)
    made = _named(api.make_config(config, *fixed), fixed)
    which = api.seeds_of(made, _seeds(seeds))
    narrowed = api.narrowed(made, _names(algorithms))
    chosen = grid(narrowed, [axis for axis in axes if axis not in fixed])
    folder = to or Path("runs") / f"{made.name or Path(config).stem}-sweep"
    _go(chosen, which, folder, overwrite, quiet, columns, format, out, jobs)


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="PRESET", help="A preset; see `isonomy ls presets`.")
    ],
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds", metavar="N or A,B,...", help="How many, or which; the preset's if left out."
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="NAME",
            help="How large a run: 'full', or one that `isonomy show PRESET` names.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The same as --scale quick: a first look.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the rows there too.")
    ] = None,
    to: To = None,
    jobs: Jobs = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's experiment and put our numbers beside the paper's.

    Example: isonomy reproduce focus-synthetic --quick --json rows.json

    Example: isonomy reproduce fmtl-fashion --quick --jobs 2
    """
    known = [n for n, values in catalogue.presets().items() if "preset" in values]
    if name not in known:
        raise ConfigError(unknown("preset", name, known))
    from isonomy import api
    from isonomy.cli.progress import watching
    from isonomy.report import tables
    from isonomy.studies import reproduce as reproduction

    if quick and scale not in (None, "quick"):
        raise ConfigError(f"--quick and --scale {scale} are two scales; give one of them.")
    preset = reproduction.find(name)
    chosen = reproduction.scaled(preset, "quick" if quick else scale)
    usual = chosen.name == preset.scale
    folder = to or Path("runs") / (name if usual else f"{name}-{chosen.name}")
    methods = reproduction.methods_of(preset, chosen.name)
    which = reproduction.seeds_of(preset, chosen.name, _seeds(seeds))
    planned = _planned(methods, which, folder, overwrite)
    with watching(planned, quiet=quiet) as listener:
        rows = reproduction.reproduce(
            preset,
            folder,
            seeds=which,
            scale=chosen.name,
            listeners=[listener],
            overwrite=overwrite,
            jobs=jobs,
        )
    if preset.pair is None:
        output.put(tables.reproduction(rows, scale=chosen.name))
    else:
        _paired(rows, preset.pair, folder)
    for row in rows:
        if row["note"]:
            where = ", ".join(filter(None, (row["method"], row["setting"], row["metric"])))
            typer.echo(f"{where}: {row['note']}.")
    for text in preset.notes:
        typer.echo(text)
    typer.echo(f"Scale {chosen.name}: {chosen.text}")
    records = api.load(folder)
    _fronts(records, aside=False)
    output.report(records, folder / "report.html", f"Isonomy: {name}")
    output.tell(f"runs: {folder}")
    if json_file is not None:
        defined = [{k: None if v != v else v for k, v in row.items()} for row in rows]  # no NaN
        output.save(json_file, json.dumps(defined, indent=1, allow_nan=False) + "\n")
        output.tell(f"rows: {json_file}")


def _paired(rows: list[dict[str, Any]], pair: tuple[str, str], folder: Path) -> None:
    """Our grid and the paper's, and the plane as a page of its own."""
    from isonomy.report import robustness_grid

    output.put(robustness_grid.grid(rows, pair))
    printed = robustness_grid.grid(rows, pair, "paper")
    if printed.rows:
        typer.echo()
        output.put(printed)
    figure = robustness_grid.plane(rows, pair)
    if figure is not None:
        output.save(folder / "robustness_grid.html", figure.to_html(include_plotlyjs=True))
        output.tell(f"figure: {folder / 'robustness_grid.html'}")


# --- the parts -----------------------------------------------------------------------------------


def _go(
    chosen: list[Method],
    which: list[int],
    folder: Path,
    overwrite: bool,
    quiet: bool,
    columns: str | None,
    format: str | None,
    out: Path | None,
    jobs: int,
) -> None:
    """Check all of it, run all of it, show all of it."""
    from isonomy.cli.progress import watching
    from isonomy.report.tables import comparison
    from isonomy.runs.build import build
    from isonomy.studies.compare import run_all

    output.check_format(format)
    shown = output.check_columns(columns)
    planned = _planned(chosen, which, folder, overwrite)
    aside = format is not None and out is None  # the output stream carries the table only
    with watching(planned, quiet=quiet, aside=aside) as listener:
        for method in chosen if planned else ():
            # the last method's mistake should not show after hours of the first
            build(method.config.model_copy(update={"seed": which[0]}), listener.note)
        records = run_all(
            chosen, which, folder, listeners=[listener], overwrite=overwrite, jobs=jobs
        )
    output.put(comparison(records, shown), format, out)
    _fronts(records, aside)
    output.tell(f"runs: {folder}")
    output.report(records, folder / "report.html", f"Isonomy: {folder.name}")


def _fronts(records: list[Record], aside: bool) -> None:
    """The settings to choose among, where a method was tried at several."""
    from isonomy.report import fronts

    found = fronts.fronts(records)
    if found and not aside:
        output.put(fronts.volumes_table(found))
        output.put(fronts.points_table(found))


def _named(config: Config, overrides: Sequence[str]) -> Config:
    """Without the config's own methods, where an override names the algorithm."""
    keys = {override.partition("=")[0].strip() for override in overrides}
    if not keys & {"algorithm", "algorithm.name"}:
        return config
    alone = config.compare.model_copy(update={"methods": []})
    return config.model_copy(update={"compare": alone})


def _planned(
    chosen: Sequence[Method], seeds: Sequence[int], folder: Path, overwrite: bool
) -> list[Any]:
    """The runs that are not there yet, in the order in which they will be made."""
    from isonomy.cli.progress import Job
    from isonomy.runs.folder import RunFolder
    from isonomy.studies.compare import slug

    return [
        Job(method.label, seed, method.config.rounds)
        for method in chosen
        for seed in seeds
        if overwrite or not RunFolder(folder / slug(method.label) / f"seed-{seed}").complete
    ]


def _names(text: str | None) -> list[str] | None:
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str | None) -> int | list[int] | None:
    """`3` is how many; `0,1,5` and `7,` are which."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    listed = [part for part in parts if part]
    if not listed or not all(part.isdecimal() for part in listed):
        raise ConfigError(f"--seeds {text}: give how many, e.g. 3, or which, e.g. 0,1,2.")
    return int(listed[0]) if len(parts) == 1 else [int(part) for part in listed]
