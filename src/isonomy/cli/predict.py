"""`predict`: a run's model on new rows, for one of its clients or for a new one."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output


def add(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("predict")(predict)


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Rows to predict: CSV or Parquet, no label.")
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", metavar="NAME", help="The client whose model predicts."),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--own", metavar="TABLE", help="For a new client: labelled examples of its own."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="A CSV file; printed if left out.")
    ] = None,
) -> None:
    """Predict a table's rows with the model of a run that was made from tables.

    Without --client the rows belong to a client that was not in training. A method that gives
    every client a model of its own then needs some labelled examples, --own.

    Example: isonomy predict runs/mine new-rows.csv --client hospital-3 --to predictions.csv
    """
    from isonomy.errors import ConfigError

    if client is not None and own is not None:
        raise ConfigError("--client is of the run and --own of a new client; give one of them.")
    from isonomy.experiments import predictor as predictors

    made = predictors.predictor(folder, client, own)
    x, _ = predictors.features(made.preprocessing, table)
    predicted, shares = made.predict(x).tolist(), made.probabilities(x)
    head, rows = ["prediction"], [[made.labels[p] if made.labels else p] for p in predicted]
    if shares is not None:
        head += [f"p({label})" for label in made.labels]
        rows = [
            [*row, *(f"{p:.6g}" for p in each)]
            for row, each in zip(rows, shares.tolist(), strict=True)
        ]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    if to is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        output.save(to, text.getvalue())
        output.tell(f"predictions: {to}")
