"""One file per verb, and no verb imports the file of another verb."""

import ast
from pathlib import Path

import isonomy.cli
from isonomy.cli import app, data

FOLDER = Path(isonomy.cli.__file__).parent


def verb_modules(typer_app, package):
    """The module of each verb, by the verb's name."""
    found = {command.name: command.callback.__module__ for command in typer_app.registered_commands}
    assert all(module.startswith(package) for module in found.values())
    return found


VERBS = verb_modules(app, "isonomy.cli.")
DATA_VERBS = verb_modules(data.app, "isonomy.cli.data.")


def test_the_file_of_a_verb_has_its_name():
    for name, module in VERBS.items():
        assert module == f"isonomy.cli.{name.replace('-', '_')}"
    for name, module in DATA_VERBS.items():
        assert module == f"isonomy.cli.data.{name}"


def imported(path):
    """Every module that a file imports, also as `from package import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_verb_imports_another_verb():
    verbs = {*VERBS.values(), *DATA_VERBS.values()}
    groups = {FOLDER / "__init__.py", FOLDER / "data" / "__init__.py"}
    for path in set(FOLDER.rglob("*.py")) - groups:
        own = "isonomy.cli." + ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        others = {verb for verb in verbs if not own.startswith(verb)}
        assert not others & set(imported(path)), path
    assert verbs & set(imported(FOLDER / "data" / "__init__.py"))  # the search finds imports
