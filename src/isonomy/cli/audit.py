"""`audit`: test a config's claim of differential privacy with canaries."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isonomy.cli.arguments import ConfigArgument, Overrides, Trust

FAILED = 3


def audit(
    config: ConfigArgument,
    overrides: Overrides = None,
    canaries: Annotated[
        int, typer.Option("--canaries", min=10, help="Number of canary clients that are added.")
    ] = 400,
    confidence: Annotated[
        float, typer.Option("--confidence", min=0.5, max=0.9999, help="Of the lower bound.")
    ] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = None,
) -> None:
    """Train once with canary clients, and compare what they reveal with the claimed epsilon.

    Each canary is on with probability 1/2. From how well what was released tells which are on
    follows a lower bound of epsilon. If it is above the epsilon that the run would claim, noise or
    clipping is missing somewhere: the audit fails, with exit code 3.

    Example: isonomy audit my.toml --canaries 1000
    """
    from isonomy import api
    from isonomy.studies import audit as study

    chosen = api.make_config(config, *(overrides or []))
    found = study.audit(chosen, canaries=canaries, confidence=confidence)
    typer.echo(json.dumps(found.plain()) if as_json else found.text())
    if not found.passed:
        raise typer.Exit(FAILED)
