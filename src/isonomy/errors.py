"""Errors that a user can fix.

Every mistake of a user raises an `IsonomyError` whose message is one sentence: what is wrong,
where, and what to do. The command line prints it without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class IsonomyError(Exception):
    """An error that the user can fix; the message says how."""

    exit_code = 2


class ConfigError(IsonomyError):
    """A config that cannot be run."""


class DataError(IsonomyError):
    """Data that cannot be used, or that do not fit the model."""


class FetchError(DataError):
    """Data that could not be downloaded from any of their sources."""


class TrainingError(IsonomyError):
    """Training that cannot continue, for example because the loss is not finite."""


class RunError(IsonomyError):
    """A run folder that cannot be read, written or resumed."""


def missing_extra(what: str, package: str, extra: str) -> str:
    """The error message for a package that an optional extra of isonomy installs.

    >>> missing_extra("a federation", "Flower", "flower")
    "a federation needs Flower, which is not installed; run `pip install 'isonomy[flower]'`."
    """
    return f"{what} needs {package}, which is not installed; run `pip install 'isonomy[{extra}]'`."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text " Did you mean ...?" if a known word is close, else an empty text.

    >>> did_you_mean("fedavgg", ["fedavg", "local"])
    " Did you mean 'fedavg'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """The error message for a name that is not among the known names."""
    names = sorted(known)
    listed = ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])}, ..."
    return f"unknown {what} '{word}': use one of {listed}.{did_you_mean(word, names)}"
