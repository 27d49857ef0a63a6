"""`data`: list, download, check, describe and pack data sets; one file per verb."""

from __future__ import annotations

import typer

from isonomy.cli.data import check, describe, get, ls, pack
from isonomy.cli.shell import Group

app = typer.Typer(
    cls=Group,
    help="Data sets: list, download, check, describe and pack them.\n\n"
    "Example: isonomy data describe adult",
    no_args_is_help=True,
)
app.command("ls")(ls.ls)
app.command("get")(get.get)
app.command("check")(check.check)
app.command("describe")(describe.describe)
app.command("pack")(pack.pack)
