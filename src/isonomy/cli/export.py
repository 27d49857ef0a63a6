"""`export`: a run's model as a folder that needs neither the run nor its data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import fronts, output

if TYPE_CHECKING:
    from isonomy.deploy.export import Exported


def add(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export")(export)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Where the model goes; a new folder.")
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Whose model; by name or number."),
    ] = None,
    preference: Annotated[
        str | None,
        typer.Option(
            "--preference", metavar="A,B", help="A point on the front, a share for each objective."
        ),
    ] = None,
    max_dp: Annotated[
        float | None,
        typer.Option("--max-dp", metavar="GAP", help="Choose the point with at most this gap."),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option("--at-most", metavar="NAME=VALUE", help="The same for any coordinate."),
    ] = None,
    pt2: Annotated[
        bool, typer.Option("--pt2", help="Also write model.pt2, for torch.export.load.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx; needs isonomy\\[onnx].")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is there.")
    ] = False,
) -> None:
    """Write a run's model to a folder: weights as safetensors, and a card that says what it is.

    A method that gives every client a model of its own needs --client. A method that learns a
    front exports the point of --preference, or of least error within --max-dp, else the run's own.

    Example: isonomy export runs/mine --to model

    Example: isonomy export runs/front --preference 0.7,0.3 --client hospital-3 --to model

    Example: isonomy export runs/front --max-dp 0.05 --to model --onnx
    """
    from isonomy.deploy import export as exports

    also = [name for name, wanted in (("pt2", pt2), ("onnx", onnx)) if wanted]
    made = exports.export(
        folder,
        to,
        client=client,
        preference=numbers(preference),
        limits=fronts.limits(max_dp, at_most),
        also=also,
        overwrite=overwrite,
    )
    _tell(made)


def numbers(text: str | None) -> list[float]:
    """The numbers of an option such as 0.7,0.3."""
    from isonomy.errors import ConfigError

    try:
        return [float(part) for part in (text or "").split(",") if text]
    except ValueError:
        raise ConfigError(
            f"--preference {text}: give numbers with commas between, such as 0.7,0.3."
        ) from None


def _tell(made: Exported) -> None:
    """What was written, and how good it is."""
    from isonomy.report.tables import Cell, Column, Table

    card = made.card
    origin, shape = card.origin, card.architecture
    whose = "all clients" if origin.client is None else origin.client
    how = f"a mixture of {len(shape.shares)} × {shape.name}" if shape.shares else shape.name
    title = f"{origin.algorithm}, seed {origin.seed}: {how}, {shape.parameters:,} parameters"
    columns = [Column("metric", "metric", text=True)]
    for one in card.measured:
        who = one.clients[0] if isinstance(one.clients, tuple) else f"{one.clients} clients"
        columns.append(Column(who, f"{who} ({one.rows:,} {one.split} rows)"))
    found = dict.fromkeys(name for one in card.measured for name in one.metrics)
    names = [name for name in found if _shown(name)]
    none = float("nan")
    rows = []
    for name in names:
        values = [one.metrics.get(name) for one in card.measured]
        rows.append((Cell(name), *(Cell(none if v is None else v) for v in values)))
    notes = [f"The model of {whose}."]
    if origin.preference is not None:
        said = ", ".join(f"{name} {value:.3g}" for name, value in origin.preference.items())
        notes.append(f"Preference: {said}.")
    notes += [f"Note: {note}" for note in card.notes]
    output.put(Table(title, tuple(columns), tuple(rows), tuple(notes)))
    output.tell(f"model: {made.path} ({', '.join(('card.json', *card.files))})")
    output.tell(f"seal: {card.seal}")


def _shown(name: str) -> bool:
    gaps = ("demographic_parity", "equal_opportunity", "equalised_odds")
    return name in ("error", "loss") or name.endswith(gaps)
