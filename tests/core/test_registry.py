"""Finding an algorithm by name, and checking its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from isonomy.algorithms import find, make, registry
from isonomy.core.algorithm import Algorithm
from isonomy.core.importing import trust
from isonomy.core.options import Option, check
from isonomy.errors import ConfigError


@dataclass(frozen=True)
class Mine(Algorithm):
    """A user's own algorithm."""

    name = "mine"
    level: float = 1.0
    steps: int = 3
    mode: Literal["a", "b"] = "a"
    on: bool = False
    shares: tuple[float, ...] = (0.5,)
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError("level is negative; give 0 or more")

    def init_server(self, task: Any, params: Any, clients: int) -> Any:
        return params

    def round(self, server: Any, cohort: Any) -> Any:
        return server


def test_registry_has_the_baselines_by_name() -> None:
    assert {"fedavg", "fedprox", "local"} <= set(registry())
    assert list(registry()) == sorted(registry())
    assert all(kind.name == name for name, kind in registry().items())


def test_find() -> None:
    assert find("fedavg") is registry()["fedavg"]
    assert find(f"{__name__}:Mine").__name__ == "Mine"
    with pytest.raises(ConfigError, match="Did you mean 'fedavg'"):
        find("fedavgg")
    with pytest.raises(ConfigError, match=r"--trust no\.such\.module:Thing"):
        find("no.such.module:Thing")
    trust("no.such")
    with pytest.raises(ConfigError, match=r"no module 'no\.such\.module' .*or install it\."):
        find("no.such.module:Thing")
    with pytest.raises(ConfigError, match="has no 'Nothing'; name a class that it defines"):
        find(f"{__name__}:Nothing")
    with pytest.raises(ConfigError, match="not a subclass"):
        find(f"{__name__}:pytest")


def test_make_checks_options() -> None:
    assert make("fedprox", {"mu": 1}).mu == 1.0  # type: ignore[attr-defined]
    assert type(make("fedprox", {"mu": 1}).mu) is float  # type: ignore[attr-defined]
    assert make("fedavg") == make("fedavg", {"weight": "size"})
    with pytest.raises(ConfigError, match=r"algorithm\.muu.*Did you mean 'mu'"):
        make("fedprox", {"muu": 1})
    with pytest.raises(ConfigError, match="has no options"):
        make("local", {"mu": 1})
    with pytest.raises(ConfigError, match="one of 'size', 'equal'"):
        make("fedavg", {"weight": "big"})


def test_make_of_a_users_own() -> None:
    name = f"{__name__}:Mine"
    got: Any = make(name, {"shares": [1, 2], "cap": 3, "on": True, "steps": 4, "mode": "b"})
    assert got == Mine(shares=(1.0, 2.0), cap=3.0, on=True, steps=4, mode="b")
    assert make(name, {"cap": None}).cap is None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="level is negative"):
        make(name, {"level": -1})


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("x", float, "give a number"),
        (True, float, "give a number"),
        (True, int, "give a whole number"),
        (1.5, int, "give a whole number"),
        (1, bool, "give true or false"),
        ({}, tuple[float, ...], "give a list of numbers"),
        (["a"], tuple[float, ...], "give a list of numbers"),
        ([1.0], tuple[float, float], "give a list of 2 numbers"),
        ("c", Literal["a", "b"], "give one of 'a', 'b'"),
        ("x", float | None, "give a number"),
        ([], int | float | str, "give a whole number or a number or a string"),
    ],
)
def test_values_of_the_wrong_kind(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check("algorithm", "mine", {"option": Option(None, "", hint)}, {"option": value})
