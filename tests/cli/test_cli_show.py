"""`isonomy --help`, `ls` and `show`."""

import dataclasses
import subprocess
import sys
from itertools import pairwise

import pytest

import isonomy
from isonomy import algorithms
from isonomy.cli import app, data, shell
from isonomy.cli.packaged_configs import packaged_configs
from isonomy.config.schema import Config
from isonomy.core.phase import declared
from isonomy.data import DATASETS, PARTITIONS
from isonomy.data.partition import IMAGE_PARTITIONS
from isonomy.models import MODELS
from isonomy.robust.attacks import ATTACKS
from isonomy.robust.combiners import COMBINERS
from isonomy.studies import reproduce

VERBS = [str(command.name) for command in app.registered_commands]
DATA_VERBS = [str(command.name) for command in data.app.registered_commands]


@pytest.mark.parametrize(
    "verb",
    [
        [],
        *([v] for v in VERBS),
        ["data"],
        *(["data", verb] for verb in DATA_VERBS),
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
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["data", "--help"],
        ["ls", "presets"],
        ["show", "config"],
        ["show", "quickstart"],
    ],
)
def test_what_needs_no_torch_does_not_import_it(arguments):
    code = (
        "import sys\nfrom isonomy.cli import app\n"
        f"try: app({arguments!r})\nexcept SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_ls_lists_everything(cli):
    text = cli("ls").stdout
    for name in [*algorithms.registry(), *DATASETS, *MODELS, *PARTITIONS, *packaged_configs()]:
        assert f" {name} " in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("algorithms", algorithms.registry()),
        ("data", DATASETS),
        ("models", MODELS),
        ("partitions", PARTITIONS | IMAGE_PARTITIONS),
        ("attacks", ATTACKS),
        ("defences", COMBINERS),
        ("presets", reproduce.presets()),
    ],
)
def test_ls_one_kind(cli, what, names):
    text = cli("ls", what).stdout
    assert all(name in text for name in names)


def test_data_get_of_generated_data(cli):
    assert "synthetic is ready: 5,000 rows" in cli("data", "get", "synthetic").stdout


# --- what is revealed ---


def phases(text):
    """The rows of the table of phases: phase, part, kind and what the server sees."""
    lines = text.split("\nPhases ")[1].split("\nRevealed")[0].splitlines()
    head = next(line for line in lines if "server sees" in line)
    starts = [head.index(name) for name in ("phase", "reply", "kind", "server sees")]
    last = ""
    for line in lines[lines.index(head) + 2 :]:
        if line.strip():
            last = line[starts[0] :].split("  ")[0].strip() or last
            part, kind = (line[a:b].strip() for a, b in pairwise(starts[1:]))
            yield last, part, kind, line[starts[3] :].strip()


def test_show_takes_the_phases_from_the_declarations(tmp_path, monkeypatch, cli):
    (tmp_path / "mine.py").write_text(
        '''"""Mine: an algorithm of three phases."""
from dataclasses import dataclass
from typing import ClassVar, Literal

from isonomy import Algorithm, phase
from isonomy.core.options import option


@dataclass(frozen=True)
class Mine(Algorithm):
    """My own algorithm."""

    name: ClassVar[str] = "mine"
    family: ClassVar[str] = "average"
    paper: ClassVar[str] = "unpublished"
    reveals: ClassVar[str] = "every loss"

    many: int = option(3, "the number of steps")
    fast: bool = option(True, "whether it is fast")
    limit: float | None = option(None, "the largest norm")
    way: Literal["a", "b"] = option("a", "which way")

    def round(self, server, cohort):
        """Three exchanges."""
        return server

    @phase("gather", loss="statistic")
    def losses(self, task, message, client):
        """Measures the loss."""

    @phase("mean", "sum", params="model")
    def train(self, task, message, client):
        """Trains the model.

        In some way.
        """

    @phase("weigh", seen=("risk",), change="update", risk="group statistic")
    def tilt(self, task, message, client):
        """Trains and measures."""
'''
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = cli("show", "mine:Mine").stdout
    assert "Mine: an algorithm of three phases." in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for words in (
        "many a whole number 3 the number of steps",
        "fast true or false true whether it is fast",
        "limit a number unset the largest norm",
        "way one of 'a', 'b' \"a\" which way",
    ):
        assert words in lines
    assert list(phases(text)) == [
        ("losses", "loss", "statistic", "every client's"),
        ("train", "params", "model", "only the weighted mean or only the sum"),
        ("tilt", "change", "update", "only the weighted mean"),
        ("tilt", "risk", "group statistic", "every client's"),
    ]
    assert "Measures the loss." in text
    assert "In some way." not in text
    assert "Revealed to the server: every loss." in text
    assert "Each evaluation also reveals, of every client" in text
    assert 'algorithm = { name = "mine:Mine", many = 3 }' in text


def test_show_says_what_the_server_sees_under_a_defence(cli):
    assert "With a defence, the server sees every client's reply" in cli("show", "fedavg").stdout
    text = cli("show", "term").stdout
    assert "With a defence" not in text
    assert "Defences: none can be used" in text


def test_an_algorithm_says_whether_it_can_be_aggregated_securely(cli):
    assert "With secure = true: possible; the server sees only sums" in cli("show", "fmtl").stdout
    text = " ".join(cli("show", "fedeba").stdout.split())
    assert "secure = true: refused, because phase 'measure' of 'fedeba' needs 'loss'" in text


def test_show_says_what_attackers_know_and_what_a_defence_reveals(cli):
    text = cli("show", "little").stdout
    assert f"The attacker knows: {ATTACKS['little'].sees}." in text
    assert "benign clients only" in text
    text = cli("show", "k_loss").stdout
    assert "Revealed to the server: every client's update" in text
    assert "one more exchange" in text


# --- pages ---


@pytest.mark.parametrize("name", algorithms.registry())
def test_show_algorithm(cli, name):
    text = cli("show", name).stdout
    kind = algorithms.registry()[name]
    assert kind.paper in text
    assert f"Revealed to the server: {kind.reveals}." in text
    for field in dataclasses.fields(kind):
        assert field.name in text
        assert field.metadata["meaning"] in text
    shown = [(phase, part) for phase, part, *_ in phases(text)]
    declarations = declared(kind).values()
    assert declarations
    assert shown == [(d.name, p) for d in declarations for p in d.parts or ["nothing"]]
    assert all(d.does in text for d in declarations)


@pytest.mark.parametrize("name", [*ATTACKS, *COMBINERS])
def test_show_attack_or_defence(cli, name):
    text = cli("show", name).stdout
    kind = (ATTACKS | COMBINERS)[name]
    assert kind.paper in text
    assert shell.first_sentence(kind.__doc__) in text
    for field in dataclasses.fields(kind):
        assert field.metadata["meaning"] in text


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


@pytest.mark.parametrize("name", packaged_configs())
def test_show_preset(cli, name):
    verb = "reproduce" if "preset" in packaged_configs()[name] else "compare"
    assert f"To run it: isonomy {verb} {name}" in cli("show", name).stdout


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
