"""One check of options, whatever they belong to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from isonomy.core.options import Option, build, check, option, options_of, type_words
from isonomy.core.work import Work
from isonomy.errors import ConfigError

OPTIONS = {
    "minimum": Option(10, "rows of the smallest client", ge=1),
    "share": Option(0.5, "a share", gt=0, lt=1),
    "path": Option("", "a file"),
    "columns": Option((), "some columns"),
    "widths": Option((4, 8), "some widths", ge=1),
    "bins": Option({}, "where numbers are cut"),
    "on": Option(False, "whether it is on"),
    "mode": Option("a", "which one", choices=("a", "b")),
    "cap": Option(None, "a bound", type=float | None),
    "tau": Option(math.inf, "a temperature"),
}


def checked(**given: Any) -> dict[str, Any]:
    return check("data", "toy", OPTIONS, given)


def test_defaults_are_filled_in() -> None:
    assert checked() == {name: one.default for name, one in OPTIONS.items()}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("minimum", 3, 3),
        ("share", 0.25, 0.25),
        ("columns", ["a", "b"], ("a", "b")),
        ("columns", "a", ("a",)),  # a single value stands for a list of one
        ("widths", [2], (2,)),
        ("widths", 2, (2,)),
        ("bins", {"age": [30]}, {"age": [30]}),
        ("mode", "b", "b"),
        ("cap", 3, 3.0),  # a whole number is a number
        ("cap", None, None),
        ("tau", math.inf, math.inf),
    ],
)
def test_allowed_values(name: str, value: Any, wanted: Any) -> None:
    found = checked(**{name: value})[name]
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("minimum", 0, ["data.minimum = 0", "whole number of at least 1", "default: 10"]),
        ("minimum", True, ["data.minimum = True", "whole number"]),
        ("minimum", 2.0, ["data.minimum = 2.0", "whole number"]),
        ("share", 1, ["data.share = 1", "a number above 0 and below 1"]),
        ("share", math.nan, ["data.share = nan", "a number"]),
        ("path", 3, ["data.path = 3", "a string"]),
        ("columns", [1], ["data.columns = [1]", "a list of strings"]),
        ("widths", [2, 0], ["data.widths = [2, 0]", "whole numbers of at least 1", "[4, 8]"]),
        ("bins", [1], ["data.bins = [1]", "a table"]),
        ("on", 1, ["data.on = 1", "true or false"]),
        ("mode", "c", ["data.mode = 'c'", "one of 'a', 'b'"]),
        ("cap", "x", ["data.cap = 'x'", "a number"]),
    ],
)
def test_values_that_are_not_allowed(name: str, value: Any, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        checked(**{name: value})
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_options_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"data\.minimun: 'toy' has no option.*'minimum'\?"):
        checked(minimun=3)
    with pytest.raises(ConfigError, match=r"data\.x: 'toy' has no options; remove it"):
        check("data", "toy", {}, {"x": 1})
    with pytest.raises(ConfigError, match=r"unknown key 'local\.lrr'.*'lr'\?"):
        build("local", "", Work, {"lrr": 1.0})


@dataclass(frozen=True)
class Rule:
    strength: float  # required
    mode: Literal["a", "b"] = option("a", "which one")
    steps: int = option(3, "how many", ge=1)
    names: list[str] = field(default_factory=list)
    made: int = field(init=False, default=7)

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError("strength is negative; give 0 or more")


def test_fields_of_a_dataclass_are_options() -> None:
    found = options_of(Rule)
    assert list(found) == ["strength", "mode", "steps", "names"]
    assert found["steps"].meaning == "how many"
    assert found["steps"].allowed == "a whole number of at least 1"
    assert found["mode"].allowed == "one of 'a', 'b'"


def test_build() -> None:
    made = build("defence", "rule", Rule, {"strength": 2, "names": ["x"]})
    assert made == Rule(2.0, names=["x"])
    for given, words in [
        ({}, r"defence\.strength is missing; give a number"),
        ({"strength": -1}, "defence 'rule': strength is negative"),
        ({"strength": 1, "steps": 0}, r"defence\.steps = 0"),
    ]:
        with pytest.raises(ConfigError, match=words):
            build("defence", "rule", Rule, given)


def test_every_default_is_allowed() -> None:
    for one in options_of(Work).values():
        assert one.convert(one.default) == one.default
        assert one.meaning


def test_types_in_words() -> None:
    assert type_words(int | Literal["auto"]) == "a whole number or 'auto'"
    assert type_words(tuple[float, float]) == "a list of 2 numbers"
    assert type_words(str | dict[str, Any] | None) == "a string or a table"
