"""`predict`: a model on new rows; an exported one, or a run's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output
from isonomy.cli.shell import note

if TYPE_CHECKING:
    from isonomy.deploy.model import Model
    from isonomy.deploy.predictor import Predictor


def add(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("predict")(predict)


def predict(
    folder: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An exported model, or the folder of a finished run."),
    ],
    table: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS", help="Rows to predict: CSV or Parquet; images: .npy or .npz."
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="Of a run: the client whose model predicts."),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--own", metavar="TABLE", help="Of a run, for a new client: its labelled examples."
        ),
    ] = None,
    preference: Annotated[
        str | None,
        typer.Option("--preference", metavar="A,B", help="Of a run: a point on the front."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "--to", metavar="FILE", help="A CSV or Parquet file; else printed."),
    ] = None,
    seal: Annotated[
        str | None,
        typer.Option("--seal", metavar="HEX", help="The seal that the exported model must have."),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the model import a class of your own.")
    ] = False,
) -> None:
    """Predict rows as they are: columns by name in any order, prepared as in training.

    A line for each row: the prediction, and the probability of each class. Columns that the model
    does not use, values it does not know and values that are missing are told on the error stream.

    Of a run, without --client, the rows belong to a client that was not in training. A method
    that gives every client a model of its own then needs some labelled examples, --own.

    Example: isonomy predict model rows.csv --out predictions.csv

    Example: isonomy predict runs/mine new-rows.csv --client hospital-3
    """
    from isonomy.deploy import card

    if card.is_model(folder):
        found = _exported(folder, seal, trust, client or own or preference).predict(table)
    else:
        found = _of_run(folder, client, own, preference, seal).predict_rows(table)
    for text in found.notes:
        note(text)
    if out is None:
        typer.echo(found.csv(), nl=False)
        return
    if out.suffix.lower() in (".parquet", ".pq"):
        output.save_bytes(out, found.parquet())
    else:
        output.save(out, found.csv())
    output.tell(f"predictions: {out}")


def _exported(folder: Path, seal: str | None, trust: bool, other: object) -> Model:
    from isonomy.deploy.model import load_model
    from isonomy.errors import ConfigError

    if other is not None:
        raise ConfigError(
            "an exported model is one model; --client, --own and --preference are for a run's "
            "folder, or for `isonomy export`."
        )
    return load_model(folder, seal=seal, trust=trust)


def _of_run(
    folder: Path, client: str | None, own: Path | None, preference: str | None, seal: str | None
) -> Predictor:
    from isonomy.cli.export import numbers
    from isonomy.deploy.predictor import predictor
    from isonomy.errors import ConfigError, RunError
    from isonomy.runs.folder import RunFolder

    if client is not None and own is not None:
        raise ConfigError("--client is of the run and --own of a new client; give one of them.")
    if seal is not None:
        raise ConfigError("--seal is for an exported model, and a run has none; leave it out.")
    if not RunFolder(folder).exists:
        raise RunError(
            f"'{folder}' is neither an exported model (it has no card.json) nor a run's folder (no "
            "config.toml); give one of them."
        )
    return predictor(folder, client, own, numbers(preference))
