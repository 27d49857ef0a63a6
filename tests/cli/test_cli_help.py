"""What --help shows."""

import pytest
import typer

from isonomy.cli import app

COMMAND = typer.main.get_command(app)
VERBS = [[verb] for verb in COMMAND.commands if verb != "data"]
VERBS += [["data", verb] for verb in COMMAND.commands["data"].commands]


def command_of(path):
    """A verb's command, as the command line finds it."""
    found = COMMAND
    for name in path:
        found = found.get_command(typer.Context(found), name)
    return found


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_argument_and_option_that_is_shown_has_a_help_text(path):
    for parameter in command_of(path).params:
        assert parameter.help or getattr(parameter, "hidden", False), parameter.name


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (["run"], "A TOML file, or the name of a packaged config."),
        (["data", "describe"], "keys of [data], e.g. clients=20"),
    ],
)
def test_help_of_arguments_is_shown(path, text, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    assert text in cli(*path, "--help").output
