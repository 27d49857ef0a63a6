"""Messages about table files that cannot be read."""

from __future__ import annotations

import zlib
from pathlib import Path

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)


def short_reason(error: BaseException) -> str:
    """Return what an error says, shortened so that it fits inside a sentence."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split())
    text = "".join(c for c in text.split(". ")[0].rstrip(".") if c.isprintable())
    return text if len(text) <= 140 else text[:137] + "..."


def cannot_read(path: Path, error: Exception) -> str:
    """Return the message for a file that cannot be read."""
    if isinstance(error, PermissionError):
        return f"{path} cannot be read: you do not have permission; change the file's permissions."
    return (
        f"{path} cannot be read ({short_reason(error)}); it may be cut off or another kind of "
        "file, so get a complete copy."
    )
