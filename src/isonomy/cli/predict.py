"""`predict`: predictions of an exported model, or of a run's model, for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from isonomy.cli.shell import note

if TYPE_CHECKING:
    from isonomy.deploy.model import Model
    from isonomy.deploy.predictor import Predictor


def predict(
    folder: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An exported model, or the folder of a finished run."),
    ],
    table: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS", help="The rows to predict: CSV or Parquet; images: .npy or .npz."
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="For a run: the client whose model to use."),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--own", metavar="TABLE", help="For a run and a new client: its labelled examples."
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=1, metavar="N", help="For a new client: repeat its first step N times."
        ),
    ] = 1,
    preference: Preference = None,
    max_dp: MaxDP = None,
    at_most: AtMost = None,
    force: Force = False,
    constant: Constant = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "--to", metavar="FILE", help="A CSV or Parquet file; printed by default."
        ),
    ] = None,
    seal: Annotated[
        str | None,
        typer.Option("--seal", metavar="HEX", help="The seal that the exported model must have."),
    ] = None,
    trust: Trust = None,
) -> None:
    """Predict raw rows: columns are matched by name and prepared as in training.

    The output has one line per row: the prediction, and the probability of each class. Columns
    that the model does not use, unknown values and missing values are reported on standard error.

    For a run without --client, the rows belong to a client that was not in training. A method
    that trains one model per client then needs labelled examples of that client (--own). A method
    that found clusters of clients warns if this client fits none of them. For a method that learns
    a front, --preference, --max-dp and --at-most choose the model as `isonomy export` does, and why
    it was chosen is reported on standard error.

    Example: isonomy predict model rows.csv --out predictions.csv

    Example: isonomy predict runs/mine new-rows.csv --client hospital-3
    """
    from isonomy.deploy import card

    if card.is_model(folder):
        options = (client, own, preference, max_dp, at_most, force or None, constant or None)
        given = any(option is not None for option in options)
        found = _exported_model(folder, seal, of_run=given).predict(table)
    else:
        model = _run_model(
            folder,
            client,
            own,
            seal,
            preference=read_preference(preference),
            limits=read_limits(max_dp, at_most),
            force=force,
            constant=constant,
            steps=steps,
        )
        for text in (*model.model.notes, *model.warnings):
            note(text)
        found = model.predict_rows(table)
    for text in found.notes:
        note(text)
    if out is None:
        typer.echo(found.csv(), nl=False)
        return
    if out.suffix.lower() in (".parquet", ".pq"):
        output.write_bytes(out, found.parquet())
    else:
        output.write_text(out, found.csv())
    output.print_status(f"predictions: {out}")


def _exported_model(folder: Path, seal: str | None, *, of_run: bool) -> Model:
    from isonomy import api
    from isonomy.errors import ConfigError

    if of_run:
        raise ConfigError(
            "an exported model is a single model; use --client, --own and the options that choose "
            "on a front with the folder of a run, or with `isonomy export`."
        )
    return api.load_model(folder, seal=seal)


def _run_model(
    folder: Path, client: str | None, own: Path | None, seal: str | None, **choice: Any
) -> Predictor:
    from isonomy import api
    from isonomy.errors import ConfigError, RunError
    from isonomy.runs.folder import RunFolder

    if client is not None and own is not None:
        raise ConfigError(
            "--client names a client of the run and --own describes a new client; give one of them."
        )
    if seal is not None:
        raise ConfigError("--seal is for exported models, and a run has no seal; remove it.")
    if not RunFolder(folder).exists:
        raise RunError(
            f"'{folder}' is neither an exported model (it has no card.json) nor the folder of a "
            "run (it has no config.toml); give one of them."
        )
    return api.predictor(folder, client, examples=own, **choice)
