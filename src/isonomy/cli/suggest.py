"""`suggest`: a value of lam for FMTL or of zeta for PFFL, measured on the clients of a config."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isonomy.cli.arguments import ConfigArgument, Overrides, Trust


def suggest(
    config: ConfigArgument,
    overrides: Overrides = None,
    option: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="lam|zeta",
            help="The option: lam of fmtl, or zeta of pffl. By default that of the algorithm.",
        ),
    ] = None,
    malicious: Annotated[str | None, typer.Option("--malicious", hidden=True)] = None,
    spread: Annotated[str | None, typer.Option("--spread", hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    trust: Trust = None,
) -> None:
    """Suggest lam for FMTL, or zeta for PFFL, from measurements of all clients.

    lam is the value of the least loss on held-out examples, among the one that follows from the
    variance within and between clients (a Gaussian model), a few powers of ten, and the global
    model. Without validation examples, a fifth of the training examples is held out. zeta has a
    range: from the least worst-group loss that the model can have, which is proved if it is linear,
    to that of the model without constraints.

    Example: isonomy suggest quickstart rounds=20 --for lam
    """
    from isonomy import api, api_search
    from isonomy.errors import ConfigError

    if malicious is not None or spread is not None:
        from isonomy.studies.suggest import NO_ATTACK

        raise ConfigError(f"--malicious and --spread were removed: {NO_ATTACK}")
    found = api_search.suggest(api.make_config(config, *(overrides or [])), option)
    typer.echo(json.dumps(found.plain()) if as_json else found.text())
