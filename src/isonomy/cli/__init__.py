"""The command line: one file per verb. Heavy imports, such as torch, wait inside the verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from isonomy.cli import (
    audit,
    check,
    compare,
    data,
    decide,
    demo_federation,
    doctor,
    excess,
    export,
    front,
    init,
    join,
    keys,
    ls,
    postprocess,
    predict,
    report,
    reproduce,
    resume,
    run,
    serve,
    show,
    suggest,
    sweep,
    tune,
)
from isonomy.cli.shell import Group
from isonomy.cli.start_and_exit import collect_less

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Group,
    name="isonomy",
    help="Fair federated learning: run published methods, measure and compare them.\n\n"
    "Example: isonomy compare quickstart",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import isonomy

        typer.echo(f"isonomy {isonomy.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


app.command("init")(init.init)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("run")(run.run)
app.command("resume")(resume.resume)
app.command("report")(report.report)
app.command("predict")(predict.predict)
app.command("postprocess")(postprocess.postprocess)
app.command("compare")(compare.compare)
app.command("check")(check.check)
app.command("decide")(decide.decide)
app.command("audit")(audit.audit)
app.command("sweep")(sweep.sweep)
app.command("tune")(tune.tune)
app.command("reproduce")(reproduce.reproduce)
app.command("front")(front.front)
app.command("excess")(excess.excess)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("join")(join.join)
app.command("keys")(keys.keys)
app.command("demo-federation")(demo_federation.demo_federation)
app.command("suggest")(suggest.suggest)
app.command("doctor")(doctor.doctor)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line."""
    collect_less()
    app(prog_name="isonomy")


if __name__ == "__main__":
    main()
