import io
import tarfile

import numpy as np
import pytest

from isonomy.core.examples import SPLITS
from isonomy.data.dataset import Request, check_facts
from isonomy.data.datasets import snippets
from isonomy.data.partition import plan
from isonomy.errors import ConfigError, DataError

WORDS = {"films": "plot actor scene", "products": "phone battery screen"}


def lines(domain, count):
    """Made-up sentences: good and bad ones in turn, every tenth rated 0."""
    own = WORDS.get(domain, "word")
    rated = [0.0 if i % 10 == 9 else 1.5 if i % 2 else -0.05 for i in range(count)]
    sure = ["good" if i % 2 else "bad" for i in range(count)]
    return [f"{i}_1\t{rated[i]}\tA {sure[i]}  {own} {i}" for i in range(count)]


def archive(path, count=100, **changed):
    with tarfile.open(path, "w:gz") as out:
        for domain, (name, _) in snippets.FILES.items():
            content = "\r\n".join(changed.get(domain, lines(domain, count))).encode()
            member = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}")
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return snippets.parse([archive(tmp_path_factory.mktemp("some") / "some.tar.gz")])


def request(spec="domains", clients=0, seed=0, **options):
    known = {name: option.default for name, option in snippets.DATASET.options.items()}
    partition, how = plan(spec, snippets.DATASET.partitions)
    return Request(clients, seed, partition, how, {**known, **options})


def test_sentences_are_read_with_rating_and_domain(found):
    assert len(found.texts) == 400
    assert found.texts[1] == "A good plot actor scene 1"
    assert found.ratings[:2].tolist() == [-0.05, 1.5]
    assert np.bincount(found.domains).tolist() == [100] * 4


def test_clients_hold_one_domain_each_and_are_its_cluster(found):
    federation = snippets.federate(found, request())
    assert federation.clusters == (0,) * 7 + (1,) * 3
    assert federation.names[6:8] == ("films 6", "products 0")
    words = federation.features
    for k, cluster in enumerate(federation.clusters):
        own, other = ("plot", "phone") if cluster == 0 else ("phone", "plot")
        for split in SPLITS:
            x = federation.x[federation.rows(k, split)]
            assert (x[:, words.index(own)] > 0).all()
            assert (x[:, words.index(other)] == 0).all()


def test_the_sign_of_the_rating_is_the_label_and_zero_is_left_out(found):
    federation = snippets.federate(found, request())
    assert len(federation.x) == 2 * 90
    good = federation.x[:, federation.features.index("good")] > 0
    assert (good == (federation.y == 1)).all()


def test_the_seed_decides_who_holds_what(found):
    one, same, other = (snippets.federate(found, request(seed=seed)) for seed in (0, 0, 1))
    assert (one.x == same.x).all()
    assert one.x.shape != other.x.shape or not (one.x == other.x).all()


def test_all_domains_and_other_partitions(found):
    four = snippets.federate(
        found,
        request(
            {"name": "domains", "counts": [1, 1, 2, 1]},
            domains=["tweets", "films", "products", "editorials"],
        ),
    )
    assert four.clusters == (0, 1, 2, 2, 3)
    assert four.names[0] == "tweets 0"
    mixed = snippets.federate(found, request("iid", clients=4))
    assert mixed.clusters is None
    assert len(mixed) == 4


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("domains", {"domains": ["books"]}, "unknown domain of data set 'snippets' 'books'"),
        ("domains", {"domains": ["films", "films"]}, "each once"),
        ("domains", {"domains": []}, "one or more"),
        ({"name": "domains", "counts": [7]}, {}, "for 2 domains"),
        ({"name": "domains", "counts": [7, 0]}, {}, "1 client or more"),
    ],
)
def test_what_cannot_be_is_refused(found, spec, options, words):
    with pytest.raises(ConfigError, match=words):
        snippets.federate(found, request(spec, **options))


def test_a_wrong_number_of_clients_is_refused(found):
    with pytest.raises(ConfigError, match="make 10 clients, not 4"):
        snippets.federate(found, request(clients=4))


def test_damaged_and_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(DataError, match="cannot read"):
        snippets.parse([tmp_path / "text"])
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match="cannot read"):
        snippets.parse([tmp_path / "empty.tar.gz"])
    bent = archive(tmp_path / "bent.tar.gz", films=["1\tfive\tA film"])
    with pytest.raises(DataError, match="cannot read"):
        snippets.parse([bent])
    cut = snippets.parse([archive(tmp_path / "cut.tar.gz", count=20)])
    with pytest.raises(DataError, match="20 sentences of films instead of 10,605"):
        check_facts("snippets", snippets._facts(cut))


def test_the_real_files_are_as_they_should_be():
    """Only where they are here already."""
    from isonomy.data.download.fetch import folder

    path = folder() / snippets.DATASET.files[0][0].name
    if not path.is_file():
        pytest.skip("not here")
    check_facts("snippets", snippets.facts([path]))
