"""Arguments and options that several verbs share, and how their texts are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli.output import FORMATS
from isonomy.errors import ConfigError

if TYPE_CHECKING:
    from isonomy.config.schema import Config

# --- completion in a shell, without imports that take long ----------------------------------------


def complete_config(incomplete: str) -> list[str]:
    """Packaged configs, and TOML files of the folder that is being typed."""
    from isonomy import api

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    files = [str(path) for path in folder.glob("*.toml")] if folder.is_dir() else []
    return [
        name for name in sorted([*api.packaged_configs(), *files]) if name.startswith(incomplete)
    ]


# --- one run -------------------------------------------------------------------------------------

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A TOML file, or the name of a packaged config.",
        autocompletion=complete_config,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Config keys to change, e.g. rounds=2 local.lr=0.05.",
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing results.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print plain lines instead of progress bars.")]
Keep = Annotated[
    bool,
    typer.Option("--keep", help="Also write the model if the method's verdict withholds it."),
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]


def _allow(names: list[str] | None) -> list[str]:
    """Let files import these names."""
    from isonomy.core.importing import trust

    trust(*(names or []))
    return names or []


Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="NAME",
        callback=_allow,
        help="Code of your own that may be imported: package.module:Class, or a whole package.",
    ),
]

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="mlflow|tensorboard|wandb",
        help="Report runs to a tracker of experiments, besides those of the config.",
    ),
]


def with_trackers(config: Config, names: list[str] | None) -> Config:
    """The config with these trackers added; the settings of those that it has are kept."""
    from isonomy.config.schema import parse

    have = [given.name for given in config.track]
    new = [name for name in dict.fromkeys(names or ()) if name not in have]
    if not new:
        return config
    added = parse({"track": new}, where="--track").track
    return config.model_copy(update={"track": [*config.track, *added]})


# --- many runs -----------------------------------------------------------------------------------

Algorithms = Annotated[
    str | None,
    typer.Option("--algorithms", metavar="NAME,...", help="Run only these algorithms."),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="N or A,B,...", help="The number of seeds, or a list of them."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", metavar="|".join(FORMATS), help="The format of the table."),
]
TableFile = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the table to this file (.md, .tex, .csv, .txt)."
    ),
]
RunsFolder = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FOLDER", help="The folder of the runs; a folder in runs/ by default."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="METRIC,...", help="The metrics to show as columns."),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs", min=1, metavar="N", help="How many runs to execute in parallel, one process each."
    ),
]

# --- fronts --------------------------------------------------------------------------------------

MaxDP = Annotated[
    float | None,
    typer.Option(
        "--max-dp",
        metavar="GAP",
        help="Choose the point of least error whose demographic_parity_overall, the largest "
        "distance of a group's positive rate from everyone's, is at most this, with 95 % "
        "confidence on validation examples.",
    ),
]
AtMost = Annotated[
    list[str] | None,
    typer.Option(
        "--at-most", metavar="NAME=VALUE", help="The same limit for any coordinate of the front."
    ),
]
Preference = Annotated[
    str | None,
    typer.Option(
        "--preference",
        metavar="A,B",
        help="A point on the front: one share per objective, in their order; a larger share of an "
        "objective means less error or less unfairness in it. If the point is dominated on "
        "validation examples, the nearest one that is not is used.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Use the preference even if it is dominated; accept a limit without its margin.",
    ),
]
Constant = Annotated[
    bool,
    typer.Option(
        "--constant", help="Accept a constant prediction if no point of the front is offered."
    ),
]

# --- federations ---------------------------------------------------------------------------------

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Use neither encryption nor keys; this machine only."),
]


def split_names(text: str | None) -> list[str] | None:
    """The names in a text such as 'fedavg,local'; None if the option was not given.

    >>> split_names("fedavg, local,")
    ['fedavg', 'local']
    """
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]


def read_seeds(text: str | None) -> int | list[int] | None:
    """The value of --seeds: '3' is a number of seeds; '0,1,5', '7,' and '0-4' are lists of seeds.

    >>> read_seeds("3"), read_seeds("7,"), read_seeds("0-2,9")
    (3, [7], [0, 1, 2, 9])
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    listed = [_seed_range(part) for part in parts if part]
    if not listed or not all(listed):
        raise ConfigError(
            f"--seeds {text}: give a number of seeds, e.g. 3, or a list of seeds, e.g. 0,1,2 or "
            "0-4."
        )
    if len(parts) == 1 and "-" not in text:
        return listed[0][0]
    return [seed for part in listed for seed in part]


def _seed_range(part: str) -> range:
    """The seeds of '3' or '0-4'; empty if it is neither."""
    first, dash, last = part.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal()):
        return range(0)
    return range(int(first), int(last) + 1)


def read_preference(text: str | None) -> list[float]:
    """The numbers of --preference, such as '0.7,0.3'; an empty list if it was not given."""
    try:
        return [float(part) for part in (text or "").split(",") if text]
    except ValueError:
        raise ConfigError(
            f"--preference {text}: give numbers separated by commas, such as 0.7,0.3."
        ) from None


def read_limits(max_dp: float | None, at_most: list[str] | None) -> dict[str, float]:
    """The upper limits of --max-dp and --at-most, by coordinate of the front."""
    found = {} if max_dp is None else {"dp": max_dp}
    for text in at_most or []:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(
                f"--at-most {text}: write it as NAME=VALUE, such as eo.sex=0.05."
            ) from None
    for name, most in found.items():
        if not most >= 0:
            raise ConfigError(f"the limit {name} = {most:g} cannot be met; give 0 or more.")
    return found
