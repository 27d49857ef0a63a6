"""`front`: print and draw the trade-offs that a run found, and choose one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import AtMost, MaxDP, read_limits

if TYPE_CHECKING:
    from isonomy.report.front_choice import Part
    from isonomy.report.tables import Table
    from isonomy.runs.record import Record

WIDTH, HEIGHT = 60, 16  # of the drawing, in characters


def front(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Draw this client's front; else the joint."),
    ] = None,
    max_dp: MaxDP = None,
    at_most: AtMost = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page; front.html in RUN by default."),
    ] = None,
) -> None:
    """Print and draw the fronts of a run: one per client, and the joint front of all clients.

    With a limit, the table also shows for each front the preference with the least error within
    the limit. It is chosen on validation examples; its point is measured on the evaluated ones.

    Example: isonomy front runs/mine

    Example: isonomy front runs/mine --max-dp 0.05 --client hospital-3
    """
    from isonomy import api
    from isonomy.errors import RunError
    from isonomy.report import front_choice, page

    record = api.load_one(folder)
    if not record.front:
        raise RunError(
            f"'{folder}' has no fronts, because the run is unfinished or front.rays was 0; resume "
            "it, or run it again with front.rays above 0."
        )
    limits = read_limits(max_dp, at_most)
    names = _client_names(record)
    parts = front_choice.parts(record.front)
    wanted = _find_client(client, names, parts)
    output.print_table(_table(record, names, limits))
    heads = front_choice.coordinates(record.front)
    typer.echo(_drawing(front_choice.best(parts[wanted]), _client_name(names, wanted), heads))
    if "preference.0" in record.front:
        path = out or folder / "front.html"
        page.write_front([record], path, f"Fronts: {record.label}")
        output.print_status(f"front: {path}")


def _client_names(record: Record) -> dict[int, str]:
    """The name of each client of a run, by number."""
    from isonomy.report import runs

    at = runs.last_clients(record)
    return {int(k): runs.client_name(at, i) for i, k in enumerate(at.get("client", []))}


def _client_name(names: dict[int, str], client: int) -> str:
    return "all clients" if client < 0 else names.get(client, f"client {client}")


def _find_client(client: str | None, names: dict[int, str], parts: dict[int, Part]) -> int:
    """The number of a client given by name or number; the joint front's, if there is one."""
    from isonomy.errors import ConfigError, unknown

    if client is None:
        return min(parts)
    found = [k for k, name in names.items() if client in (name, str(k))]
    if not found:
        raise ConfigError(unknown("client", client, list(names.values())))
    return found[0]


def _table(record: Record, names: dict[int, str], limits: dict[str, float]) -> Table:
    """One row per front: hypervolume, points, least values, and the choice within the limits."""
    from isonomy.metrics.front import volume
    from isonomy.report.front_choice import best, choose, coordinates, parts
    from isonomy.report.tables import Cell, Column, Table

    heads = coordinates(record.front)
    columns = [
        Column("client", "front of", text=True),
        Column("hv", "hypervolume"),
        Column("points", "points on it", digits=0),
    ]
    columns += [Column(f"{name}.least", f"least {name}") for name in heads]
    if limits:
        columns += [Column("preference", "chosen preference", text=True)]
        columns += [Column(name, name) for name in heads]
    rows = []
    for client, part in sorted(parts(record.front).items()):
        front = best(part)
        cells = [
            Cell(_client_name(names, client)),
            Cell(volume(part.points)),
            Cell(float(len(front.points))),
        ]
        least = front.points.min(0) if len(front.points) else [math.nan] * len(heads)
        cells += [Cell(float(v)) for v in least]
        if limits:
            found = choose(record.front, limits, client)
            chosen = "none within the limit"
            point: Sequence[float] = [math.nan] * len(heads)
            if found is not None:
                chosen = ",".join(f"{v:.4g}" for v in found.preference)
                point = found.measured
            cells += [Cell(chosen), *(Cell(v) for v in point)]
        rows.append(tuple(cells))
    notes = []
    if limits:
        stated = " and ".join(f"{name} at most {most:g}" for name, most in limits.items())
        notes.append(
            f"Chosen: the least error with {stated} on validation examples; the point is measured "
            "on the evaluated examples."
        )
    return Table(f"{record.label}, seed {record.seed}", tuple(columns), tuple(rows), tuple(notes))


def _drawing(front: Part, who: str, heads: tuple[str, ...]) -> str:
    """The first two coordinates of a front, drawn with characters."""
    at = front.points[:, :2]
    if not len(at):
        return f"The front of {who} has no defined points."
    low, high = at.min(0), at.max(0)
    span = [h - b if h > b else 1.0 for b, h in zip(low, high, strict=True)]
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for x, y in at:
        column = round((x - low[0]) / span[0] * (WIDTH - 1))
        row = round((high[1] - y) / span[1] * (HEIGHT - 1))
        grid[row][column] = "o"
    side = [f"{high[1]:.3f}", *[""] * (HEIGHT - 2), f"{low[1]:.3f}"]
    lines = [f"{text:>7} |{''.join(row).rstrip()}" for text, row in zip(side, grid, strict=True)]
    ends = f"{low[0]:.3f}".ljust(WIDTH - 5) + f"{high[0]:.3f}"
    below = f"{'':7} +{'-' * WIDTH}\n{'':9}{ends}"
    return f"\n{heads[1]} against {heads[0]}, {who}\n" + "\n".join(lines) + f"\n{below}"
