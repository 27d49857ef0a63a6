"""Files as R writes them, made here byte by byte."""

import bz2
import gzip
import lzma
import struct
import zlib

import pytest
from r_writer import HEAD, Writer

from isonomy.data import r_files


def frame(w):
    texts = w.vector(16, ["né", None, ""])
    levels = {"levels": w.vector(16, ["great", "other"])}
    score = w.vector(13, [2, 1, -(2**31)], **levels, **{"class": w.vector(16, ["factor"])})
    numbers = w.vector(14, [0.5, 1.0, -2.0])
    flags = w.vector(10, [1, 0, 1])
    return w.vector(
        19,
        [texts, score, numbers, flags],
        names=w.vector(16, ["review", "score", "number", "flag"]),
        **{"row.names": w.vector(13, [-(2**31), -3])},
    )


def saved(version):
    writer = Writer()
    return b"RDX%d\n" % version + HEAD[version] + writer.pairs({"mine": frame(writer)})


def check(found):
    columns = found.named()
    assert columns["review"].values == ["né", None, ""]
    assert columns["score"].values == ["other", "great", None]
    assert columns["number"].values.tolist() == [0.5, 1.0, -2.0]
    assert columns["flag"].values.tolist() == [1, 0, 1]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_saved_objects(tmp_path, version, pack):
    (tmp_path / "x.RData").write_bytes(pack(saved(version)))
    found = r_files.read_saved(tmp_path / "x.RData")
    assert list(found) == ["mine"]
    check(found["mine"])


def raw(content):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
    return lzma.compress(content, lzma.FORMAT_RAW, filters=filters)


@pytest.mark.parametrize(
    "pack",
    [
        zlib.compress,
        lambda content: b"2" + bz2.compress(content),
        lambda content: b"Z" + raw(content),
        lambda content: b"0" + content,
    ],
)
def test_a_database(tmp_path, pack):
    content = HEAD[3] + frame(Writer())
    record = struct.pack(">i", len(content)) + pack(content)
    (tmp_path / "x.rdb").write_bytes(b"other" + record + b"more")
    w = Writer()
    place = w.vector(13, [5, len(record)])
    variables = w.vector(19, [place], names=w.vector(16, ["mine"]))
    index = w.vector(19, [variables], names=w.vector(16, ["variables"]))
    (tmp_path / "x.rdx").write_bytes(gzip.compress(HEAD[3] + index))
    check(r_files.read_database(tmp_path / "x.rdx", tmp_path / "x.rdb", "mine"))
    with pytest.raises(ValueError, match="no object yours"):
        r_files.read_database(tmp_path / "x.rdx", tmp_path / "x.rdb", "yours")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a file that R saved"),
        (b"RDX3\nA\n1", "not in R's binary format"),
        (b"RDX3\nX\n" + struct.pack(">iii", 9, 0, 0), "version 9"),
        (saved(3)[:-40], "ends too early"),
        (b"RDX2\n" + HEAD[2] + struct.pack(">i", 3), "ends too early"),
        (b"RDX2\n" + HEAD[2] + struct.pack(">ii", 3, 0), "R's type 3"),  # a function
    ],
)
def test_other_content_is_refused(tmp_path, content, words):
    (tmp_path / "x.RData").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        r_files.read_saved(tmp_path / "x.RData")


def test_every_shortened_file_is_refused(tmp_path):
    whole = saved(3)
    for end in range(len(whole)):
        (tmp_path / "x.RData").write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"."):
            r_files.read_saved(tmp_path / "x.RData")
