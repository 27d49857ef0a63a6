"""`export`: a run's model as a folder that works without the run and its data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from isonomy.cli import output
from isonomy.cli.arguments import (
    AtMost,
    Constant,
    Force,
    MaxDP,
    Preference,
    Trust,
    read_limits,
    read_preference,
)

if TYPE_CHECKING:
    from isonomy.deploy.export import Exported


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="The new folder of the model.")
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="The client, by name or number."),
    ] = None,
    preference: Preference = None,
    max_dp: MaxDP = None,
    at_most: AtMost = None,
    force: Force = False,
    constant: Constant = False,
    pt2: Annotated[
        bool, typer.Option("--pt2", help="Also write model.pt2, for torch.export.load.")
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx; needs isonomy\\[onnx].")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing model.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Write a run's model to a folder: weights as safetensors, and a card that describes it.

    A method that trains one model per client needs --client. For a method that learns a front,
    the model is the point of --preference, the point with the least error within --max-dp, or the
    point with the least error. It is chosen on validation examples, among the points that no other
    point and no constant prediction dominates; a limit is met with a margin that follows from the
    number of validation examples in each group.

    Example: isonomy export runs/mine --to model

    Example: isonomy export runs/front --preference 0.7,0.3 --client hospital-3 --to model

    Example: isonomy export runs/front --max-dp 0.05 --to model --onnx
    """
    from isonomy import api

    also: list[Literal["pt2", "onnx"]] = []
    if pt2:
        also.append("pt2")
    if onnx:
        also.append("onnx")
    exported = api.export(
        folder,
        to,
        client=client,
        preference=read_preference(preference),
        limits=read_limits(max_dp, at_most),
        force=force,
        constant=constant,
        also=also,
        overwrite=overwrite,
    )
    _print(exported)


def _print(exported: Exported) -> None:
    """Print what was written, and how well the model does."""
    from isonomy.report.tables import Cell, Column, Table

    card = exported.card
    origin, shape = card.origin, card.architecture
    network = f"a mixture of {len(shape.shares)} × {shape.name}" if shape.shares else shape.name
    title = f"{origin.algorithm}, seed {origin.seed}: {network}, {shape.parameters:,} parameters"
    columns = [Column("metric", "metric", text=True)]
    for one in card.measured:
        who = one.clients[0] if isinstance(one.clients, tuple) else f"{one.clients} clients"
        columns.append(Column(who, f"{who} ({one.rows:,} {one.split} rows)"))
    found = dict.fromkeys(name for one in card.measured for name in one.metrics)
    rows = []
    bounded = {bound.metric for bound in card.bounds}
    for name in (name for name in found if name in bounded or _is_shown(name)):
        values = [one.metrics.get(name) for one in card.measured]
        rows.append((Cell(name), *(Cell(float("nan") if v is None else v) for v in values)))
    notes = [f"The model of {'all clients' if origin.client is None else origin.client}."]
    if origin.preference is not None:
        shares = ", ".join(f"{name} {value:.3g}" for name, value in origin.preference.items())
        notes.append(f"Preference: {shares}.")
    if origin.constant is not None:
        notes.append(f"The prediction is constant: '{origin.constant}' for every row.")
    notes += origin.choice
    notes += [bound.text for bound in card.bounds]
    notes += [f"Verdict of the run: {origin.verdict}"] if origin.verdict else []
    notes += [f"Note: {note}" for note in card.notes]
    output.print_table(Table(title, tuple(columns), tuple(rows), tuple(notes)))
    output.print_status(f"model: {exported.path} ({', '.join(('card.json', *card.files))})")
    output.print_status(f"seal: {card.seal}")


def _is_shown(name: str) -> bool:
    gaps = ("demographic_parity", "equal_opportunity", "equalised_odds")
    return name in ("error", "loss") or name.endswith(gaps)
