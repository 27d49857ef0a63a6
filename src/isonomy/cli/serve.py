"""`serve`: organise a real federation over a network."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from isonomy.cli import output, shell
from isonomy.cli.arguments import Insecure, Overrides, Overwrite, Quiet, Report, Trust, split_names
from isonomy.cli.start_and_exit import collect_as_usual


def serve(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="A TOML file; its data are an example of the participants' tables.",
        ),
    ] = None,
    overrides: Overrides = None,
    keys: Annotated[
        Path | None,
        typer.Option("--keys", metavar="FOLDER", help="Certificates and the clients' public keys."),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Where participants connect.")
    ] = "0.0.0.0:9092",
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients", help="The participants, e.g. north,south; all that have keys by default."
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="The folder of the run.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue this run.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", help="Seconds to wait for all clients at the start.")
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds within which a client must reply.")
    ] = 120.0,
    insecure: Insecure = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    with_report: Report = True,
    trust: Trust = None,
) -> None:
    """Organise a federation: wait for its clients, train, and write the folder of the run.

    Example: isonomy serve trial.toml --keys keys --to runs/trial
    """
    from isonomy import api
    from isonomy.cli.progress import Job, show_progress
    from isonomy.errors import ConfigError
    from isonomy.federation import organiser
    from isonomy.federation.flower import processes, superlink
    from isonomy.runs.signals import Stopped
    from isonomy.runs.training import method_label

    processes.need_local_sockets("isonomy serve")
    processes.need_flower()
    _check_keys(keys, insecure, address)
    if (config is None) == (resume is None):
        raise ConfigError("give either a config to start a run, or --resume RUN to continue one.")
    names = split_names(clients)
    if names is None:
        names = sorted(path.stem for path in keys.glob("*.pub")) if keys is not None else []
    if resume is not None:
        plan = organiser.reopen(resume)
    else:
        chosen = api.make_config(config or "", *(overrides or []))
        folder = to or Path("runs") / (chosen.name or Path(config or "federation").stem)
        plan = organiser.begin(
            chosen,
            folder,
            names,
            peers=None if keys is None or insecure else _public_keys(keys, names),
            overwrite=overwrite,
            note=shell.note,
        )
    place = plan.place.path

    def save(nodes: object) -> None:
        plan.about["nodes"] = dict(nodes)  # type: ignore[call-overload]
        plan.save()

    shell.exit_on_sigterm()
    job = Job(method_label(plan.config), plan.config.seed, plan.config.rounds)
    try:
        with (
            show_progress([job], quiet=quiet) as listener,
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
            collect_as_usual()  # the garbage of hundreds of rounds would be some MB
            record = organiser.conduct(
                plan, transport, nodes=nodes, wait=wait, timeout=timeout, listeners=[listener]
            )
    except KeyboardInterrupt:  # before training, which ends its round when it is interrupted
        text = f"stopped; continue with {plan.place.to_continue}."
        raise Stopped(text, signal.SIGINT) from None
    output.print_run(record)
    output.print_verdict(record)
    output.print_status(f"run: {place}")
    if with_report:
        output.write_report([record], place / "report.html", f"Isonomy: {record.label}")
    output.exit_if_not_met(place)


def _public_keys(folder: Path, names: list[str]) -> dict[str, str]:
    """The clients' public keys, by which they recognise each other in secure aggregation."""
    from isonomy.federation.flower import keys
    from isonomy.federation.flower.identity import public_line

    return {name: public_line(keys.public_key(folder / f"{name}.pub")) for name in names}


def _check_keys(keys: Path | None, insecure: bool, address: str) -> None:
    """Check that there are certificates and keys, or that --insecure stays on this machine."""
    from isonomy.errors import ConfigError
    from isonomy.federation.flower import superlink
    from isonomy.federation.flower.keys import check_certificate

    superlink.parse(address)
    if insecure:
        superlink.loopback_only(address)
        return
    if keys is None:
        raise ConfigError(
            "a federation needs certificates and keys; make them with `isonomy keys`, then give "
            "their folder with --keys FOLDER."
        )
    for name in ("ca.crt", "server.crt", "server.key"):
        if not (keys / name).is_file():
            raise ConfigError(f"'{keys}' has no {name}; make keys with `isonomy keys`.")
    check_certificate(keys / "server.crt", superlink.parse(address)[0])
