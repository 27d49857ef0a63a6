"""`isonomy data`: ls, get, check and describe."""

import hashlib
import json
import sys
from pathlib import Path

import pytest

from isonomy.cli.data import describe
from isonomy.cli.data.downloads import show_downloads
from isonomy.data import DATASETS
from isonomy.data import dataset as base
from isonomy.data.dataset import Fact
from isonomy.data.download import fetch
from isonomy.data.sentences import VECTORS
from isonomy.errors import FetchError

# --- ls ---


def test_ls_says_what_is_in_the_cache(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))
    lines = {
        line.split()[0]: line for line in cli("data", "ls").stdout.splitlines() if line.split()
    }
    assert set(DATASETS) <= set(lines)
    assert "6.0 MB" in lines["adult"]
    assert not lines["adult"].rstrip().endswith("yes")
    for file in DATASETS["adult"].files[0]:
        (tmp_path / file.name).write_text("")
    lines = {
        line.split()[0]: line for line in cli("data", "ls").stdout.splitlines() if line.split()
    }
    assert lines["adult"].rstrip().endswith("yes")
    assert not lines["synthetic"].rstrip().endswith(("yes", "MB"))


# --- get ---


def test_get_several_and_generated(cli):
    text = cli("data", "get", "synthetic", "linear", "synthetic").stdout
    assert text.count("synthetic is ready: 5,000 rows") == 1
    assert "linear is ready" in text


def test_get_needs_a_name_that_is_known(refused):
    assert "--all" in refused("data", "get")
    assert "unknown data set 'adul'" in refused("data", "get", "synthetic", "adul")


def test_get_can_encode_texts(cli, refused, monkeypatch):
    from isonomy.data import datasets

    asked = []

    def load(name, *, options, progress):
        asked.append((name, options))
        progress(VECTORS, 1536, 1536)
        return original("synthetic")

    original = datasets.load
    assert "has no option 'features'" in refused("data", "get", "synthetic", "--sentences")
    monkeypatch.setattr(datasets, "load", load)
    got = cli("data", "get", "reviews", "--sentences")
    assert asked == [("reviews", {"features": "sentences"})]
    assert "reviews is ready" in got.stdout
    assert "computed vectors of texts, 1,536 bytes" in got.stderr
    cli("data", "get", "reviews")
    assert asked[-1] == ("reviews", {})


def test_failed_downloads_are_reported_at_the_end(cli, monkeypatch):
    def load(name, **_):
        if name == "linear":
            raise FetchError("no network here.")
        return original(name)

    from isonomy.data import datasets

    original = datasets.load
    monkeypatch.setattr(datasets, "load", load)
    result = cli("data", "get", "linear", "synthetic", code=2)
    assert "synthetic is ready" in result.stdout
    assert "Note: linear: no network here." in result.stderr
    assert "1 of 2 data sets could not be loaded: linear" in result.stderr
    assert "no network here" in cli("data", "get", "linear", code=2).stderr


def test_progress_without_a_terminal_is_one_line_per_file(capsys):
    with show_downloads("x") as follow:
        for have in (1, 5, 10, 10):
            follow("a.csv", have, 10)
        follow("b.csv", 3, 0)
    assert capsys.readouterr().err == "downloaded a.csv, 10 bytes\n"


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    import io

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with show_downloads("x") as follow:
        follow("a.csv", 500_000, 1_000_000)
        follow("a.csv", 1_000_000, 1_000_000)
        follow("b.csv", 10, 0)
    assert "a.csv" in screen.getvalue()
    assert "1.0/1.0" in screen.getvalue()


# --- check ---

ROWS = b"a,b\n1,2\n3,4\n"


def small(facts=None, content=ROWS, name="small.csv", sources=()):
    """A data set of one file that has two rows."""

    def counted(paths):
        return [Fact("rows", len(Path(paths[0]).read_text().split()) - 1, 2)]

    file = fetch.File(name, hashlib.sha256(content).hexdigest(), len(content), sources)
    synthetic = DATASETS["synthetic"]
    return base.Dataset(
        **{
            **{key: getattr(synthetic, key) for key in synthetic.__dataclass_fields__},
            "name": "small",
            "files": ((file,),),
            "facts": facts or counted,
        }
    )


@pytest.fixture
def only(monkeypatch, tmp_path):
    """Make one small data set the only one with files; an empty cache."""
    from isonomy.data import datasets

    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path))

    def set(dataset):
        known = {"small": dataset, "synthetic": DATASETS["synthetic"]}
        monkeypatch.setattr(datasets, "DATASETS", known)
        return tmp_path

    return set


def test_check_of_what_is_right(cli, only):
    cache = only(small())
    (cache / "small.csv").write_bytes(ROWS)
    text = cli("data", "check").stdout
    assert "SHA-256 of small.csv" in text
    assert hashlib.sha256(ROWS).hexdigest()[:16] in text
    assert text.count(" right") == 2  # the file and the fact
    assert "WRONG" not in text


def test_check_of_a_damaged_file(cli, only):
    cache = only(small())
    (cache / "small.csv").write_bytes(ROWS + b"5,6\n")
    result = cli("data", "check", code=2)
    assert "WRONG" in result.stdout
    assert "rows" not in result.stdout  # a wrong file is not read
    assert "small; delete" in result.stderr


def test_check_of_wrong_facts(cli, only):
    cache = only(small(lambda _: [Fact("rows", 2, 3), Fact("mean", 0.5, 0.5)]))
    (cache / "small.csv").write_bytes(ROWS)
    result = cli("data", "check", "small", code=2)
    assert [line.split()[-1] for line in result.stdout.splitlines() if "rows" in line] == ["WRONG"]
    assert "0.5" in result.stdout


def test_files_that_are_not_in_the_cache_are_reported(cli, only):
    only(small())
    assert "Not in the cache: small" in cli("data", "check").stdout
    assert "small; download with --get" in cli("data", "check", "small", code=2).stderr
    assert "No files with known content: synthetic." in cli("data", "check", "synthetic").stdout


def test_check_can_fetch(cli, only, tmp_path_factory):
    place = tmp_path_factory.mktemp("there") / "small.csv"
    place.write_bytes(ROWS)
    cache = only(small(sources=(fetch.Url(place.as_uri()),)))
    assert "WRONG" not in cli("data", "check", "small", "--get").stdout
    assert (cache / "small.csv").read_bytes() == ROWS
    (cache / "small.csv").unlink()
    place.unlink()
    result = cli("data", "check", "small", "--get", code=2)
    assert "Note: small: " in result.stderr
    assert "small.csv" in result.stderr


def test_adult_is_as_it_should_be(cli):
    cache = fetch.folder()
    if not any(all((cache / f.name).is_file() for f in c) for c in DATASETS["adult"].files):
        pytest.skip("ADULT is not in the cache")
    text = cli("data", "check", "adult").stdout
    assert "48,842" in text
    assert "WRONG" not in text


# --- describe ---


def test_describe_a_data_set(cli):
    text = cli("data", "describe", "synthetic", "clients=4", "examples=800").stdout
    lines = text.splitlines()
    assert lines[0].startswith("SYNTHETIC (Zafar et al., 2017; Zeng et al., 2021): 4 clients; ")
    assert "Label: 0: " in lines[1]
    assert "\x1b" not in text
    for said in ("Clients", "client 3", "How clients differ", "Gini coefficient", "Warnings"):
        assert said in text


def test_partitions_and_seeds_can_be_given(cli):
    def sizes(*given):
        text = cli("data", "describe", "synthetic", "examples=900", "--format=json", *given).stdout
        return json.loads(text)["sizes"]

    even = sizes("clients=9", "partition=iid")
    assert len(even) == 9
    assert max(even) - min(even) <= 2
    one = sizes("clients=5", "partition=dirichlet", "partition.beta=0.2")
    assert one == sizes("data.clients=5", "data.partition=dirichlet", "partition.beta=0.2")
    assert one != sizes("clients=5", "partition=dirichlet", "partition.beta=0.2", "seed=3")


def test_describe_a_config(cli, place):
    (place / "tiny.toml").write_text(
        'evaluate = { split = "validation" }\ndata = { name = "synthetic", examples = 400 }\n'
    )
    facts = json.loads(cli("data", "describe", "tiny.toml", "--format", "json").stdout)
    assert facts["evaluated"] == "validation"
    more = json.loads(
        cli("data", "describe", "tiny.toml", "data.clients=7", "--format", "json").stdout
    )
    assert (len(facts["names"]), len(more["names"])) == (3, 7)


def test_describe_tables(cli, place):
    folder = place / "hospitals"
    folder.mkdir()
    for k in range(3):
        rows = [f"{i * 7 % 60 / 9:.2f},{'fm'[i % 2]},{(i + k) % 3 == 0:d}" for i in range(90)]
        (folder / f"h{k}.csv").write_text("\n".join(["dose,sex,ill", *rows]))
    given = ("label=ill", 'protected=["sex"]', "--format", "json")
    facts = json.loads(cli("data", "describe", "hospitals", *given).stdout)
    assert facts["names"] == ["h0", "h1", "h2"]
    assert list(facts["groups"]) == ["sex"]
    result = cli("data", "describe", "hospitals", "--format", "json")
    assert "Note: guessed: label = ill" in result.stderr
    assert json.loads(result.stdout)["names"] == ["h0", "h1", "h2"]


def test_describe_writes_a_page(cli, place):
    result = cli("data", "describe", "synthetic", "examples=300", "--out", "new/page.html")
    assert "page: new/page.html" in result.stderr
    text = (place / "new" / "page.html").read_text(encoding="utf-8")
    assert "<title>Data: synthetic</title>" in text
    assert 'data-figure="holdings"' in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["adul"], "Did you mean 'adult'?"),
        (["nothing.toml"], "'nothing.toml'"),
        (["synthetic", "clients=0"], "data.clients = 0"),
        (["synthetic", "size=3"], "'size'"),
        (["synthetic", "three"], "'three'"),
        (["synthetic", "partition=idd"], "'idd'"),
        (["synthetic", "--format", "xml"], "'xml'"),
        (["focus-synthetic"], "isonomy reproduce focus-synthetic"),
    ],
)
def test_describe_refuses_with_a_sentence(refused, place, arguments, words):
    assert words in refused("data", "describe", *arguments)


def test_warnings_wrap_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    describe._print_warning(3, "A sentence of words that goes on for longer than a line " * 2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) < 80
