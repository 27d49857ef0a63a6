"""`check`: the contract of algorithms, run on one of your own."""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli.arguments import Trust, split_names


def check(
    algorithm: Annotated[
        str,
        typer.Argument(metavar="ALGORITHM", help="Your own, as 'package.module:Class', or a name."),
    ],
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Options to check it with, e.g. mu=0.5.", show_default=False
        ),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(
            "--engines",
            metavar="NAME,...",
            help="Engines to check on: loop, batched, flower (all that are installed if unset).",
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    """Check that an algorithm keeps the contract that every engine relies on.

    Prints one line per clause and engine: pass, or what is wrong. A small federation is trained for
    a few rounds each time; clients differ in size, drop out, answer in another order, and their
    messages travel as bytes. The exit code is 0 only if all clauses hold.

    Example: isonomy check mypackage.methods:Mine mu=0.5 --trust mypackage
    """
    from isonomy import algorithms
    from isonomy.config.overrides import parse_override
    from isonomy.contract import suite
    from isonomy.contract.recording import Record

    given: dict[str, object] = {}
    for text in options or []:
        given |= parse_override(text)
    made = algorithms.make(algorithm, given)
    names = suite.chosen_engines(split_names(engines))
    typer.echo(f"{made} on {', '.join(names)}")
    records: list[Record] = []
    broken = number = 0
    for result in suite.results(made, names, records):
        typer.echo(result.line)
        number += 1
        broken += not result.passed
    for note in suite.notes(made, records):
        typer.echo(f"note  {note}")
    if broken:
        typer.echo(f"{broken} of {number} clauses are broken.")
        raise typer.Exit(1)
    typer.echo(f"All {number} clauses hold.")
