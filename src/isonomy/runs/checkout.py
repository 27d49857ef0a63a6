"""The commit of the checkout that runs, if the package was installed from one."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

PATIENCE = 120.0  # seconds; git took more than 10 on a machine with much other work


@cache
def commit() -> str:
    """The commit of the checkout that this package is in, with + if it has changes; or ''."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "--", str(here / "__init__.py")):
            return ""  # an installed package below somebody else's repository
        found = git("rev-parse", "--short=10", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here))
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or too slow
        return ""
    return found + ("+" if changed else "")
