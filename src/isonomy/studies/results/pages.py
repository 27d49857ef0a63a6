"""Pages of the documentation whose tables, sentences and pictures are made from results.

A table stands between these marks:

    <!-- results: pffl-adult metrics=accuracy,group.sex.max_loss -->
    <!-- end of results -->

(`layout=grid`: one row per method and one column per setting, of the preset's mean and deviation,
and `layout=paper` the same of the paper's numbers;
`layout=rounds` and `layout=swings`: the preset's `curve` after each round, and how it changes;
`layout=surrogates`: FAA against the surrogate's length; `layout=seeds`: one row per method, setting
and seed; `seeds=0,1`: of these seeds only; `against=METHOD`: differences from a method
with their p-values, with `layout=grid metrics=METRIC` as one column per setting). A sentence on a
lead, with its paired test (`at SCALE` names a scale):

    <!-- lead: focus-synthetic faa of "FOCUS models found" against "FedAvg equal weights" -->
    <!-- end of lead -->

A method on all federations of the leaderboard, with its differences from FedAvg (`against=METHOD`:
from another method):

    <!-- leaderboard: fedfv -->
    <!-- end of leaderboard -->

A picture, in a file whose place is relative to the page (`kind=excess`: each client's excess risk;
`kind=rounds`: the preset's `curve`; `kind=front`: global fronts; `kind=plane`: two metrics, `x=...`
and `y=...`):

    <!-- figure: pictures/excess.svg of focus-synthetic kind=excess methods="FOCUS;FedAvg" -->
    <!-- end of figure -->
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from isonomy.errors import ConfigError
from isonomy.runs.files import write_atomically
from isonomy.studies import board
from isonomy.studies.reproduce import Preset, find, scaled
from isonomy.studies.results import figures, tables
from isonomy.studies.results.rows import Row, origin, read

KINDS = ("results", "lead", "leaderboard", "figure")
BLOCK = re.compile(
    rf"<!-- (?P<kind>{'|'.join(KINDS)}): (?P<spec>.*?) -->\n(?P<body>.*?)"
    r"<!-- end of (?P=kind) -->",
    re.DOTALL,
)
_LEAD = re.compile(
    r'^(?P<preset>\S+) (?P<metric>\S+) of "(?P<ours>[^"]+)" against "(?P<other>[^"]+)"'
    r"(?: at (?P<scale>\S+))?$"
)
_FIGURE = re.compile(r"^(?P<file>\S+\.svg) of (?P<rest>.*)$")


def filled(text: str, folder: Path) -> str:
    """A page with the contents of its marks made anew from the results in `folder`."""
    return BLOCK.sub(lambda found: _block(found, folder), text)


def pictures(text: str, folder: Path) -> dict[str, str]:
    """The pictures of a page as SVG text, by their places relative to the page."""
    out = {}
    for found in BLOCK.finditer(text):
        if found["kind"] == "figure":
            file, figure = _figure_of(found["spec"], folder)
            out[file] = figure.svg
    return out


def _block(found: re.Match[str], folder: Path) -> str:
    kind, spec = found["kind"], found["spec"]
    made = _MAKERS[kind](spec, folder)
    return f"<!-- {kind}: {spec} -->\n{made}\n<!-- end of {kind} -->"


# --- marks ---------------------------------------------------------------------------------------


def _table_of(spec: str, folder: Path) -> str:
    name, options = _options(spec)
    known = {"scale", "metrics", "methods", "settings", "seeds", "layout", "against"}
    layout, against = options.get("layout"), options.get("against")
    if not set(options) <= known or layout not in (None, *tables.LAYOUTS):
        raise ConfigError(
            f"results: {spec}: give metrics=..., methods=..., settings=..., seeds=..., scale=..., "
            f"against=... or layout={', '.join(tables.LAYOUTS)} after the name of the preset."
        )
    if against is not None and layout not in (None, "grid"):
        raise ConfigError(f"results: {spec}: against=... goes with layout=grid or with no layout.")
    preset, everyone = _rows(name, options.get("scale"), folder)
    if layout == "grid" and against is not None and len(options.get("metrics", ",").split(",")) > 1:
        raise ConfigError(f"results: {spec}: a grid of differences is of one metric; name it.")
    alone = layout in ("grid", "paper") and against is None
    if alone and (preset.pair is None or {"metrics", "methods"} & set(options)):
        raise ConfigError(
            f"results: {spec}: a grid is of all methods of a preset with a `pair`; choose settings."
        )
    if layout in ("rounds", "swings") and (preset.curve is None or "metrics" in options):
        raise ConfigError(f"results: {spec}: layout={layout} is of a preset with a `curve`.")
    if layout == "surrogates" and ("faa" not in preset.metrics or "metrics" in options):
        raise ConfigError(f"results: {spec}: layout=surrogates is of a preset with FAA.")
    rows = _chosen(everyone, options)
    names = options["metrics"].split(",") if "metrics" in options else []
    if against is not None:
        own = {(row["method"], row["setting"]) for row in rows}
        other = [
            row
            for row in everyone
            if against in (row["method"], tables.label(row["method"], row["setting"]))
        ]
        both = [*rows, *(r for r in other if (r["method"], r["setting"]) not in own)]
        if layout == "grid":
            made = tables.difference_grid(preset, both, against, names[0])
        else:
            made = tables.differences(preset, both, against, names=names)
        if not made.rows:
            raise ConfigError(f"results: {spec}: no row has two seeds in common with '{against}'.")
        return "\n" + made.markdown()
    if layout is None:
        made = tables.table(preset, rows, names=names)
    elif layout == "seeds":
        made = tables.seeds(preset, rows, names=names)
        return "\n" + made.markdown() + "\n" + origin(rows, spread="") + "\n"
    else:
        made = tables.LAYOUTS[layout](preset, rows)
    from_runs = "" if layout == "paper" else "\n" + origin(rows) + "\n"
    return "\n" + made.markdown() + from_runs


def _lead_of(spec: str, folder: Path) -> str:
    found = _LEAD.match(spec)
    if found is None:
        raise ConfigError(f'lead: {spec}: write PRESET METRIC of "METHOD" against "METHOD".')
    _, rows = _rows(found["preset"], found["scale"], folder)
    return tables.lead(rows, found["metric"], found["ours"], found["other"])


def _leaderboard_of(spec: str, folder: Path) -> str:
    name, options = _options(spec)
    if not set(options) <= {"against"}:
        raise ConfigError(
            f"leaderboard: {spec}: give against=METHOD, or nothing, after the method."
        )
    found = board.read(folder / "leaderboard")
    made = tables.federations(found, name, options.get("against", "fedavg"))
    return "\n" + made.markdown()


def _picture_of(spec: str, folder: Path) -> str:
    file, figure = _figure_of(spec, folder)
    return f"\n![{figure.label}]({file})\n"


def _figure_of(spec: str, folder: Path) -> tuple[str, figures.Figure]:
    found = _FIGURE.match(spec)
    name, options = _options(found["rest"]) if found else ("", {})
    known = {"scale", "methods", "settings", "seeds", "kind", "x", "y"}
    if found is None or not set(options) <= known or options.get("kind") not in figures.KINDS:
        raise ConfigError(
            f"figure: {spec}: write FILE.svg of PRESET kind={', '.join(figures.KINDS)}, and "
            "methods=..., settings=..., seeds=..., scale=..., or x=... and y=... of a plane."
        )
    preset, rows = _rows(name, options.get("scale"), folder)
    chosen = _chosen(rows, options)
    axes = {key: options[key] for key in ("x", "y") if key in options}
    try:
        return found["file"], figures.KINDS[options["kind"]](preset, chosen, **axes)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"figure: {spec}: {error}") from error


_MAKERS = {
    "results": _table_of,
    "lead": _lead_of,
    "leaderboard": _leaderboard_of,
    "figure": _picture_of,
}


def _options(spec: str) -> tuple[str, dict[str, str]]:
    """The name of a preset, and the options after it."""
    name, *words = shlex.split(spec)
    if wrong := [word for word in words if "=" not in word]:
        raise ConfigError(f"{spec}: '{wrong[0]}' is not an option; write NAME=VALUE.")
    return name, dict(word.split("=", 1) for word in words)


def _rows(name: str, scale: str | None, folder: Path) -> tuple[Preset, list[Row]]:
    preset = find(name)
    wanted = scaled(preset, scale).name
    return preset, [row for row in read(folder / f"{name}.json") if row["scale"] == wanted]


def _chosen(rows: Sequence[Row], options: dict[str, str]) -> list[Row]:
    """The rows of the methods, settings and seeds that the options name; all by default."""
    chosen = {key: options[key].split(";") for key in ("methods", "settings") if options.get(key)}
    seeds = [one.strip() for one in options["seeds"].split(",")] if "seeds" in options else None
    absent = sorted(set(seeds or ()) - {str(row["seed"]) for row in rows})
    if absent:
        raise ConfigError(f"seeds={options['seeds']}: no row has the seed '{absent[0]}'.")
    return [
        row
        for row in rows
        if ("methods" not in chosen or row["method"] in chosen["methods"])
        and ("settings" not in chosen or row["setting"] in chosen["settings"])
        and (seeds is None or str(row["seed"]) in seeds)
    ]


# --- all pages -----------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Write the generated parts of all pages below a folder again; returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m isonomy.studies.results PAGES RESULTS\n")
        return 2
    pages, folder = map(Path, arguments)
    made: dict[Path, str] = {}
    for page in sorted(pages.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        try:
            made[page] = filled(text, folder)
        except ConfigError as error:
            sys.stderr.write(f"{page}: {error}\n")
            return 2
        made |= {page.parent / file: svg for file, svg in pictures(text, folder).items()}
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
            sys.stdout.write(f"{path}\n")
    return 0
