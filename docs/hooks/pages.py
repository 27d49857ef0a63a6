"""Pages of the site that are made from other files, and the navigation.

MkDocs calls `on_config` and `on_files` (`hooks` in mkdocs.yml). The home page is README.md; the
commands come from the command line's own help; notebooks become pages; methods are grouped by
family. A page of the navigation that does not exist is left out, and a page that is not in the
navigation is added to "Guides", so that a new page never breaks the site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
FAMILIES = {  # titles, in the order of the navigation
    "average": "Averaging",
    "clustered": "Clustered",
    "client_fair": "Client fairness",
    "group_fair": "Group fairness",
    "personal": "Personal models, local training",
    "preference": "Whole fronts",
    "matched": "Matched",
}


def on_config(config: Any) -> Any:
    """Fill in and complete the navigation."""
    made = {*COPIED, "commands.md", "algorithms/index.md", *notebook_pages()}
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} | made
    config["nav"] = [one for one in (_existing(e, there) for e in config["nav"]) if one]
    for entry in config["nav"]:
        if "Methods" in entry:
            entry["Methods"] += methods_by_family()
    rest = sorted(there - set(_paths(config["nav"])))
    next(entry["Guides"] for entry in config["nav"] if "Guides" in entry).extend(rest)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    made = {name: copied(source) for name, source in COPIED.items() if (ROOT / source).exists()}
    made["commands.md"] = commands()
    made["algorithms/index.md"] = methods_page()
    for name, notebook in notebook_pages().items():
        made[name] = notebook_as_page(notebook)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def _existing(entry: Any, there: set[str]) -> Any:
    """The entry without pages that do not exist; nothing if none is left."""
    if isinstance(entry, str):
        return entry if entry in there else None
    ((title, value),) = entry.items()
    if isinstance(value, str):
        return entry if value in there else None
    left = [one for one in (_existing(part, there) for part in value) if one]
    return {title: left} if left else None


def _paths(nav: Any) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else _paths(value)


def copied(source: str) -> str:
    """A page of the repository's root, with links as they are below docs/."""
    text = (ROOT / source).read_text()
    for page, name in COPIED.items():
        text = text.replace(f"]({name}", f"]({page}")
    text = text.replace("](docs/", "](").replace('src="docs/', 'src="')
    return re.sub(r"\]\((LICENSE|Dockerfile|CITATION\.cff)\)", "]", text)


def methods_by_family() -> list[dict[str, Any]]:
    """The methods' pages as entries of the navigation."""
    from isonomy.algorithms import registry

    found: dict[str, list[dict[str, str]]] = {}
    for name, kind in registry().items():
        title = (DOCS / "algorithms" / f"{name}.md").read_text().split("\n")[0].removeprefix("# ")
        found.setdefault(kind.family, []).append({title: f"algorithms/{name}.md"})
    order = [*(f for f in FAMILIES if f in found), *(f for f in found if f not in FAMILIES)]
    return [{FAMILIES.get(f, f.replace("_", " ").capitalize()): found[f]} for f in order]


def methods_page() -> str:
    """A table of all methods, with what each is and what it reveals."""
    from isonomy.algorithms import registry

    lines = ["# Methods", ""]
    lines += [
        "Every method is one file of the package and has one page with the same sections: when to",
        "use it, its update rule, options, what it reveals, where it differs from the paper,",
        "results, and what it is equal to in its limits. `isonomy show NAME` prints a short form.",
    ]
    for entry in methods_by_family():
        ((family, pages),) = entry.items()
        lines += ["", f"## {family}", "", "| method | what it is | paper |", "| --- | --- | --- |"]
        for page in pages:
            ((title, path),) = page.items()
            kind = registry()[Path(path).stem]
            what = " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
            cells = (f"[{title}]({Path(path).name})", what, kind.paper)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The help of every verb, as the command line has it."""
    import typer

    from isonomy.cli import app

    group = typer.main.get_command(app)
    lines = ["# Commands", "", "The same texts as `isonomy VERB --help`.", ""]
    for name, command in group.commands.items():
        lines += _command(f"isonomy {name}", command)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any, level: str = "##") -> list[str]:
    text = re.sub(r"\[/?(?:bold|dim|cyan)\]", "", command.help or "").replace("\b", "").strip()
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    lines = [f"{level} {name}", ""]
    if hasattr(command, "commands"):
        lines += [*paragraphs, ""]
        for verb, one in command.commands.items():
            lines += _command(f"{name} {verb}", one, level + "#")
        return lines
    usage = " ".join(p.make_metavar_text() for p in map(_Parameter, command.params) if p.argument)
    lines += ["```text", f"{name} {usage} [OPTIONS]".replace("  ", " "), "```", ""]
    for paragraph in paragraphs:
        example = re.fullmatch(r"Examples?: (.*)", paragraph)
        lines += ["```console", f"$ {example[1]}", "```", ""] if example else [paragraph, ""]
    rows = [_Parameter(p).row() for p in command.params if p.name != "help" and not p.hidden]
    return [*lines, "| argument or option | meaning |", "| --- | --- |", *rows, ""]


class _Parameter:
    """An argument or option of a verb."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter
        self.argument = parameter.param_type_name == "argument"

    def make_metavar_text(self) -> str:
        shown = self.parameter.metavar or self.parameter.name.upper()
        shown += "..." if self.parameter.nargs == -1 and not shown.endswith("...") else ""
        return shown if self.parameter.required else f"[{shown.strip('[]')}]"

    def row(self) -> str:
        p = self.parameter
        if self.argument:
            name = f"`{self.make_metavar_text()}`"
        else:
            value = "" if p.is_flag else " " + (p.metavar or p.type.name.upper())
            opts = [*p.opts, *p.secondary_opts]
            name = ", ".join(f"`{opt}`" for opt in opts[:-1]) + (", " if len(opts) > 1 else "")
            name += f"`{opts[-1]}{value}`"
        default = p.default
        meaning = " ".join((getattr(p, "help", "") or "").split())
        if (
            default not in (None, False, (), [], "", ...)
            and not callable(default)
            and not p.is_flag
        ):
            meaning += f" Default: `{default}`."
        return f"| {name} | {meaning.replace('|', chr(92) + '|')} |"


def notebook_pages() -> dict[str, Path]:
    """The notebooks, by the pages that are made from them."""
    return {f"notebooks/{p.stem}.md": p for p in sorted((DOCS / "notebooks").glob("*.ipynb"))}


def notebook_as_page(path: Path) -> str:
    """A notebook's texts and code; its outputs are made when you run it."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    download = f"[Download the notebook]({path.name}) and run it, or read its cells here."
    return "\n\n".join([parts[0], download, *parts[1:]]) + "\n"
