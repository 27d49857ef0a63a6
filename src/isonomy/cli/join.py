"""`join`: take part in a federation with a table that stays on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.arguments import Insecure, Trust


def join(
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="The address of the organiser.")
    ],
    data: Annotated[
        Path, typer.Option("--data", metavar="TABLE", help="Your table, CSV or Parquet.")
    ],
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Your private key.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="The federation's certificate.")
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option("--home", metavar="FOLDER", help="Your files; TABLE.federation by default."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Agree without a question.")] = False,
    trust: Trust = None,
    rows: Annotated[
        int, typer.Option("--rows", help="Training rows of a reply that you insist on.", min=1)
    ] = 32,
    cell: Annotated[
        int, typer.Option("--cell", help="Rows of a counted cell that you insist on.", min=1)
    ] = 10,
    exact: Annotated[
        bool, typer.Option("--exact", help="Allow replies that are not rounded to one row.")
    ] = False,
    share_rows: Annotated[
        bool, typer.Option("--share-rows", help="Allow methods that send values of single rows.")
    ] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Refuse federations without secure aggregation.")
    ] = False,
    insecure: Insecure = False,
    name: Annotated[str, typer.Option("--name", help="Your name, with --insecure.")] = "",
) -> None:
    """Take part in a federation with a table that stays on this machine.

    Example: isonomy join --server host:9092 --data my.parquet --key north --ca ca.crt
    """
    import torch

    from isonomy.federation import light_memory

    light_memory.release()

    from isonomy.errors import ConfigError, DataError
    from isonomy.federation.charter import Charter
    from isonomy.federation.consent import consent_text
    from isonomy.federation.flower import codec, connection, processes
    from isonomy.federation.participant import Participant

    processes.need_flower()
    torch.set_num_threads(1)
    if insecure and not name:
        raise ConfigError("--insecure needs your name, because there are no keys: --name north.")
    if not insecure:
        for path, what in ((key, "--key"), (ca, "--ca")):
            if path is None or not path.is_file():
                raise ConfigError(
                    f"{what} {path or 'is missing'}: give the file that belongs to this federation "
                    "(or --insecure, if all run on one machine)."
                )
    if not data.is_file():
        raise DataError(f"there is no table '{data}'; give a CSV or Parquet file.")

    def decide(charter: Charter) -> bool:
        typer.echo(f"The organiser at {server} invites you to a federation.")
        for text in consent_text(charter, participant.rows):
            typer.echo(text)
        if yes:
            typer.echo("You agreed in advance (--yes).")
            return True
        return typer.confirm("Take part?")

    own = home or data.with_name(f"{data.name}.federation")
    participant = Participant(
        data,
        own,
        decide=decide,
        name=name if insecure else "",
        trust=tuple(trust or ()),
        rows=rows,
        cell=cell,
        exact=exact,
        share_rows=share_rows,
        secure=secure,
        key=None if insecure else key,
        note=shell.note,
    )

    def answer(request: bytes) -> bytes:
        reply = participant.answer(request)
        with suppress(codec.MalformedError):
            if codec.header(request).get("kind") in ("phase", "secure"):
                light_memory.trim()
            else:  # the table was read, or a model was built: training uses little of that
                light_memory.release()
        return reply

    shell.exit_on_sigterm()
    light_memory.release()
    with connection.locked(own):
        connection.Connection(
            server,
            key=None if insecure else key,
            ca=None if insecure else ca,
            ended=participant.ended,
            note=shell.note,
        ).keep(answer)
    if participant.error is not None:
        raise participant.error
    if participant.withheld:
        output.print_status(
            f"no model was written, because the verdict is '{participant.verdict}'; see "
            f"'{participant.result}/verdict.json'."
        )
        raise typer.Exit(output.NOT_MET)
    output.print_status(f"model: {participant.result}")
