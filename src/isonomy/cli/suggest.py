"""`suggest`: a value of lam for FMTL, from the differences between the clients of a config."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isonomy.cli.arguments import ConfigArgument, Overrides, Trust


def suggest(
    config: ConfigArgument,
    overrides: Overrides = None,
    malicious: Annotated[
        float,
        typer.Option("--malicious", metavar="SHARE", help="The expected share of attackers."),
    ] = 0.0,
    spread: Annotated[
        float,
        typer.Option("--spread", metavar="TIMES", help="How many times further out attackers are."),
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = None,
) -> None:
    """Suggest lam for FMTL from the variance within and between clients (a Gaussian model).

    It first trains the config's model by federated averaging, so give a config that trains well.

    Example: isonomy suggest quickstart rounds=20
    """
    from dataclasses import asdict

    from isonomy import api

    found = api.suggest(
        api.make_config(config, *(overrides or [])), malicious=malicious, spread=spread
    )
    if as_json:
        values = {k: v if v != float("inf") else "inf" for k, v in asdict(found).items()}
        typer.echo(json.dumps(values))
    else:
        typer.echo(found.text())
