"""What all published tables have in common."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from isonomy.data import load, public_tables
from isonomy.data.dataset import check_facts
from isonomy.data.datasets import (
    DATASETS,
    adult,
    bank,
    bank_additional,
    compas,
    credit_card,
    german,
)
from isonomy.data.download.fetch import Url, fetch
from isonomy.errors import ConfigError, DataError, FetchError

MODULES = {
    "adult": adult,
    "bank": bank,
    "bank_additional": bank_additional,
    "compas": compas,
    "credit_card": credit_card,
    "german": german,
}
NAMES = sorted(MODULES)
OFFICIAL = ("adult", "compas", "german")  # their official bytes are those of the mirror


@pytest.fixture(scope="session")
def files():
    def of(name):
        try:
            return [file.path for file in fetch(*MODULES[name].FILES)]
        except FetchError as error:
            pytest.skip(f"{name} is neither cached nor available here: {error}")

    return of


@pytest.fixture(scope="session")
def federation(files):
    loaded = {}

    def of(name):
        files(name)
        if name not in loaded:
            loaded[name] = load(name)
        return loaded[name]

    return of


def one_sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_entries(name):
    entry = DATASETS[name]
    assert entry.protected == entry.options["protected"].default
    assert {"protected", "keep_protected", "bins", "fractions", "path"} <= set(entry.options)
    sources = [source for choice in entry.files for file in choice for source in file.sources]
    assert any(isinstance(source, Url) for source in sources) == (name in OFFICIAL)
    for choice in entry.files:
        for file in choice:
            assert len(file.sha256) == 64
            assert file.size > 10_000
            assert not isinstance(file.sources[-1], Url)  # a mirror, for machines with no more


@pytest.mark.parametrize("name", NAMES)
def test_facts_hold(files, name):
    told = DATASETS[name].facts(files(name))
    assert len(told) >= 4
    assert all(fact.holds for fact in told)
    check_facts(name, told)


@pytest.mark.parametrize("name", NAMES)
def test_default_federation(federation, name):
    it = federation(name)
    entry = DATASETS[name]
    assert len(it) == entry.clients == 10
    assert tuple(attribute.name for attribute in it.attributes) == entry.protected
    for attribute, groups in zip(it.attributes, it.groups.T, strict=True):
        assert len(groups.unique()) == len(attribute.levels) >= 2
        told = [f for f in it.features if f == attribute.name or f.startswith(attribute.name + "=")]
        assert not told
    # scales are those of training rows, so they are not quite those of the rest
    train = torch.cat([it.x[it.rows(k)] for k in range(10)])
    numbers = [
        at
        for at, feature in enumerate(it.features)
        if "=" not in feature and not feature.endswith("is missing")
    ]
    assert len(numbers) >= 3
    torch.testing.assert_close(
        train[:, numbers].mean(0), torch.zeros(len(numbers)), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        train[:, numbers].std(0, correction=0), torch.ones(len(numbers)), atol=1e-3, rtol=0
    )
    assert not torch.allclose(it.x[:, numbers].mean(0), torch.zeros(len(numbers)), atol=1e-5)
    rest = [at for at in range(len(it.features)) if at not in numbers]
    assert set(it.x[:, rest].unique().tolist()) <= {0.0, 1.0}
    assert it.origin
    assert it.source == entry.source


@pytest.mark.parametrize("name", NAMES)
def test_protected_as_one_wishes(files, name):
    files(name)
    none = load(name, options={"protected": []})
    assert none.attributes == ()
    kept = load(name, options={"keep_protected": True})
    assert len(kept.features) > len(load(name).features)
    with pytest.raises(ConfigError, match="gender"):
        load(name, options={"protected": ["gender"]})


@pytest.mark.parametrize("name", NAMES)
def test_truncated_files_are_refused(files, tmp_path, name):
    path = files(name)[0]
    raw = path.read_bytes()
    lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).strip().splitlines(True)
    short = tmp_path / "short.csv"
    for content, words in (
        (lines[:400], "this is not the complete"),
        ([*lines[:-1], lines[-1][: len(lines[-1]) // 2]], r"cannot read|no number for"),
        ([], "cannot read"),
        ([b"<html>\n", b"<p>Not found</p>\n"], "cannot read"),
        ([b"PK\x03\x04\xff\xfe\x00 \n" * 5], "cannot read"),
    ):
        short.write_bytes(b"".join(content))
        with pytest.raises(DataError, match=words) as error:
            load(name, options={"path": str(short)})
        one_sentence(error)
    with pytest.raises(DataError, match=r"there is no file .*; check the path") as error:
        load(name, options={"path": str(tmp_path / "nothing.csv")})
    one_sentence(error)
    with pytest.raises(DataError, match="check the path") as error:
        load(name, options={"path": str(tmp_path)})
    one_sentence(error)


@pytest.mark.parametrize("name", NAMES)
def test_substituted_cache_is_refused(monkeypatch, tmp_path, name):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    for file in DATASETS[name].files[0]:
        (tmp_path / file.name).write_bytes(b"something else\n" * 100)
    with pytest.raises(DataError, match="damaged or a different file") as error:
        load(name)
    one_sentence(error)


# --- the reader -----------------------------------------------------------------------------------


def write(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    return path


def test_read(tmp_path):
    path = write(tmp_path, "1, x\n2, ?\n\n3,y \n")
    table = public_tables.read("IT", path, ("n", "c"), ("n",), missing=("?",))
    assert table["n"].listed() == [1, 2, 3]
    assert table["c"].listed() == ["x", None, "y"]


def test_read_only_what_is_wanted(tmp_path):
    path = write(tmp_path, "name,n,c\nada,1,x\nbob,,y\n")
    found, delimiter = public_tables.header("IT", path, ("n", "c"))
    assert (found, delimiter) == (["name", "n", "c"], ",")
    table = public_tables.read("IT", path, found, ("n",), skip=1, wanted=("n", "c"), gaps=("n",))
    assert table.names == ["n", "c"]
    assert np.isnan(table["n"].values[1])


def test_headers(tmp_path):
    path = write(tmp_path, '\ufeff"n";"c";"n"\n1;2;3\n')
    assert public_tables.header("IT", path, ("n", "c")) == (["n", "c", "n.1"], ";")
    with pytest.raises(DataError, match=r"cannot read a\.csv as IT: it has no column d") as error:
        public_tables.header("IT", path, ("n", "d"))
    one_sentence(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,x\n2\n", "cannot read a.csv as IT"),
        ("1,x\nu,y\n", "cannot read a.csv as IT"),
        ("1,x\n,y\n", "row 2 has no number in column n"),
        ("1,x\nnan,y\n", "row 2 has no number in column n"),
        ("", "cannot read a.csv as IT"),
    ],
)
def test_read_refuses(tmp_path, text, words):
    with pytest.raises(DataError, match=words) as error:
        public_tables.read("IT", write(tmp_path, text), ("n", "c"), ("n",))
    one_sentence(error)


def test_packed_files(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"n,c\n1,x\n"))
    found, _ = public_tables.header("IT", path, ("n", "c"))
    assert public_tables.read("IT", path, found, ("n",), skip=1)["c"].listed() == ["x"]
    path.write_bytes(gzip.compress(b"n,c\n1,x\n" * 500)[:-12])
    with pytest.raises(DataError, match=r"cannot read a\.csv\.gz") as error:
        public_tables.read("IT", path, found, ("n",), skip=1)
    one_sentence(error)
    path.write_bytes(b"n,c\n")
    with pytest.raises(DataError, match="cannot read") as error:
        public_tables.first_line(path)
    one_sentence(error)


# --- docs/data.md ---------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_is_so(files, federation, name):
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| [`{name}`]")]
    entry, it = DATASETS[name], federation(name)
    for fact in entry.facts(files(name))[:2]:
        assert f"{fact.right:,}" in section
    assert f"({it.y.float().mean():.0%})".replace("%", " %") in row
    assert ", ".join(entry.protected) in row
    assert f"{it.x.shape[0]:,}" in row
    assert entry.licence.split(" (")[0] in row
    assert ("paper" in entry.partitions) == ("`paper`:" in section) == ("`paper`" in row)
    count = "Eight" if name == "compas" else str(len(it.features))
    assert f"{count} " in section.split("`paper`:")[0]
