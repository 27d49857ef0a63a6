"""`front`: print and draw the trade-offs that a run found, and choose one of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import AtMost, Force, MaxDP, read_limits

if TYPE_CHECKING:
    from isonomy.report.front_choice import Choice
    from isonomy.report.front_parts import Part
    from isonomy.report.tables import Cell, Table
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
    force: Force = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page; front.html in RUN by default."),
    ] = None,
) -> None:
    """Print and draw the fronts of a run: one per client, and the joint front of all clients.

    A preference has one share per objective; a larger share of an objective means less error or
    less unfairness in it. Points are offered that no other point and no constant prediction
    dominates on validation examples. With a limit, the table also shows for each front the
    preference with the least error that is within the limit with 95 % confidence on validation
    examples, and whether the limit held on the evaluated ones.

    Example: isonomy front runs/mine

    Example: isonomy front runs/mine --max-dp 0.05 --client hospital-3
    """
    from isonomy import api
    from isonomy.errors import RunError
    from isonomy.report import front_parts, page

    record = api.load_one(folder)
    if not record.front:
        raise RunError(
            f"'{folder}' has no fronts, because the run is unfinished or front.rays was 0; resume "
            "it, or run it again with front.rays above 0."
        )
    limits = read_limits(max_dp, at_most)
    names = _client_names(record)
    parts = front_parts.parts(record.front)
    wanted = _find_client(client, names, parts)
    output.print_table(_table(record, names, limits, force=force))
    heads = front_parts.coordinates(record.front)
    typer.echo(_drawing(front_parts.best(parts[wanted]), _client_name(names, wanted), heads))
    if "preference.0" in record.front:
        path = out or folder / "front.html"
        page.write_front([record, *_reference(folder)], path, f"Fronts: {record.label}", limits)
        output.print_status(f"front: {path}")


def _reference(folder: Path) -> list[Record]:
    """FedAvg's run of the same comparison and seed, to compare with; none if there is none."""
    from isonomy import api

    other = folder.resolve().parent.parent / "fedavg" / folder.resolve().name
    if other == folder.resolve() or not (other / "summary.json").is_file():
        return []
    return [record] if (record := api.load_one(other)).front else []


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


def _table(
    record: Record, names: dict[int, str], limits: dict[str, float], *, force: bool
) -> Table:
    """One row per front: hypervolume, points, both ends, and the choice within the limits."""
    from isonomy.errors import RunError
    from isonomy.metrics.front import volume
    from isonomy.report.front_choice import choose
    from isonomy.report.front_parts import best, coordinates, offered, parts, splits
    from isonomy.report.tables import Cell, Column, Table

    heads = coordinates(record.front)
    learnt = "preference.0" in record.front
    columns = [
        Column("client", "front of", text=True),
        Column("hv", "hypervolume"),
        Column("points", "points on it", digits=0),
    ]
    columns += [Column(f"{name}.least", f"least {name}") for name in heads]
    if learnt:
        columns += [Column("offered", "offered", digits=0)]
    if limits:
        columns += [Column("preference", "chosen preference", text=True)]
        columns += [Column(name, name) for name in heads]
        columns += [Column("held", "limit held", text=True)]
    rows, notes = [], []
    measured = splits(record.front)
    validation = parts(record.front, "validation") if "validation" in measured else {}
    for client, part in sorted(parts(record.front).items()):
        front, who = best(part), _client_name(names, client)
        cells = [Cell(who), Cell(volume(part.points)), Cell(float(len(front.points)))]
        least = front.points.min(0) if len(front.points) else [math.nan] * len(heads)
        cells += [Cell(float(v)) for v in least]
        if learnt:
            there = validation.get(client)
            known = there is not None and bool(there.rows)
            cells += [Cell(float(len(offered(there))) if known and there else math.nan)]
        if limits:
            try:
                found = choose(record.front, client, who=who, limits=limits, force=force)
            except RunError as error:
                if not learnt or len(validation) == 0:
                    raise
                found = None
                notes.append(f"{who}: {error}")
            cells += _chosen_cells(found, len(heads))
            if found is not None:
                notes += [f"{who}: {bound.text()}" for bound in found.bounds]
        rows.append(tuple(cells))
    if learnt and validation:
        notes.insert(
            0,
            "Offered: the preferences that no other one and no constant prediction dominates on "
            "validation examples, and along which more share of an objective means less of it.",
        )
    return Table(f"{record.label}, seed {record.seed}", tuple(columns), tuple(rows), tuple(notes))


def _chosen_cells(found: Choice | None, count: int) -> list[Cell]:
    """The chosen preference, its point on the evaluated examples, and whether the limits held."""
    from isonomy.report.tables import Cell

    if found is None:
        return [Cell("none within the limit"), *[Cell(math.nan)] * count, Cell("")]
    held = all(bound.held for bound in found.bounds)
    return [
        Cell(",".join(f"{v:.4g}" for v in found.preference)),
        *(Cell(v) for v in found.measured),
        Cell("yes" if held else "NO"),
    ]


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
