"""Download and read person files of the US Census Bureau: ACS 1-Year PUMS, one file per state.

The Bureau publishes no checksums. A download is checked by the length that the server reports and
by the checksums inside the zip. Its SHA-256 is written to SHA256SUMS next to it, and a file that
changes later is an error. The SHA-256 of what was read is also reported, so that two people can see
whether they used the same tables.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import http.client
import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

from isonomy.core.values import Frame
from isonomy.data.download import fetch
from isonomy.data.download.archives import DAMAGE
from isonomy.errors import ConfigError, DataError, FetchError, unknown

Table = Frame

ADDRESS = "https://www2.census.gov/programs-surveys/acs/data/pums/{year}/1-Year/{name}"
SUMS = "SHA256SUMS"
_CODES = (
    "AK02 AL01 AR05 AZ04 CA06 CO08 CT09 DE10 FL12 GA13 HI15 IA19 ID16 IL17 IN18 KS20 KY21 "
    "LA22 MA25 MD24 ME23 MI26 MN27 MO29 MS28 MT30 NC37 ND38 NE31 NH33 NJ34 NM35 NV32 NY36 "
    "OH39 OK40 OR41 PA42 RI44 SC45 SD46 TN47 TX48 UT49 VA51 VT50 WA53 WI55 WV54 WY56"
)
STATES = tuple(each[:2] for each in _CODES.split())
CODES = {each[:2]: each[2:] for each in _CODES.split()} | {"DC": "11", "PR": "72"}
RENAMED = {"RELP": "RELSHIPP", "JWTR": "JWTRNS", "ST": "STATE"}  # names of later years
_BLOCK = 1 << 18


def archive_name(state: str) -> str:
    """Return the name of a state's zip file."""
    return f"csv_p{state.lower()}.zip"


def table_name(state: str, year: int) -> str:
    """Return the name of the table in the zip file.

    >>> table_name("CA", 2018), table_name("CA", 2016)
    ('psam_p06.csv', 'ss16pca.csv')
    """
    old = f"ss{year % 100:02d}p{state.lower()}.csv"
    return f"psam_p{CODES[state]}.csv" if year >= 2017 else old


def check(states: Sequence[str], year: int) -> None:
    """Raise ConfigError for states and years that do not exist."""
    for state in states:
        if state not in CODES:
            raise ConfigError(unknown("state", state, CODES))
    if len(set(states)) < len(states):
        raise ConfigError(f"states are {list(states)}; name every state once.")
    if year < 2014 or year == 2020:
        raise ConfigError(
            f"there is no ACS 1-Year sample of {year} in this format; set year to 2014 or later, "
            "except 2020."
        )


def obtain(
    states: Sequence[str], year: int, path: str, progress: fetch.Progress | None = None
) -> tuple[list[Path], str]:
    """Return every state's zip or table, and their origin; downloaded unless a path is given."""
    check(states, year)
    if path:
        folder = Path(path).expanduser()
        return [_given(folder, state, year) for state in states], "the files given"
    folder = fetch.folder() / f"acs-{year}"
    origin = fetch.CACHE
    paths = []
    for state in states:
        found = _find(folder, state, year)
        if found is None:
            found, origin = folder / archive_name(state), ADDRESS.format(year=year, name="")
            _download(year, found, progress)
        else:
            _unchanged(found)
        paths.append(found)
    return paths, origin


def _find(folder: Path, state: str, year: int) -> Path | None:
    for name in (table_name(state, year), archive_name(state)):
        if (folder / name).is_file():
            return folder / name
    return None


def _given(folder: Path, state: str, year: int) -> Path:
    for place in (folder, folder / str(year) / "1-Year"):
        found = _find(place, state, year)
        if found is not None:
            return found
    raise DataError(
        f"{folder} contains neither {table_name(state, year)} nor {archive_name(state)}; put one "
        f"of them there, or remove the option 'path' to download {state}."
    )


def _download(year: int, into: Path, progress: fetch.Progress | None) -> None:
    """A state's zip, whole and undamaged or not at all."""
    address = ADDRESS.format(year=year, name=into.name)
    part = into.with_name(f"{into.name}.{os.getpid()}.part")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        reason = _receive(address, part, into.name, progress) or _damage(part)
        if not reason:
            with (into.parent / SUMS).open("a", encoding="utf-8") as sums:
                sums.write(f"{_digest(part)}  {into.name}\n")
            os.replace(part, into)
            return
    except OSError as error:
        raise DataError(
            f"cannot write to {into.parent} ({error.strerror or error}); set ISONOMY_DATA to a "
            "writable folder."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    raise FetchError(
        f"cannot download {into.name}: tried {address} ({reason}); connect to a network where it "
        f"works, or put the file in {into.parent} yourself."
    )


def _receive(address: str, part: Path, name: str, progress: fetch.Progress | None) -> str:
    """Write what the server sends; return the reason for a failure, or an empty text."""
    request = urllib.request.Request(address, headers={"User-Agent": "isonomy"})
    try:
        reply = urllib.request.urlopen(request, timeout=fetch.CONNECT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        return f"no connection: {error.reason}"
    except (http.client.HTTPException, OSError):
        return "connection lost"
    have, size = 0, int(reply.headers.get("Content-Length") or 0)
    with reply, part.open("wb") as out:
        while True:
            try:
                block = reply.read(_BLOCK)
            except (http.client.HTTPException, OSError):
                return f"connection lost after {have:,} of {size:,} bytes"
            if not block:
                break
            out.write(block)
            have += len(block)
            if progress:
                progress(name, have, size)
    return f"ended after {have:,} of {size:,} bytes" if have < size else ""


def _damage(path: Path) -> str:
    """Return what is wrong with a zip by its own checksums, or an empty text."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except DAMAGE:
        return "the file is not a complete zip"
    return f"{bad} in it is damaged" if bad else ""


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unchanged(path: Path) -> None:
    """Raise DataError if a downloaded file has changed; files put there by hand have no sum."""
    sums = path.parent / SUMS
    if not sums.is_file():
        return
    known = [line.split() for line in sums.read_text(encoding="utf-8").splitlines()]
    right = [pair[0] for pair in known if pair[1:] == [path.name]]
    if right and _digest(path) != right[-1]:
        raise DataError(
            f"{path} is not what was downloaded: its SHA-256 is not the one in {SUMS}; delete it "
            "so that it is downloaded again."
        )


def read(path: Path, state: str, year: int, columns: Sequence[str]) -> tuple[Table, str]:
    """Return the named columns of a state's table as numbers, and its SHA-256."""
    from isonomy.data.tables.csv_files import read_columns

    try:
        content = _content(path, table_name(state, year))
        header = content[: content.find(b"\n")].decode("utf-8-sig").strip()
        there = [name.strip().strip('"') for name in header.split(",")]
        names = {name: _called(path, name, there) for name in columns}
        wanted = list(dict.fromkeys(names.values()))
        table = read_columns(content, there, wanted, wanted, skip=1)
    except (*DAMAGE, ValueError, csv.Error) as error:
        raise DataError(
            f"cannot read {path} as the person file of {state} ({_short(error)}); get a complete "
            "copy from the Census Bureau."
        ) from error
    kept = Frame({name: table[called] for name, called in names.items()})
    return kept, hashlib.sha256(content).hexdigest()


def _short(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _content(path: Path, name: str) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        if name not in archive.namelist():
            raise zipfile.BadZipFile(f"it does not contain {name}")
        return archive.read(name)


def _called(path: Path, name: str, there: Sequence[str]) -> str:
    for called in (name, RENAMED.get(name, name)):
        if called in there:
            return called
    raise DataError(
        f"{path} has no column {name}; give the person file of that year as the Census Bureau "
        "publishes it."
    )
