"""Help, listings and pages; what is read off the sources agrees with the objects."""

import dataclasses
import subprocess
import sys

import pytest

import isonomy
from isonomy import algorithms
from isonomy.cli import catalogue
from isonomy.config.schema import Config
from isonomy.data import DATASETS, PARTITIONS
from isonomy.data.partition import IMAGE_PARTITIONS
from isonomy.models import MODELS
from isonomy.robust.attacks import ATTACKS
from isonomy.robust.combiners import COMBINERS
from isonomy.studies import reproduce

VERBS = ["init", "ls", "show", "run", "compare", "sweep", "resume", "report", "reproduce"]


@pytest.mark.parametrize(
    "verb",
    [
        [],
        *([v] for v in VERBS),
        ["data"],
        *(["data", verb] for verb in ("ls", "get", "check", "describe")),
    ],
)
def test_help_has_an_example(cli, verb):
    text = cli(*verb, "--help").stdout
    start = " ".join(["isonomy", *verb])
    assert f"Example: {start}" in " ".join(text.split())


def test_help_lists_every_verb(cli):
    text = cli("--help").stdout
    for verb in [*VERBS, "data"]:
        assert verb in text


def test_version(cli):
    assert cli("--version").stdout == f"isonomy {isonomy.__version__}\n"


def test_no_verb_prints_the_help(cli):
    assert "reproduce" in cli(code=2).output


@pytest.mark.parametrize(
    "arguments", [["--help"], ["ls"], ["data", "ls"], ["show", "fedprox"], ["show", "quickstart"]]
)
def test_looking_does_not_wait_for_torch(arguments):
    code = (
        "import sys\nfrom isonomy.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_ls_lists_everything(cli):
    text = cli("ls").stdout
    for name in [*algorithms.registry(), *DATASETS, *MODELS, *PARTITIONS, *catalogue.presets()]:
        assert f" {name} " in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("algorithms", algorithms.registry()),
        ("data", DATASETS),
        ("models", MODELS),
        ("partitions", PARTITIONS),
        ("attacks", ATTACKS),
        ("defences", COMBINERS),
        ("presets", reproduce.presets()),
    ],
)
def test_ls_one_kind(cli, what, names):
    text = cli("ls", what).stdout
    assert all(name in text for name in names)


def test_data_get_of_generated_data(cli):
    assert "synthetic is here: 5,000 rows" in cli("data", "get", "synthetic").stdout


# --- the catalogue is true ---


def test_algorithms_agree_with_the_classes():
    found = catalogue.algorithms()
    assert list(found) == list(algorithms.registry())
    for name, kind in algorithms.registry().items():
        said = found[name]
        assert (said.kind, said.family, said.paper, said.reveals) == (
            kind.__name__,
            kind.family,
            kind.paper,
            kind.reveals,
        )
        fields = dataclasses.fields(kind)
        assert [o.name for o in said.options] == [f.name for f in fields]
        assert all(o.meaning for o in said.options), f"{name}: a field has no comment behind it"
        assert said.phases, f"{name}: no phase was found"
        for phase in said.phases:
            assert phase.does


def test_lists_agree_with_the_registries():
    assert {e.name: e.text for e in catalogue.datasets()} == {
        name: d.description for name, d in DATASETS.items()
    }
    assert [(e.name, e.text) for e in catalogue.models()] == [
        (name, m.description) for name, m in MODELS.items()
    ]
    assert [(e.name, e.text) for e in catalogue.partitions()] == [
        (name, p.meaning) for name, p in (PARTITIONS | IMAGE_PARTITIONS).items()
    ]


@pytest.mark.parametrize(
    ("found", "known"),
    [(catalogue.attacks(), ATTACKS), (catalogue.defences(), COMBINERS)],
    ids=["attacks", "defences"],
)
def test_attacks_and_defences_agree_with_the_classes(found, known):
    assert list(found) == list(known)
    for name, kind in known.items():
        said = found[name]
        assert (said.title, said.paper) == (kind.__doc__, kind.paper)
        assert [o.name for o in said.options] == [f.name for f in dataclasses.fields(kind)]
        assert all(o.meaning for o in said.options), f"{name}: a field has no comment behind it"


def test_show_says_what_attackers_know_and_what_a_defence_reveals(cli):
    text = cli("show", "little").stdout
    assert "The attacker knows: mean and standard deviation" in text
    assert "benign clients only" in text
    text = cli("show", "k_loss").stdout
    assert "Revealed to the server: every client's update" in text
    assert "one more exchange" in text
    assert "With a defence it also sees each client's reply" in cli("show", "fedavg").stdout
    assert "With a defence" not in cli("show", "term").stdout


def test_phases_say_what_the_server_sees(tmp_path, monkeypatch, cli):
    (tmp_path / "mine.py").write_text(
        '"""Mine: of two phases."""\n'
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "from isonomy.core.algorithm import Algorithm\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Algorithm):\n"
        '    """My own."""\n\n'
        '    name: ClassVar[str] = "mine"\n'
        '    reveals: ClassVar[str] = "every loss"\n\n'
        "    # how many\n"
        "    many: int = 3\n"
        "    fast: bool = True  # whether it is\n\n"
        "    def round(self, server, cohort):\n"
        '        """Two exchanges."""\n'
        '        losses = cohort.gather(self.losses, {"params": server})\n'
        "        return cohort.mean(self.train, {}, weight=losses)\n\n"
        "    def finish(self, server, cohort):\n"
        '        """Another."""\n'
        "        return cohort.sum(self.train, server)\n\n"
        "    def losses(self, task, message, client):\n"
        '        """Its loss."""\n'
        '        return {"loss": 0}, ()\n\n'
        "    def train(self, task, message, client):\n"
        '        """Its model."""\n'
        "        return reply, ()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    it = catalogue.algorithm("mine:Mine")
    assert [(o.name, o.kind, o.default, o.meaning) for o in it.options] == [
        ("many", "whole number", "3", "how many"),
        ("fast", "true or false", "true", "whether it is"),
    ]
    assert [(p.when, p.name, p.verb, p.sent, p.replied, p.does) for p in it.phases] == [
        ("round", "losses", "gather", "params", "loss", "Its loss."),
        ("round", "train", "mean", "nothing", "?", "Its model."),
        ("finish", "train", "sum", "?", "?", "Its model."),
    ]
    text = cli("show", "mine:Mine").stdout
    assert "each client's reply" in text
    assert "only the weighted mean" in text
    assert "Revealed to the server: every loss." in text


# --- pages ---


@pytest.mark.parametrize("name", algorithms.registry())
def test_show_algorithm(cli, name):
    text = cli("show", name).stdout
    kind = algorithms.registry()[name]
    assert kind.paper in text
    assert f"Revealed to the server: {kind.reveals}." in text
    assert "server sees" in text
    assert all(field.name in text for field in dataclasses.fields(kind))


@pytest.mark.parametrize("name", DATASETS)
def test_show_data(cli, name):
    text = cli("show", name).stdout
    assert DATASETS[name].source in text
    assert all(option.meaning in text for option in DATASETS[name].options.values())


@pytest.mark.parametrize("name", MODELS)
def test_show_model(cli, name):
    text = cli("show", name).stdout
    assert MODELS[name].accepts in text
    assert all(option.meaning in text for option in MODELS[name].options.values())


@pytest.mark.parametrize("name", [*PARTITIONS, *IMAGE_PARTITIONS, "paper"])
def test_show_partition(cli, name):
    assert f'data.partition = {{ name = "{name}" }}' in cli("show", name).stdout


def test_a_name_of_two_things_shows_both(cli):
    text = cli("show", "linear").stdout
    assert "data set; LINEAR" in text
    assert "\nmodel\n" in text


@pytest.mark.parametrize("name", catalogue.presets())
def test_show_preset(cli, name):
    assert f"Run it: isonomy {'re' if name != 'quickstart' else 'co'}" in cli("show", name).stdout


def test_show_metric(cli):
    text = cli("show", "group.sex.demographic_parity").stdout
    assert "lower is better" in text
    assert "between the groups of sex" in text
    assert "Wall-clock" in cli("show", "seconds").stdout


def test_show_config_names_every_key(cli):
    text = cli("show", "config").stdout
    for section, field in Config.model_fields.items():
        inner = getattr(field.annotation, "model_fields", {})
        for key in inner or [""]:
            if section != "versions":
                assert f" {section}.{key}".rstrip(".") in text
