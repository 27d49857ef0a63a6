"""Archives from pip, npm and apt: the programs themselves where they are, stand-ins where not."""

import base64
import contextlib
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isonomy.data.download import fetch, sources
from isonomy.data.download.archives import DAMAGE, members
from isonomy.errors import DataError, FetchError

ONE, TWO = b"one " * 70_000, os.urandom(300_000)


def file(name, content, *found):
    return fetch.File(name, hashlib.sha256(content).hexdigest(), len(content), found)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def one_sentence(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def tar(contents: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(contents: dict[str, bytes], suffix: str = ".xz") -> bytes:
    """A Debian package, written by the format's description (deb(5))."""
    import pyarrow as pa

    plain = tar({f"./{name}": data for name, data in contents.items()}, "w")
    data = {
        ".xz": lzma.compress,
        ".gz": gzip.compress,
        ".zst": lambda raw: pa.compress(raw, "zstd", asbytes=True),
        "": lambda raw: raw,
    }[suffix](plain)
    control = tar({"./control": b"Package: carrier\n"}, "w:gz")
    out = b"!<arch>\n"
    parts = {"debian-binary": b"2.0\n", "control.tar.gz": control, "_odd": b"x"}
    parts[f"data.tar{suffix}"] = data
    for name, part in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(part):<10}`\n".encode() + part
        out += b"\n" * (len(part) % 2)
    return out


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Put a program of a given name, written in Python, before all others."""
    where = tmp_path / "bin"
    where.mkdir()
    monkeypatch.setenv("PATH", f"{where}{os.pathsep}{os.environ['PATH']}")

    def put(name: str, body: str) -> None:
        path = where / name
        path.write_text(f"#!{sys.executable}\nimport sys, time, pathlib\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return put


# --- reading archives ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst", ""])
def test_a_debian_package_is_read(tmp_path, suffix):
    path = tmp_path / "carrier.deb"
    path.write_bytes(deb({"usr/a": ONE, "usr/odd": b"x", "usr/b": TWO}, suffix))
    found = {name: s.read() for name, s in members(path, ["usr/b", "usr/a", "usr/none"])}
    assert found == {"usr/a": ONE, "usr/b": TWO}


def test_debs_own_reader_agrees(tmp_path):
    dpkg = shutil.which("dpkg-deb")
    if dpkg is None:
        pytest.skip("there is no dpkg-deb on this machine")
    path = tmp_path / "carrier.deb"
    path.write_bytes(deb({"usr/a": ONE}))
    plain = subprocess.run([dpkg, "--fsys-tarfile", path], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        assert archive.extractfile("./usr/a").read() == ONE


def wheel(contents):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return out.getvalue()


KINDS = {
    "deb.xz": deb,
    "deb.gz": lambda c: deb(c, ".gz"),
    "deb.zst": lambda c: deb(c, ".zst"),
    "tgz": tar,
    "wheel": wheel,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["cut", "changed", "rubbish", "empty"])
def test_a_damaged_archive_gives_nothing_wrong(tmp_path, program, kind, damage):
    """Whatever happened to the archive, the cache gets right files or none."""
    whole = bytearray(KINDS[kind]({"package/a": ONE, "package/b": TWO}))
    if damage == "cut":
        del whole[-len(whole) // 3 :]
    elif damage == "changed":
        whole[len(whole) // 2] ^= 0xFF
    elif damage == "rubbish":
        whole = bytearray(os.urandom(5000))
    else:
        whole = bytearray()
    path = tmp_path / "damaged"
    path.write_bytes(whole)
    program("npm", f"pathlib.Path('x.tgz').write_bytes(pathlib.Path({str(path)!r}).read_bytes())")
    npm = [fetch.NpmPackage("carrier", "1.0.0", f"package/{name}") for name in "ab"]
    choice = (file("a", ONE, npm[0]), file("b", TWO, npm[1]))
    with pytest.raises(FetchError, match=r"damaged|does not contain|another checksum") as error:
        fetch.fetch(choice, cache=tmp_path / "cache")
    assert "npm package carrier 1.0.0 (" in one_sentence(error)
    left = names(tmp_path / "cache")
    assert left <= {"a"}
    assert not left or (tmp_path / "cache" / "a").read_bytes() == ONE


def test_no_member_can_be_written_elsewhere(tmp_path):
    path = tmp_path / "bad.tgz"
    path.write_bytes(tar({"../../escaped": ONE, "package/a": TWO}))
    assert [name for name, _ in members(path, ["package/a"])] == ["package/a"]
    assert not (tmp_path.parent.parent / "escaped").exists()


def test_a_link_is_no_file(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        link = tarfile.TarInfo("package/a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    path = tmp_path / "link.tgz"
    path.write_bytes(out.getvalue())
    assert list(members(path, ["package/a"])) == []


def test_an_unknown_kind_of_debian_package(tmp_path):
    path = tmp_path / "carrier.deb"
    path.write_bytes(deb({"usr/a": ONE}, "").replace(b"data.tar  ", b"data.tar.z"))
    with pytest.raises(DAMAGE):
        list(members(path, ["usr/a"]))


# --- one archive for all files -------------------------------------------------------------------


def serve(program, archive: Path, name: str = "npm") -> Path:
    """A stand-in that copies an archive to where it is run and counts how often."""
    log = archive.with_suffix(".log")
    program(
        name,
        f"pathlib.Path('carrier.tgz').write_bytes(pathlib.Path({str(archive)!r}).read_bytes())\n"
        f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')",
    )
    return log


def test_one_npm_archive_serves_all_files(tmp_path, program):
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"package/a": ONE, "package/x": b"-", "package/b": TWO}))
    log = serve(program, archive)
    found = [fetch.NpmPackage("carrier", "1.0.0", f"package/{name}") for name in "ba"]
    choice = (file("b", TWO, found[0]), file("a", ONE, found[1]))
    seen = []
    got = fetch.fetch(choice, cache=tmp_path / "cache", progress=lambda *a: seen.append(a))
    assert [g.path.read_bytes() for g in got] == [TWO, ONE]
    assert {g.source for g in got} == {"npm package carrier 1.0.0"}
    assert len(log.read_text().splitlines()) == 1
    assert names(tmp_path / "cache") == {"a", "b"}
    size = archive.stat().st_size
    assert ("npm package carrier 1.0.0", size, size) in seen
    assert {("a", len(ONE), len(ONE)), ("b", len(TWO), len(TWO))} <= set(seen)


def test_a_wrong_neighbour_does_not_spoil_the_right_file(tmp_path, program):
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"package/b": b"wrong", "package/a": ONE}))
    other = tmp_path / "other"
    other.write_bytes(deb({"usr/b": TWO}))
    serve(program, archive)
    serve(program, other, "apt-get")
    first = [fetch.NpmPackage("carrier", "1.0.0", f"package/{name}") for name in "ab"]
    choice = (
        file("a", ONE, first[0]),
        file("b", TWO, first[1], fetch.DebianPackage("carrier", "usr/b")),
    )
    got = fetch.fetch(choice, cache=tmp_path / "cache")
    assert [g.source for g in got] == ["npm package carrier 1.0.0", "Debian package carrier"]
    assert [g.path.read_bytes() for g in got] == [ONE, TWO]


def test_a_member_that_is_too_long_is_not_written_out(tmp_path, program):
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"package/a": bytes(50_000_000)}))
    serve(program, archive)
    written = []
    with pytest.raises(FetchError, match="its a has another checksum"):
        fetch.fetch(
            (file("a", ONE, fetch.NpmPackage("carrier", "1.0.0", "package/a")),),
            cache=tmp_path / "cache",
            progress=lambda name, have, size: written.append(have),
        )
    assert names(tmp_path / "cache") == set()


def test_a_full_disk_is_not_taken_for_a_damaged_archive(tmp_path, program, monkeypatch):
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"package/a": ONE}))
    serve(program, archive)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        DataError, match=r"cannot write to the data folder .*No space left"
    ) as error:
        fetch.fetch((file("a", ONE, NPM),), cache=tmp_path / "cache")
    one_sentence(error)
    assert names(tmp_path / "cache") == set()


class Served(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        body = self.server.pages.get(self.path.split("?")[0])
        if body is None:
            self.send_error(404)
            return
        ranged = self.headers.get("Range")
        start = int(ranged.removeprefix("bytes=").removesuffix("-")) if ranged else 0
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        for at in range(start, len(body), 65_536):
            with contextlib.suppress(OSError):
                self.wfile.write(body[at : at + 65_536])
            time.sleep(self.server.slow)

    def log_message(self, *args):
        pass


@pytest.fixture
def web():
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as httpd:
        httpd.pages, httpd.asked, httpd.slow = {}, [], 0
        httpd.address = f"http://127.0.0.1:{httpd.server_port}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


def test_files_inside_an_archive_at_an_address(tmp_path, web):
    body = tar({"a": ONE, "b": TWO})
    web.pages["/both.tar.gz"] = body
    both = file("both.tar.gz", body, fetch.Url(f"{web.address}/both.tar.gz"))
    choice = (file("a", ONE, fetch.Inside(both, "a")), file("b", TWO, fetch.Inside(both, "b")))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "both.tar.gz.part").write_bytes(body[:1000])
    got = fetch.fetch(choice, cache=cache)
    assert [g.path.read_bytes() for g in got] == [ONE, TWO]
    assert {g.source for g in got} == {f"{web.address}/both.tar.gz"}
    assert web.asked == ["/both.tar.gz"]
    assert names(cache) == {"a", "b"}  # the archive is gone


def test_an_archive_put_into_the_cache_by_hand_stays(tmp_path):
    body = tar({"a": ONE})
    both = file("both.tar.gz", body, fetch.Url("http://127.0.0.1:9/both.tar.gz"))
    (tmp_path / "both.tar.gz").write_bytes(body)
    (got,) = fetch.fetch((file("a", ONE, fetch.Inside(both, "a")),), cache=tmp_path)
    assert got.path.read_bytes() == ONE
    assert names(tmp_path) == {"a", "both.tar.gz"}


def test_an_archive_that_cannot_be_had_is_told_once(tmp_path):
    both = file("both.tar.gz", b"x", fetch.Url("http://127.0.0.1:9/both.tar.gz"))
    choice = (file("a", ONE, fetch.Inside(both, "a")), file("b", TWO, fetch.Inside(both, "b")))
    with pytest.raises(FetchError) as error:
        fetch.fetch(choice, cache=tmp_path)
    text = one_sentence(error)
    assert text.count("http://127.0.0.1:9/both.tar.gz (no connection") == 1
    assert "()" not in text
    assert "; ;" not in text


# --- kills ---------------------------------------------------------------------------------------

CHILD = """
import sys, pathlib
from isonomy.data.download import fetch
address, sha, size, cache = sys.argv[1:]
file = fetch.File("thing", sha, int(size), (fetch.Url(address),))
fetch.fetch((file,), cache=pathlib.Path(cache))
"""


def test_a_killed_download_is_resumed_and_never_taken_as_whole(tmp_path, web):
    body = os.urandom(4_000_000)
    web.pages["/thing"], web.slow = body, 0.02
    digest = hashlib.sha256(body).hexdigest()
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", CHILD, f"{web.address}/thing", digest, str(len(body))]
    child = subprocess.Popen([*command, str(cache)])
    part = cache / "thing.part"
    until = time.monotonic() + 30
    while not (part.is_file() and part.stat().st_size > 600_000):
        assert time.monotonic() < until
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (cache / "thing").exists()
    had = part.stat().st_size
    assert 600_000 < had < len(body)
    assert part.read_bytes() == body[:had]
    web.slow = 0
    seen = []
    whole = file("thing", body, fetch.Url(f"{web.address}/thing"))
    (got,) = fetch.fetch((whole,), cache=cache, progress=lambda *a: seen.append(a[1]))
    assert got.path.read_bytes() == body
    assert min(seen) > had  # it went on, from where it was
    assert names(cache) == {"thing"}


def test_two_processes_fetch_once(tmp_path, web):
    body = os.urandom(1_500_000)
    web.pages["/thing"], web.slow = body, 0.02
    digest, cache = hashlib.sha256(body).hexdigest(), tmp_path / "cache"
    command = [sys.executable, "-c", CHILD, f"{web.address}/thing", digest, str(len(body))]
    both = [subprocess.Popen([*command, str(cache)]) for _ in range(2)]
    assert [child.wait(60) for child in both] == [0, 0]
    assert web.asked == ["/thing"]
    assert (cache / "thing").read_bytes() == body
    assert names(cache) == {"thing"}


PACKED = """
import sys, pathlib
from isonomy.data.download import fetch
sha, size, cache = sys.argv[1:]
npm = fetch.NpmPackage("carrier", "1.0.0", "package/a")
fetch.fetch((fetch.File("a", sha, int(size), (npm,)),), cache=pathlib.Path(cache))
"""


def test_a_kill_while_npm_works_leaves_nothing_that_misleads(tmp_path, program):
    archive = tmp_path / "archive"
    archive.write_bytes(tar({"package/a": ONE}))
    half = f"pathlib.Path('carrier.tgz').write_bytes(pathlib.Path({str(archive)!r}).read_bytes()"
    program("npm", f"{half}[:500])\ntime.sleep(10)")
    cache, digest = tmp_path / "cache", hashlib.sha256(ONE).hexdigest()
    child = subprocess.Popen([sys.executable, "-c", PACKED, digest, str(len(ONE)), str(cache)])
    until = time.monotonic() + 30
    while not list(cache.glob(".scratch-*/*/carrier.tgz")):
        assert time.monotonic() < until
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (cache / "a").exists()
    serve(program, archive)
    npm = fetch.NpmPackage("carrier", "1.0.0", "package/a")
    (got,) = fetch.fetch((file("a", ONE, npm),), cache=cache)
    assert got.path.read_bytes() == ONE
    assert names(cache) == {"a"}  # and what the killed one left is swept away


def test_ctrl_c_leaves_no_process(tmp_path, program):
    program(
        "npm",
        f"import os\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "pathlib.Path('x').write_bytes(b'x' * 1000)\ntime.sleep(60)",
    )

    def interrupt(name, have, size):
        if (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    npm = fetch.NpmPackage("carrier", "1.0.0", "package/a")
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch((file("a", ONE, npm),), cache=tmp_path / "cache", progress=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert names(tmp_path / "cache") == set()


# --- what the programs say -----------------------------------------------------------------------


def attempt(tmp_path, *found) -> str:
    with pytest.raises(FetchError) as error:
        fetch.fetch((file("a", ONE, *found),), cache=tmp_path / "cache")
    assert names(tmp_path / "cache") == set()
    return one_sentence(error)


NPM = fetch.NpmPackage("carrier", "1.0.0", "package/a")
APT = fetch.DebianPackage("carrier", "usr/a")
PIP = fetch.Package("carrier", "1.0", "carrier/a")


def test_without_npm_and_apt(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    text = attempt(tmp_path, NPM, APT)
    assert "npm package carrier 1.0.0 (npm is not installed)" in text
    assert "Debian package carrier (apt-get is not installed)" in text


@pytest.mark.parametrize(
    ("source", "said", "words"),
    [
        (
            NPM,
            "npm error code E404\nnpm error 404 Not Found - GET http://r/carrier - Not found\n"
            "npm error 404\nnpm error A complete log of this run can be found in: /x",
            "(npm: 404 Not Found - GET http://r/carrier - Not found)",
        ),
        (
            NPM,
            "npm ERR! code ENOTFOUND\nnpm ERR! syscall getaddrinfo\nnpm ERR! network request to "
            "http://r failed, reason: getaddrinfo ENOTFOUND r",
            "(npm: network request to http://r failed, reason: getaddrinfo ENOTFOUND r)",
        ),
        (NPM, "", "(npm failed)"),
        (
            APT,
            "E: Unable to locate package carrier",
            "(apt does not know the package: run 'apt-get update' as root, on Debian)",
        ),
        (APT, "W: unsandboxed\nE: Failed to fetch http://d/x  Could", "Failed to fetch http://d/x"),
    ],
)
def test_what_a_failing_program_says(tmp_path, program, source, said, words):
    name = "npm" if source is NPM else "apt-get"
    program(name, f"sys.stderr.write({said!r})\nsys.exit(1)")
    assert words in attempt(tmp_path, source)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.stderr.write('python: No module named pip')\nsys.exit(1)", "ensurepip"),
        ("sys.exit(3)", "pip failed"),
        ("sys.exit('ERROR: one two three four\\nERROR: the last of all lines.')",
         "(pip: the last of all lines)"),
        ("sys.exit(0)", "no archive was downloaded"),
    ],
)  # fmt: skip
def test_pip_that_does_not_work(tmp_path, program, monkeypatch, body, words):
    program("python", body)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert words in attempt(tmp_path, PIP)


def test_a_program_that_cannot_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    assert "pip could not be started" in attempt(tmp_path, PIP)


def test_a_program_that_takes_too_long(tmp_path, program, monkeypatch):
    monkeypatch.setattr(sources, "SECONDS", 0.5)
    program("npm", "time.sleep(60)")
    started = time.monotonic()
    assert "npm took longer than 0 s" in attempt(tmp_path, NPM)
    assert time.monotonic() - started < 20


def test_progress_grows_while_a_program_works(tmp_path, program):
    program(
        "npm",
        "for _ in range(8):\n"
        "    open('carrier.tgz', 'ab').write(bytes(1000)); time.sleep(0.15)\n"
        "sys.exit(1)",
    )
    seen = []
    for size in (0, 5000):
        npm = fetch.NpmPackage("carrier", "1.0.0", "package/a", size=size)
        with pytest.raises(FetchError):
            fetch.fetch((file("a", ONE, npm),), cache=tmp_path, progress=lambda *a: seen.append(a))
    unknown = [have for name, have, size in seen if size == 0]
    known = [have for name, have, size in seen if size == 5000]
    assert len(set(unknown)) > 2
    assert unknown == sorted(unknown)
    assert known == sorted(known)
    assert max(known) <= 5000


# --- the programs themselves ---------------------------------------------------------------------


def test_npm_itself(tmp_path, web, monkeypatch):
    """Against a registry with one package, on this machine."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    about = {"name": "carrier", "version": "1.0.0"}
    body = tar({"package/package.json": json.dumps(about).encode(), "package/a": ONE})
    whole = base64.b64encode(hashlib.sha512(body).digest()).decode()
    where = {
        "tarball": f"{web.address}/carrier/-/carrier-1.0.0.tgz",
        "integrity": f"sha512-{whole}",
    }
    web.pages["/carrier/-/carrier-1.0.0.tgz"] = body
    web.pages["/carrier"] = json.dumps(
        {
            "name": "carrier",
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": about | {"dist": where}},
        }
    ).encode()
    monkeypatch.setenv("npm_config_registry", web.address)
    (got,) = fetch.fetch((file("a", ONE, NPM),), cache=tmp_path / "cache")
    assert got.path.read_bytes() == ONE
    assert names(tmp_path / "cache") == {"a"}
    other = fetch.NpmPackage("carrier", "2.0.0", "package/a")
    with pytest.raises(FetchError, match=r"npm: .*carrier@2\.0\.0") as error:
        fetch.fetch((file("b", ONE, other),), cache=tmp_path / "cache")
    one_sentence(error)


def test_npm_itself_without_a_network(tmp_path, monkeypatch):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    assert "ECONNREFUSED" in attempt(tmp_path, NPM)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """apt's own world: a folder of packages, its lists and nothing of the machine's."""
    apt = shutil.which("apt-get")
    if apt is None or shutil.which("dpkg-deb") is None:
        pytest.skip("apt-get is not installed")
    root = tmp_path / "apt"
    pool = root / "pool"
    for name in ("pool", "lists/partial", "cache/archives/partial", "etc"):
        (root / name).mkdir(parents=True)
    package = deb({"usr/a": ONE})
    (pool / "carrier_1.0_all.deb").write_bytes(package)
    (pool / "Packages").write_text(
        "Package: carrier\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example.org>\n"
        f"Filename: ./carrier_1.0_all.deb\nSize: {len(package)}\n"
        f"SHA256: {hashlib.sha256(package).hexdigest()}\nDescription: x\n\n"
    )
    (root / "sources").write_text(f"deb [trusted=yes] file:{pool} ./\n")
    (root / "status").write_text("")
    (root / "conf").write_text(
        f'Dir::Etc::sourcelist "{root}/sources";\nDir::Etc::sourceparts "{root}/etc";\n'
        f'Dir::State::Lists "{root}/lists";\nDir::State::status "{root}/status";\n'
        f'Dir::Cache "{root}/cache";\nAPT::Sandbox::User "";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(root / "conf"))
    return apt, root


def test_apt_itself(repository, tmp_path):
    apt, root = repository
    assert "apt does not know the package" in attempt(tmp_path, APT)  # not updated yet
    done = subprocess.run([apt, "update"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (got,) = fetch.fetch((file("a", ONE, APT),), cache=tmp_path / "cache")
    assert got.path.read_bytes() == ONE
    assert got.source == "Debian package carrier"
    assert names(tmp_path / "cache") == {"a"}
    (root / "pool" / "carrier_1.0_all.deb").write_bytes(deb({"usr/a": TWO}))
    assert "apt-get: Failed to fetch" in attempt_other(tmp_path)


def attempt_other(tmp_path) -> str:
    with pytest.raises(FetchError) as error:
        fetch.fetch((file("other", ONE, APT),), cache=tmp_path / "cache")
    return one_sentence(error)
