"""`check`: does an algorithm keep the contract that runs rely on?"""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli.arguments import Trust


def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ALGORITHM",
            help="A name, or the import path of your own, package.module:Class.",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Its options (algorithm.mu=0.1) and other keys of a config.",
            show_default=False,
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    """Check an algorithm on small generated data.

    It is trained for a few rounds, again, on another engine, with an interruption, and with some of
    the clients. Exit code 1 if a check fails.

    Example: isonomy check fedprox algorithm.mu=1

    Example: isonomy check mypackage.methods:Mine --trust mypackage
    """
    from isonomy.config.overrides import merge, parse_override
    from isonomy.studies.check import check as study

    given: dict[str, object] = {"algorithm": {"name": name}}
    for text in overrides or []:
        given = merge(given, parse_override(text))
    algorithm = given.pop("algorithm")
    assert isinstance(algorithm, dict)
    found = study(algorithm, given)
    for one in found:
        typer.echo(f"{'failed' if one.problem else 'ok':6}  {one.name:8}  {one.meaning}")
        if one.problem:
            typer.echo(f"        {one.problem}")
    bad = sum(bool(one.problem) for one in found)
    if bad:
        typer.echo(f"{name}: {bad} of {len(found)} checks failed.")
        raise typer.Exit(1)
    typer.echo(f"{name}: all {len(found)} checks passed.")
