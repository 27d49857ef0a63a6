"""`predict`: predictions of an exported model, or of a run's model, for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isonomy.cli import output
from isonomy.cli.arguments import read_preference
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
    preference: Annotated[
        str | None,
        typer.Option("--preference", metavar="A,B", help="For a run: a point on the front."),
    ] = None,
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
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the model to import your own Python class.")
    ] = False,
) -> None:
    """Predict raw rows: columns are matched by name and prepared as in training.

    The output has one line per row: the prediction, and the probability of each class. Columns
    that the model does not use, unknown values and missing values are reported on standard error.

    For a run without --client, the rows belong to a client that was not in training. A method
    that trains one model per client then needs labelled examples of that client (--own). A method
    that found clusters of clients warns if this client fits none of them.

    Example: isonomy predict model rows.csv --out predictions.csv

    Example: isonomy predict runs/mine new-rows.csv --client hospital-3
    """
    from isonomy.deploy import card

    if card.is_model(folder):
        found = _exported_model(folder, seal, trust, client or own or preference).predict(table)
    else:
        model = _run_model(folder, client, own, preference, seal, steps)
        for text in model.warnings:
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


def _exported_model(folder: Path, seal: str | None, trust: bool, run_option: object) -> Model:
    from isonomy import api
    from isonomy.errors import ConfigError

    if run_option is not None:
        raise ConfigError(
            "an exported model is a single model; use --client, --own and --preference with the "
            "folder of a run, or with `isonomy export`."
        )
    return api.load_model(folder, seal=seal, trust=trust)


def _run_model(
    folder: Path,
    client: str | None,
    own: Path | None,
    preference: str | None,
    seal: str | None,
    steps: int,
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
    chosen = read_preference(preference)
    return api.predictor(folder, client, examples=own, preference=chosen, steps=steps)
