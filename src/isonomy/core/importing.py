"""Import a user's own class by its path "package.module:Class", if the user trusts it.

Configs, run folders, models and charters can name classes, and an import runs code. So what a file
names is imported only after `trust` has allowed it; the allowed names are kept in an environment
variable, so that the processes that this one starts follow the same rule. A class of a module that
is already imported needs no permission, because none of its code is run by finding it.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

from isonomy.errors import ConfigError, did_you_mean

TRUST = "ISONOMY_TRUST"  # the names that may be imported, separated by commas


def trust(*names: str) -> None:
    """Allow configs and files to import these names, in this process and those that it starts.

    A name is `package.module:Class`, or a module or a package for everything in it.
    """
    for name in names:
        if not name or not all(part.isidentifier() for part in re.split("[.:]", name)):
            raise ConfigError(
                f"trust '{name}': write a name as 'package.module:Class', or a module or package."
            )
    os.environ[TRUST] = ",".join(dict.fromkeys([*_allowed(), *names]))


def trusted(path: str) -> bool:
    """Whether `trust` has allowed an import path."""
    return any(path == name or path.startswith((f"{name}.", f"{name}:")) for name in _allowed())


def _allowed() -> list[str]:
    return [name for name in os.environ.get(TRUST, "").split(",") if name]


def from_path(what: str, path: str) -> Any:
    """The object that an import path names; a function only if the user trusts it.

    `what` says in messages what the object is for, such as 'model'. Raises a ConfigError if the
    path is malformed or not trusted, the module cannot be imported, or it has no such attribute.
    """
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")]):
        raise ConfigError(
            f"{what} '{path}': an import path is written 'package.module:Class'; correct it."
        )
    allowed = trusted(path)
    if not allowed and module_name not in sys.modules:
        raise ConfigError(_not_trusted(what, path))
    found = _module(what, path, module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [n for n in dir(found) if callable(getattr(found, n, None))])
            raise ConfigError(
                f"{what} '{path}': '{module_name}' has no '{part}'; name a class that it defines."
                f"{hint}"
            )
        found = getattr(found, part)
    if not allowed:
        if callable(found) and not isinstance(found, type):  # it would be called
            raise ConfigError(_not_trusted(what, path))
        trust(path)  # so that the processes that this one starts may import it too
    return found


def _not_trusted(what: str, path: str) -> str:
    return (
        f"{what} '{path}' is not part of isonomy, and using it runs its code; if you know this "
        f"code, allow it with --trust {path} (in Python, isonomy.trust({path!r}))."
    )


def search_current_folder() -> None:
    """Let imports find modules in the current folder, as `python -m` does."""
    folder = os.getcwd()  # it stays on the path: imported code may import more modules later
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def reason(error: BaseException) -> str:
    """An exception as part of a sentence: its type and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0].rstrip(". ")
    text = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return text if len(text) <= 240 else f"{text[:237]}..."


def _module(what: str, path: str, module_name: str) -> Any:
    search_current_folder()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what} '{path}': no module '{module_name}' in the current folder or among the "
                "installed packages; start in the folder that contains it, or install it."
            ) from error
        raise ConfigError(_failed(what, path, module_name, error)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_failed(what, path, module_name, error)) from error


def _failed(what: str, path: str, module_name: str, error: BaseException) -> str:
    return (
        f"{what} '{path}': importing '{module_name}' failed with {reason(error)}; fix that first."
    )
