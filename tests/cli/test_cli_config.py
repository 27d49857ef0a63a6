"""Configs under random changes: accepted, or refused with the name of the key."""

import contextlib
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isonomy
from isonomy.config.fields import keys_of
from isonomy.config.overrides import merge, parse_override
from isonomy.config.reference import all_keys
from isonomy.config.schema import Config, parse
from isonomy.errors import ConfigError

TABLES = {name: keys_of(key.table) for name, key in keys_of(Config).items() if key.table}
OPEN = {
    "data",
    "model",
    "algorithm",
    "attack",
    "defence",
    "postprocess",
}  # tables that also take options
KEYS = [tuple(name.split(".")) for name, _ in all_keys()]

words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=True, allow_infinity=True),
    words,
)
values = st.one_of(
    scalars, st.lists(scalars, max_size=3), st.dictionaries(words, scalars, max_size=2)
)

equal_values = values.filter(lambda value: "nan" not in repr(value))  # nan does not equal itself

VALID: list[dict[str, Any]] = [
    {},
    {"data": "synthetic", "algorithm": {"name": "fedprox", "mu": 0.5}, "rounds": 3},
    {"data": {"name": "linear", "clients": 4, "R": 2.0}, "model": "linear", "engine": "loop"},
    {"local": {"optimiser": "adam", "lr": 0.01, "steps": 5}, "cohort": {"size": 2}},
    {"compare": {"seeds": [1, 2], "methods": [{"label": "a", "algorithm": "local"}]}},
]


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return value


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.sampled_from(KEYS), values)
def test_a_changed_value_is_accepted_or_its_key_is_named(base, path, value):
    try:
        made = parse(merge(base, nested(path, value)))
    except ConfigError as error:
        text = str(error)
        assert path[-1] in text
        assert "\n" not in text
    else:
        assert isinstance(made, Config)


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.sampled_from([(), *((t,) for t in TABLES)]), words, values)
def test_an_unknown_key_is_named(base, where, word, value):
    if word in (TABLES[where[0]] if where else Config.model_fields):
        return
    if where and where[0] in OPEN:
        return  # it may be an option, which is checked later
    with pytest.raises(ConfigError, match=word):
        parse(merge(base, nested((*where, word), value)))


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.lists(st.tuples(st.sampled_from(KEYS), equal_values), max_size=4))
def test_toml_and_back_is_the_same_config(base, changes):
    made = parse(base)
    for path, value in changes:
        with contextlib.suppress(ConfigError):
            made = parse(merge(made.plain(), nested(path, value)))
    again = parse(tomllib.loads(made.toml()))
    assert again == made
    assert again.toml() == made.toml()


@settings(max_examples=300)
@given(st.sampled_from(KEYS), scalars.filter(lambda v: not isinstance(v, str)))
def test_an_override_reads_as_toml_would(path, value):
    import tomli_w

    text = tomli_w.dumps({"value": value}).strip().removeprefix("value = ")
    found: Any = parse_override(f"{'.'.join(path)}={text}")
    for part in path:
        found = found[part]
    assert found == value or value != value


def test_a_config_from_a_file_overrides_and_values(tmp_path):
    (tmp_path / "a.toml").write_text('rounds = 3\n[algorithm]\nname = "fedprox"\nmu = 2.0\n')
    made = isonomy.make_config(tmp_path / "a.toml", "local.lr=0.5", seed=4, algorithm={"mu": 1.0})
    assert (made.rounds, made.local.lr, made.seed) == (3, 0.5, 4)
    assert made.algorithm.options == {"mu": 1.0}
    assert isonomy.make_config(tmp_path / "a.toml", algorithm="local").algorithm.options == {}


def test_an_algorithm_can_be_given_as_an_instance():
    made = isonomy.make_config(algorithm=isonomy.FedProx(mu=0.25, weight="equal"))
    assert made.algorithm.name == "fedprox"
    assert made.algorithm.options == {"mu": 0.25, "weight": "equal"}


def test_true_clusters_on_the_command_line():
    """The command line reads `true` as a boolean; here it is the name of a rule."""
    made = isonomy.make_config("quickstart", "excess.clusters=true")
    assert made.excess.clusters == "true"
    with pytest.raises(ConfigError, match=r"excess\.clusters"):
        isonomy.make_config("quickstart", "excess.clusters=false")
