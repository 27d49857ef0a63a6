"""`front`: the trade-offs that a run found, printed and drawn, and the choice of one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output

if TYPE_CHECKING:
    from isonomy.report.front_choice import Part
    from isonomy.report.tables import Table
    from isonomy.runs.record import Record

WIDE, HIGH = 60, 16  # of a drawing in text


def add(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("front")(front)


def front(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Draw this client's; else that of all."),
    ] = None,
    max_dp: Annotated[
        float | None,
        typer.Option("--max-dp", metavar="GAP", help="Choose a preference with at most this gap."),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option("--at-most", metavar="NAME=VALUE", help="The same for any coordinate."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page; front.html in RUN if left out."),
    ] = None,
) -> None:
    """Print and draw the fronts of a run: each client's, and that of all together.

    With a limit, the preference of least error that keeps to it is told for each of them, chosen
    on validation examples, with what it does on the evaluated ones.

    Example: isonomy front runs/mine

    Example: isonomy front runs/mine --max-dp 0.05 --client hospital-3
    """
    from isonomy.errors import RunError
    from isonomy.report import front_choice, page
    from isonomy.runs.folder import RunFolder
    from isonomy.runs.training import record

    made = record(RunFolder(folder))
    if not made.front:
        raise RunError(f"'{folder}' has no fronts; it is unfinished, or front.rays was 0.")
    bounds = limits(max_dp, at_most)
    names = _names(made)
    parts = front_choice.parts(made.front)
    wanted = _wanted(client, names, parts)
    output.put(_table(made, names, bounds))
    typer.echo(_drawing(front_choice.best(parts[wanted]), _who(names, wanted), _heads(made)))
    if "preference.0" in made.front:
        path = out or folder / "front.html"
        page.write_front([made], path, f"Fronts: {made.label}")
        output.tell(f"front: {path}")


def limits(max_dp: float | None, at_most: list[str] | None) -> dict[str, float]:
    """The bounds that the options give, by coordinate."""
    from isonomy.errors import ConfigError

    found = {} if max_dp is None else {"dp": max_dp}
    for text in at_most or []:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"--at-most {text}: write NAME=VALUE, such as eo.sex=0.05.") from None
    return found


def _names(made: Record) -> dict[int, str]:
    from isonomy.report import runs

    at = runs.last_clients(made)
    return {int(k): runs.client_name(at, i) for i, k in enumerate(at.get("client", []))}


def _who(names: dict[int, str], client: int) -> str:
    return "all together" if client < 0 else names.get(client, f"client {client}")


def _wanted(client: str | None, names: dict[int, str], parts: dict[int, Part]) -> int:
    from isonomy.errors import ConfigError, unknown

    if client is None:
        return min(parts)  # that of all together, where there is one
    found = [k for k, name in names.items() if client in (name, str(k))]
    if not found:
        raise ConfigError(unknown("client", client, list(names.values())))
    return found[0]


def _heads(made: Record) -> tuple[str, ...]:
    from isonomy.report.front_choice import coordinates

    return coordinates(made.front)


def _table(made: Record, names: dict[int, str], limits: dict[str, float]) -> Table:
    from isonomy.metrics.front import volume
    from isonomy.report.front_choice import best, choose, parts
    from isonomy.report.tables import Cell, Column
    from isonomy.report.tables import Table as Made

    heads = _heads(made)
    columns = [
        Column("client", "front of", text=True),
        Column("hv", "hypervolume"),
        Column("points", "points on it", digits=0),
    ]
    columns += [Column(f"{name}.least", f"least {name}") for name in heads]
    if limits:
        columns += [Column("preference", "preference chosen", text=True)]
        columns += [Column(name, name) for name in heads]
    rows = []
    for client, part in sorted(parts(made.front).items()):
        front = best(part)
        cells = [
            Cell(_who(names, client)),
            Cell(volume(part.points)),
            Cell(float(len(front.points))),
        ]
        least = front.points.min(0) if len(front.points) else [math.nan] * len(heads)
        cells += [Cell(float(v)) for v in least]
        if limits:
            found = choose(made.front, limits, client)
            lam = "none keeps to it" if found is None else _said(found.preference)
            point = [math.nan] * len(heads) if found is None else found.measured
            cells += [Cell(lam), *(Cell(v) for v in point)]
        rows.append(tuple(cells))
    kept = " and ".join(f"{name} at most {most:g}" for name, most in limits.items())
    notes = [f"Chosen: the least error with {kept} on validation examples; the point is that on "
             "the evaluated ones."] if limits else []  # fmt: skip
    return Made(f"{made.label}, seed {made.seed}", tuple(columns), tuple(rows), tuple(notes))


def _said(preference: tuple[float, ...]) -> str:
    return ",".join(f"{v:.4g}" for v in preference)


def _drawing(front: Part, who: str, heads: tuple[str, ...]) -> str:
    """A front's first two coordinates as letters on a grid."""
    at = front.points[:, :2]
    if not len(at):
        return f"No point of {who} is defined."
    low, high = at.min(0), at.max(0)
    span = [h - b if h > b else 1.0 for b, h in zip(low, high, strict=True)]
    grid = [[" "] * WIDE for _ in range(HIGH)]
    for x, y in at:
        column = round((x - low[0]) / span[0] * (WIDE - 1))
        row = round((high[1] - y) / span[1] * (HIGH - 1))
        grid[row][column] = "o"
    side = [f"{high[1]:.3f}", *[""] * (HIGH - 2), f"{low[1]:.3f}"]
    lines = [f"{text:>7} |{''.join(row).rstrip()}" for text, row in zip(side, grid, strict=True)]
    ends = f"{low[0]:.3f}".ljust(WIDE - 5) + f"{high[0]:.3f}"
    below = f"{'':7} +{'-' * WIDE}\n{'':9}{ends}"
    return f"\n{heads[1]} against {heads[0]}, {who}\n" + "\n".join(lines) + f"\n{below}"
