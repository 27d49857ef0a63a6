"""`serve`, `join`, `keys` and `demo-federation`: a real federation over a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.single import Overrides, Overwrite, Quiet, Report

Keys = Annotated[
    Path | None,
    typer.Option("--keys", metavar="FOLDER", help="Certificates and clients' public keys."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Neither encryption nor keys; on this machine only.")
]


def add(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("serve")(serve)
    app.command("join")(join)
    app.command("keys")(keys)
    app.command("demo-federation")(demo)


def serve(
    config: Annotated[
        str | None,
        typer.Argument(metavar="CONFIG", help="A TOML file whose data is an example of tables."),
    ] = None,
    overrides: Overrides = None,
    keys: Keys = None,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Where participants connect.")
    ] = "0.0.0.0:9092",
    clients: Annotated[
        str | None,
        typer.Option("--clients", help="Who takes part, e.g. north,south; all keys if left out."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The run's folder.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for all clients at the start.")
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that a client has to reply.")
    ] = 120.0,
    insecure: Insecure = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    with_report: Report = True,
) -> None:
    """Organise a federation: wait for its clients, train, write a run's folder.

    Example: isonomy serve trial.toml --keys keys --to runs/trial
    """
    from isonomy import api
    from isonomy.cli.progress import Job, watching
    from isonomy.errors import ConfigError
    from isonomy.federation import organiser
    from isonomy.federation.flower import processes, superlink
    from isonomy.runs.training import method_label

    processes.need_flower()
    _keys_or_insecure(keys, insecure, address)
    if (config is None) == (resume is None):
        raise ConfigError("give a config to begin with, or --resume RUN to go on.")
    names = _names(keys, clients)
    if resume is not None:
        plan = organiser.reopen(resume)
    else:
        chosen = api.make_config(config or "", *(overrides or []))
        folder = to or Path("runs") / (chosen.name or Path(config or "federation").stem)
        plan = organiser.begin(chosen, folder, names, overwrite=overwrite, note=shell.note)
    place = plan.place.path

    def save(nodes: object) -> None:
        plan.about["nodes"] = dict(nodes)  # type: ignore[call-overload]
        plan.save()

    _end_in_order()
    job = Job(method_label(plan.config), plan.config.seed, plan.config.rounds)
    with (
        watching([job], quiet=quiet) as listener,
        superlink.running(
            place / "flower",
            address,
            keys=None if insecure else keys,
            names=plan.names,
            known=plan.about["nodes"],
            save=save,
        ) as (transport, nodes),
    ):
        listener.note(f"participants can join at {address}.")
        record = organiser.conduct(
            plan, transport, nodes=nodes, wait=wait, timeout=timeout, listeners=[listener]
        )
    output.put_one(record)
    output.put_verdict(record)
    output.tell(f"run: {place}")
    if with_report:
        output.report([record], place / "report.html", f"Isonomy: {record.label}")
    if plan.place.withheld:
        output.tell("no model: the verdict is null, so the participants were given none.")
        raise typer.Exit(output.WITHHELD)


def join(
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="Where the organiser is.")
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
        typer.Option("--home", metavar="FOLDER", help="What is yours; TABLE.federation if unset."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Agree without being asked.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="NAME", help="Own code that you know and may be run."),
    ] = None,
    insecure: Insecure = False,
    name: Annotated[str, typer.Option("--name", help="Who you are, where there are no keys.")] = "",
) -> None:
    """Take part in a federation with a table that stays here.

    Example: isonomy join --server host:9092 --data my.parquet --key north --ca ca.crt
    """
    import torch

    from isonomy.errors import ConfigError, DataError
    from isonomy.federation import charter as charters
    from isonomy.federation.flower import processes, supernode
    from isonomy.federation.participant import Participant

    processes.need_flower()
    torch.set_num_threads(1)
    if insecure and not name:
        raise ConfigError("without keys a client says who it is: --name north.")
    if not insecure:
        for path, what in ((key, "--key"), (ca, "--ca")):
            if path is None or not path.is_file():
                raise ConfigError(
                    f"{what} {path or 'is missing'}: give the file that the organiser made or "
                    "knows of (or --insecure, on one machine)."
                )
    if not data.is_file():
        raise DataError(f"there is no table '{data}'; give a CSV or Parquet file.")

    def decide(charter: charters.Charter) -> bool:
        typer.echo(f"The organiser at {server} invites you to a federation.")
        for text in charters.consent_text(charter):
            typer.echo(text)
        if yes:
            typer.echo("You agreed beforehand (--yes).")
            return True
        return typer.confirm("Take part?")

    own = home or data.with_name(f"{data.name}.federation")
    participant = Participant(
        data,
        own,
        decide=decide,
        name=name if insecure else "",
        trust=tuple(trust or ()),
        note=shell.note,
    )
    _end_in_order()
    with supernode.locked(own), supernode.listening(participant.answer) as address:
        node = supernode.SuperNode(
            server,
            own / "flower",
            address,
            key=None if insecure else key,
            ca=None if insecure else ca,
        )
        try:
            supernode.keep_running(
                node, participant.ended, busy=lambda: participant.answered, note=shell.note
            )
            participant.ended.wait(0.5)
        finally:
            if participant.complete:
                supernode.wait_for_last_reply(node)
            node.stop()
    if participant.error is not None:
        raise participant.error
    if participant.withheld:
        output.tell(
            f"no model: the verdict of the method is null; see '{participant.result}/verdict.json'."
        )
        raise typer.Exit(output.WITHHELD)
    output.tell(f"model: {participant.result}")


def keys(
    clients: Annotated[list[str], typer.Argument(metavar="CLIENT", help="Clients' names.")],
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to.")] = Path("keys"),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="A name or address of the server; loopback is always one."),
    ] = None,
) -> None:
    """Make certificates and keys for a federation.

    Example: isonomy keys north south east --host federation.example.org
    """
    from isonomy.federation.flower import keys as making
    from isonomy.federation.flower import processes

    processes.need_flower()
    for path in making.make(to, clients, host or []):
        typer.echo(str(path))
    output.tell(
        "Give each client its own key and ca.crt, by a way that you trust; server.key stays here."
    )


def demo(
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="Where everything is written.")
    ] = Path("runs/demo-federation"),
    overwrite: Overwrite = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of training.")] = 3,
    algorithm: Annotated[str, typer.Option("--algorithm", help="The method.")] = "fedavg",
) -> None:
    """Run an organiser and three participants as processes of this machine, with TLS and keys.

    Example: isonomy demo-federation
    """
    from isonomy.federation import demo as demonstration
    from isonomy.federation.flower import processes

    processes.need_flower()
    demonstration.run(to, rounds=rounds, algorithm=algorithm, overwrite=overwrite, say=typer.echo)


def _end_in_order() -> None:
    """Have SIGTERM end the processes that were started, too."""
    import signal
    import sys

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _keys_or_insecure(keys: Path | None, insecure: bool, address: str) -> None:
    from isonomy.errors import ConfigError
    from isonomy.federation.flower import superlink

    superlink.parse(address)
    if insecure:
        superlink.loopback_only(address)
        return
    if keys is None:
        raise ConfigError(
            "where are certificates and keys: --keys FOLDER; make them with `isonomy keys`."
        )
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).is_file():
            raise ConfigError(f"'{keys}' has no {name}; make keys with `isonomy keys`.")


def _names(keys: Path | None, clients: str | None) -> list[str]:
    if clients is not None:
        return [name.strip() for name in clients.split(",") if name.strip()]
    return sorted(path.stem for path in keys.glob("*.pub")) if keys is not None else []
