"""A constant of a module, from its source: evaluated with what it needs of that source, no more.

So a list of data sets can say what there is to fetch without importing torch, whichever way the
files are written down. Of imports only `isonomy.data.download.fetch` is real; another module of the
package is read in the same way.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

_REAL = {"isonomy.data.download.fetch"}


class Constants:
    """The top-level constants of a source file, as attributes, each evaluated when asked for."""

    def __init__(self, path: Path, package: Path) -> None:
        self._package = package
        self._assigned: dict[str, ast.expr] = {}
        self._imported: dict[str, str] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._assigned[target.id] = node.value
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    name = f"{node.module}.{alias.name}"
                    self._imported[alias.asname or alias.name] = name
        self._known: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._known:
            if name not in self._assigned:
                raise NameError(name)
            self._known[name] = self.value(self._assigned[name])
        return self._known[name]

    def value(self, node: ast.expr) -> Any:
        """An expression of this file; NameError when it needs more than constants."""
        words = {at.id for at in ast.walk(node) if isinstance(at, ast.Name)}
        given: dict[str, Any] = {}
        for word in words:
            if word in self._assigned:
                given[word] = getattr(self, word)
            elif word in self._imported:
                given[word] = self._import(self._imported[word])
        return eval(compile(ast.Expression(node), "<constant>", "eval"), given)

    def _import(self, name: str) -> Any:
        if name in _REAL:
            return importlib.import_module(name)
        parts = name.split(".")
        if parts[0] != "isonomy":
            raise NameError(name)
        place = self._package.joinpath(*parts[1:])
        if place.with_suffix(".py").is_file():
            return Constants(place.with_suffix(".py"), self._package)
        home = place.parent.with_suffix(".py")
        if home.is_file():
            return getattr(Constants(home, self._package), parts[-1])
        raise NameError(name)
