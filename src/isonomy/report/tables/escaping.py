"""Text that users chose, made safe for terminals, Markdown and LaTeX."""

from __future__ import annotations

import re


def one_line(text: str) -> str:
    """One line without control characters, so that no name can control a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)


def markdown(text: str) -> str:
    """The text as Markdown shows it literally."""
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", one_line(text))


def latex(text: str) -> str:
    """The text as LaTeX shows it literally."""
    return "".join(_TEX.get(letter, letter) for letter in one_line(text))


_TEX: dict[str, str] = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "[": "{[}",  # after a line's end a bare bracket would be read as its option
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "–": "--",
    "−": "$-$",
}
