"""`demo-federation`: an organiser and three participants on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli.arguments import Overwrite


def demo_federation(
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="The folder to write to.")
    ] = Path("runs/demo-federation"),
    overwrite: Overwrite = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of training.")] = 3,
    algorithm: Annotated[str, typer.Option("--algorithm", help="The algorithm.")] = "fedavg",
) -> None:
    """Run an organiser and three participants as processes on this machine, with TLS and keys.

    Example: isonomy demo-federation
    """
    from isonomy.federation import demo
    from isonomy.federation.flower import processes

    processes.need_local_sockets("isonomy demo-federation")
    processes.need_flower()
    demo.run(to, rounds=rounds, algorithm=algorithm, overwrite=overwrite, say=typer.echo)
