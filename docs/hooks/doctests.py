"""Examples in docstrings become code blocks in the reference (an extension of Griffe)."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts every block of lines that begins with `>>> ` between fences."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of an object when it is loaded."""
        if obj.docstring is not None:
            fenced = EXAMPLE.sub(lambda m: f"```pycon\n{m[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced
