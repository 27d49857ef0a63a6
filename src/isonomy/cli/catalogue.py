"""What there is, read off the source files: no import of torch to list ten names.

A hyper-parameter's meaning is the comment behind its field. An algorithm's phases are the methods
that it gives to its cohort; whether the server sees each reply or only a sum follows from the
verb. Tests compare all of it with the objects themselves.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from isonomy.cli.static import Constants
from isonomy.core.importing import search_current_folder
from isonomy.errors import ConfigError, unknown

PACKAGE = Path(str(files("isonomy")))
SEES = {
    "gather": "each client's reply",
    "mean": "only the weighted mean",
    "weigh": "what it weighs by, and the weighted mean",
    "sum": "only the sum",
}


@dataclass(frozen=True)
class Option:
    """A hyper-parameter: its type and default as written, and its meaning."""

    name: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Phase:
    """One exchange: when, the phase's method, the cohort's verb, what is sent, what it does."""

    when: str
    name: str
    verb: str
    sent: str
    replied: str
    does: str


@dataclass(frozen=True)
class Algorithm:
    """What an algorithm's file says."""

    name: str
    kind: str  # the class
    title: str
    family: str
    paper: str
    reveals: str
    text: str  # the file's docstring: the paper, the update rule, where we depart from it
    options: tuple[Option, ...]
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class Entry:
    """A name and a line about it."""

    name: str
    text: str


# --- algorithms ----------------------------------------------------------------------------------


def algorithms() -> dict[str, Algorithm]:
    """Every algorithm of the package, by name."""
    found = {}
    for path in sorted((PACKAGE / "algorithms").glob("*/*.py")):
        for algorithm in _algorithms_in(path):
            found[algorithm.name] = algorithm
    return dict(sorted(found.items()))


def algorithm(name: str) -> Algorithm:
    """One by name, or by 'package.module:Class'."""
    if ":" in name:
        module, _, kind = name.partition(":")
        search_current_folder()
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            raise ConfigError(f"there is no module '{module}' with a source file to show.")
        for one in _algorithms_in(Path(spec.origin)):
            if one.kind == kind:
                return one
        raise ConfigError(f"module '{module}' has no algorithm '{kind}'.")
    known = algorithms()
    if name not in known:
        raise ConfigError(unknown("algorithm", name, known))
    return known[name]


def _algorithms_in(path: Path) -> Iterator[Algorithm]:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_word(b) == "Algorithm" for b in node.bases):
            yield _algorithm(node, tree, source)


def _algorithm(node: ast.ClassDef, tree: ast.Module, source: str) -> Algorithm:
    said, options = _fields(node, source)
    return Algorithm(
        name=str(said.get("name") or node.name),
        kind=node.name,
        title=_first(ast.get_docstring(node)),
        family=str(said.get("family") or ""),
        paper=str(said.get("paper") or ""),
        reveals=str(said.get("reveals") or ""),
        text=ast.get_docstring(tree) or ast.get_docstring(node) or "",
        options=options,
        phases=tuple(_phases(node, tree)),
    )


def _fields(node: ast.ClassDef, source: str) -> tuple[dict[str, Any], tuple[Option, ...]]:
    """A class's variables with a constant value, and its fields."""
    said = {}
    options = []
    comments = _comments(source)
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name, kind = item.target.id, ast.unparse(item.annotation)
        if "ClassVar" in kind:
            said[name] = _constant(item.value)
        else:
            default = "required" if item.value is None else _unquoted(item.value)
            meaning = comments.get(item.end_lineno or item.lineno, "")
            meaning = meaning or comments.get(item.lineno - 1, "")
            options.append(Option(name, _kind(item.annotation), default, meaning))
    return said, tuple(options)


def _phases(node: ast.ClassDef, tree: ast.Module) -> Iterator[Phase]:
    """Every `cohort.gather`, `mean`, `weigh` or `sum` in the class, and the phase given to it."""
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
    for method in methods.values():
        calls = [c for c in ast.walk(method) if isinstance(c, ast.Call) and c.args]
        for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)):
            at = call.func
            if not (isinstance(at, ast.Attribute) and at.attr in SEES and _word(at.value)):
                continue
            if "cohort" not in str(_word(at.value)):
                continue
            name = _word(call.args[0]) or ast.unparse(call.args[0])
            given = methods.get(name) or functions.get(name)
            yield Phase(
                when=method.name,
                name=name,
                verb=at.attr,
                sent=_keys(call.args[1]) if len(call.args) > 1 else "",
                replied=_reply(given),
                does=_first(ast.get_docstring(given)) if given else "",
            )


def _reply(function: ast.FunctionDef | None) -> str:
    """The keys of the reply, where the phase returns them as written: `return {...}, state`."""
    for node in ast.walk(function) if function else ():
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            return _keys(node.value.elts[0])
    return "?"


def _keys(node: ast.expr) -> str:
    if not isinstance(node, ast.Dict):
        return "?"
    keys = [str(key.value) if isinstance(key, ast.Constant) else "?" for key in node.keys]
    return ", ".join(keys) if keys else "nothing"


def _comments(source: str) -> dict[int, str]:
    """Line number to comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _kind(node: ast.expr) -> str:
    """A type as people say it."""
    text = ast.unparse(node)
    words = {"float": "number", "int": "whole number", "bool": "true or false", "str": "text"}
    if isinstance(node, ast.Subscript) and _word(node.value) == "Literal":
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return " or ".join(_unquoted(value) for value in inner)
    words["int | float | str"] = "number or text"
    return words.get(text, text)


def _unquoted(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value).lower() if isinstance(node.value, bool) else str(node.value)
    return ast.unparse(node)


# --- attacks and defences ------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What the class of an attack or a defence says."""

    name: str
    title: str
    paper: str
    said: dict[str, Any]  # its other class variables
    options: tuple[Option, ...]


def attacks() -> dict[str, Rule]:
    """Every attack, by name."""
    return _rules("attacks.py", "Attack")


def defences() -> dict[str, Rule]:
    """Every defence, by name."""
    return _rules("combiners.py", "Combiner")


def _rules(file: str, base: str) -> dict[str, Rule]:
    source = (PACKAGE / "robust" / file).read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any(_word(b) == base for b in node.bases):
            said, options = _fields(node, source)
            name = str(said.pop("name"))
            title = _first(ast.get_docstring(node))
            found[name] = Rule(name, title, str(said.pop("paper")), said, options)
    return found


# --- data sets, models, partitions ---------------------------------------------------------------


def datasets() -> list[Entry]:
    """Name and description of every data set: what its `DATASET` says."""
    found = []
    for path in (PACKAGE / "data" / "datasets").glob("*.py"):
        for name, call in _assigned(path, "Dataset"):
            said = {k.arg: _constant(k.value) for k in call.keywords if k.arg}
            if name == "DATASET":
                found.append(Entry(str(said["name"]), str(said["description"])))
    return sorted(found, key=lambda entry: entry.name)


def files_of_datasets() -> list[tuple[Entry, Any]]:
    """Every data set with its choices of files to fetch; None where the source does not tell."""
    found = []
    for path in (PACKAGE / "data" / "datasets").glob("*.py"):
        for holder, call in _assigned(path, "Dataset"):
            if holder != "DATASET":
                continue
            said = {k.arg: k.value for k in call.keywords if k.arg}
            entry = Entry(str(_constant(said["name"])), str(_constant(said["description"])))
            try:
                given = Constants(path, PACKAGE).value(said["files"]) if "files" in said else ()
            except Exception:  # whatever a file may hold: the list goes on without
                given = None
            found.append((entry, given))
    return sorted(found, key=lambda one: one[0].name)


def models() -> list[Entry]:
    """Name and description of every model, in the order of the registry."""
    folder = PACKAGE / "models"
    texts = {}
    for path in folder.glob("*.py"):
        for name, call in _assigned(path, "Entry"):
            said = {k.arg: _constant(k.value) for k in call.keywords if k.arg}
            texts[name] = str(said["description"])
    for node in _tree(folder / "__init__.py").body:
        if isinstance(node, ast.AnnAssign) and _word(node.target) == "MODELS":
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return [Entry(str(_constant(k)), texts[str(_word(v))]) for k, v in pairs]
    return []


def partitions() -> list[Entry]:
    """Name and meaning of every partition of rows."""
    found = []
    for node in _tree(PACKAGE / "data" / "partition.py").body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and _word(call.func) == "_partition":
                found.append(Entry(*(str(_constant(value)) for value in call.args[:2])))
    return found


def _assigned(path: Path, kind: str) -> Iterator[tuple[str, ast.Call]]:
    """Every `NAME = Kind(...)` of a file."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if _word(node.value.func) == kind:
                yield str(_word(target)), node.value


# --- packaged configs ----------------------------------------------------------------------------


def presets() -> dict[str, dict[str, Any]]:
    """The values of every TOML file that comes with the package, by name."""
    folder = PACKAGE / "config" / "presets"
    return {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.toml"))
    }


def preset_text(name: str) -> str:
    """A packaged file as it is."""
    return (PACKAGE / "config" / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def opening(name: str) -> str:
    """A plain config's opening comment, in one line."""
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


# --- parts ---------------------------------------------------------------------------------------


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _word(node: ast.AST) -> str | None:
    """The last word of a name: `b` of `a.b` and of `b`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _constant(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError:
        return None


def _first(text: str | None) -> str:
    """The first sentence or paragraph of a docstring, in one line."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
