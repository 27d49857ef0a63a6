"""Follows a page of the documentation word for word, and compares what it prints with the page.

A page's blocks are taken in their order, in one folder:

- ```console: `$ ` begins a command (a backslash continues it on the next line), the lines below it
  are its output. A line `...` stands for any lines. Numbers may differ a little, because rounding
  differs between machines; everything else must be the same.
- ```diff: lines to replace in the file that the sentence before the block names.
- ```toml title="FILE" and ```python title="FILE": a file that the reader writes.
- ```python without a title: code to run; a ```text block right after it is its output.

`python tests/docs/console.py PAGE` writes the outputs of a page's commands again, except for those
with `...`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+")
QUIET = ("-W", "ignore:'click.:DeprecationWarning")  # of the typer that Flower asks for


@dataclass
class Step:
    """A command or code with the output on the page, or a change of a file."""

    kind: str
    text: str
    expected: str | None = None
    file: str = ""
    allowed: tuple[int, ...] = (0,)


@dataclass
class Page:
    """The steps of a page."""

    path: Path
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        text, end = self.path.read_text(), 0
        for found in BLOCK.finditer(text):
            language, title, body = found.groups()
            before = text[end : found.start()]
            end = found.end()
            if language == "console":
                self.steps += commands(body)
            elif language == "diff":
                (name,) = re.findall(r"`([\w./-]+\.\w+)`", before.strip().split("\n\n")[-1])[-1:]
                self.steps.append(Step("change", body, file=name))
            elif title:
                self.steps.append(Step("file", body, file=title))
            elif language == "python":
                self.steps.append(Step("python", body))
            elif language == "text" and self.steps and not before.strip():
                self.steps[-1].expected = body


def commands(block: str) -> list[Step]:
    """The commands of a block, each with its output."""
    steps: list[Step] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            steps.append(Step("command", line[2:], ""))
        elif steps and steps[-1].text.endswith("\\") and not steps[-1].expected:
            steps[-1].text = steps[-1].text[:-1] + line.strip()
        else:
            assert steps, f"output before the first command: {line}"
            steps[-1].expected = f"{steps[-1].expected}{line}\n"
    return steps


def follow(page: Page, place: Path, *, check: bool = True) -> list[tuple[Step, str]]:
    """Follow the page in a folder; returns every step with what it printed."""
    said = []
    for step in page.steps:
        output = _do(step, place)
        said.append((step, output))
        if check and step.expected is not None:
            difference = differs(step.expected, output)
            assert not difference, f"{page.path.name}: {step.text}\n{difference}\n\n{output}"
    return said


def _do(step: Step, place: Path) -> str:
    if step.kind == "file":
        (place / step.file).parent.mkdir(parents=True, exist_ok=True)
        (place / step.file).write_text(step.text)
        return ""
    if step.kind == "change":
        _change(place / step.file, step.text)
        return ""
    if step.kind == "python":
        words = [sys.executable, *QUIET, "-c", step.text]
    else:
        words = shlex.split(step.text, comments=True)
        if words[0] == "isonomy":
            words = [sys.executable, *QUIET, "-m", "isonomy.cli", *words[1:]]
        elif words[0] == "python":
            words = [sys.executable, *words[1:]]
        else:
            assert words[0] in ("cat", "head", "ls"), f"not followed: {step.text}"
    env = os.environ | {"COLUMNS": "100", "PYTHONPATH": _path(place)}
    done = subprocess.run(
        words, cwd=place, env=env, capture_output=True, text=True, check=False, timeout=900
    )
    # 3 is an answer: a requirement that is not met
    assert done.returncode in (0, 3), f"{step.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _path(place: Path) -> str:
    """The reader's folder is where Python looks first, as in a shell."""
    old = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(place), *([old] if old else [])])


def _change(file: Path, diff: str) -> None:
    """Remove the lines with a minus, and put those with a plus in the place of the one before."""
    text = file.read_text()
    removed: list[str] = []
    for line in [*diff.splitlines(), " "]:
        if line.startswith("-"):
            assert text.count(line[1:] + "\n") == 1, f"{file.name} has no line {line[1:]}"
            text = text.replace(line[1:] + "\n", "\0")
            removed.append(line)
        elif line.startswith("+"):
            assert "\0" in text, "a line with a plus follows one with a minus"
            text = text.replace("\0", line[1:] + "\n\0")
        if line == " " or (line.startswith("-") and text.count("\0") > 1):
            text = text.replace("\0", "", 1)
    file.write_text(text.replace("\0", ""))


def differs(expected: str, output: str) -> str:
    """What is different; empty if the output is what the page says."""
    wanted, got = _lines(expected), _lines(output)
    at = 0
    skip = False
    for line in wanted:
        if line == "...":
            skip = True
            continue
        if skip:
            while at < len(got) and not _same(line, got[at]):
                at += 1
        if at >= len(got) or not _same(line, got[at]):
            found = got[at] if at < len(got) else "(the end)"
            return f"the page says: {line}\nit printed:    {found}"
        at, skip = at + 1, False
    if not skip and at < len(got):
        return f"the page does not have: {got[at]}"
    return ""


def _lines(text: str) -> list[str]:
    """The lines that are not empty, with single spaces and short rules."""
    lines = (re.sub(r"[-─]{3,}", "---", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if line]


def _same(wanted: str, got: str) -> bool:
    if NUMBER.sub("#", wanted) != NUMBER.sub("#", got):
        return False
    pairs = zip(NUMBER.findall(wanted), NUMBER.findall(got), strict=True)
    return all(_close(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)


def _close(a: float, b: float) -> bool:
    """Within two hundredths, or for larger numbers within two percent."""
    return abs(a - b) <= max(0.02, 0.02 * abs(a))


def rewrite(path: Path, place: Path) -> None:
    """Write the outputs of a page's commands again, except for those with `...`."""
    page = Page(path)
    text = path.read_text()
    for step, output in follow(page, place, check=False):
        if step.kind in ("command", "python") and step.expected is not None:
            if "..." in step.expected.splitlines():
                difference = differs(step.expected, output)
                print(f"{step.text}\n{difference or 'as on the page'}\n", file=sys.stderr)
                if difference:
                    print(output, file=sys.stderr)
                continue
            shown = "\n".join(line.rstrip() for line in output.strip("\n").splitlines()) + "\n"
            if step.kind == "command" and not step.expected:
                continue
            text = text.replace(step.expected, shown, 1)
    path.write_text(text)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        start = Path(sys.argv[2]) if len(sys.argv) > 2 else None
        if start is not None:
            import shutil

            shutil.copytree(start, folder, dirs_exist_ok=True)
        rewrite(Path(sys.argv[1]), Path(folder))
